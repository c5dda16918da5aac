//! Apps whose processes are ended while they sleep: real programs come back with their connections open and the state in
//! their memory.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::net::SocketAddr;
use std::time::Instant;

use support::{PATIENCE, Times, connect, memcheck, program, registers, rounds, say, stats, step, told, warm};
use torpor_testkit::client::Session;
use torpor_testkit::daemon::Daemon;
use torpor_testkit::native::{self, LineSession};
use torpor_testkit::servers::Program;
use torpor_testkit::wait::{eventually, eventually_ok};

/// Sleeps on command only.
const ON_COMMAND: &str = "[idle]\nsleep = false\ntimers_over = '10m'";
/// Rounds of each program: by default, and under `TORPOR_TEST_ALL=1`.
const CYCLES: (u64, u64) = (6, 50);

/// A real program goes warm and is woken by its next packet, on old and new connections.
fn goes_warm(name: &str) {
    const APP: &str = "warm";
    let program = program(name);
    let mut daemon = Daemon::start().unwrap();
    let address = start(&mut daemon, &program, APP);
    let mut open: Vec<Box<dyn Session>> = (0..3).map(|_| connect(&daemon, &program, APP, address)).collect();
    let before = stats(&daemon, APP);
    let mut times = Times::default();
    let mut most_bytes = 0;
    for cycle in 1..=rounds(CYCLES.0, CYCLES.1) {
        warm(&daemon, APP);
        let asleep = stats(&daemon, APP);
        assert_eq!(asleep.state, "warm", "{}", told(&daemon, APP));
        assert_eq!((asleep.processes, asleep.private_bytes), (0, 0), "{asleep:?}");
        let begin = Instant::now();
        match (cycle % 4) as usize {
            0 => open[(cycle / 4 % 3) as usize] = connect(&daemon, &program, APP, address),
            n => drop(step(&daemon, APP, &mut *open[n - 1])),
        }
        times.add(begin.elapsed());
        let woken = stats(&daemon, APP);
        // A client may have made it start one more.
        assert_eq!(woken.state, "running", "{}", told(&daemon, APP));
        assert!(woken.processes >= before.processes.min(2), "{woken:?}: {}", told(&daemon, APP));
        // What processes shared by fork they share again; they grow a little with their work.
        let limit = before.private_bytes * 5 / 4 + (4 << 20);
        assert!(woken.processes != before.processes || woken.private_bytes <= limit, "{before:?}: {woken:?}");
        most_bytes = woken.private_bytes.max(most_bytes);
    }
    for session in &mut open {
        step(&daemon, APP, &mut **session);
    }
    let (count, kb) = (before.processes, [before.private_bytes, most_bytes].map(|bytes| bytes >> 10));
    say(&format!(
        "{name}: {count} processes, {} kB, afterwards up to {} kB; answer in {}",
        kb[0],
        kb[1],
        times.words()
    ));
}

fn start(daemon: &mut Daemon, program: &Program, app: &str) -> SocketAddr {
    let addresses = daemon.run_program(program, app, ON_COMMAND).unwrap();
    let answers = eventually_ok(&format!("{app} answers"), PATIENCE, || program.connect(addresses[0]).map(drop));
    answers.unwrap_or_else(|error| panic!("{}: {error}\n{}\n{}", program.name, told(daemon, app), daemon.log()));
    addresses[0]
}

macro_rules! programs {
    ($($test:ident: $name:literal,)*) => {
        $(#[test]
        fn $test() {
            goes_warm($name);
        })*
    };
}

programs! {
    lighttpd_goes_warm: "lighttpd",
    redis_goes_warm: "redis",
    bind_goes_warm: "bind",
    postfix_goes_warm: "postfix",
    clamav_goes_warm: "clamav",
    postgres_goes_warm: "postgres",
    mariadb_goes_warm: "mariadb",
    nginx_goes_warm: "nginx",
    python_goes_warm: "python",
    node_goes_warm: "node",
    go_goes_warm: "go",
    java_goes_warm: "java",
}

/// Every vector register of several threads, as wide as the processor has them, over hundreds of wakes.
#[test]
fn registers_are_what_they_were() {
    let (daemon, mut session) = registers("5");
    let cycles = rounds(200, 1000);
    for _ in 0..cycles {
        warm(&daemon, "check");
        step(&daemon, "check", &mut session);
    }
    assert_eq!(stats(&daemon, "check").wakes, cycles);
    say(&format!("registers: {cycles} times warm and back: {}", session.ask().unwrap()));
}

