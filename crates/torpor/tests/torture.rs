//! Real servers wake without any of the memory that may come later: each page comes alone and only when it is touched, while the worker is
//! killed at random and followed by another. Their clients check every answer.
//!
//! Needs root and the tarballs of the servers (built at the first use).
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use support::{PATIENCE, Random, connect, is_dead, program, rounds, say, told};
use torpor_testkit::daemon::Daemon;
use torpor_testkit::wait::eventually;

const APP: &str = "tortured";
/// The app sleeps on command only, and has no working set.
const TABLES: &str = "[idle]\nsleep = false\ntimers_over = '10m'\nworking_set = 'none'";
/// Arguments of `torpor sleep`.
const LEVELS: [&[&str]; 2] = [&[], &["--level", "warm"]];
/// The worker is killed after at most this many rounds of its pager; the rounds of the test use these in turn.
const MOST_ROUNDS: [u64; 2] = [6, 60];

/// Puts the app to sleep. Where that is aborted, the app runs lazily, and the worker may be killed already.
fn sleep_or_die(daemon: &Daemon, level: &[&str]) {
    let command = [&["sleep", APP], level].concat();
    eventually("it sleeps, or the worker is killed", PATIENCE, || {
        daemon.cli(&command).unwrap().status.success() || is_dead(daemon)
    })
    .unwrap_or_else(|error| panic!("{error}\n{}\n{}", told(daemon, APP), daemon.log()));
}

/// Starts the daemon again. It is killed after that many rounds of its pager: perhaps before it listens, since memory that the app misses comes from the beginning.
fn restart(daemon: &mut Daemon, after: u64) {
    daemon.term().unwrap();
    daemon.set_environment("TORPOR_FAULT", Some(&format!("lazy-round:kill:{after}")));
    if let Err(error) = daemon.up_at_once() {
        assert!(is_dead(daemon), "{error}");
    }
}

fn tortured(name: &str) {
    let program = program(name);
    let mut daemon = Daemon::start_with("", &[("TORPOR_PAGER", "faults")]).unwrap();
    let address = daemon.run_program(&program, APP, TABLES).unwrap()[0];
    let mut session = connect(&daemon, &program, APP, address);
    let mut random = Random::new(name.len() as u64);
    let mut lazy = 0;
    for round in 0..rounds(2, 10) {
        for level in LEVELS {
            restart(&mut daemon, 1 + random.below(MOST_ROUNDS[round as usize % 2]));
            sleep_or_die(&daemon, level);
            std::thread::scope(|scope| {
                let asked = scope.spawn(|| session.step());
                eventually("the worker is killed", PATIENCE, || is_dead(&daemon))
                    .unwrap_or_else(|error| panic!("{name} {level:?}: {error}\n{}", daemon.log()));
                lazy += u64::from(!asked.is_finished());
                daemon.kill9().unwrap();
                daemon.set_environment("TORPOR_FAULT", None);
                daemon.up().unwrap();
                let answered = asked.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                answered.unwrap_or_else(|error| {
                    panic!("{name} {level:?}: {error}\n{}\n{}", told(&daemon, APP), daemon.log())
                });
            });
            let events = daemon.ok(&["events", "--app", APP]).unwrap();
            assert!(!events.contains("lost"), "{name} {level:?}, round {round}: {events}");
            // While most of it is missing still.
            session.step().unwrap_or_else(|error| panic!("{name}: {error}\n{}", told(&daemon, APP)));
        }
    }
    say(&format!("{name}: the worker was killed {} times, {lazy} times before the answer", 2 * rounds(2, 10)));
}

macro_rules! programs {
    ($($name:ident),*) => {$(
        #[test]
        fn $name() {
            tortured(stringify!($name));
        }
    )*};
}

programs!(lighttpd, nginx, bind, postfix, clamav, redis, mariadb, postgres, node, python, go, java);
