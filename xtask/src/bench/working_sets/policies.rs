//! The policies of `working_set`, with redis and clamd. Each wake is one connection that asks for some keys at once, or has some bytes scanned; all
//! policies get the same requests.

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
/// A program whose requests change.
struct Case {
    program: &'static str,
    /// Requests are about that many things, of which few are frequent.
    things: u32,
    request: fn(&mut Zipf) -> Protocol,
    /// Of the rounds and of the training: one in this many, for those that take long to fall asleep.
    part: usize,
}

/// Redis with 80,000 keys; clamd, which takes another way through its signatures for each text.
const CASES: [Case; 2] = [
    Case { program: "redis-80mb", things: 80_000, request: |keys| Protocol::Keys(keys.take()), part: 1 },
    Case { program: "clamd", things: 1_000, request: |texts| Protocol::ScanOf(texts.take::<1>()[0]), part: 2 },
];
const SEED: u64 = 20;
/// Wakes before those that are measured: two of them are sampled, so that sets have lost what nobody needs.
const TRAINING: usize = 16;
const QUICK_TRAINING: usize = 4;
/// The time to the first byte: the tables of working sets have a metric of their own.
const METRIC: &str = "first_byte_policy";

/// Measures all policies in turn, with one program after the other.
pub(super) fn run(options: &Options, torpor: &Path, samples: &mut Samples) -> Result<(), Error> {
    CASES.iter().try_for_each(|case| measure(case, options, torpor, samples))
}

fn measure(case: &Case, options: &Options, torpor: &Path, samples: &mut Samples) -> Result<(), Error> {
    let program = program(case.program)?;
    let mut daemon = Daemon::start(torpor, IMAGES_CACHED)?;
    daemon.load(program.name, &program.servers.tarball)?;
    let awake = Sleeper::start(&mut daemon, "awake", &program, POLICIES[0])?;
    let mut sleepers = Vec::with_capacity(POLICIES.len());
    for (number, (app, policy)) in APPS.into_iter().zip(POLICIES).enumerate() {
        progress(format_args!("policies: starting {} ({} of {})", program.name, number + 1, POLICIES.len()));
        sleepers.push((policy, Sleeper::start(&mut daemon, app, &program, policy)?));
    }
    let mut things = Zipf::new(case.things, SEED);
    progress("policies: training");
    for _ in 0..if options.quick { QUICK_TRAINING } else { TRAINING / case.part } {
        let request = (case.request)(&mut things);
        sleepers.iter_mut().try_for_each(|(_, sleeper)| sleeper.train(&daemon, request))?;
    }
    let (runs, gap) = ((options.runs() * 3 / 2).div_ceil(case.part), options.gap());
    for round in 0..runs {
        if round % 5 == 0 {
            progress(format_args!("policies: round {} of {runs}", round + 1));
        }
        let request = (case.request)(&mut things);
        std::thread::sleep(gap);
        samples.add(program.name, "never-slept", "running", METRIC, "us", awake.ask(request)?);
        for (policy, sleeper) in &mut sleepers {
            sleeper.wake(&daemon, request, gap, true)?.add(samples, program.name, policy, METRIC);
        }
    }
    progress("policies: done");
    Ok(())
}
