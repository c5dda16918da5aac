//! What it costs to learn: in sampled wakes each page is placed only when it is touched, so they take longer than the others.

use std::path::Path;

use super::Options;
use super::sleeper::{DOZING, Sleeper};
use super::zipf::Zipf;
use crate::bench::client::Protocol;
use crate::bench::daemon::{Daemon, IMAGES_CACHED};
use crate::bench::program::program;
use crate::bench::progress;
use crate::bench::samples::Samples;
use crate::error::Error;

/// Requests that change, so that sets are never quite right, and requests that do not.
const PROGRAMS: [&str; 2] = ["redis-80mb", "python"];
const KEY_COUNT: u32 = 80_000;
const SEED: u64 = 21;
/// Wakes before those that are measured.
const TRAINING: usize = 16;
/// For each run of the options: as many wakes as there are to a sampled one.
const WAKES: usize = 8;

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// Measures an app with the policy of a new one.
pub(super) fn run(options: &Options, torpor: &Path, samples: &mut Samples) -> Result<(), Error> {
    for name in PROGRAMS {
        let program = program(name)?;
        let mut daemon = Daemon::start(torpor, IMAGES_CACHED)?;
        daemon.load(program.name, &program.servers.tarball)?;
        progress(format_args!("cost of learning: {name}"));
        let mut sleeper = Sleeper::start(&mut daemon, "learner", &program, "1 of 2")?;
        let mut keys = Zipf::new(KEY_COUNT, SEED);
        let mut request = || match program.protocol {
            Protocol::Redis => Protocol::Keys(keys.take()),
            other => other,
        };
        for _ in 0..if options.quick { 2 } else { TRAINING } {
            sleeper.train(&daemon, request())?;
        }
        let (mut all, mut others) = (Vec::new(), Vec::new());
        for _ in 0..options.runs() * WAKES {
            let woken = sleeper.wake(&daemon, request(), options.gap(), true)?;
            all.push(woken.us);
            if !woken.is_sampled() {
                others.push(woken.us);
            }
        }
        let mut add = |metric, unit, value| samples.add(name, "torpor", DOZING, metric, unit, value);
        add("learning_all", "us", mean(&all));
        add("learning_others", "us", mean(&others));
        add("learning_sampled", "wakes", (all.len() - others.len()) as f64);
        add("learning_cost", "percent", (mean(&all) / mean(&others) - 1.0) * 100.0);
    }
    Ok(())
}
