//! The throughput of a woken redis under full load: its memory comes back, by faults and in the background, while it answers.

use std::path::Path;
use std::time::Duration;

use super::Options;
use super::sleeper::{DOZING, Sleeper};
use crate::bench::client::rates;
use crate::bench::daemon::{Daemon, IMAGES_CACHED};
use crate::bench::program::program;
use crate::bench::progress;
use crate::bench::samples::Samples;
use crate::error::Error;

const PROGRAM: &str = "redis-80mb";
const KEY_COUNT: u32 = 80_000;
/// Names in results, and how far each part reaches from the first connection on, in milliseconds.
const PARTS: [(&str, u64); 5] =
    [("rate_250ms", 250), ("rate_500ms", 500), ("rate_1s", 1000), ("rate_2s", 2000), ("rate_3s", 3000)];

/// Measures an app that is woken by the load, and one that never sleeps, in turn.
pub(super) fn run(options: &Options, torpor: &Path, samples: &mut Samples) -> Result<(), Error> {
    let program = program(PROGRAM)?;
    let mut daemon = Daemon::start(torpor, IMAGES_CACHED)?;
    daemon.load(program.name, &program.servers.tarball)?;
    progress("full load on a woken redis");
    let awake = Sleeper::start(&mut daemon, "awake", &program, "1 of 2")?;
    let woken = Sleeper::start(&mut daemon, "woken", &program, "1 of 2")?;
    let until = PARTS.map(|(_, ms)| Duration::from_millis(ms));
    for _ in 0..options.runs() {
        woken.sleep(&daemon)?;
        std::thread::sleep(options.gap());
        for (sleeper, subject, level) in [(&awake, "never-slept", "running"), (&woken, "torpor", DOZING)] {
            for ((metric, _), rate) in PARTS.iter().zip(rates(sleeper.address(), KEY_COUNT, &until)?) {
                samples.add(program.name, subject, level, *metric, "1/s", rate);
            }
        }
    }
    Ok(())
}
