//! `torpor down`: it leaves nothing, where a daemon runs and where none does any more, and is not held up by one app after the
//! other.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod python;
mod support;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use python::Place;
use support::{PATIENCE, doze, program};
use torpor_testkit::daemon::{Daemon, binary, leftovers};
use torpor_testkit::wait::{eventually, eventually_ok};

#[test]
fn rests_apps_that_a_daemon_left_behind() {
    let lighttpd = program("lighttpd");
    let mut daemon = Daemon::start().unwrap();
    for app in ["awake", "asleep"] {
        let addresses = daemon.run_program(&lighttpd, app, "[idle]\nsleep = false\ntimers_over = '10m'").unwrap();
        eventually_ok(&format!("{app} answers"), PATIENCE, || lighttpd.connect(addresses[0])).unwrap();
    }
    doze(&daemon, "asleep");
    daemon.term().unwrap();
    let (data, run) = (daemon.data_dir(), daemon.run_dir());
    let dir = data.parent().unwrap();
    let still: Vec<String> = leftovers(&daemon.instance(), &[&run]);
    assert!(!still.is_empty(), "the apps live on without their daemon");
    let config = dir.join("torpor.toml");
    let output = Command::new(binary().unwrap()).arg("down").arg("--config").arg(&config).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(!said.contains("panicked"), "{said}");
    let dirs: [&Path; 1] = [dir];
    assert_eq!(leftovers(&daemon.instance(), &dirs), Vec::<String>::new(), "{said}");
}

/// Ends by SIGKILL only.
const STUBBORN: &str = r"
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print('up')
while True: time.sleep(1000)
";

#[test]
fn apps_that_do_not_end_when_asked_are_waited_for_together() {
    let mut place = Place::with("[idle]\nsleep = false\n");
    let apps = ["one", "two", "three", "four"];
    for app in apps {
        place.run(app, STUBBORN, &[]);
        place.wait_log(app, "up");
    }
    let begun = Instant::now();
    assert_eq!(place.daemon.down().unwrap(), Vec::<String>::new());
    // Each is given ten seconds.
    let took = begun.elapsed();
    assert!(took > Duration::from_secs(9) && took < Duration::from_secs(20), "{took:?}");
    let log = place.daemon.log();
    assert!(log.contains("every app rests") && !log.contains("left as they are"), "{log}");
}

fn cgroup2() -> PathBuf {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let line = mounts.lines().find(|line| line.contains(" - cgroup2 ")).expect("a cgroup v2 mount");
    line.split(' ').nth(4).unwrap().into()
}

#[test]
fn what_a_crash_left_of_an_app_that_was_being_started_goes_too() {
    let mut daemon = Daemon::start().unwrap();
    let group = cgroup2().join(daemon.instance()).join("00000000deadbeef");
    std::fs::create_dir(&group).unwrap();
    let mut process = Command::new("sleep").arg("1000").spawn().unwrap();
    std::fs::write(group.join("cgroup.procs"), process.id().to_string()).unwrap();
    let left = daemon.down();
    // A process leaves its group a moment before its parent can wait for it.
    let killed = eventually("it is killed", PATIENCE, || process.try_wait().unwrap().is_some());
    process.kill().unwrap();
    process.wait().unwrap();
    assert_eq!(left.unwrap(), Vec::<String>::new());
    killed.unwrap();
    assert!(!group.exists());
}

#[test]
fn who_keeps_the_machine_in_use_is_named() {
    let mut daemon = Daemon::start().unwrap();
    let group = cgroup2().join(daemon.instance()).join("support");
    let mut process = Command::new("sleep").arg("1000").spawn().unwrap();
    std::fs::write(group.join("cgroup.procs"), process.id().to_string()).unwrap();
    let config = daemon.data_dir().with_file_name("torpor.toml");
    let output = daemon.cli(&["down", "--config", config.to_str().unwrap()]).unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(process.try_wait().unwrap().is_none(), "a stranger is not killed");
    process.kill().unwrap();
    process.wait().unwrap();
    assert!(!output.status.success() && said.contains(&format!("process {} (sleep)", process.id())), "{said}");
    // And then it can be done.
    assert_eq!(daemon.down().unwrap(), Vec::<String>::new());
}
