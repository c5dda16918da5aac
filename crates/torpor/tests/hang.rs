//! One app whose operation does not end: the kernel does not return from a call. Nobody else waits for it, it is given up at its
//! deadline, and nothing of it is lost.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread::JoinHandle;

use support::{PATIENCE, told, warm};
use torpor_testkit::client::Session;
use torpor_testkit::daemon::{Daemon, leftovers};
use torpor_testkit::native::{self, LineSession};
use torpor_testkit::wait::{eventually, eventually_ok};

const SHORT: &str = "[idle]\nsleep = false\n[deadlines]\nwake = '2s'\nsleep = '2s'\n";

/// A daemon with two apps, of which `check` is to be held up at a step.
struct Held {
    daemon: Daemon,
    pipe: PathBuf,
    /// Of `check`.
    session: Option<LineSession>,
    other: LineSession,
}

type Asked = JoinHandle<(String, LineSession)>;

impl Held {
    fn up_to(step: &str, tables: &str) -> Self {
        let mut daemon = Daemon::start_with(tables, &[]).unwrap();
        let mut run = |name: &str| {
            let memcheck = native::program("memcheck", &["8", "3", "7000", "0"], &[7000]).unwrap();
            let address = daemon.run_program(&memcheck, name, "").unwrap()[0];
            eventually_ok("memcheck answers", PATIENCE, || LineSession::open(address)).unwrap()
        };
        let (session, other) = (Some(run("check")), run("other"));
        let pipe = daemon.data_dir().with_file_name("held");
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        daemon.set_environment("TORPOR_FAULT_PIPE", pipe.to_str());
        support::restart(&mut daemon, Some(&format!("{step}:hang")));
        Self { daemon, pipe, session, other }
    }

    /// A request of `check`, which waits for its answer.
    fn ask(&mut self) -> Asked {
        let mut session = self.session.take().unwrap();
        std::thread::spawn(move || {
            let answer = session.ask().unwrap();
            (answer, session)
        })
    }

    fn state(&self, app: &str) -> String {
        self.daemon.state(app).unwrap()
    }

    fn is(&self, state: &str) {
        let is = eventually_ok(&format!("it is {state}"), PATIENCE, || match self.state("check") {
            now if now == state => Ok(()),
            now => Err(now),
        });
        is.unwrap_or_else(|error| panic!("{error}\n{}\n{}", told(&self.daemon, "check"), self.daemon.log()));
    }

    /// Whatever all apps share answers, and so does the other one, asleep or awake.
    fn nobody_waits(&mut self) {
        let apps = self.daemon.json(&["ps"]).unwrap();
        assert_eq!(apps.as_array().map(Vec::len), Some(2), "{apps}");
        let stats = self.daemon.json(&["stats"]).unwrap();
        assert_eq!(stats.as_array().map(Vec::len), Some(2), "{stats}");
        self.daemon.ok(&["explain", "check"]).unwrap();
        self.daemon.ok(&["doctor"]).unwrap();
        warm(&self.daemon, "other");
        self.other.step().unwrap();
    }

    /// The call returns.
    fn release(&self) {
        std::fs::File::options().write(true).open(&self.pipe).map(drop).unwrap();
    }

    fn answered(&mut self, asked: Asked) {
        let (answer, session) = asked.join().unwrap();
        assert!(answer.starts_with("ok "), "{answer}");
        self.session = Some(session);
    }

    fn event(&self, kind: &str) -> bool {
        let events = self.daemon.ok(&["events", "-n", "50", "--app", "check", "--json"]).unwrap();
        events.lines().any(|line| line.contains(&format!("\"kind\":\"{kind}\"")))
    }
}

#[test]
fn a_wake_that_does_not_end_is_given_up_and_tried_again() {
    for step in ["resume-checked", "resume-built", "resume-released"] {
        let mut held = Held::up_to(step, SHORT);
        warm(&held.daemon, "check");
        let asked = held.ask();
        held.is("waking");
        held.nobody_waits();
        held.is("warm");
        assert!(held.event("overdue"), "{}", told(&held.daemon, "check"));
        // The thread is still there, and nothing else is begun before it has come back.
        let refused = held.daemon.cli(&["wake", "check"]).unwrap();
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && said.contains("held up"), "{step}: {said}");
        held.nobody_waits();
        held.release();
        held.answered(asked);
        held.is("running");
        held.session.as_mut().unwrap().step().unwrap();
        warm(&held.daemon, "check");
        held.session.as_mut().unwrap().step().unwrap();
    }
}

#[test]
fn the_daemon_ends_and_starts_while_a_wake_does_not_end() {
    let mut held = Held::up_to("resume-built", "[idle]\nsleep = false\n");
    warm(&held.daemon, "check");
    let asked = held.ask();
    held.is("waking");
    held.daemon.term().unwrap();
    held.daemon.set_environment("TORPOR_FAULT", None);
    held.daemon.up().unwrap();
    held.answered(asked);
    held.is("running");
    held.nobody_waits();
}

#[test]
fn one_that_dozes_and_is_not_refilled_does_not_answer_and_holds_nobody_up() {
    let mut held = Held::up_to("opened", SHORT);
    support::doze(&held.daemon, "check");
    let asked = held.ask();
    held.is("not-answering");
    held.nobody_waits();
    // Nothing of it is given up, and it is told.
    eventually("the deadline is told", PATIENCE, || held.event("overdue")).unwrap();
    held.is("not-answering");
    held.release();
    held.answered(asked);
    held.is("running");
}

