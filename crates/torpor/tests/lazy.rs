//! Wakes before all memory is back: the worker or the keeper is killed, the image is damaged, or the app is told something else meanwhile.
//! The program changes its memory in every way, forks, and checks all of it by itself.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::thread::JoinHandle;

use support::{PATIENCE, is_dead, keeper, kill, restart, sleep};
use torpor_testkit::Error;
use torpor_testkit::client::Session;
use torpor_testkit::daemon::Daemon;
use torpor_testkit::native::{self, LineSession};
use torpor_testkit::wait::{eventually, eventually_ok};

/// A daemon with `changer` as the app `check`, which sleeps on command only, and a connection to it.
fn changer(megabytes: &str) -> (Daemon, SocketAddr, LineSession) {
    let mut daemon = Daemon::start_with("[idle]\nsleep = false\n", &[]).unwrap();
    let changer = native::program("changer", &[megabytes, "7000"], &[7000]).unwrap();
    let address = daemon.run_program(&changer, "check", "").unwrap()[0];
    let session = eventually_ok("it answers", PATIENCE, || LineSession::open(address)).unwrap();
    (daemon, address, session)
}

/// Changes its memory in every way.
const CHANGE: &str = "change";
/// Forks while most of it is missing.
const FORK: &str = "forks 40";

/// Tells it what to do; the answer comes when it has woken, and the connection with it.
fn tell(mut session: LineSession, words: &'static str) -> JoinHandle<Result<LineSession, Error>> {
    std::thread::spawn(move || session.tell(words).map(|_| session))
}

/// What makes it come to a step.
fn words_for(step: &str) -> &'static str {
    if step.starts_with("lazy-forked") || step.starts_with("lazy-parked") { FORK } else { CHANGE }
}

fn answered(asked: JoinHandle<Result<LineSession, Error>>, daemon: &Daemon, when: &str) -> LineSession {
    asked.join().unwrap().unwrap_or_else(|error| panic!("{when}: {error}\n{}", daemon.log()))
}

/// Its image is gone: all of its memory is back.
fn assert_whole(daemon: &Daemon, when: &str) {
    eventually_ok(&format!("{when}: nothing is left of the wake"), PATIENCE, || match images(daemon) {
        left if left.is_empty() => Ok(()),
        left => Err(format!("{left:?}")),
    })
    .unwrap_or_else(|error| panic!("{error}\n{}", daemon.log()));
}

fn images(daemon: &Daemon) -> Vec<PathBuf> {
    let id = daemon.json(&["inspect", "check"]).unwrap()["status"]["id"].as_str().unwrap().to_owned();
    let files = std::fs::read_dir(daemon.data_dir().join("apps").join(id)).unwrap().map(|entry| entry.unwrap().path());
    files.filter(|path| path.extension().is_some_and(|end| end == "image")).collect()
}

fn events(daemon: &Daemon) -> String {
    daemon.ok(&["events", "--app", "check"]).unwrap()
}

#[test]
fn the_worker_is_killed_while_memory_is_missing() {
    let (mut daemon, _, mut session) = changer("32");
    for step in
        ["lazy-round:kill", "lazy-round:kill:3", "lazy-round:kill:40", "lazy-complete:kill", "lazy-recorded:kill"]
    {
        restart(&mut daemon, Some(step));
        sleep(&daemon, "check", &[]);
        let asked = tell(session, CHANGE);
        eventually("the worker is killed", PATIENCE, || is_dead(&daemon)).unwrap();
        daemon.kill9().unwrap();
        daemon.set_environment("TORPOR_FAULT", None);
        daemon.up().unwrap();
        session = answered(asked, &daemon, step);
        assert_whole(&daemon, step);
        assert!(!events(&daemon).contains("lost"), "{step}: {}", events(&daemon));
        sleep(&daemon, "check", &[]);
        session.step().unwrap();
    }
}

#[test]
fn the_worker_is_killed_again_and_again_while_memory_is_missing() {
    let (mut daemon, _, mut session) = changer("64");
    restart(&mut daemon, Some("lazy-round:kill:2"));
    sleep(&daemon, "check", &[]);
    let asked = tell(session, CHANGE);
    for _ in 0..5 {
        eventually("the worker is killed", PATIENCE, || is_dead(&daemon)).unwrap();
        daemon.kill9().unwrap();
        daemon.up_at_once().unwrap();
    }
    eventually("the worker is killed", PATIENCE, || is_dead(&daemon)).unwrap();
    daemon.kill9().unwrap();
    daemon.set_environment("TORPOR_FAULT", None);
    daemon.up().unwrap();
    session = answered(asked, &daemon, "killed six times");
    assert_whole(&daemon, "killed six times");
    sleep(&daemon, "check", &[]);
    session.step().unwrap();
}

#[test]
fn a_worker_that_is_killed_as_a_process_forks_loses_the_app_by_name() {
    let (mut daemon, address, session) = changer("32");
    restart(&mut daemon, Some("lazy-forked:kill"));
    sleep(&daemon, "check", &[]);
    let asked = tell(session, FORK);
    eventually("the worker is killed", PATIENCE, || is_dead(&daemon)).unwrap();
    daemon.kill9().unwrap();
    daemon.set_environment("TORPOR_FAULT", None);
    daemon.up().unwrap();
    assert!(asked.join().unwrap().is_err(), "it answered");
    let mut session = eventually_ok("it starts afresh", PATIENCE, || LineSession::open(address)).unwrap();
    assert!(events(&daemon).contains("lost"), "{}", events(&daemon));
    sleep(&daemon, "check", &[]);
    session.step().unwrap();
}

