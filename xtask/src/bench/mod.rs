//! Benchmarks: each prints a table and writes `target/bench/NAME.json`, and with `--docs` a page in `docs/benchmarks/`.
//!
//! Those of apps start a `torpor up` of their own (release build) beside whatever runs on the machine, and take it down.

mod chart;
mod client;
mod cost;
mod daemon;
mod density;
pub(crate) mod machine;
mod noisy;
mod pages;
mod peers;
mod program;
mod report;
mod trees;
mod wake;

use std::path::PathBuf;
use std::process::Command;

use clap::{Args, Subcommand};
use torpor_testkit::zoo::target_dir;

pub(crate) use self::peers::criu_binary;
use self::report::Report;
use crate::error::{Error, run as run_command};

/// Measure; needs root. A table on standard output, JSON in target/bench/NAME.json
#[derive(Debug, Args)]
pub(crate) struct Options {
    #[command(subcommand)]
    bench: Bench,
    /// Write a page in docs/benchmarks, too; with `list` from the last results, without measuring
    #[arg(long, global = true)]
    docs: bool,
}

/// Which benchmark.
#[derive(Debug, Subcommand)]
enum Bench {
    /// Time to first byte asleep and never slept, beside runc + CRIU and a cold start; capture; the sandbox's own cost
    Wake(wake::Options),
    /// Memory of many dozing apps, and the worker's own CPU while all of them sleep
    Density(density::Options),
    /// Time to first byte asleep, alone and beside apps that write to their output as fast as they can
    Noisy(noisy::Options),
    /// Checkpoint and restore of plain process trees, beside CRIU, runc + CRIU and the pure copying of their memory
    Trees(trees::Options),
    /// The benchmarks, and the results that are there
    List,
}

const NAMES: [(&str, &str); 5] = [
    ("wake", "time to first byte asleep and never slept, beside peers; capture; the sandbox's own cost"),
    ("density", "memory of many dozing apps, and the worker's own CPU while all of them sleep"),
    ("density-warm", "the same of warm apps, and the time until all are there again after a reboot"),
    ("noisy", "time to first byte asleep, alone and beside apps that write to their output as fast as they can"),
    ("trees", "checkpoint and restore of plain process trees, beside peers and the pure copying of their memory"),
];

/// Runs a benchmark.
pub(crate) fn run(options: &Options) -> Result<(), Error> {
    let (name, report) = match &options.bench {
        Bench::Wake(options) => ("wake", wake::run(options)?),
        Bench::Density(options) => (options.name(), density::run(options)?),
        Bench::Noisy(options) => ("noisy", noisy::run(options)?),
        Bench::Trees(options) => ("trees", trees::run(options)?),
        Bench::List => return list(options.docs),
    };
    report.publish(name)?;
    if options.docs { pages::write(name, &report) } else { Ok(()) }
}

/// Where results are written.
pub(crate) fn results() -> PathBuf {
    target_dir().join("bench")
}

fn list(docs: bool) -> Result<(), Error> {
    for (name, what) in NAMES {
        println!("{name:<14}{what}");
        let path = results().join(format!("{name}.json"));
        let report = match std::fs::read_to_string(&path) {
            Ok(text) => Report::parse(&text)?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            Err(error) => return Err(Error::file("read", path)(error)),
        };
        println!("\nlast result, {}:\n{}", path.display(), report.table());
        if docs {
            pages::write(name, &report)?;
        }
    }
    Ok(())
}

/// The binary that `TORPOR_BIN` names, or the release binary, built if it is not up to date.
pub(crate) fn release_binary() -> Result<PathBuf, Error> {
    if let Some(path) = std::env::var_os("TORPOR_BIN") {
        return Ok(path.into());
    }
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    eprintln!("building torpor (release) …");
    run_command(Command::new(cargo).args(["build", "--release", "--package", "torpor"]))?;
    let path = target_dir().join("release/torpor");
    path.canonicalize().map_err(Error::file("find", path))
}
