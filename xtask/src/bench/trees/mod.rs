//! `torpor checkpoint` and `torpor restore` of plain process trees, beside CRIU and beside runc + CRIU with the same tree in
//! a container. Subjects take turns, so that noise of the machine affects all of them.
//!
//! Each sample is a new tree that is started, captured, restored, asked, checked (every thread has run, every word of memory
//! is unchanged) and ended. Torpor's image is durable when the command returns; those of the peers are not. `checkpoint` is
//! the time of the command, `durable` includes syncing the files of the image after it. For reference, a plain copy reads
//! every page of the private memory of the stopped tree, writes it to a new file and syncs the file: `copy` through the page
//! cache, `direct` with direct I/O, which Torpor uses for large images. Images are restored from the page cache.

mod copy;
pub(super) mod subject;
mod tree;

use std::fs::File;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use clap::Args;

use self::subject::{Ran, Subject, Traffic, subjects};
use self::tree::{Gone, Shape, Tree};
use super::peers::{CONTAINER, CRIU};
use super::progress;
use super::samples::{Measured, Row, Samples};
use crate::error::{Error, chain};

/// How to measure.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Samples of each shape and subject
    #[arg(long, default_value_t = 10)]
    runs: usize,
    /// Leave out the largest trees
    #[arg(long)]
    quick: bool,
    /// Only these shapes, as PROCESSESxTHREADSxMEGABYTES: threads of each process, memory of all processes together
    #[arg(long, value_delimiter = ',')]
    shapes: Vec<Shape>,
    /// Leave out CRIU and runc + CRIU
    #[arg(long)]
    without_peers: bool,
    /// Also show the time of each step of Torpor
    #[arg(long)]
    steps: bool,
}

impl Options {
    /// For `bench all`.
    pub(super) const fn brief(quick: bool) -> Self {
        Self { runs: if quick { 1 } else { 3 }, quick, shapes: Vec::new(), without_peers: false, steps: false }
    }
}

/// The default shapes: each axis alone, and combinations.
const SHAPES: [[usize; 3]; 11] = [
    [1, 1, 1],
    [10, 1, 1],
    [100, 1, 1],
    [1, 64, 1],
    [10, 64, 1],
    [1, 1, 64],
    [10, 1, 64],
    [100, 1, 64],
    [10, 64, 64],
    [1, 1, 1024],
    [10, 1, 1024],
];
/// Trees of this many megabytes or more are large: fewer samples of them are taken, none with `--quick`.
const LARGE: usize = 1024;
const LARGE_RUNS: usize = 3;
/// What remains of a tree between checkpoint and restore.
const LEVEL: &str = "image";
/// Attempts: other processes may have taken the process ids of a tree before it is restored.
const TRIES: usize = 3;

/// Measures; `torpor` is the program that captures and restores.
pub(crate) fn run(options: &Options, torpor: &Path) -> Result<Measured, Error> {
    // Not below /tmp: that may be a memory file system.
    let dir = tempfile::Builder::new().prefix("torpor-bench-").tempdir_in("/var/tmp");
    let dir = dir.map_err(Error::file("make a directory in", "/var/tmp"))?;
    let mut measured = Measured::default();
    let samples = &mut measured.samples;
    let subjects = subjects(torpor.to_owned(), !options.without_peers, dir.path(), samples);
    let shapes = match &options.shapes[..] {
        [] => SHAPES.map(Shape::from).to_vec(),
        shapes => shapes.to_vec(),
    };
    let shapes: Vec<_> = shapes.into_iter().filter(|shape| !options.quick || shape.megabytes < LARGE).collect();
    for (number, shape) in shapes.iter().enumerate() {
        let runs = if shape.megabytes < LARGE { options.runs } else { options.runs.min(LARGE_RUNS) };
        progress(format_args!("{shape} ({} of {})", number + 1, shapes.len()));
        for round in 0..runs {
            // The order changes with each round. `None` is the plain copy.
            let mut order: Vec<Option<&Subject>> = subjects.iter().map(Some).chain([None]).collect();
            let by = round % order.len();
            order.rotate_left(by);
            for subject in order {
                if let Some(subject) = subject {
                    sample(subject, shape, dir.path(), options.steps, samples)?;
                } else {
                    let tree = Tree::start(*shape, None)?;
                    for (metric, direct) in [("copy", false), ("direct", true)] {
                        let ms = copy::copy(tree.pid(), &dir.path().join("copy"), direct)?;
                        samples.add(&shape.to_string(), "copy", LEVEL, metric, "ms", ms);
                    }
                }
            }
        }
        measured.compared.extend(compare(&shape.to_string(), samples));
    }
    Ok(measured)
}