#[test]
fn an_error_while_memory_is_missing_leaves_it_whole() {
    let (mut daemon, _, mut session) = changer("32");
    for step in ["lazy-forked:error", "lazy-parked:error", "lazy-complete:error", "lazy-recorded:error"] {
        restart(&mut daemon, Some(step));
        sleep(&daemon, "check", &[]);
        session.tell(words_for(step)).unwrap_or_else(|error| panic!("{step}: {error}\n{}", daemon.log()));
        assert_whole(&daemon, step);
    }
}

#[test]
fn the_keeper_is_killed_while_memory_is_missing() {
    let (mut daemon, _, mut session) = changer("32");
    for step in ["lazy-round:keeper", "lazy-round:keeper:20", "lazy-forked:keeper", "lazy-complete:keeper"] {
        restart(&mut daemon, Some(step));
        let before = keeper(&daemon);
        sleep(&daemon, "check", &[]);
        session.tell(words_for(step)).unwrap_or_else(|error| panic!("{step}: {error}\n{}", daemon.log()));
        eventually("there is a new keeper", PATIENCE, || keeper(&daemon).is_some_and(|new| Some(new) != before))
            .unwrap();
        assert_whole(&daemon, step);
    }
}

#[test]
fn worker_and_keeper_are_killed_while_memory_is_missing() {
    let (mut daemon, _, mut session) = changer("64");
    for step in ["lazy-round:kill", "lazy-round:kill:30", "lazy-parked:kill:3"] {
        restart(&mut daemon, Some(step));
        sleep(&daemon, "check", &[]);
        let before = keeper(&daemon).unwrap();
        let asked = tell(session, words_for(step));
        eventually("the worker is killed", PATIENCE, || is_dead(&daemon)).unwrap();
        daemon.kill9().unwrap();
        kill(before);
        eventually("the keeper has ended", PATIENCE, || keeper(&daemon).is_none()).unwrap();
        // It does not answer from zeros: it waits.
        assert!(!asked.is_finished(), "{step}");
        daemon.set_environment("TORPOR_FAULT", None);
        daemon.up().unwrap();
        session = answered(asked, &daemon, step);
        assert_whole(&daemon, step);
        assert!(!events(&daemon).contains("lost"), "{step}: {}", events(&daemon));
        sleep(&daemon, "check", &[]);
        session.step().unwrap();
    }
}

#[test]
fn damage_that_is_found_while_it_runs_ends_it_by_name() {
    let (daemon, address, session) = changer("32");
    sleep(&daemon, "check", &[]);
    let path = images(&daemon).remove(0);
    let mut bytes = std::fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x10;
    std::fs::write(&path, bytes).unwrap();
    assert!(tell(session, CHANGE).join().unwrap().is_err(), "it answered from a damaged image");
    let mut session = eventually_ok("it starts afresh", PATIENCE, || LineSession::open(address)).unwrap();
    let events = events(&daemon);
    assert!(events.contains("lost") && events.contains("the pages at"), "{events}");
    sleep(&daemon, "check", &[]);
    session.step().unwrap();
}

#[test]
fn hundreds_of_children_are_forked_while_memory_is_missing() {
    let (daemon, _, mut session) = changer("64");
    for _ in 0..3 {
        sleep(&daemon, "check", &[]);
        session.tell("forks 500").unwrap_or_else(|error| panic!("{error}\n{}", daemon.log()));
        assert_whole(&daemon, "five hundred children");
    }
}

#[test]
fn a_sleep_waits_for_what_is_missing() {
    let (daemon, _, mut session) = changer("64");
    for round in 0..10 {
        sleep(&daemon, "check", &[]);
        let asked = tell(session, CHANGE);
        daemon.wait_state("check", "running", PATIENCE).unwrap();
        // It is at work, and its memory comes.
        let level = if round % 2 == 0 { &["--level", "warm"][..] } else { &[] };
        sleep(&daemon, "check", level);
        session = answered(asked, &daemon, "slept again");
        session.step().unwrap();
    }
}

#[test]
fn an_app_can_be_stopped_while_memory_is_missing() {
    let (daemon, address, session) = changer("64");
    sleep(&daemon, "check", &[]);
    let asked = tell(session, CHANGE);
    daemon.wait_state("check", "running", PATIENCE).unwrap();
    daemon.ok(&["stop", "check"]).unwrap();
    drop(asked.join().unwrap());
    assert_whole(&daemon, "stopped");
    daemon.ok(&["start", "check"]).unwrap();
    let session = eventually_ok("it answers", PATIENCE, || LineSession::open(address)).unwrap();
    sleep(&daemon, "check", &[]);
    let asked = tell(session, CHANGE);
    daemon.wait_state("check", "running", PATIENCE).unwrap();
    daemon.ok(&["rm", "-f", "check"]).unwrap();
    drop(asked.join().unwrap());
}

#[test]
fn the_daemon_ends_and_goes_down_while_memory_is_missing() {
    let (mut daemon, _, mut session) = changer("64");
    sleep(&daemon, "check", &[]);
    let asked = tell(session, CHANGE);
    daemon.wait_state("check", "running", PATIENCE).unwrap();
    daemon.term().unwrap();
    daemon.up().unwrap();
    session = answered(asked, &daemon, "the daemon ended");
    assert_whole(&daemon, "the daemon ended");
    sleep(&daemon, "check", &[]);
    let asked = tell(session, CHANGE);
    daemon.wait_state("check", "running", PATIENCE).unwrap();
    assert_eq!(daemon.down().unwrap(), [""; 0]);
    daemon.up().unwrap();
    // Connections end with a sandbox; the app goes on.
    drop(asked.join().unwrap());
    assert!(!events(&daemon).contains("lost"), "{}", events(&daemon));
}
