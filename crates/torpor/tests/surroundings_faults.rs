//! A wake after a power cut first puts back what lies around processes: memory file systems, System V objects. When it fails half-way,
//! or the worker or its keeper is killed there, the app is warm as before, nothing runs, and the next wake finds all of it, once.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod python;
mod support;

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use python::Place;
use support::{PATIENCE, is_dead, keeper, say, told, warm};
use torpor_testkit::daemon::Daemon;
use torpor_testkit::native;
use torpor_testkit::wait::{eventually, eventually_ok};

const APP: &str = "around";

fn ask(daemon: &Daemon, at: SocketAddr) -> String {
    let answer = eventually_ok("it answers", PATIENCE, || match native::read_all(at) {
        Ok(answer) if !answer.is_empty() => Ok(answer),
        other => Err(format!("{other:?}")),
    });
    answer.unwrap_or_else(|error| panic!("{error}\n{}\n{}", told(daemon, APP), daemon.log()))
}

/// The directory of the one app.
fn directory(daemon: &Daemon) -> PathBuf {
    let apps = daemon.data_dir().join("apps");
    apps.join(&python::names(&apps)[0])
}

/// Processes in the app's cgroup: those of the app itself, by what `/proc` says.
fn processes(daemon: &Daemon) -> Vec<String> {
    let id = directory(daemon).file_name().unwrap().to_str().unwrap().to_owned();
    let group = format!("/{}/{id}", daemon.instance());
    let is_its = |pid: &String| {
        let groups = fs::read_to_string(Path::new("/proc").join(pid).join("cgroup")).unwrap_or_default();
        groups.lines().any(|line| line.ends_with(&group))
    };
    python::names(Path::new("/proc")).into_iter().filter(is_its).collect()
}

/// It is a complete image, whether or not a wake has begun to set it aside.
fn has_image(daemon: &Daemon) -> bool {
    python::names(&directory(daemon)).iter().any(|name| name.ends_with(".image") || name.ends_with(".image.woken"))
}

/// Goes warm, and the machine starts anew with a fault for the first wake.
fn reboot(daemon: &mut Daemon, fault: &str) {
    warm(daemon, APP);
    daemon.power_off().unwrap();
    daemon.set_environment("TORPOR_FAULT", Some(fault));
    daemon.up().unwrap();
    assert_eq!(daemon.state(APP).unwrap(), "warm", "{fault}: {}", daemon.log());
}

/// What is put back, and when: behind the first object, behind some, and behind all segments and open files; and in the middle of the
/// contents of a file, of a segment, and of a process's memory. Of four files with 1, 300001, 600001 and 900001 bytes there are 1, 2,
/// 3 and 4 pieces of 256 KiB; of each of three segments 3; of the process's memory at least as many as it has MiB.
const STEPS: [&str; 9] = [
    "tmpfs-restored:1",
    "tmpfs-restored:5",
    "piece:2",
    "ipc-restored:1",
    "ipc-restored:3",
    "ipc-restored:6",
    "piece:12",
    "opened:1",
    "piece:21",
];

/// There the thread that is at work is the owner of the app, whom the keeper does not obey: a fault cannot end it.
const OF_ITS_OWNER: &str = "piece:12";

fn fault(step: &str, action: &str) -> String {
    let (step, count) = step.split_once(':').unwrap();
    format!("resume-{step}:{action}:{count}")
}

#[test]
fn tmpfs_and_ipc_objects_survive_faults_during_a_wake() {
    let mut place = Place::with("[idle]\nsleep = false\n");
    let host = place.daemon.port().unwrap();
    place.run(APP, "ipc_and_tmpfs.py", &["-p", &format!("{host}:80"), "--no-sleep"]);
    let at: SocketAddr = (Ipv4Addr::LOCALHOST, host).into();
    let daemon = &mut place.daemon;
    let before = ask(daemon, at);
    assert!(before.contains("sub/again") && before.matches("\nsem ").count() == 3, "{before}");

    for step in STEPS {
        let when = fault(step, "kill");
        reboot(daemon, &when);
        let asked = std::thread::spawn(move || native::read_all(at));
        eventually(&format!("the worker is killed: {when}"), PATIENCE, || is_dead(daemon)).unwrap();
        daemon.kill9().unwrap();
        eventually_ok(&format!("{when}: nothing of it runs"), PATIENCE, || match processes(daemon) {
            left if left.is_empty() => Ok(()),
            left => Err(format!("{left:?}")),
        })
        .unwrap();
        assert!(has_image(daemon), "{when}: its image is gone");
        daemon.set_environment("TORPOR_FAULT", None);
        daemon.up().unwrap_or_else(|error| panic!("{when}: {error:?}"));
        assert_eq!(ask(daemon, at), before, "{when}");
        // The one who woke it is answered, too, unless he came too early.
        drop(asked.join().unwrap());

        let when = fault(step, "error");
        reboot(daemon, &when);
        let wake = daemon.cli(&["wake", APP]).unwrap();
        let said = python::said(&wake);
        assert!(!wake.status.success() && said.contains("fault asked for"), "{when}: {said}");
        // By itself or for us: it is tried again.
        assert_eq!(ask(daemon, at), before, "{when}");

        if step == OF_ITS_OWNER {
            continue;
        }
        let when = fault(step, "keeper");
        reboot(daemon, &when);
        let old = keeper(daemon);
        assert_eq!(ask(daemon, at), before, "{when}");
        eventually("there is a new keeper", PATIENCE, || keeper(daemon).is_some_and(|now| Some(now) != old)).unwrap();
        // And as any other sleep, in a home that stays.
        warm(daemon, APP);
        assert_eq!(ask(daemon, at), before, "{when}, asleep again");
        daemon.term().unwrap();
        daemon.set_environment("TORPOR_FAULT", None);
        daemon.up().unwrap();
    }
    say(&format!("surroundings: {} faults, each followed by a wake that found all of it", STEPS.len() * 3 - 1));
}
