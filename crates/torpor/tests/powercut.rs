//! Power cuts: everything is gone but what had reached the disk. Memory that comes back is that of the files that are there.
//!
//! The data directory is on a disk of the test's own that loses what was not synced. The program counts in memory and in its
//! files, in three ways, and compares them whenever it is asked.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::net::SocketAddr;
use std::time::Duration;

use support::{PATIENCE, Random, rounds, say, told};
use torpor_testkit::daemon::Daemon;
use torpor_testkit::native::{LineSession, program};
use torpor_testkit::wait::eventually_ok;

const APP: &str = "ledger";
/// Going warm takes about so long.
const DEEPENING_US: u64 = 150_000;

fn open(daemon: &Daemon, address: SocketAddr) -> LineSession {
    eventually_ok("the ledger answers", PATIENCE, || LineSession::open(address))
        .unwrap_or_else(|error| panic!("{error}\n{}\n{}", told(daemon, APP), daemon.log()))
}

/// Adds some entries; the last answer.
fn add(session: &mut LineSession, entries: u64) -> String {
    let mut answer = session.ask().unwrap();
    for _ in 0..entries {
        answer = session.tell("add").unwrap();
        assert!(answer.starts_with("ok "), "{answer}");
    }
    answer
}

fn word<'a>(answer: &'a str, key: &str) -> &'a str {
    answer.split(' ').find_map(|word| word.strip_prefix(key)).unwrap_or_default()
}

#[test]
fn memory_and_files_belong_together_after_a_power_cut() {
    let mut daemon = Daemon::start_on_disk("[idle]\nsleep = false\n").unwrap();
    let ledger = program("ledger", &["7000"], &[7000]).unwrap();
    let address = daemon.run_program(&ledger, APP, "").unwrap()[0];
    let mut random = Random::new(11);
    let (mut kept, mut lost) = (0, 0);
    for round in 0..rounds(12, 120) {
        let mut session = open(&daemon, address);
        let before = add(&mut session, random.below(20));
        let kind = round % 4;
        let sleep = |daemon: &Daemon| daemon.cli(&["sleep", APP, "--level", "warm"]).unwrap();
        let mut warm = false;
        match kind {
            // Warm for sure.
            0 => warm = sleep(&daemon).status.success(),
            // It runs.
            1 => {}
            // On its way there.
            2 => {
                let mut going = daemon.command(&["sleep", APP, "--level", "warm"]).spawn().unwrap();
                std::thread::sleep(Duration::from_micros(random.below(DEEPENING_US)));
                going.kill().unwrap();
                going.wait().unwrap();
            }
            // There, and back again, with newer files.
            _ => {
                sleep(&daemon);
                add(&mut session, 1 + random.below(5));
                std::thread::sleep(Duration::from_micros(random.below(20_000)));
            }
        }
        daemon.power_off().unwrap();
        daemon.up().unwrap();
        let state = daemon.state(APP).unwrap();
        let mut again = open(&daemon, address);
        let after = again.ask().unwrap();
        assert!(after.starts_with("ok "), "round {round}: {after} ({state})\n{}", daemon.log());
        let same = word(&before, "nonce=") == word(&after, "nonce=");
        if warm {
            assert!(
                same,
                "round {round}: it was warm and its memory is gone ({state}): {before} {after}\n{}",
                daemon.log()
            );
            assert_eq!(word(&before, "count="), word(&after, "count="));
        }
        // One that had just been woken may be found as before its wake: then nothing that it has written since was durable.
        if same { kept += 1 } else { lost += 1 }
    }
    say(&format!("power cuts: {kept} times its memory came back, {lost} times it started afresh on its files"));
}
