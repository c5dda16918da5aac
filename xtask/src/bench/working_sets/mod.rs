//! Wakes that expect the right pages, some wrong ones, none, or all: the experiments of Picocenter (section 6.4) and FaaSnap.
//!
//! - Working sets of several sizes (Picocenter, figure 7), with the strawman: `crates/testkit/programs/strawman.c`. For one size,
//!   CRIU takes turns with the apps, and images are also read from disk.
//! - Prediction errors (figure 8): the app has learned a set, and the request touches another one, a part of which is the same.
//! - Policies of `working_set`, with redis and clamd, and requests that change from wake to wake.
//! - What it costs to learn sets.
//! - Throughput of redis under full load while its memory comes back.
//!
//! Subjects take turns, as in `bench wake`. A learned set is forgotten when its program starts from the beginning, so that is
//! what separates the sizes and the errors from each other.

mod lesson_cost;
mod load;
mod policies;
mod sets;
mod sleeper;
mod zipf;

use std::path::Path;
use std::time::Duration;

use clap::Args;

use super::samples::Measured;
use crate::error::Error;

/// How to measure.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Requests to each subject and size; two fifths of that with each prediction error, half as many again with each policy
    #[arg(long, default_value_t = 10)]
    runs: usize,
    /// Two runs, and only some sizes and errors: to see that everything works
    #[arg(long)]
    quick: bool,
    /// Leave out CRIU
    #[arg(long)]
    without_peers: bool,
    /// Idle time before each request, in milliseconds
    #[arg(long, default_value_t = 200)]
    gap_ms: u64,
}

impl Options {
    /// For `bench all`.
    pub(super) const fn brief(quick: bool) -> Self {
        Self { runs: 6, quick, without_peers: false, gap_ms: 200 }
    }

    const fn runs(&self) -> usize {
        if self.quick { 2 } else { self.runs }
    }

    const fn gap(&self) -> Duration {
        Duration::from_millis(self.gap_ms)
    }
}

/// Measures; `torpor` is the program that hosts the apps.
pub(crate) fn run(options: &Options, torpor: &Path) -> Result<Measured, Error> {
    let mut measured = Measured::default();
    let samples = &mut measured.samples;
    let parts = [
        ("working sets", sets::run as Part),
        ("policies", policies::run),
        ("cost of learning", lesson_cost::run),
        ("full load", load::run),
    ];
    for (what, part) in parts {
        if let Err(error) = part(options, torpor, samples) {
            samples.missing(format!("{what} (all runs, or the rest of them)"), &error);
        }
    }
    Ok(measured)
}

/// One part of the benchmark.
type Part = fn(&Options, &Path, &mut super::samples::Samples) -> Result<(), Error>;
