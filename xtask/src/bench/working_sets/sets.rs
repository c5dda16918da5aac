//! Working sets of several sizes, and prediction errors, with the strawman.

use std::path::Path;

use torpor_testkit::native;

use super::Options;
use super::sleeper::Sleeper;
use crate::bench::client::{Protocol, Touch};
use crate::bench::daemon::{Daemon, IMAGES_CACHED};
use crate::bench::peers::criu_peers;
use crate::bench::program::Program;
use crate::bench::progress;
use crate::bench::samples::Samples;
use crate::bench::wake::ask_peer;
use crate::error::Error;

/// Subjects that sleep: names in results and of the apps, and the values of `working_set`.
const SUBJECTS: [(&str, &str); 4] = [(LEARNED, "1 of 2"), (SETTLED, "1 of 2"), ("reactive", "none"), ("full", "all")];
/// The subject that has learned from [`TRAINING`] wakes.
const LEARNED: &str = "learned";
/// The subject that has learned from [`SETTLING`] wakes. Not measured with errors, before each of which it would have to learn anew.
const SETTLED: &str = "settled";
/// Memory of the strawman, as in Picocenter, and its port.
const MEGABYTES: &str = "64";
const PORT: u16 = 7000;
/// Name in results, and size.
type Size = (&'static str, u32);
const SIZES: [Size; 8] = [
    ("4 kB", 4 << 10),
    ("16 kB", 16 << 10),
    ("64 kB", 64 << 10),
    ("256 kB", 256 << 10),
    UNCACHED,
    ("2 MB", 2 << 20),
    COMPARED,
    ("8 MB", 8 << 20),
];
/// The size that is also measured with images outside the page cache.
const UNCACHED: Size = ("1 MB", 1 << 20);
/// The size that is also measured with the peers.
const COMPARED: Size = ("4 MB", 4 << 20);
const QUICK_SIZES: [Size; 3] = [SIZES[0], UNCACHED, COMPARED];
/// Sizes with prediction errors.
const ERROR_SIZES: [Size; 2] = [UNCACHED, COMPARED];
/// Thousandths of a set that the app has not learned.
const ERRORS: [u32; 7] = [5, 10, 50, 100, 250, 500, 1000];
const QUICK_ERRORS: [u32; 2] = [10, 1000];
/// Wakes from which a set is learned: while the first touches its pages, some are there already, and are learned from the second.
const TRAINING: usize = 2;
/// Wakes from which a set is learned of which two are sampled: the set has lost the pages that came beside those that were touched.
const SETTLING: usize = 16;
/// The time to the answer with prediction errors: the tables of sizes have a metric of their own.
const WITH_ERRORS: &str = "first_byte_errors";

/// The apps of the strawman.
struct Strawmen {
    daemon: Daemon,
    program: Program,
    awake: Sleeper<'static>,
    /// In the order of [`SUBJECTS`].
    sleepers: Vec<(&'static str, Sleeper<'static>)>,
}

/// Measures all sizes, then the errors.
pub(super) fn run(options: &Options, torpor: &Path, samples: &mut Samples) -> Result<(), Error> {
    let mut strawmen = Strawmen::start(torpor)?;
    let sizes: &[Size] = if options.quick { &QUICK_SIZES } else { &SIZES };
    for size in sizes {
        progress(format_args!("a working set of {}", size.0));
        strawmen.of_size(*size, options, samples)?;
    }
    let errors: &[u32] = if options.quick { &QUICK_ERRORS } else { &ERRORS };
    for size in ERROR_SIZES {
        for permille in errors {
            progress(format_args!("a working set of {} of which are not learned", error_name(size, *permille)));
            strawmen.with_error(size, *permille, options, samples)?;
        }
    }
    Ok(())
}

/// The name in results of a size with an error.
fn error_name((size, _): Size, permille: u32) -> String {
    format!("{size}, {} %", f64::from(permille) / 10.0)
}

/// A request that touches a set of this size. Each size has other pages.
const fn touch((_, bytes): Size, error_permille: u32) -> Protocol {
    Protocol::Touch(Touch { bytes, seed: bytes, error_permille })
}

impl Strawmen {
    fn start(torpor: &Path) -> Result<Self, Error> {
        let servers = native::program("strawman", &[MEGABYTES, &PORT.to_string()], &[PORT])?;
        let program = Program::other("strawman", servers, touch(SIZES[0], 0));
        let mut daemon = Daemon::start(torpor, IMAGES_CACHED)?;
        daemon.load(program.name, &program.servers.tarball)?;
        let awake = Sleeper::start(&mut daemon, "awake", &program, SUBJECTS[0].1)?;
        let mut sleepers = Vec::with_capacity(SUBJECTS.len());
        for (name, policy) in SUBJECTS {
            sleepers.push((name, Sleeper::start(&mut daemon, name, &program, policy)?));
        }
        Ok(Self { daemon, program, awake, sleepers })
    }

    /// Resets the working set of a subject that learns, and lets it learn from `wakes` wakes by `request`.
    fn train(&mut self, subject: &str, wakes: usize, request: Protocol) -> Result<(), Error> {
        for (_, learner) in self.sleepers.iter_mut().filter(|(name, _)| *name == subject) {
            learner.restart(&self.daemon, &self.program)?;
            (0..wakes).try_for_each(|_| learner.train(&self.daemon, request))?;
        }
        Ok(())
    }

    fn of_size(&mut self, size: Size, options: &Options, samples: &mut Samples) -> Result<(), Error> {
        const METRIC: &str = "first_byte";
        let (request, gap) = (touch(size, 0), options.gap());
        let compared = Program::other(size.0, self.program.servers.clone(), request);
        let dir = tempfile::Builder::new().prefix("torpor-bench-").tempdir_in("/var/tmp");
        let dir = dir.map_err(Error::file("make a directory in", "/var/tmp"))?;
        let has_peers = size == COMPARED && !options.without_peers;
        let mut peers = if has_peers { criu_peers(&compared, dir.path(), samples) } else { Vec::new() };
        self.train(LEARNED, TRAINING, request)?;
        self.train(SETTLED, SETTLING, request)?;
        for round in 0..options.runs() {
            std::thread::sleep(gap);
            samples.add(size.0, "never-slept", "running", METRIC, "us", self.awake.ask(request)?);
            for (subject, sleeper) in &mut self.sleepers {
                sleeper.wake(&self.daemon, request, gap, true)?.add(samples, size.0, subject, METRIC);
            }
            if size == UNCACHED {
                for (subject, sleeper) in &mut self.sleepers {
                    let woken = sleeper.wake(&self.daemon, request, gap, false)?;
                    woken.add_time(samples, size.0, subject, "first_byte_uncached");
                }
            }
            peers.retain_mut(|peer| match ask_peer(&compared, &mut **peer, gap, samples) {
                Ok(()) => true,
                Err(error) => {
                    samples.missing(format!("{} with {}, from round {}", peer.name(), size.0, round + 1), &error);
                    false
                }
            });
        }
        Ok(())
    }

    fn with_error(&mut self, size: Size, permille: u32, options: &Options, samples: &mut Samples) -> Result<(), Error> {
        let (learned, request, name) = (touch(size, 0), touch(size, permille), &error_name(size, permille));
        for _ in 0..(options.runs() * 2).div_ceil(5) {
            // Otherwise the set would contain what the wake before touched in error.
            self.train(LEARNED, TRAINING, learned)?;
            std::thread::sleep(options.gap());
            samples.add(name, "never-slept", "running", WITH_ERRORS, "us", self.awake.ask(request)?);
            for (subject, sleeper) in self.sleepers.iter_mut().filter(|(name, _)| *name != SETTLED) {
                sleeper.wake(&self.daemon, request, options.gap(), true)?.add(samples, name, subject, WITH_ERRORS);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_result_has_a_name_of_its_own() {
        let names = ERROR_SIZES.iter().flat_map(|size| ERRORS.map(|permille| error_name(*size, permille)));
        let names: Vec<String> = names.chain(SIZES.map(|(name, _)| name.to_owned())).collect();
        let distinct: std::collections::BTreeSet<&String> = names.iter().collect();
        assert!(distinct.len() == names.len() && names[0] == "1 MB, 0.5 %" && names[6] == "1 MB, 100 %", "{names:?}");
    }

    #[test]
    fn a_set_is_at_most_half_of_the_memory() {
        let megabytes: u32 = MEGABYTES.parse().unwrap();
        assert!(SIZES.iter().all(|(_, bytes)| bytes.is_power_of_two() && *bytes <= megabytes << 19));
    }
}
