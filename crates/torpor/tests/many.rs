//! Many sleeps of one app, and many apps asleep at once.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Instant;

use support::{PATIENCE, Random, Times, assert_memory_left, doze, memory, program, rounds, say, stats, told};
use torpor_testkit::daemon::Daemon;
use torpor_testkit::servers::Program;
use torpor_testkit::wait::eventually_ok;

/// By default fewer than 1,000; all of them under `TORPOR_TEST_ALL=1`. Each wake's answer is checked.
#[test]
fn a_thousand_cycles() {
    let cycles = rounds(100, 1_000);
    let mut daemon = Daemon::start().unwrap();
    let lighttpd = program("lighttpd");
    let addresses = daemon.run_program(&lighttpd, "web", "[idle]\nsleep = false\ntimers_over = '10m'").unwrap();
    let mut session = eventually_ok("web answers", PATIENCE, || lighttpd.connect(addresses[0])).unwrap();
    let mut times = Times::default();
    let mut again = 0;
    let first = memory(&daemon, "web");
    for cycle in 1..=cycles {
        again += doze(&daemon, "web");
        times.add(support::step(&daemon, "web", &mut *session));
        if cycle % 50 == 0 {
            let before = stats(&daemon, "web");
            assert_eq!((before.sleeps, before.wakes), (cycle, cycle), "{}", told(&daemon, "web"));
        }
    }
    let before = memory(&daemon, "web");
    doze(&daemon, "web");
    let asleep = memory(&daemon, "web");
    assert_memory_left("web", &before, &asleep);
    // Waking must not leave anything behind each time: memory, or what it counts as its own.
    let grown = before.exclusive_bytes.saturating_sub(first.exclusive_bytes);
    assert!(grown <= first.exclusive_bytes / 2, "grown by {grown} bytes in {cycles} cycles: {first:?}, {before:?}");
    say(&format!(
        "{cycles} cycles of lighttpd (TORPOR_TEST_ALL=1: 1,000): every answer right, in {}; {again} sleeps tried again; \
         private memory {} kB at first, {} kB at last, asleep {} kB",
        times.words(),
        first.exclusive_bytes >> 10,
        before.exclusive_bytes >> 10,
        asleep.exclusive_bytes >> 10,
    ));
}

/// Runs a program from an image that was stored under the program's name: its files are unpacked once only.
fn run_stored(daemon: &mut Daemon, program: &Program, name: &str) -> SocketAddr {
    let host = daemon.port().unwrap();
    let (port, image) = (format!("{host}:{}", program.ports[0].0), format!("image:{}", program.name));
    let mut args = vec!["run", "--name", name, "-p", &port, "--no-sleep", "--timers-over", "10m"];
    args.extend(program.user.iter().flat_map(|user| ["--user", user]));
    args.extend([&image, "--"]);
    args.extend(program.command.iter().map(String::as_str));
    daemon.ok(&args).unwrap();
    (Ipv4Addr::LOCALHOST, host).into()
}

/// By default fewer than 200; all of them under `TORPOR_TEST_ALL=1`.
#[test]
fn many_apps_asleep_at_once() {
    let count = rounds(30, 200) as usize;
    let mut daemon = Daemon::start().unwrap();
    let kinds = [program("lighttpd"), program("redis"), program("go")];
    for kind in &kinds {
        daemon.ok(&["images", "load", kind.name, &format!("tar:{}", kind.tarball.display())]).unwrap();
    }
    let mut apps = Vec::new();
    let begin = Instant::now();
    for n in 0..count {
        // Mostly the small ones.
        let program = &kinds[match n % 10 {
            4 => 1,
            9 => 2,
            _ => 0,
        }];
        let name = format!("app-{n}");
        let address = run_stored(&mut daemon, program, &name);
        let session = eventually_ok(&format!("{name} answers"), PATIENCE, || program.connect(address));
        apps.push((name, session.unwrap()));
    }
    let started = begin.elapsed();
    let mut random = Random::new(200);
    let mut times = Times::default();
    let mut kept = 0;
    for round in 1..=2 {
        for (name, _) in &apps {
            doze(&daemon, name);
        }
        let all = daemon.json(&["stats"]).unwrap();
        let all = all.as_array().expect("a list of stats");
        assert_eq!(all.len(), count);
        assert!(all.iter().all(|one| one["state"] == "dozing"), "not all doze: {all:#?}");
        kept = all.iter().filter_map(|one| one["private_bytes"].as_u64()).sum();
        for n in (1..apps.len()).rev() {
            apps.swap(n, random.below(n as u64 + 1) as usize);
        }
        for (name, session) in &mut apps {
            times.add(support::step(&daemon, name, &mut **session));
            let woken = stats(&daemon, name);
            assert_eq!((woken.state.as_str(), woken.wakes), ("running", round), "{name}");
        }
        let all = daemon.json(&["stats"]).unwrap();
        for one in all.as_array().expect("a list of stats") {
            assert_eq!((one["sleeps"].as_u64(), one["wakes"].as_u64()), (Some(round), Some(round)), "{one}");
        }
    }
    say(&format!(
        "{count} apps (TORPOR_TEST_ALL=1: 200) started in {:.0} s, all asleep at once with {} kB of private memory each, \
         woken one by one in random order, twice: answer in {}",
        started.as_secs_f64(),
        (kept >> 10) / count as u64,
        times.words(),
    ));
}
