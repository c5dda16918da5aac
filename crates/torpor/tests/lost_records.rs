//! Files of the run directory that are lost while no daemon lives: memory that may be wrong is never used, and memory that is right is
//! not given up.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use support::PATIENCE;
use torpor_testkit::client::Session;
use torpor_testkit::daemon::Daemon;
use torpor_testkit::native::{self, LineSession};
use torpor_testkit::wait::{eventually, eventually_ok};

fn memcheck(daemon: &mut Daemon, name: &str) -> (SocketAddr, LineSession) {
    let memcheck = native::program("memcheck", &["8", "3", "7000", "0"], &[7000]).unwrap();
    let address = daemon.run_program(&memcheck, name, "").unwrap()[0];
    (address, eventually_ok("memcheck answers", PATIENCE, || LineSession::open(address)).unwrap())
}

/// The app's directory below `base`.
fn place(daemon: &Daemon, base: &Path, app: &str) -> PathBuf {
    let id = daemon.json(&["inspect", app]).unwrap()["status"]["id"].as_str().unwrap().to_owned();
    base.join("apps").join(id)
}

/// How often an event of this kind was told of the app.
fn told(daemon: &Daemon, app: &str, kind: &str) -> usize {
    let events = daemon.ok(&["events", "-n", "10000", "--app", app]).unwrap();
    events.lines().filter(|line| line.split_whitespace().nth(2) == Some(kind)).count()
}

#[test]
fn an_app_whose_phase_is_lost_goes_on_with_its_own_memory() {
    let mut daemon = Daemon::start_with("[idle]\nsleep = false\n", &[]).unwrap();
    let names = ["awake", "dozing", "warm"];
    let mut sessions = names.map(|name| memcheck(&mut daemon, name).1);
    let phases = names.map(|name| place(&daemon, &daemon.run_dir(), name).join("phase"));
    for damage in ["gone", "empty", "junk"] {
        for session in &mut sessions {
            session.step().unwrap();
        }
        support::doze(&daemon, "dozing");
        support::warm(&daemon, "warm");
        daemon.kill9().unwrap();
        for phase in &phases {
            match damage {
                "gone" => fs::remove_file(phase).unwrap(),
                "empty" => fs::write(phase, "").unwrap(),
                _ => fs::write(phase, [0xff; 40]).unwrap(),
            }
        }
        daemon.up().unwrap();
        // The same processes on the same connections: each step checks all memory.
        for session in &mut sessions {
            session.step().unwrap_or_else(|error| panic!("{damage}: {error}\n{}", daemon.log()));
        }
    }
    assert_eq!(names.map(|name| told(&daemon, name, "started")), [1; 3]);
    assert!(daemon.log().contains("its phase was lost"), "{}", daemon.log());
}

/// Steps at which the daemon is killed: of falling asleep, waking, going warm, and waking from warm.
const ASLEEP: [&str; 8] = ["frozen", "stopped", "synced", "committed", "parked", "dropped", "released", "dozing"];
const AWAKE: [&str; 4] = ["opened", "refilled", "awake", "thawed"];
const WARM: [&str; 8] = ["resident", "roused", "held", "kept", "named", "ending", "ended", "warm"];
const REVIVED: [&str; 6] = ["read", "launched", "built", "frozen", "released", "awake"];

#[test]
fn whenever_the_phase_is_lost_no_program_runs_with_wrong_memory() {
    let mut daemon = Daemon::start_with("[idle]\nsleep = false\n", &[]).unwrap();
    let (address, mut session) = memcheck(&mut daemon, "check");
    let phase = place(&daemon, &daemon.run_dir(), "check").join("phase");
    let data = place(&daemon, &daemon.data_dir(), "check");
    let damaged = || {
        fs::read_dir(&data)
            .unwrap()
            .flatten()
            .filter(|file| file.path().extension().is_some_and(|e| e == "damaged"))
            .count()
    };
    let mut lost = Vec::new();
    let steps = ASLEEP.map(|step| (step.to_owned(), "sleep", "running")).into_iter();
    let steps = steps.chain(AWAKE.map(|step| (step.to_owned(), "wake", "dozing")));
    let steps = steps.chain(WARM.map(|step| (step.to_owned(), "warm", "dozing")));
    for (step, command, from) in steps.chain(REVIVED.map(|step| (format!("revive-{step}"), "wake", "warm"))) {
        match from {
            "dozing" => drop(support::doze(&daemon, "check")),
            "warm" => support::warm(&daemon, "check"),
            _ => {}
        }
        support::restart(&mut daemon, Some(&format!("{step}:kill")));
        daemon.wait_state("check", from, PATIENCE).unwrap();
        let line: &[&str] = match command {
            "sleep" => &["sleep", "check"],
            "warm" => &["sleep", "check", "--level", "warm"],
            _ => &["wake", "check"],
        };
        eventually("the daemon is killed", PATIENCE, || {
            daemon.cli(line).unwrap();
            support::is_dead(&daemon)
        })
        .unwrap();
        daemon.kill9().unwrap();
        fs::remove_file(&phase).unwrap();
        daemon.set_environment("TORPOR_FAULT", None);
        let before = damaged();
        daemon.up().unwrap();
        // Each step checks all memory. Where it cannot be known which memory is right, the program starts from the beginning.
        if let Err(error) = session.step() {
            assert_eq!(damaged(), before + 1, "{step}: {error}\n{}", daemon.log());
            session = eventually_ok("it answers", PATIENCE, || LineSession::open(address)).unwrap();
            session.step().unwrap();
            lost.push(step);
        }
    }
    assert_eq!(told(&daemon, "check", "lost"), lost.len(), "{lost:?}");
    // While memory is being dropped the processes are not frozen.
    assert!(lost.contains(&"parked".to_owned()) && lost.len() < 6, "{lost:?}");
}

#[test]
fn an_app_whose_sandbox_has_no_record_starts_afresh() {
    let mut daemon = Daemon::start_with("[idle]\nsleep = false\n", &[]).unwrap();
    let names = ["awake", "dozing", "warm"];
    let mut apps = names.map(|name| memcheck(&mut daemon, name));
    support::doze(&daemon, "dozing");
    support::warm(&daemon, "warm");
    let runs = names.map(|name| place(&daemon, &daemon.run_dir(), name));
    daemon.kill9().unwrap();
    fs::remove_file(runs[0].join("sandbox.json")).unwrap();
    fs::remove_file(runs[1].join("sandbox.json")).unwrap();
    // All that says where its init is.
    fs::remove_dir_all(&runs[2]).unwrap();
    daemon.up().unwrap();
    for (name, (address, session)) in names.iter().zip(&mut apps) {
        assert!(session.step().is_err(), "{name}: its processes were ended");
        *session = eventually_ok("it answers", PATIENCE, || LineSession::open(*address))
            .unwrap_or_else(|error| panic!("{name}: {error}\n{}", daemon.log()));
        session.step().unwrap();
    }
    assert_eq!(names.map(|name| told(&daemon, name, "lost")), [0, 1, 0]);
    // The image of the warm one needs no record.
    assert_eq!(names.map(|name| told(&daemon, name, "started")), [2, 2, 1]);
    assert_eq!(daemon.down().unwrap(), Vec::<String>::new());
}
