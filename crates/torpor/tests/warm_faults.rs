//! Nothing is lost when something fails on the way to warm and back: at each step there is an error, or the worker or its keeper
//! is killed. The program in the sandbox checks all of its memory by itself.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::net::SocketAddr;

use support::{HIBERNATING, PATIENCE, is_dead, keeper, kill, memcheck, restart, told, warm};
use torpor_testkit::client::Session;
use torpor_testkit::daemon::Daemon;
use torpor_testkit::native::LineSession;
use torpor_testkit::wait::{eventually, eventually_ok};

/// The worker ends, by `kill` or `panic`, when it reaches each step of an operation; a request comes while nobody watches.
fn ends_at(daemon: &mut Daemon, mut session: LineSession, steps: &[&str], how: &str, wakes: bool) -> LineSession {
    for step in steps {
        restart(daemon, Some(&format!("{step}:{how}")));
        if wakes {
            warm(daemon, "check");
        }
        let asked;
        if wakes {
            asked = std::thread::spawn(move || session.ask().map(|answer| (answer, session)));
            eventually(&format!("the worker ends at {step}"), PATIENCE, || is_dead(daemon)).unwrap();
            daemon.kill9().unwrap();
        } else {
            eventually(&format!("the worker ends at {step}"), PATIENCE, || {
                let output = daemon.cli(&["sleep", "check", "--level", "warm"]).unwrap();
                assert!(!output.status.success(), "{step}: the worker lives on");
                is_dead(daemon)
            })
            .unwrap();
            daemon.kill9().unwrap();
            asked = std::thread::spawn(move || session.ask().map(|answer| (answer, session)));
        }
        daemon.set_environment("TORPOR_FAULT", None);
        daemon.up().unwrap();
        let answered = asked.join().unwrap();
        let (answer, again) = answered.unwrap_or_else(|error| panic!("{step}: {error}\n{}", daemon.log()));
        session = again;
        assert!(answer.starts_with("ok "), "{step}: {answer}");
        daemon.wait_state("check", "running", PATIENCE).unwrap();
        warm(daemon, "check");
        session.step().unwrap_or_else(|error| panic!("{step}: {error}\n{}", daemon.log()));
    }
    session
}

fn failing_at(daemon: &mut Daemon, mut session: LineSession, steps: &[&str]) -> LineSession {
    for step in steps {
        restart(daemon, Some(&format!("{step}:error")));
        let _may_fail = daemon.cli(&["sleep", "check", "--level", "warm"]).unwrap();
        session.step().unwrap_or_else(|error| panic!("{step}: {error}\n{}", daemon.log()));
        warm(daemon, "check");
        session.step().unwrap_or_else(|error| panic!("{step}: {error}\n{}", daemon.log()));
    }
    session
}

/// Steps of `torpor-engine`, in order: from warm back.
const RESUMING: [&str; 11] = [
    "resume-read",
    "resume-checked",
    "resume-opened",
    "resume-launched",
    "resume-forked",
    "resume-verified",
    "resume-built",
    "resume-frozen",
    "resume-finished",
    "resume-released",
    "resume-awake",
];

#[test]
fn the_worker_is_killed_at_every_step_of_going_warm() {
    let (mut daemon, _, session) = memcheck("8");
    ends_at(&mut daemon, session, &HIBERNATING, "kill", false);
}

#[test]
fn the_worker_is_killed_at_every_step_of_coming_back() {
    let (mut daemon, _, session) = memcheck("8");
    ends_at(&mut daemon, session, &RESUMING, "kill", true);
}

/// A fault of Torpor's own leaves nothing half done: the worker ends at once, as if it had been killed.
#[test]
fn a_panic_ends_the_worker() {
    let (mut daemon, _, session) = memcheck("8");
    let session = ends_at(&mut daemon, session, &["copied", "collected", "ended"], "panic", false);
    ends_at(&mut daemon, session, &["resume-checked", "resume-verified", "resume-awake"], "panic", true);
}

#[test]
fn an_error_at_every_step_leaves_it_whole() {
    let (mut daemon, _, session) = memcheck("8");
    let session = failing_at(&mut daemon, session, &HIBERNATING);
    failing_at(&mut daemon, session, &RESUMING);
}

/// The same program, over the old connection or, where that may have ended, over a new one.
fn still_there(daemon: &Daemon, address: SocketAddr, session: LineSession, may_end: bool, when: &str) -> LineSession {
    let mut session = session;
    match session.ask() {
        Ok(_) => return session,
        Err(error) => assert!(may_end, "{when}: {error}\n{}\n{}", told(daemon, "check"), daemon.log()),
    }
    // The same as before, by what it has in its memory. Its port is open again a moment after it was lost.
    let again = eventually_ok("it is still there", PATIENCE, || session.again(address));
    again.unwrap_or_else(|error| panic!("{when}: {error}\n{}\n{}", told(daemon, "check"), daemon.log()))
}

