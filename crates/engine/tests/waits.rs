//! Programs that block in every call with a time-out sleep and wake in between, end on time, and see no `EINTR`.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::io::Read;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::Program;
use common::journal::MemoryJournal;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use torpor_engine::{Abort, Freezer, NoFaults, Request, SleepError, Target, WaitHistory, fall_asleep, wake};
use torpor_image::Epoch;
use torpor_store::Store;
use torpor_testkit::stalls::Stalls;

const SECONDS: u64 = 12;
/// As the issue of the time-outs demands; measured by the program itself.
const LATE_US: i64 = 50_000;

fn monotonic() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Sleeps that a run must have at least.
const ENOUGH: u64 = 5;
/// Runs until one is on time but for what the machine itself stood still. What the calls return must be right in each.
const RUNS: u32 = 3;

#[test]
fn calls_with_a_time_out_end_on_time_despite_sleeps_in_between() {
    let mut lateness = Vec::new();
    for _ in 0..RUNS {
        let stalls = Stalls::measure();
        let late = run();
        let stalled = stalls.total().as_micros() as i64;
        lateness.push((late, stalled));
        if late < LATE_US + 2 * stalled {
            return;
        }
    }
    panic!("late, and the machine stood still, by {lateness:?} µs");
}

/// Puts the sleepers to sleep all the time; gives how late the latest of them was, in microseconds.
fn run() -> i64 {
    let sleepers = torpor_testkit::native::executable("sleepers").unwrap();
    let expected = Command::new(&sleepers).arg("list").output().unwrap();
    let expected = String::from_utf8(expected.stdout).unwrap();
    assert!(expected.lines().count() >= 12, "{expected}");

    let mut command = Command::new(&sleepers);
    command.args(["all", &SECONDS.to_string()]).stdout(Stdio::piped());
    let (mut program, mut output) = Program::start_unread(&command);
    let reading = std::thread::spawn(move || {
        let mut text = String::new();
        output.read_to_string(&mut text).unwrap();
        text
    });

    let folder = tempfile::tempdir().unwrap();
    let journal = MemoryJournal::awake();
    let target = Target {
        app: 1,
        epoch: Epoch::FIRST,
        boot: [0, 0],
        freezer: &*program.cgroup,
        journal: &journal,
        faults: &NoFaults,
    };
    let mut memories = WaitHistory::default();
    let (mut sleeps, mut aborts) = (0_u64, 0);
    let begun = Instant::now();
    // Give all of them time to begin to wait; one that has not begun only aborts a sleep.
    std::thread::sleep(Duration::from_millis(300));
    while program.cgroup.processes().unwrap().len() > 1 {
        assert!(begun.elapsed() < Duration::from_secs(10 * SECONDS), "the program does not end");
        let abort = Abort::new().unwrap();
        let request = Request {
            image: Store::of_app(folder.path()).image(sleeps + 1),
            timers_over: Duration::from_secs(5),
            single_sockets: false,
            abort: &abort,
            memories: &memories,
            expected: &[],
            lazy: None,
        };
        let attempt = fall_asleep(&target, &request);
        match attempt.result {
            Ok(asleep) => {
                sleeps += 1;
                let until = monotonic() + Duration::from_millis(900);
                let until = asleep.wake_at.map_or(until, |at| at.min(until));
                let left = until.saturating_sub(monotonic());
                let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
                poll(&mut [PollFd::new(&asleep.watch, PollFlags::IN)], Some(&left)).unwrap();
                let (woken, _) = wake(&target, &asleep, None);
                memories = woken.unwrap().finish().unwrap();
            }
            Err(SleepError::Aborted(_)) => {
                aborts += 1;
                memories = attempt.memories.unwrap_or(memories);
            }
            Err(error) => panic!("{error:?}"),
        }
        std::thread::sleep(Duration::from_millis(150));
    }
    program.child.wait().unwrap();
    let text = reading.join().unwrap();
    eprintln!("{sleeps} sleeps, {aborts} aborted\n{text}");
    // On a busy machine it may come to sleep too seldom, which shows nothing.
    let mut latest = if sleeps < ENOUGH { i64::MAX } else { 0 };
    for line in expected.lines() {
        let (mode, result) = line.split_once(' ').unwrap();
        let found = text.lines().find(|line| line.starts_with(&format!("{mode} "))).unwrap_or_else(|| panic!("{mode}"));
        assert!(found.ends_with(result), "{found}, not {result}");
        let late = found.split("late_us=").nth(1).and_then(|rest| rest.split(' ').next()).unwrap();
        let late: i64 = late.parse().unwrap();
        assert!(late > -1000, "too early: {found}");
        latest = latest.max(late);
    }
    latest
}
