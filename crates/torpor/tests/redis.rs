//! redis put to sleep all the time under a client that bursts and pauses; and its background save across a sleep.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use support::{PATIENCE, Random, assert_memory_left, doze, memory, program, rounds, say, stats, told};
use torpor_testkit::Error;
use torpor_testkit::client::redis::{Redis, Value};
use torpor_testkit::daemon::Daemon;
use torpor_testkit::wait::eventually_ok;

const ON_COMMAND: &str = "[idle]\nsleep = false\ntimers_over = '10m'";
const KEYS: u64 = 500;
/// Longest wait for the counts that the storm must reach.
const STORM_LIMIT: Duration = Duration::from_secs(900);

fn start(daemon: &mut Daemon, tables: &str) -> SocketAddr {
    let addresses = daemon.run_program(&program("redis"), "redis", tables).unwrap();
    let answers = eventually_ok("redis answers", PATIENCE, || ask(&mut Redis::connect(addresses[0])?, &["PING"]));
    answers.unwrap_or_else(|error| panic!("{error}\n{}", told(daemon, "redis")));
    addresses[0]
}

fn ask(redis: &mut Redis, words: &[&str]) -> Result<Value, Error> {
    redis.command(words)
}

/// A client that knows every value, in bursts with pauses of up to `longest_pause` between; gives back what must be there.
fn bursts(
    address: SocketAddr,
    client: u64,
    longest_pause: Duration,
    done: &AtomicBool,
) -> Result<(BTreeMap<String, u64>, u64), String> {
    let failed = |error: Error| format!("client {client}: {error}");
    let mut redis = Redis::connect(address).map_err(failed)?;
    let mut random = Random::new(client + 1);
    let mut expected: BTreeMap<String, u64> = BTreeMap::new();
    let mut requests = 0;
    while !done.load(Ordering::Relaxed) {
        // Pipelined: while some are answered, others lie in the socket.
        let burst: Vec<(String, bool)> = (0..1 + random.below(40))
            .map(|_| (format!("c{client}:{}", random.below(KEYS)), random.below(2) == 0))
            .collect();
        for (key, grow) in &burst {
            let words: &[&[u8]] = if *grow { &[b"INCRBY", key.as_bytes(), b"3"] } else { &[b"GET", key.as_bytes()] };
            redis.send(words).map_err(failed)?;
        }
        for (key, grow) in &burst {
            let answer = redis.receive().map_err(failed)?;
            let wanted = match expected.get_mut(key) {
                Some(value) => {
                    *value += if *grow { 3 } else { 0 };
                    if *grow { Value::Integer(value.cast_signed()) } else { Value::Text(value.to_string().into()) }
                }
                None if *grow => {
                    expected.insert(key.clone(), 3);
                    Value::Integer(3)
                }
                None => Value::Nil,
            };
            if answer != wanted {
                return Err(format!("client {client}: {key} should be {wanted:?}, is {answer:?}"));
            }
            requests += 1;
        }
        // The client's own pace, not a wait for anything.
        std::thread::sleep(longest_pause.mul_f64(random.below(1_000) as f64 / 1e3));
    }
    Ok((expected, requests))
}

#[test]
fn storm() {
    const CLIENTS: u64 = 2;
    let (wanted_sleeps, wanted_aborts) = (rounds(25, 200), rounds(25, 200));
    let mut daemon = Daemon::start().unwrap();
    let address = start(&mut daemon, ON_COMMAND);
    let done = AtomicBool::new(false);
    // Pauses often shorter than a capture and often longer, however slow the machine is.
    let begin = Instant::now();
    doze(&daemon, "redis");
    let longest_pause = begin.elapsed().max(Duration::from_millis(25));
    let begin = Instant::now();
    let results = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let done = &done;
                scope.spawn(move || bursts(address, client, longest_pause, done))
            })
            .collect();
        loop {
            let now = stats(&daemon, "redis");
            let reached = now.sleeps >= wanted_sleeps && now.aborted_sleeps >= wanted_aborts;
            if reached || begin.elapsed() > STORM_LIMIT || clients.iter().any(|client| client.is_finished()) {
                break;
            }
            for _ in 0..5 {
                let _aborted_or_asleep = daemon.cli(&["sleep", "redis"]).unwrap();
            }
        }
        done.store(true, Ordering::Relaxed);
        clients.into_iter().map(|client| client.join().unwrap()).collect::<Vec<_>>()
    });
    let took = begin.elapsed();
    let mut redis = Redis::connect(address).unwrap();
    let (mut keys, mut requests) = (0, 0);
    for result in results {
        let (expected, count) =
            result.unwrap_or_else(|error| panic!("{error}\n{}\n{}", told(&daemon, "redis"), daemon.log()));
        keys += expected.len();
        requests += count;
        for (key, value) in expected {
            assert_eq!(redis.command(&["GET", &key]).unwrap(), Value::Text(value.to_string().into()), "{key}");
        }
    }
    assert_eq!(redis.command(&["DBSIZE"]).unwrap(), Value::Integer(keys as i64));
    let end = stats(&daemon, "redis");
    say(&format!(
        "redis storm: {requests} checked requests, {} sleeps completed, {} aborted by traffic, in {:.0} s (wanted: \
         {wanted_sleeps} and {wanted_aborts}; TORPOR_TEST_ALL=1: 200 and 200)",
        end.sleeps,
        end.aborted_sleeps,
        took.as_secs_f64(),
    ));
    assert!(end.sleeps >= wanted_sleeps, "{end:?}\n{}", told(&daemon, "redis"));
    assert!(end.aborted_sleeps >= wanted_aborts, "{end:?}\n{}", told(&daemon, "redis"));
}