#[test]
fn the_only_copy_is_listed_and_never_removed() {
    let (daemon, _, mut session) = memcheck("8");
    let listed = || -> Vec<serde_json::Value> {
        let output = daemon.cli(&["image", "ls", "--json"]).unwrap();
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let removed = || daemon.cli(&["image", "rm", "check"]).unwrap();
    assert_eq!((listed().len(), removed().status.code()), (0, Some(3)));
    warm(&daemon, "check");
    let images = listed();
    assert_eq!(images.len(), 1, "{images:?}");
    assert_eq!((&images[0]["level"], &images[0]["standing"]), (&"warm".into(), &"in-use".into()));
    let image = std::path::Path::new(images[0]["path"].as_str().unwrap());
    assert_eq!(images[0]["bytes"], image.metadata().unwrap().len());
    let refused = removed();
    let said = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(4), "{said}");
    assert!(said.contains("only copy") && said.contains("torpor stop"), "{said}");
    let aside = image.with_file_name("999.damaged");
    std::fs::write(&aside, "no image").unwrap();
    assert_eq!(listed().len(), 2);
    assert!(removed().status.success());
    assert!(!aside.exists() && image.exists());
    assert_eq!(stats(&daemon, "check").state, "warm");
    step(&daemon, "check", &mut session);
    assert!(listed().is_empty());
}

#[test]
fn it_stays_warm_over_restarts_of_the_worker() {
    let (mut daemon, _, mut session) = memcheck("8");
    for how in ["term", "kill"] {
        warm(&daemon, "check");
        if how == "term" {
            daemon.term().unwrap();
        } else {
            daemon.kill9().unwrap();
        }
        daemon.up().unwrap();
        assert_eq!(daemon.state("check").unwrap(), "warm", "{how}: {}", daemon.log());
        session.step().unwrap_or_else(|error| panic!("{how}: {error}\n{}", daemon.log()));
        warm(&daemon, "check");
        // A packet that comes while no worker lives.
        daemon.kill9().unwrap();
        let asked = std::thread::spawn(move || session.ask().map(|answer| (answer, session)));
        daemon.up().unwrap();
        let (answer, again) = asked.join().unwrap().unwrap_or_else(|error| panic!("{how}: {error}\n{}", daemon.log()));
        assert!(answer.starts_with("ok "), "{how}: {answer}");
        session = again;
    }
}

/// Everything but the data directory is gone: apps are there again, warm, with their ports open and what they remember.
#[test]
fn apps_come_back_after_a_power_cut() {
    let mut daemon = Daemon::start().unwrap();
    let redis = program("redis");
    let address = start(&mut daemon, &redis, "redis");
    let memcheck = native::program("memcheck", &["8", "3", "7000", "0"], &[7000]).unwrap();
    let check = daemon.run_program(&memcheck, "check", ON_COMMAND).unwrap()[0];
    let mut session = connect(&daemon, &redis, "redis", address);
    for _ in 0..3 {
        step(&daemon, "redis", &mut *session);
    }
    let ask = |when: &str, daemon: &Daemon| {
        let mut line = eventually_ok("memcheck takes a connection", PATIENCE, || LineSession::open(check))
            .unwrap_or_else(|error| panic!("{when}: {error}\n{}", daemon.log()));
        line.step().unwrap_or_else(|error| panic!("{when}: {error}\n{}", daemon.log()));
    };
    ask("before", &daemon);
    for round in 0..2 {
        warm(&daemon, "redis");
        warm(&daemon, "check");
        daemon.power_off().unwrap();
        daemon.up().unwrap();
        for app in ["redis", "check"] {
            assert_eq!(daemon.state(app).unwrap(), "warm", "{}\n{}", told(&daemon, app), daemon.log());
        }
        ask(&format!("round {round}"), &daemon);
        // A new connection finds what was told over the old one.
        let mut again = connect(&daemon, &redis, "redis", address);
        step(&daemon, "redis", &mut *again);
        for app in ["redis", "check"] {
            let stats = stats(&daemon, app);
            assert_eq!(stats.state, "running", "{}", told(&daemon, app));
        }
    }
}

/// A warm app has no processes that could end: where its init is killed, its sandbox is made again from the image.
#[test]
fn it_outlives_its_init() {
    let mut daemon = Daemon::start().unwrap();
    let ledger = native::program("ledger", &["7000"], &[7000]).unwrap();
    let address = daemon.run_program(&ledger, "ledger", ON_COMMAND).unwrap()[0];
    let open = |daemon: &Daemon| {
        let opened = eventually_ok("the ledger answers", PATIENCE, || LineSession::open(address));
        opened.unwrap_or_else(|error| panic!("{error}\n{}\n{}", told(daemon, "ledger"), daemon.log()))
    };
    let before = open(&daemon).tell("add").unwrap();
    warm(&daemon, "ledger");
    let id = daemon.json(&["inspect", "ledger"]).unwrap()["status"]["id"].as_str().unwrap().to_owned();
    let record = std::fs::read(daemon.run_dir().join("apps").join(id).join("sandbox.json")).unwrap();
    let record: serde_json::Value = serde_json::from_slice(&record).unwrap();
    let init = record["init"]["pid"].as_i64().and_then(|pid| rustix::process::Pid::from_raw(pid as i32)).unwrap();
    rustix::process::kill_process(init, rustix::process::Signal::KILL).unwrap();
    // An app that wakes while its init still dies was awake, as far as it concerns the app, and ends with it.
    eventually("init is gone", PATIENCE, || rustix::process::test_kill_process(init).is_err()).unwrap();
    let after = open(&daemon).ask().unwrap();
    assert_eq!(before, after, "{}", daemon.log());
}