/// The keeper is killed when the worker reaches each of `steps`. Then a new one is there, and it goes warm as before.
fn without_keeper_at(steps: &[&str], may_end: impl Fn(&str) -> bool) {
    let (mut daemon, address, mut session) = memcheck("8");
    for step in steps {
        let before = keeper(&daemon);
        restart(&mut daemon, Some(&format!("{step}:keeper")));
        eventually("the keeper is killed", PATIENCE, || {
            // It may be refused, and on the way back nothing happens before the first request.
            let _may_fail = daemon.cli(&["sleep", "check", "--level", "warm"]).unwrap();
            if daemon.state("check").unwrap() == "warm" && step.starts_with("resume-") {
                let _checked_below = session.ask();
            }
            keeper(&daemon).is_some_and(|now| Some(now) != before)
        })
        .unwrap();
        session = still_there(&daemon, address, session, may_end(step), step);
        warm(&daemon, "check");
        session = still_there(&daemon, address, session, false, step);
    }
}

/// From here on its open files are with the keeper alone, sooner or later.
fn is_parked(step: &str) -> bool {
    ["files-parked", "named", "ending", "ended", "warm"].contains(&step)
}

#[test]
fn the_keeper_is_killed_at_every_step_of_going_warm() {
    without_keeper_at(&HIBERNATING, is_parked);
}

#[test]
fn the_keeper_is_killed_at_every_step_of_coming_back() {
    without_keeper_at(&RESUMING, |_| false);
}

/// How many of an app's open files the keeper has.
fn parked(daemon: &Daemon, app: &str) -> u32 {
    let id = daemon.json(&["inspect", app]).unwrap()["status"]["id"].as_str().unwrap().to_owned();
    let Ok(keeper) = torpor_keeper::Client::connect(&daemon.run_dir().join("keeper.sock")) else { return 0 };
    let listed = keeper.list(&format!("app/{id}/files")).unwrap_or_default();
    listed.iter().map(|listed| listed.fds).sum()
}

/// Nothing is lost: neither of what is warm, whose few open files the worker has too, nor of what dozes.
#[test]
fn the_keeper_is_killed_while_apps_sleep() {
    let (mut daemon, address, session) = memcheck("8");
    warm(&daemon, "check");
    let before = keeper(&daemon);
    kill(before.unwrap());
    eventually("there is a new keeper", PATIENCE, || keeper(&daemon).is_some_and(|now| Some(now) != before)).unwrap();
    let mut session = still_there(&daemon, address, session, false, "warm");
    daemon.wait_state("check", "running", PATIENCE).unwrap();
    // A worker that does not know it finds its files with the new keeper.
    warm(&daemon, "check");
    let before = keeper(&daemon);
    kill(before.unwrap());
    eventually("there is a new keeper", PATIENCE, || keeper(&daemon).is_some_and(|now| Some(now) != before)).unwrap();
    eventually("its files are there", PATIENCE, || parked(&daemon, "check") > 0).unwrap();
    daemon.kill9().unwrap();
    daemon.up().unwrap();
    session = still_there(&daemon, address, session, false, "warm, taken over");
    eventually_ok("it dozes", PATIENCE, || daemon.ok(&["sleep", "check"])).unwrap();
    let before = keeper(&daemon);
    kill(before.unwrap());
    eventually("there is a new keeper", PATIENCE, || keeper(&daemon).is_some_and(|now| Some(now) != before)).unwrap();
    session = still_there(&daemon, address, session, false, "dozing");
    // What it writes from now on is found by a worker that does not know it yet.
    eventually_ok("it dozes", PATIENCE, || daemon.ok(&["sleep", "check"])).unwrap();
    daemon.kill9().unwrap();
    daemon.up().unwrap();
    assert_eq!(daemon.state("check").unwrap(), "dozing", "{}\n{}", told(&daemon, "check"), daemon.log());
    still_there(&daemon, address, session, false, "dozing, taken over");
}

/// Both are gone at once: nobody has watched it, and the next worker builds it without what was parked.
#[test]
fn worker_and_keeper_are_killed_while_it_is_warm() {
    let (mut daemon, address, session) = memcheck("8");
    warm(&daemon, "check");
    daemon.kill9().unwrap();
    kill(keeper(&daemon).unwrap());
    daemon.up().unwrap();
    let session = still_there(&daemon, address, session, true, "warm");
    warm(&daemon, "check");
    still_there(&daemon, address, session, false, "warm again");
}