/// The child that saves is asleep as well, sharing its memory copy-on-write with its parent. Parent and child go on where
/// they stopped: what was changed after the fork is not in the file, all that was there before is.
#[test]
fn background_save_across_sleeps() {
    const VALUES: usize = 2_000;
    let mut daemon = Daemon::start().unwrap();
    let address = start(&mut daemon, ON_COMMAND);
    let mut redis = Redis::connect(address).unwrap();
    let body = "x".repeat(1000);
    for n in 0..VALUES {
        redis.command(&["SET", &format!("k{n}"), &format!("before {n} {body}")]).unwrap();
    }
    // Microseconds for each key: the save takes two seconds of its own time at least.
    assert_eq!(redis.command(&["CONFIG", "SET", "rdb-key-save-delay", "1000"]).unwrap(), Value::Text("OK".into()));
    redis.command(&["BGSAVE"]).unwrap();
    assert_eq!(redis.info("persistence", "rdb_bgsave_in_progress").unwrap(), "1");
    let mut across = 0;
    let mut last = None;
    for cycle in 0..10 {
        let before = memory(&daemon, "redis");
        if before.stats.processes < 2 {
            break;
        }
        doze(&daemon, "redis");
        let asleep = memory(&daemon, "redis");
        if asleep.stats.processes == 2 {
            across += 1;
            last = Some((before, asleep));
        }
        let n = cycle * 7;
        redis.command(&["SET", &format!("k{n}"), &format!("after {n}")]).unwrap();
    }
    assert!(across >= 2, "the save was over before it slept: {}", told(&daemon, "redis"));
    let saved = eventually_ok("the save ends", PATIENCE, || {
        match &*redis.info("persistence", "rdb_bgsave_in_progress").unwrap() {
            "0" => Ok(()),
            other => Err(format!("in progress: {other}")),
        }
    });
    saved.unwrap();
    assert_eq!(redis.info("persistence", "rdb_last_bgsave_status").unwrap(), "ok");
    assert_eq!(redis.command(&["GET", "k0"]).unwrap(), Value::Text("after 0".into()));
    doze(&daemon, "redis");
    // A new process on the file: exactly what was there at the fork.
    daemon.ok(&["restart", "redis"]).unwrap();
    let mut redis = eventually_ok("redis is back", PATIENCE, || {
        let mut redis = Redis::connect(address)?;
        redis.command(&["PING"]).map(|_| redis)
    })
    .unwrap();
    assert_eq!(redis.command(&["DBSIZE"]).unwrap(), Value::Integer(VALUES as i64));
    for n in 0..VALUES {
        let value = redis.command(&["GET", &format!("k{n}")]).unwrap();
        assert_eq!(value, Value::Text(format!("before {n} {body}").into()), "k{n}");
    }
    let (before, asleep) = last.unwrap();
    say(&format!(
        "redis BGSAVE: asleep {across} times meanwhile; private memory of both {} kB, asleep {} kB ({} kB not shared)",
        before.stats.private_bytes >> 10,
        asleep.stats.private_bytes >> 10,
        asleep.exclusive_bytes >> 10
    ));
}

/// 80 MB leave and come back.
#[test]
fn large_memory() {
    const VALUES: usize = 20_000;
    let mut daemon = Daemon::start().unwrap();
    let address = start(&mut daemon, ON_COMMAND);
    let mut redis = Redis::connect(address).unwrap();
    let body = "y".repeat(4000);
    for chunk in 0..VALUES / 100 {
        for n in 0..100 {
            let n = chunk * 100 + n;
            redis.send(&[b"SET", format!("k{n}").as_bytes(), format!("{n} {body}").as_bytes()]).unwrap();
        }
        for _ in 0..100 {
            assert_eq!(redis.receive().unwrap(), Value::Text("OK".into()));
        }
    }
    let mut times = support::Times::default();
    let mut random = Random::new(80);
    let mut last = None;
    for _ in 0..rounds(5, 30) {
        // After a wake it comes while the program runs.
        let before = eventually_ok("all of its memory is back", PATIENCE, || {
            let memory = memory(&daemon, "redis");
            if memory.exclusive_bytes > 80_000_000 { Ok(memory) } else { Err(format!("{memory:?}")) }
        });
        let before = before.unwrap();
        doze(&daemon, "redis");
        let asleep = memory(&daemon, "redis");
        assert_memory_left("redis", &before, &asleep);
        let begin = Instant::now();
        for _ in 0..100 {
            let n = random.below(VALUES as u64);
            let value = redis.command(&["GET", &format!("k{n}")]).unwrap();
            assert!(value == Value::Text(format!("{n} {body}").into()), "k{n} is wrong");
        }
        times.add(begin.elapsed());
        last = Some((before, asleep));
    }
    let (before, asleep) = last.unwrap();
    say(&format!(
        "redis large: {} kB, asleep {} kB; wake and 100 answers in {}",
        before.exclusive_bytes >> 10,
        asleep.exclusive_bytes >> 10,
        times.words()
    ));
}
