//! Real programs fall asleep by command and by idleness, idle and under load, and wake by their next packet where they
//! stopped, with their connections open and the state in their memory.
//!
//! Needs root and the tarballs of the servers (built at the first use). Each program has a daemon of its own, which is checked for leftovers.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use support::{
    Memory, PATIENCE, Times, assert_memory_left, connect, doze, memory, program, rounds, say, stats, step, told,
    wait_asleep,
};
use torpor_testkit::client::Session;
use torpor_testkit::client::dns::{self, DnsTcp};
use torpor_testkit::daemon::Daemon;
use torpor_testkit::servers::{Program, Transport};
use torpor_testkit::wait::eventually_ok;

/// Sleeps after a second by itself; only far timers wake it.
const BY_ITSELF: &str = "[idle]\nafter = '1s'\nmin_awake = '100ms'\ntimers_over = '10m'";
/// Sleeps on command only.
const ON_COMMAND: &str = "[idle]\nsleep = false\ntimers_over = '10m'";

/// Everything that a real server has to stand.
fn sleeps_and_wakes(name: &str) {
    let program = program(name);
    let mut daemon = Daemon::start().unwrap();
    let address = start(&mut daemon, &program, "commanded", ON_COMMAND);
    let (before, asleep, times, again) = by_command(&daemon, &program, address);
    let load = under_load(&daemon, &program, address);
    daemon.ok(&["rm", "-f", "commanded"]).unwrap();
    let address = start(&mut daemon, &program, "idle", BY_ITSELF);
    let idle = by_idleness(&daemon, &program, address);
    say(&format!(
        "{name}: {} processes; private memory {} kB, asleep {} kB ({} kB not shared by forks); woken {} times by a packet, answer in {} ({again} \
         sleeps tried again); {load}; {idle}",
        before.stats.processes,
        before.stats.private_bytes >> 10,
        asleep.stats.private_bytes >> 10,
        asleep.exclusive_bytes >> 10,
        rounds(CYCLES.0, CYCLES.1),
        times.words(),
    ));
}

/// Sleeps and wakes by command: by default, and under `TORPOR_TEST_ALL=1`.
const CYCLES: (u64, u64) = (20, 200);

fn start(daemon: &mut Daemon, program: &Program, app: &str, tables: &str) -> SocketAddr {
    let addresses = daemon.run_program(program, app, tables).unwrap();
    let answers = eventually_ok(&format!("{app} answers"), PATIENCE, || program.connect(addresses[0]).map(drop));
    answers.unwrap_or_else(|error| panic!("{}: {error}\n{}\n{}", program.name, told(daemon, app), daemon.log()));
    addresses[0]
}

/// Sleeps on command; each wake is by a packet on an old connection or by a new connection, in turn.
fn by_command(daemon: &Daemon, program: &Program, address: SocketAddr) -> (Memory, Memory, Times, u32) {
    const APP: &str = "commanded";
    let mut open: Vec<Box<dyn Session>> = (0..3).map(|_| connect(daemon, program, APP, address)).collect();
    let before = memory(daemon, APP);
    assert_eq!((before.stats.state.as_str(), before.stats.sleeps), ("running", 0));
    let mut last = before.clone();
    let mut times = Times::default();
    let mut again = 0;
    for cycle in 1..=rounds(CYCLES.0, CYCLES.1) {
        let awake = memory(daemon, APP);
        again += doze(daemon, APP);
        let asleep = memory(daemon, APP);
        assert_memory_left(program.name, &awake, &asleep);
        let Memory { stats: asleep_stats, .. } = &asleep;
        assert_eq!(asleep_stats.state, "dozing", "nothing woke it but it does not doze: {}", told(daemon, APP));
        assert_eq!((asleep_stats.sleeps, asleep_stats.wakes), (cycle, cycle - 1), "{}", told(daemon, APP));
        assert!(asleep_stats.image_bytes.is_some_and(|bytes| bytes > 0), "{asleep:?}");
        let begin = Instant::now();
        match (cycle % 4) as usize {
            // In the place of an old one: every connection is used after sleeps in which it stayed silent.
            0 => open[(cycle / 4 % 3) as usize] = connect(daemon, program, APP, address),
            n => drop(step(daemon, APP, &mut *open[n - 1])),
        }
        times.add(begin.elapsed());
        let woken = stats(daemon, APP);
        assert_eq!((woken.state.as_str(), woken.wakes), ("running", cycle), "{}", told(daemon, APP));
        last = asleep;
    }
    for session in &mut open {
        step(daemon, APP, &mut **session);
    }
    (before, last, times, again)
}