#[test]
fn one_that_dozes_and_is_not_refilled_wakes_at_the_next_daemon() {
    let mut held = Held::up_to("opened", SHORT);
    support::doze(&held.daemon, "check");
    let asked = held.ask();
    eventually("the deadline is told", PATIENCE, || held.event("overdue")).unwrap();
    held.daemon.kill9().unwrap();
    held.daemon.set_environment("TORPOR_FAULT", None);
    held.daemon.up().unwrap();
    held.answered(asked);
    held.is("running");
}

#[test]
fn a_start_that_does_not_end_is_given_up_and_can_be_tried_again() {
    let mut held = Held::up_to("start-prepared", &format!("{SHORT}start = '2s'\n"));
    held.daemon.ok(&["stop", "check"]).unwrap();
    let failed = held.daemon.cli(&["start", "check"]).unwrap();
    let said = String::from_utf8_lossy(&failed.stderr).into_owned();
    assert!(!failed.status.success() && said.contains("starting it has not ended within 2 s"), "{said}");
    assert!(held.event("overdue"));
    held.is("stopped");
    // The thread is still there, and nothing else is begun before it has come back.
    let refused = held.daemon.cli(&["start", "check"]).unwrap();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("held up"), "{said}");
    held.nobody_waits();
    held.release();
    eventually("it starts again", PATIENCE, || held.daemon.cli(&["start", "check"]).unwrap().status.success())
        .unwrap_or_else(|error| panic!("{error}\n{}\n{}", told(&held.daemon, "check"), held.daemon.log()));
    held.is("running");
    let left = held.daemon.down().unwrap();
    assert_eq!(left, Vec::<String>::new());
}

#[test]
fn a_sleep_waits_for_the_wake_that_comes_first() {
    let mut held = Held::up_to("resume-built", "[idle]\nsleep = false\n");
    warm(&held.daemon, "check");
    let asked = held.ask();
    held.is("waking");
    let mut sleeping = held.daemon.command(&["sleep", "check"]).spawn().unwrap();
    held.nobody_waits();
    assert!(sleeping.try_wait().unwrap().is_none(), "it neither sleeps nor is refused while it wakes");
    held.release();
    // The request that woke it is under way when it is to sleep: it is answered, and the sleep may be aborted by it.
    held.answered(asked);
    let status = sleeping.wait().unwrap();
    let counts = support::stats(&held.daemon, "check");
    assert!(status.success() || counts.aborted_sleeps > 0, "{}\n{}", told(&held.daemon, "check"), held.daemon.log());
    let events = held.daemon.ok(&["events", "-n", "50", "--app", "check"]).unwrap();
    let begun = events.lines().filter(|line| line.contains("falling asleep: command")).count();
    // One for going warm, one for this.
    assert_eq!(begun, 2, "{events}");
}

#[test]
fn down_does_not_wait_for_one_that_is_held_up() {
    for step in ["opened", "copied", "resume-built"] {
        let mut held = Held::up_to(step, SHORT);
        let config = held.daemon.data_dir().with_file_name("torpor.toml");
        let command = match step {
            "opened" => {
                support::doze(&held.daemon, "check");
                &["wake", "check"]
            }
            "resume-built" => {
                warm(&held.daemon, "check");
                &["wake", "check"]
            }
            _ => &["sleep", "check"],
        };
        let mut asked = held.daemon.command(command).stderr(Stdio::null()).spawn().unwrap();
        let state = if step == "resume-built" { "waking" } else { "not-answering" };
        held.is(state);
        let down =
            held.daemon.command(&["down", "--timeout", "2m", "--json", "--config", config.to_str().unwrap()]).output();
        let down = down.unwrap();
        let said = format!("{}{}", String::from_utf8_lossy(&down.stdout), String::from_utf8_lossy(&down.stderr));
        assert!(down.status.success(), "{step}: {said}\n{}", held.daemon.log());
        let apps: serde_json::Value = serde_json::from_slice(&down.stdout).unwrap();
        let kept = |name: &str| apps.as_array().unwrap().iter().find(|app| app["app"] == name).unwrap()["kept"].clone();
        assert_eq!(kept("other"), true, "{step}: {said}");
        // What holds it up ends with the daemon, and it is kept as well.
        assert_eq!(kept("check"), true, "{step}: {said}");
        assert!(step == "resume-built" || said.contains("is killed"), "{step}: {said}");
        let dirs = [config.parent().unwrap()];
        assert_eq!(leftovers(&held.daemon.instance(), &dirs), Vec::<String>::new(), "{step}: {said}");
        asked.wait().unwrap();
        held.daemon.set_environment("TORPOR_FAULT", None);
        held.daemon.up().unwrap();
        for app in ["check", "other"] {
            held.daemon.ok(&["wake", app]).unwrap_or_else(|error| panic!("{step}: {error}"));
        }
        assert_eq!(held.daemon.down().unwrap(), Vec::<String>::new());
    }
}

#[test]
fn falling_asleep_that_does_not_end_is_given_up_once_it_can_be() {
    let mut held = Held::up_to("copied", SHORT);
    let mut sleeping = held.daemon.command(&["sleep", "check"]).spawn().unwrap();
    held.is("not-answering");
    assert!(held.event("overdue"));
    let asked = held.ask();
    held.nobody_waits();
    held.release();
    held.answered(asked);
    held.is("running");
    assert!(!sleeping.wait().unwrap().success());
    let explained = held.daemon.ok(&["explain", "check"]).unwrap();
    eventually("it sleeps again", PATIENCE, || held.daemon.cli(&["sleep", "check"]).unwrap().status.success()).unwrap();
    held.session.as_mut().unwrap().step().unwrap_or_else(|error| panic!("{error}\n{explained}"));
}
