//! What sandboxes cost: measurements, not tests. Needs root and busybox.
//!
//!     cargo test --release -p torpor-sandbox --test cost -- --ignored --nocapture --test-threads 1
#![allow(clippy::unwrap_used, reason = "the measurement fails")]

mod common;

use std::time::{Duration, Instant};

use common::{Machine, PATIENCE, null};
use torpor_sandbox::{ExecIo, exec};

/// Sandboxes per median.
const STARTS: usize = 20;
/// Before each: the kernel remembers for a while that it has waited for all processors.
const PAUSE: Duration = Duration::from_millis(200);

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

#[test]
#[ignore = "a measurement"]
fn start_times() {
    let machine = Machine::new();
    let (mut prepare, mut start, mut whole, mut destroy) = (vec![], vec![], vec![], vec![]);
    for _ in 0..STARTS {
        let mut app = machine.app("true");
        app.spec.program.command = vec!["/bin/true".to_owned()];
        std::thread::sleep(PAUSE);
        let begun = Instant::now();
        let prepared = app.prepare(null()).unwrap();
        prepare.push(begun.elapsed());
        let sandbox = prepared.start().unwrap();
        start.push(begun.elapsed() - prepare[prepare.len() - 1]);
        sandbox.wait(Some(PATIENCE)).unwrap().unwrap();
        whole.push(begun.elapsed());
        let begun = Instant::now();
        sandbox.destroy().unwrap();
        destroy.push(begun.elapsed());
    }
    let [prepare, start, whole, destroy] = [prepare, start, whole, destroy].map(median);
    println!(
        "median of {STARTS}: prepare {prepare:?}, start {start:?}, to the program's end {whole:?}, destroy {destroy:?}"
    );
}

#[test]
#[ignore = "a measurement"]
fn exec_times() {
    let machine = Machine::new();
    let app = machine.app("echo up; exec sleep 1000");
    let mut running = app.start().unwrap();
    running.expect_line("up");
    let times = (0..STARTS).map(|_| {
        std::thread::sleep(PAUSE);
        let begun = Instant::now();
        let io = ExecIo::Files([null(), null(), null()]);
        let child = exec(&machine.launcher, &running.sandbox, &common::program("exit 0"), io).unwrap();
        child.wait().unwrap();
        begun.elapsed()
    });
    println!("median of {STARTS}: exec to the program's end {:?}", median(times.collect()));
    running.sandbox.destroy().unwrap();
}
