//! Wakes before all memory is back: the worker or the keeper is killed, the image is damaged, or the app is told something else meanwhile.
//! The program changes its memory in every way, forks, and checks all of it by itself.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::thread::JoinHandle;

use support::{HIBERNATING, PATIENCE, is_dead, keeper, kill, restart, sleep};
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

/// Arguments of `torpor sleep`.
const LEVELS: [&[&str]; 2] = [&[], &["--level", "warm"]];
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
    let said = || daemon.ok(&["logs", "check"]).unwrap_or_default();
    asked.join().unwrap().unwrap_or_else(|error| panic!("{when}: {error}\n{}\n{}", said(), daemon.log()))
}

/// Asks it once more.
fn step(session: &mut LineSession, daemon: &Daemon) {
    let said = || daemon.ok(&["logs", "check"]).unwrap_or_default();
    session.step().unwrap_or_else(|error| panic!("{error}\n{}\n{}", said(), daemon.log()));
}

/// The worker is killed by its fault.
fn killed(daemon: &Daemon) {
    let said = || daemon.ok(&["logs", "check"]).unwrap_or_default();
    eventually("the worker is killed", PATIENCE, || is_dead(daemon))
        .unwrap_or_else(|error| panic!("{error}\n{}", said()));
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
    // Also one that a wake from warm has consumed.
    files.filter(|path| path.to_string_lossy().contains(".image")).collect()
}

fn events(daemon: &Daemon) -> String {
    daemon.ok(&["events", "--app", "check"]).unwrap()
}

#[test]
fn the_worker_is_killed_while_memory_is_missing() {
    let (mut daemon, _, mut session) = changer("32");
    let steps =
        ["lazy-round:kill", "lazy-round:kill:3", "lazy-round:kill:40", "lazy-complete:kill", "lazy-recorded:kill"];
    for (level, fault) in LEVELS.into_iter().flat_map(|level| steps.map(|fault| (level, fault))) {
        restart(&mut daemon, Some(fault));
        sleep(&daemon, "check", level);
        let asked = tell(session, CHANGE);
        eventually("the worker is killed", PATIENCE, || is_dead(&daemon)).unwrap();
        daemon.kill9().unwrap();
        daemon.set_environment("TORPOR_FAULT", None);
        daemon.up().unwrap();
        session = answered(asked, &daemon, fault);
        assert_whole(&daemon, fault);
        assert!(!events(&daemon).contains("lost"), "{fault}: {}", events(&daemon));
        sleep(&daemon, "check", &[]);
        step(&mut session, &daemon);
        // Or the next worker would come to its fault at once.
        assert_whole(&daemon, fault);
    }
}

#[test]
fn the_worker_is_killed_again_and_again_while_memory_is_missing() {
    let (mut daemon, _, mut session) = changer("64");
    restart(&mut daemon, Some("lazy-round:kill:2"));
    sleep(&daemon, "check", &[]);
    let asked = tell(session, CHANGE);
    for _ in 0..5 {
        killed(&daemon);
        daemon.kill9().unwrap();
        daemon.up_at_once().unwrap();
    }
    killed(&daemon);
    daemon.kill9().unwrap();
    daemon.set_environment("TORPOR_FAULT", None);
    daemon.up().unwrap();
    session = answered(asked, &daemon, "killed six times");
    assert_whole(&daemon, "killed six times");
    sleep(&daemon, "check", &[]);
    step(&mut session, &daemon);
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
    step(&mut session, &daemon);
}

#[test]
fn an_error_while_memory_is_missing_leaves_it_whole() {
    let (mut daemon, _, mut session) = changer("32");
    let steps = ["lazy-forked:error", "lazy-parked:error", "lazy-complete:error", "lazy-recorded:error"];
    for (level, fault) in LEVELS.into_iter().flat_map(|level| steps.map(|fault| (level, fault))) {
        restart(&mut daemon, Some(fault));
        sleep(&daemon, "check", level);
        session.tell(words_for(fault)).unwrap_or_else(|error| panic!("{fault}: {error}\n{}", daemon.log()));
        assert_whole(&daemon, fault);
    }
}

#[test]
fn the_keeper_is_killed_while_memory_is_missing() {
    let (mut daemon, _, mut session) = changer("32");
    let steps = ["lazy-round:keeper", "lazy-round:keeper:20", "lazy-forked:keeper", "lazy-complete:keeper"];
    for (level, fault) in LEVELS.into_iter().flat_map(|level| steps.map(|fault| (level, fault))) {
        restart(&mut daemon, Some(fault));
        let before = keeper(&daemon);
        sleep(&daemon, "check", level);
        session.tell(words_for(fault)).unwrap_or_else(|error| panic!("{fault}: {error}\n{}", daemon.log()));
        eventually("there is a new keeper", PATIENCE, || keeper(&daemon).is_some_and(|new| Some(new) != before))
            .unwrap();
        assert_whole(&daemon, fault);
    }
}

