//! Whoever dies while a sandbox is being made: nothing is left of it. Needs root and busybox.
#![allow(clippy::unwrap_used, reason = "the test fails")]

mod common;

use std::fs;
use std::time::{Duration, Instant};

use common::{Machine, null};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use torpor_sandbox::{ExecIo, Sandbox, exec};

/// Moments of each victim that are tried.
const MOMENTS: u32 = 12;
/// From one moment to the next.
const STEP: Duration = Duration::from_micros(700);

fn children(pid: &str) -> Vec<String> {
    let mut found = Vec::new();
    for task in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten() {
        let text = fs::read_to_string(task.unwrap().path().join("children")).unwrap_or_default();
        found.extend(text.split_whitespace().map(str::to_owned));
    }
    found
}

/// Who is killed: the set-up process, the first process and the builder, which are its children, and the app's process.
const VICTIMS: usize = 4;

/// Kills one of them. Whether it was there.
fn kill_one(victim: usize) -> bool {
    let Some(setup) = children("self").into_iter().next() else { return false };
    let victim = match victim {
        0 => Some(setup),
        1 | 2 => children(&setup).into_iter().nth(victim - 1),
        _ => children(&setup).first().and_then(|first| children(first).into_iter().next()),
    };
    let Some(pid) = victim.and_then(|pid| Pid::from_raw(pid.parse().unwrap())) else { return false };
    // It may end by itself at any time, and its number is not another's so soon.
    pidfd_open(pid, PidfdFlags::empty()).is_ok_and(|process| pidfd_send_signal(process, Signal::KILL).is_ok())
}

#[test]
fn nothing_is_left_whoever_dies() {
    let machine = Machine::new();
    let mut failed = [0; VICTIMS];
    for empty in [false, true] {
        for (victim, failures) in failed.iter_mut().enumerate() {
            for moment in 0..MOMENTS {
                let app = machine.app("exec sleep 1000");
                let (launcher, spec) = (&machine.launcher, &app.spec);
                let make = || match empty {
                    true => Sandbox::prepare_empty(launcher, spec, 2, None, None),
                    false => Sandbox::prepare(launcher, spec, [null(), null(), null()], None),
                };
                let prepared = std::thread::scope(|scope| {
                    let making = scope.spawn(make);
                    let begun = Instant::now();
                    while !kill_one_at(victim, begun, STEP * moment) && !making.is_finished() {}
                    making.join().unwrap()
                });
                // It may have been too late; then it is whole or says that it is not.
                match prepared.and_then(torpor_sandbox::Prepared::start) {
                    Ok(sandbox) => sandbox.destroy().unwrap(),
                    Err(_) => *failures += 1,
                }
                app.assert_nothing_left();
            }
        }
    }
    println!("makings that failed: {failed:?} of {} each", 2 * MOMENTS);
    assert!(failed.iter().all(|&count| count > 0), "nobody was killed in time: {failed:?}");
    // And the machine is as good as before.
    let app = machine.app("exec sleep 1000");
    let sandbox = app.prepare(null()).unwrap().start().unwrap();
    let io = ExecIo::Files([null(), null(), null()]);
    exec(&machine.launcher, &sandbox, &common::program("exit 0"), io).unwrap().wait().unwrap();
    sandbox.destroy().unwrap();
}

fn kill_one_at(victim: usize, begun: Instant, after: Duration) -> bool {
    begun.elapsed() >= after && kill_one(victim)
}
