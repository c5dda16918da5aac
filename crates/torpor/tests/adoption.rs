//! A daemon that ends, or that lacks what it needs, while it adopts apps: they stay as they are, and the next attempt adopts them.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, prlimit};
use support::{PATIENCE, memcheck};
use torpor_testkit::client::Session;
use torpor_testkit::daemon::Daemon;
use torpor_testkit::wait::eventually;

const LEVELS: [&str; 3] = ["running", "dozing", "warm"];

/// Starts the daemon, which stands still at the beginning of an adoption until somebody writes to the pipe.
fn hold_adoption(daemon: &mut Daemon) -> PathBuf {
    let pipe = daemon.data_dir().with_file_name("held");
    if !pipe.exists() {
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    }
    daemon.set_environment("TORPOR_FAULT_PIPE", pipe.to_str());
    daemon.set_environment("TORPOR_FAULT", Some("adopt-begun:hang"));
    let held = lines(daemon, "waiting at a pipe");
    daemon.up_at_once().unwrap();
    daemon.set_environment("TORPOR_FAULT", None);
    wait_line(daemon, "waiting at a pipe", held);
    pipe
}

fn release(pipe: &PathBuf) {
    fs::File::options().write(true).open(pipe).map(drop).unwrap();
}

/// How often this is in the whole log.
fn lines(daemon: &Daemon, text: &str) -> usize {
    fs::read_to_string(daemon.data_dir().with_file_name("log")).unwrap().matches(text).count()
}

/// Waits until this was logged once more.
fn wait_line(daemon: &Daemon, text: &str, before: usize) {
    eventually(text, PATIENCE, || lines(daemon, text) > before)
        .unwrap_or_else(|error| panic!("{text}: {error}\n{}", daemon.log()));
}

fn pid(daemon: &Daemon) -> Pid {
    Pid::from_raw(daemon.pid().unwrap().cast_signed()).unwrap()
}

fn bring(daemon: &Daemon, level: &str) {
    match level {
        "dozing" => drop(support::doze(daemon, "check")),
        "warm" => support::warm(daemon, "check"),
        _ => {}
    }
}

#[test]
fn a_daemon_that_is_told_to_end_while_it_adopts_loses_nothing() {
    let (mut daemon, _, mut session) = memcheck("4");
    // What it does not end in its time, the runtime cuts off.
    for (level, until) in LEVELS.map(|level| (level, "told to end by SIGTERM")).into_iter().chain([
        ("dozing", "takes too long, and is given up"),
        ("warm", "takes too long, and is given up"),
        ("warm", "ended; apps are left as they are"),
    ]) {
        bring(&daemon, level);
        daemon.term().unwrap();
        let pipe = hold_adoption(&mut daemon);
        let before = lines(&daemon, until);
        kill_process(pid(&daemon), Signal::TERM).unwrap();
        wait_line(&daemon, until, before);
        release(&pipe);
        daemon.term().unwrap();
        daemon.up().unwrap();
        // The same processes on the same connection; each step checks all memory.
        session.step().unwrap_or_else(|error| panic!("{level}, {until}: {error}\n{}", daemon.log()));
    }
}

#[test]
fn an_app_that_cannot_be_adopted_for_want_of_descriptors_is_left_alone_and_tried_again() {
    let (mut daemon, _, mut session) = memcheck("4");
    let mut left_alone = 0;
    for level in LEVELS {
        for more in [0, 1, 2, 3, 5, 8, 13] {
            bring(&daemon, level);
            daemon.term().unwrap();
            let pipe = hold_adoption(&mut daemon);
            let fds = fs::read_dir(format!("/proc/{}/fd", daemon.pid().unwrap())).unwrap().flatten();
            let taken: Vec<u64> = fds.map(|fd| fd.file_name().to_str().unwrap().parse().unwrap()).collect();
            // So many descriptors can still be opened.
            let limit = (0..).filter(|fd| !taken.contains(fd)).nth(more);
            let whole = getrlimit(Resource::Nofile);
            let done = lines(&daemon, "taken over app=");
            let refused = lines(&daemon, "cannot be adopted now");
            let few = Rlimit { current: limit, maximum: whole.maximum };
            let daemons = prlimit(Some(pid(&daemon)), Resource::Nofile, few).unwrap();
            release(&pipe);
            wait_line(&daemon, "taken over app=", done);
            left_alone += lines(&daemon, "cannot be adopted now") - refused;
            prlimit(Some(pid(&daemon)), Resource::Nofile, daemons).unwrap();
            // The same processes on the same connection; each step checks all memory.
            session.step().unwrap_or_else(|error| panic!("{level}, {more}: {error}\n{}", daemon.log()));
        }
    }
    assert!(left_alone >= LEVELS.len(), "{left_alone}\n{}", daemon.log());
}

#[test]
fn an_app_that_cannot_be_adopted_is_shown_with_the_reason_and_can_be_stopped() {
    let (mut daemon, _, mut session) = memcheck("4");
    support::warm(&daemon, "check");
    daemon.term().unwrap();
    daemon.set_environment("TORPOR_FAULT", Some("adopt-begun:error:1"));
    daemon.up().unwrap();
    // The fault comes once: the next attempt adopts it.
    daemon.wait_state("check", "warm", PATIENCE).unwrap();
    session.step().unwrap();
    assert_eq!(lines(&daemon, "adopted after all"), 1, "{}", daemon.log());

    support::warm(&daemon, "check");
    daemon.kill9().unwrap();
    daemon.set_environment("TORPOR_FAULT", None);
    // As long as its record cannot be opened, nothing can be told of the app.
    let id = fs::read_dir(daemon.data_dir().join("apps")).unwrap().flatten().next().unwrap().file_name();
    let path = daemon.run_dir().join("apps").join(&id).join("sandbox.json");
    let record = fs::read(&path).unwrap();
    fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink(&path, &path).unwrap();
    daemon.up().unwrap();
    daemon.wait_state("check", "adopting", PATIENCE).unwrap();
    let explained = daemon.ok(&["explain", "check"]).unwrap();
    assert!(explained.contains("cannot adopt it") && explained.contains("torpor stop"), "{explained}");
    assert!(daemon.ok(&["sleep", "check"]).is_err());
    fs::remove_file(&path).unwrap();
    fs::write(&path, record).unwrap();
    daemon.ok(&["wake", "check"]).unwrap();
    session.step().unwrap();

    support::warm(&daemon, "check");
    daemon.kill9().unwrap();
    fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink(&path, &path).unwrap();
    daemon.up().unwrap();
    daemon.wait_state("check", "adopting", PATIENCE).unwrap();
    daemon.ok(&["stop", "check"]).unwrap();
    assert_eq!(daemon.state("check").unwrap(), "stopped");
    let kept = fs::read_dir(daemon.data_dir().join("apps").join(&id)).unwrap().flatten();
    assert_eq!(kept.filter(|file| file.path().extension().is_some_and(|kind| kind == "damaged")).count(), 1);
    daemon.ok(&["rm", "check"]).unwrap();
}