/// Clients that burst and pause while the app is put to sleep all the time.
fn under_load(daemon: &Daemon, program: &Program, address: SocketAddr) -> String {
    const APP: &str = "commanded";
    const CLIENTS: u64 = 2;
    const LOAD_LIMIT: Duration = Duration::from_secs(300);
    const LONGEST_BURST: Duration = Duration::from_millis(50);
    let (wanted_sleeps, wanted_tries) = (rounds(5, 50), rounds(20, 200));
    let before = stats(daemon, APP);
    let done = AtomicBool::new(false);
    let steps = AtomicU64::new(0);
    let outcome = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let (done, steps) = (&done, &steps);
                scope.spawn(move || {
                    let mut session = program.connect(address)?;
                    let mut random = support::Random::new(client + 1);
                    while !done.load(Ordering::Relaxed) {
                        let burst = Instant::now();
                        for _ in 0..random.below(20) {
                            session.step()?;
                            steps.fetch_add(1, Ordering::Relaxed);
                            // Some servers make each answer wait for a delayed acknowledgement.
                            if burst.elapsed() > LONGEST_BURST {
                                break;
                            }
                        }
                        // The client's own pace, not a wait for anything: short of a capture, or longer than one.
                        let pause_us = if random.below(4) == 0 { 600_000 } else { 20_000 };
                        std::thread::sleep(Duration::from_micros(random.below(pause_us)));
                    }
                    Ok::<_, torpor_testkit::Error>(())
                })
            })
            .collect();
        let begin = Instant::now();
        let mut tries = 0;
        let mut sleeps = 0;
        while (tries < wanted_tries || sleeps < wanted_sleeps)
            && begin.elapsed() < LOAD_LIMIT
            && clients.iter().all(|client| !client.is_finished())
        {
            let _refused_while_it_works = daemon.cli(&["sleep", APP]).unwrap();
            tries += 1;
            sleeps = stats(daemon, APP).sleeps - before.sleeps;
        }
        done.store(true, Ordering::Relaxed);
        for client in clients {
            let ended = client.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            ended.unwrap_or_else(|error| panic!("{}: {error}\n{}\n{}", program.name, told(daemon, APP), daemon.log()));
        }
        (tries, begin.elapsed())
    });
    let after = stats(daemon, APP);
    let (sleeps, aborted) = (after.sleeps - before.sleeps, after.aborted_sleeps - before.aborted_sleeps);
    let steps = steps.into_inner();
    let (tries, took) = outcome;
    assert!(sleeps >= wanted_sleeps, "only {sleeps} sleeps in {took:?} ({tries} tries): {}", told(daemon, APP));
    assert!(steps > 0);
    format!("under load {steps} checked requests, {sleeps} sleeps, {aborted} aborted")
}

/// Sleeps by itself after a second, wakes by a packet on the same connection.
fn by_idleness(daemon: &Daemon, program: &Program, address: SocketAddr) -> String {
    const APP: &str = "idle";
    let times = rounds(3, 20);
    let mut session = connect(daemon, program, APP, address);
    for _ in 0..times {
        let asleep = wait_asleep(daemon, APP);
        step(daemon, APP, &mut *session);
        let woken = stats(daemon, APP);
        assert_eq!(woken.wakes, asleep.wakes + 1, "woken by our packet and nothing else: {}", told(daemon, APP));
    }
    format!("{times} sleeps by idleness")
}

macro_rules! programs {
    ($($name:ident),*) => {$(
        #[test]
        fn $name() {
            sleeps_and_wakes(stringify!($name));
        }
    )*};
}

/// The same server over TCP: one connection that stays open, and a new one at each other sleep.
#[test]
fn bind_over_tcp() {
    const APP: &str = "names";
    let bind = program("bind");
    let mut daemon = Daemon::start().unwrap();
    let addresses = daemon.run_program(&bind, APP, ON_COMMAND).unwrap();
    let tcp = bind.ports.iter().position(|(_, transport)| *transport == Transport::Tcp).expect("BIND has a TCP port");
    let open = || {
        let mut connection = DnsTcp::connect(addresses[tcp])?;
        ask(&mut connection).map(|()| connection)
    };
    let mut kept = eventually_ok("BIND answers over TCP", PATIENCE, open).unwrap();
    let cycles = rounds(CYCLES.0, CYCLES.1);
    for cycle in 1..=cycles {
        doze(&daemon, APP);
        assert_eq!(stats(&daemon, APP).state, "dozing");
        let answered = if cycle % 2 == 0 { open().map(drop) } else { ask(&mut kept) };
        answered.unwrap_or_else(|error| panic!("{error}\n{}", told(&daemon, APP)));
        assert_eq!(stats(&daemon, APP).wakes, cycle, "{}", told(&daemon, APP));
    }
    say(&format!("bind over TCP: woken {cycles} times, by an open connection and by new ones"));
}

/// An answer without the address is an error and no panic: BIND listens before it has loaded its zones, and says SERVFAIL.
fn ask(connection: &mut DnsTcp) -> Result<(), torpor_testkit::Error> {
    let answer = connection.ask(dns::NAME)?;
    match (answer.code, answer.addresses.len()) {
        (0, 1) => Ok(()),
        _ => Err(torpor_testkit::Error::answer("dns", "one address", format!("{answer:?}"))),
    }
}

programs!(lighttpd, nginx, bind, postfix, clamav, redis, mariadb, postgres, node, python, go, java);
