//! What sandboxes cost: measurements, not tests. Needs root and busybox.
//!
//!     cargo test --release -p torpor-sandbox --test cost -- --ignored --nocapture --test-threads 1
#![allow(clippy::unwrap_used, reason = "the measurement fails")]

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use common::{Machine, PATIENCE, null};
use torpor_sandbox::{ExecIo, Sandbox, exec};

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

/// What of the machine's memory is whose.
const MEMORY: [&str; 12] = [
    "MemAvailable",
    "MemFree",
    "Slab",
    "SReclaimable",
    "SUnreclaim",
    "KernelStack",
    "PageTables",
    "Percpu",
    "AnonPages",
    "Shmem",
    "Cached",
    "VmallocUsed",
];
/// Empty sandboxes at a time.
const EMPTY: usize = 100;

/// Numbers of a file of names and numbers, in kB: `/proc/meminfo`, or the slabs in use.
fn memory() -> BTreeMap<String, i64> {
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap();
    let mut found: BTreeMap<String, i64> = meminfo
        .lines()
        .filter_map(|line| {
            let (name, rest) = line.split_once(':')?;
            MEMORY.contains(&name).then(|| (name.to_owned(), rest.split_whitespace().next().unwrap().parse().unwrap()))
        })
        .collect();
    for line in fs::read_to_string("/proc/slabinfo").unwrap().lines().skip(2) {
        let words: Vec<&str> = line.split_whitespace().collect();
        // Objects in use times their size, in bytes: kB would lose the small ones.
        let number = |at: usize| words[at].parse::<i64>().unwrap();
        found.insert(format!("slab {}", words[0]), number(1) * number(3));
    }
    found
}

fn settle() {
    // What is being freed in the background, and what only waits for somebody to want memory.
    fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
    std::thread::sleep(Duration::from_secs(2));
}

fn show(what: &str, before: &BTreeMap<String, i64>) {
    settle();
    let after = memory();
    println!("{what}, each of {EMPTY}:");
    let count = EMPTY as f64;
    let mut slabs = Vec::new();
    for (name, value) in &after {
        let change = (value - before.get(name).copied().unwrap_or(0)) as f64 / count;
        match name.strip_prefix("slab ") {
            Some(slab) => slabs.push((change / 1024.0, slab)),
            None => println!("  {name:14} {change:8.1} kB"),
        }
    }
    slabs.sort_by(|one, other| other.0.total_cmp(&one.0));
    println!("  slabs, {:.1} kB in all:", slabs.iter().map(|slab| slab.0).sum::<f64>());
    for (size, slab) in slabs.iter().take(22) {
        println!("    {slab:28} {size:8.2} kB");
    }
}

#[test]
#[ignore = "a measurement"]
fn memory_of_empty_sandboxes() {
    let machine = Machine::new();
    let apps: Vec<_> = (0..EMPTY).map(|_| machine.app("false")).collect();
    settle();
    let before = memory();
    let make = |app: &common::App<'_>| {
        Sandbox::prepare_empty(&machine.launcher, &app.spec, 2, None, None).unwrap().start().unwrap()
    };
    let sandboxes: Vec<_> = apps.iter().map(make).collect();
    show("an empty sandbox without network", &before);
    let with_network = memory();
    for (number, sandbox) in sandboxes.iter().enumerate() {
        let (name, pid) = (format!("tpc{number}"), sandbox.init_pid().to_string());
        let words = ["link", "add", &name, "type", "veth", "peer", "name", "eth0", "netns", &pid];
        assert!(Command::new("ip").args(words).status().expect("needs ip (iproute2)").success());
        assert!(Command::new("ip").args(["link", "set", &name, "up"]).status().unwrap().success());
        let up = ["-t", &pid, "-n", "ip", "link", "set", "eth0", "up"];
        assert!(Command::new("nsenter").args(up).status().unwrap().success());
    }
    show("its veth pair", &with_network);
    let all = before;
    show("both", &all);
    for sandbox in &sandboxes {
        sandbox.destroy().unwrap();
    }
}

#[test]
#[ignore = "a measurement"]
fn coming_back_times() {
    let machine = Machine::new();
    let app = machine.app("echo up; exec sleep 1000");
    let mut running = app.start().unwrap();
    running.expect_line("up");
    let sandbox = &running.sandbox;
    let times = (0..10 * STARTS).map(|_| {
        let begun = Instant::now();
        sandbox.processes_are_back().unwrap();
        begun.elapsed()
    });
    println!("median of {}: processes_are_back {:?}", 10 * STARTS, median(times.collect()));
    sandbox.cgroup().freeze(PATIENCE).unwrap();
    let begun = Instant::now();
    sandbox.end_processes().unwrap();
    println!("end_processes {:?}", begun.elapsed());
    running.sandbox.destroy().unwrap();
}