#[test]
fn worker_and_keeper_are_killed_while_memory_is_missing() {
    let (mut daemon, _, mut session) = changer("64");
    let steps = ["lazy-round:kill", "lazy-round:kill:30", "lazy-parked:kill:3"];
    for (level, fault) in LEVELS.into_iter().flat_map(|level| steps.map(|fault| (level, fault))) {
        restart(&mut daemon, Some(fault));
        sleep(&daemon, "check", level);
        let before = keeper(&daemon).unwrap();
        let asked = tell(session, words_for(fault));
        eventually("the worker is killed", PATIENCE, || is_dead(&daemon)).unwrap();
        daemon.kill9().unwrap();
        kill(before);
        eventually("the keeper has ended", PATIENCE, || keeper(&daemon).is_none()).unwrap();
        // It does not answer from zeros. What it needs may have been there.
        let waits = !asked.is_finished();
        assert!(waits || fault != steps[0], "{fault}");
        daemon.set_environment("TORPOR_FAULT", None);
        daemon.up().unwrap();
        session = answered(asked, &daemon, fault);
        assert_whole(&daemon, fault);
        assert!(!events(&daemon).contains("lost"), "{fault}: {}", events(&daemon));
        sleep(&daemon, "check", &[]);
        step(&mut session, &daemon);
        // Or the next worker would come to its fault at once.
        assert_whole(&daemon, fault);
    }
}

#[test]
fn damage_that_is_found_while_it_runs_ends_it_by_name() {
    for level in LEVELS {
        let (daemon, address, session) = changer("32");
        sleep(&daemon, "check", level);
        let path = images(&daemon).remove(0);
        let mut bytes = std::fs::read(&path).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 0x10;
        std::fs::write(&path, bytes).unwrap();
        assert!(tell(session, CHANGE).join().unwrap().is_err(), "it answered from a damaged image");
        let mut session = eventually_ok("it starts afresh", PATIENCE, || LineSession::open(address)).unwrap();
        let events = events(&daemon);
        assert!(events.contains("lost") && events.contains("the pages at"), "{events}");
        sleep(&daemon, "check", level);
        step(&mut session, &daemon);
    }
}

#[test]
fn hundreds_of_children_are_forked_while_memory_is_missing() {
    let (daemon, _, mut session) = changer("64");
    for level in LEVELS.into_iter().chain(LEVELS) {
        sleep(&daemon, "check", level);
        session.tell("forks 500").unwrap_or_else(|error| panic!("{error}\n{}", daemon.log()));
        assert_whole(&daemon, "five hundred children");
    }
}

#[test]
fn an_area_that_is_split_while_memory_is_missing_is_one_area_again() {
    let (daemon, _, mut session) = changer("64");
    for level in LEVELS.into_iter().chain(LEVELS) {
        sleep(&daemon, "check", level);
        session
            .tell("split")
            .unwrap_or_else(|error| panic!("{level:?}: {error}\n{}", daemon.ok(&["logs", "check"]).unwrap()));
        assert_whole(&daemon, "split");
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
        step(&mut session, &daemon);
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

#[test]
fn the_worker_is_killed_while_an_app_goes_warm_that_misses_memory() {
    let (mut daemon, _, mut session) = changer("32");
    for step in HIBERNATING {
        restart(&mut daemon, Some(&format!("{step}:kill")));
        // There is nobody who answers it.
        let _ = daemon.cli(&["sleep", "check", "--level", "warm"]);
        killed(&daemon);
        daemon.kill9().unwrap();
        daemon.set_environment("TORPOR_FAULT", None);
        daemon.up().unwrap();
        session.tell(CHANGE).unwrap_or_else(|error| panic!("{step}: {error}\n{}", daemon.log()));
        assert_whole(&daemon, step);
        assert!(!events(&daemon).contains("lost"), "{step}: {}", events(&daemon));
    }
}

#[test]
fn an_error_while_an_app_goes_warm_that_misses_memory_leaves_it_whole() {
    let (mut daemon, _, mut session) = changer("32");
    for step in HIBERNATING {
        restart(&mut daemon, Some(&format!("{step}:error")));
        let _ = daemon.cli(&["sleep", "check", "--level", "warm"]);
        session.tell(CHANGE).unwrap_or_else(|error| panic!("{step}: {error}\n{}", daemon.log()));
        assert_whole(&daemon, step);
        assert!(!events(&daemon).contains("lost"), "{step}: {}", events(&daemon));
    }
}

#[test]
fn an_image_that_refers_to_a_dozing_image_is_exported_and_imported() {
    let (daemon, address, mut session) = changer("32");
    step(&mut session, &daemon);
    sleep(&daemon, "check", &[]);
    let dozing = std::fs::metadata(&images(&daemon)[0]).unwrap().ino();
    sleep(&daemon, "check", &["--level", "warm"]);
    let warm = images(&daemon);
    assert_eq!(warm.len(), 1, "{warm:?}");
    assert_eq!(std::fs::metadata(&warm[0]).unwrap().ino(), dozing, "it is the same file");
    daemon.ok(&["image", "verify", warm[0].to_str().unwrap()]).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let archive = folder.path().join("check.torpor");
    daemon.ok(&["image", "export", "check", "-o", archive.to_str().unwrap()]).unwrap();
    daemon.ok(&["rm", "-f", "check"]).unwrap();
    daemon.ok(&["image", "import", archive.to_str().unwrap(), "--yes"]).unwrap();
    let mut session = eventually_ok("it answers", PATIENCE, || LineSession::open(address)).unwrap();
    step(&mut session, &daemon);
    assert_whole(&daemon, "imported");
}
