//! The policies of `working_set`, with redis. Each wake is one connection that asks for some keys at once; all policies get the same keys.

use std::path::Path;

use super::Options;
use super::sleeper::Sleeper;
use super::zipf::Zipf;
use crate::bench::client::Protocol;
use crate::bench::daemon::{Daemon, IMAGES_CACHED};
use crate::bench::program::program;
use crate::bench::progress;
use crate::bench::samples::Samples;
use crate::error::Error;

/// Names in results, which are the values of `working_set`.
pub(super) const POLICIES: [&str; 7] = ["last", "1 of 2", "2 of 4", "union", "present", "none", "all"];
/// Names of the apps.
const APPS: [&str; POLICIES.len()] = ["last", "one-of-two", "two-of-four", "union", "present", "none", "all"];
/// Redis with 80,000 keys.
const PROGRAM: &str = "redis-80mb";
const KEY_COUNT: u32 = 80_000;
const SEED: u64 = 20;
/// Wakes before those that are measured, enough for each policy to look back as far as it does.
const TRAINING: usize = 4;
/// The time to the first byte: the tables of working sets have a metric of their own.
const METRIC: &str = "first_byte_policy";

/// Measures all policies in turn.
pub(super) fn run(options: &Options, torpor: &Path, samples: &mut Samples) -> Result<(), Error> {
    progress("policies: filling redis");
    let program = program(PROGRAM)?;
    let mut daemon = Daemon::start(torpor, IMAGES_CACHED)?;
    daemon.load(program.name, &program.servers.tarball)?;
    let awake = Sleeper::start(&mut daemon, "awake", &program, POLICIES[0])?;
    let mut sleepers = Vec::with_capacity(POLICIES.len());
    for (app, policy) in APPS.into_iter().zip(POLICIES) {
        sleepers.push((policy, Sleeper::start(&mut daemon, app, &program, policy)?));
    }
    let mut keys = Zipf::new(KEY_COUNT, SEED);
    let (runs, gap) = (options.runs() * 2, options.gap());
    for round in 0..TRAINING + runs {
        if round % 5 == 0 {
            progress(format_args!("policies: round {} of {}", round + 1, TRAINING + runs));
        }
        let request = Protocol::Keys(keys.take());
        std::thread::sleep(gap);
        let us = awake.ask(request)?;
        if round >= TRAINING {
            samples.add(program.name, "never-slept", "running", METRIC, "us", us);
        }
        for (policy, sleeper) in &mut sleepers {
            let woken = sleeper.wake(&daemon, request, gap, true)?;
            if round >= TRAINING {
                woken.add(samples, program.name, policy, METRIC);
            }
        }
    }
    Ok(())
}