fn compare(shape: &str, samples: &Samples) -> Vec<Row> {
    let metrics = ["checkpoint", "durable", "restore", "first_answer", "all_answer"];
    let faster = [CRIU, CONTAINER].into_iter().flat_map(|peer| metrics.map(|metric| (metric, peer)));
    let faster = faster.map(|(metric, peer)| {
        let name = format!("{metric}_faster_than_{peer}");
        let (own, peer) = (("torpor", LEVEL, metric), (peer, LEVEL, metric));
        samples.compared(shape, (&name, "times"), own, peer, |torpor, peer| peer / torpor)
    });
    let to_copy = ["copy", "direct"].map(|metric| {
        let (own, copy) = (("torpor", LEVEL, "durable"), ("copy", LEVEL, metric));
        samples.compared(shape, (&format!("durable_to_{metric}"), "times"), own, copy, |torpor, copy| torpor / copy)
    });
    faster.chain(to_copy).flatten().collect()
}

/// One sample. If it fails, the failure is recorded and the other samples are still taken.
fn sample(subject: &Subject, shape: &Shape, dir: &Path, steps: bool, samples: &mut Samples) -> Result<(), Error> {
    let mut failure = None;
    for _ in 0..TRIES {
        match measure(subject, shape, &dir.join("image")) {
            Ok(sample) => {
                let mut add = |metric: &str, unit, value| {
                    samples.add(&shape.to_string(), subject.name(), LEVEL, metric, unit, value);
                };
                let mut rows: Vec<_> = sample.values.iter().filter(|value| steps || !value.2).collect();
                rows.sort_by_key(|value| value.2);
                rows.into_iter().for_each(|(metric, ms, _)| add(metric, "ms", *ms));
                add("image", "kB", sample.image_kb);
                return Ok(());
            }
            Err(error) => failure = Some(error),
        }
        if let Err(error) = subject.recover() {
            eprintln!("after a failure of {}: {}", subject.name(), chain(&error));
        }
    }
    if let Some(error) = failure {
        samples.missing(format!("some runs of {} with {shape}", subject.name()), &error);
    }
    Ok(())
}

/// Results of one capture and restore.
struct Sample {
    /// Metric, milliseconds, whether it is the time of a single step.
    values: Vec<(String, f64, bool)>,
    image_kb: f64,
}

fn measure(subject: &Subject, shape: &Shape, image: &Path) -> Result<Sample, Error> {
    let mut values = Vec::new();
    let tree = Tree::start(*shape, subject.container())?;
    if image.exists() {
        std::fs::remove_dir_all(image).map_err(Error::file("remove", image))?;
    }
    std::fs::create_dir(image).map_err(Error::file("make", image))?;

    let begun = Instant::now();
    let captured = subject.checkpoint(tree.pid(), image, Traffic::Inside)?;
    values.push(("checkpoint".to_owned(), ms(begun.elapsed()), false));
    let image_kb = sync(image)?;
    values.push(("durable".to_owned(), ms(begun.elapsed()), false));
    add_account(&captured, "checkpoint", &mut values);
    if let Some(us) = captured.account["stopped_us"].as_f64() {
        values.push(("frozen".to_owned(), us / 1e3, false));
    }
    let gone: Gone<'_> = tree.gone()?;

    let begun = Instant::now();
    let restoring = subject.restore(image, Traffic::Inside)?;
    let answers = std::thread::scope(|scope| {
        let asking = scope.spawn(|| gone.answers(begun));
        let restored = restoring.wait();
        let restored_ms = ms(begun.elapsed());
        // Nobody answers if the restore has failed: report the failure at once.
        gone.over(restored.is_err());
        let answers = asking.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        Ok::<_, Error>((restored?, restored_ms, answers?))
    });
    let tree = gone.restored();
    let (restored, restored_ms, (first, all)) = answers?;
    tree.check()?;
    values.push(("restore".to_owned(), restored_ms, false));
    values.push(("first_answer".to_owned(), ms(first), false));
    values.push(("all_answer".to_owned(), ms(all), false));
    add_account(&restored, "restore", &mut values);
    Ok(Sample { values, image_kb })
}

fn add_account(ran: &Ran, what: &str, values: &mut Vec<(String, f64, bool)>) {
    for step in ran.account["steps"].as_array().into_iter().flatten() {
        if let (Some(name), Some(us)) = (step[0].as_str(), step[1].as_f64()) {
            values.push((format!("{what}_{name}"), us / 1e3, true));
        }
    }
}

/// Syncs every file of an image; its size in kB.
fn sync(image: &Path) -> Result<f64, Error> {
    let wrong = Error::file("sync", image);
    let sync = || -> io::Result<u64> {
        let mut bytes = 0;
        for entry in std::fs::read_dir(image)? {
            let file = File::open(entry?.path())?;
            file.sync_all()?;
            bytes += file.metadata()?.len();
        }
        File::open(image)?.sync_all()?;
        Ok(bytes)
    };
    Ok(sync().map_err(wrong)? as f64 / 1024.0)
}

fn ms(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1e6
}
