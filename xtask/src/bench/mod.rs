//! Benchmarks. Each prints a table and writes `target/bench/NAME.json`; with `--docs` also a page in `docs/benchmarks/`.
//!
//! `bench render` writes the pages from the JSON files, without measuring. Benchmarks of apps start a daemon of their own,
//! beside whatever runs on the machine, and take it down.

mod chart;
mod clefs;
mod client;
mod conditions;
mod cost;
mod daemon;
mod density;
pub(crate) mod machine;
mod memory_peak;
mod noisy;
mod pages;
mod peers;
mod program;
mod report;
mod samples;
mod trees;
mod wake;
mod working_sets;

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Instant;

use clap::{Args, Subcommand};
use torpor_testkit::servers::target_dir;

use self::conditions::Conditions;
pub(crate) use self::peers::criu_binary;
use self::report::Report;
use self::samples::Measured;
use crate::error::{Error, chain, run as run_command};

/// Measure; needs root. Prints a table and writes target/bench/NAME.json
#[derive(Debug, Args)]
pub(crate) struct Options {
    #[command(subcommand)]
    bench: Bench,
    /// Also write the page in docs/benchmarks and the numbers in README.md
    #[arg(long, global = true)]
    docs: bool,
}

/// A benchmark, or a command for all of them.
#[derive(Debug, Subcommand)]
enum Bench {
    /// Time to first byte of sleeping apps, beside runc + CRIU, CRIU with and without lazy pages, and a cold start
    Wake(wake::Options),
    /// Wakes that expect the right pages, wrong ones, none or all, and policies of working sets
    Paging(working_sets::Options),
    /// Checkpoint and restore of plain process trees, beside CRIU, runc + CRIU and a plain copy of their memory
    Trees(trees::Options),
    /// Memory of many sleeping apps, and CPU use of the worker while they sleep
    Density(density::Options),
    /// Time to first byte of a sleeping app beside apps that write to their output as fast as they can
    Noisy(noisy::Options),
    /// Cost of the sandbox for a program that is awake
    Cost(cost::Options),
    /// Snapshots and restores of Clefs, durable answers, and memory, beside CRIU, redis and Node.js
    Clefs(clefs::Options),
    /// A part of `clefs`, as rows in JSON
    #[command(hide = true)]
    ClefsPart(clefs::PartOptions),
    /// All benchmarks with few runs each, in about 30 minutes
    All(AllOptions),
    /// Write the pages from the last results, without measuring
    Render,
    /// List the benchmarks and print their last results
    List,
}

/// How to measure everything.
#[derive(Debug, Args)]
struct AllOptions {
    /// One to three runs of each, in about 10 minutes: to see that all of them work
    #[arg(long)]
    quick: bool,
}

/// Names of results and what they measure.
const NAMES: [(&str, &str); 8] = [
    ("wake", "time to first byte of sleeping apps, beside peers"),
    ("paging", "wakes that expect the right pages, wrong ones, none or all; policies of working sets"),
    ("trees", "checkpoint and restore of plain process trees, beside peers"),
    ("density", "memory of many dozing apps, and CPU use of the worker"),
    ("density-warm", "the same for warm apps, and the time until all are back after a reboot"),
    ("noisy", "time to first byte of a sleeping app beside apps that write without end"),
    ("cost", "cost of the sandbox for a program that is awake"),
    ("clefs", "snapshots and restores of Clefs, durable answers, memory; beside peers"),
];

/// Runs a command of `cargo xtask bench`.
pub(crate) fn run(options: &Options) -> Result<(), Error> {
    let one = |name: &str, run: &dyn Fn(&Path) -> Result<Measured, Error>| {
        let torpor = release_binary()?;
        measure(name, &torpor, command(), options.docs, run)
    };
    match &options.bench {
        Bench::Wake(options) => one("wake", &|torpor| wake::run(options, torpor)),
        Bench::Paging(options) => one("paging", &|torpor| working_sets::run(options, torpor)),
        Bench::Trees(options) => one("trees", &|torpor| trees::run(options, torpor)),
        Bench::Density(options) => one(options.name(), &|torpor| density::run(options, torpor)),
        Bench::Noisy(options) => one("noisy", &|torpor| noisy::run(options, torpor)),
        Bench::Cost(options) => one("cost", &|torpor| cost::run(options, torpor)),
        Bench::Clefs(options) => one("clefs", &|torpor| clefs::run(options, torpor)),
        Bench::ClefsPart(options) => clefs::run_part(options),
        Bench::All(all) => run_all(all, options.docs),
        Bench::Render => render(),
        Bench::List => list(),
    }
}

/// Measures one benchmark and publishes its result.
fn measure(
    name: &str,
    torpor: &Path,
    command: String,
    docs: bool,
    run: &dyn Fn(&Path) -> Result<Measured, Error>,
) -> Result<(), Error> {
    let conditions = Conditions::now(torpor, command)?;
    let report = Report::new(conditions, run(torpor)?);
    report.publish(name)?;
    if docs { pages::write(name, &report) } else { Ok(()) }
}

/// Measures everything. A benchmark that fails does not prevent the others; the command fails at its end.
fn run_all(options: &AllOptions, docs: bool) -> Result<(), Error> {
    let quick = options.quick;
    let dense = |level| density::Options::brief(quick, level);
    let (dozing, warm) = (dense(density::Level::Dozing), dense(density::Level::Warm));
    type Run<'a> = &'a dyn Fn(&Path) -> Result<Measured, Error>;
    // Creating hundreds of apps disturbs what is measured afterwards, so density comes last.
    let all: [(&str, Run<'_>); 8] = [
        ("cost", &|torpor| cost::run(&cost::Options::brief(quick), torpor)),
        ("clefs", &|torpor| clefs::run(&clefs::Options::brief(quick), torpor)),
        ("wake", &|torpor| wake::run(&wake::Options::brief(quick), torpor)),
        ("paging", &|torpor| working_sets::run(&working_sets::Options::brief(quick), torpor)),
        ("noisy", &|torpor| noisy::run(&noisy::Options::brief(quick), torpor)),
        ("trees", &|torpor| trees::run(&trees::Options::brief(quick), torpor)),
        (dozing.name(), &|torpor| density::run(&dozing, torpor)),
        (warm.name(), &|torpor| density::run(&warm, torpor)),
    ];
    let torpor = release_binary()?;
    let mut failed = Vec::new();
    for (number, (name, run)) in all.iter().enumerate() {
        progress(format_args!("== {name} (benchmark {} of {})", number + 1, all.len()));
        if let Err(error) = measure(name, &torpor, command(), docs, *run) {
            eprintln!("{name} failed: {}", chain(&error));
            failed.push(*name);
        }
    }
    progress("done");
    if failed.is_empty() { Ok(()) } else { Err(Error::Benchmarks(failed.join(", "))) }
}

/// The command line that runs this again.
fn command() -> String {
    std::env::args().skip(1).fold("cargo xtask".to_owned(), |line, word| line + " " + &word)
}

/// Prints what is measured now, with the time since the first such line.
fn progress(what: impl Display) {
    static BEGUN: OnceLock<Instant> = OnceLock::new();
    eprintln!("[{:>4} s] {what}", BEGUN.get_or_init(Instant::now).elapsed().as_secs());
}

/// The directory of the results.
pub(crate) fn results() -> PathBuf {
    target_dir().join("bench")
}

fn render() -> Result<(), Error> {
    for (name, _) in NAMES {
        match Report::load(name)? {
            Some(report) => pages::write(name, &report)?,
            None => println!("{name}: no result in {}", results().display()),
        }
    }
    Ok(())
}

fn list() -> Result<(), Error> {
    for (name, what) in NAMES {
        println!("{name:<14}{what}");
        if let Some(report) = Report::load(name)? {
            println!("\nlast result:\n{}", report.table());
        }
    }
    Ok(())
}

/// The binary that `TORPOR_BIN` names, or the release binary, built if it is not up to date.
pub(crate) fn release_binary() -> Result<PathBuf, Error> {
    if let Some(path) = std::env::var_os("TORPOR_BIN") {
        return Ok(path.into());
    }
    built("torpor")
}

/// The release binary of a package, built if it is not up to date.
fn built(package: &str) -> Result<PathBuf, Error> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    eprintln!("building {package} (release) …");
    run_command(Command::new(cargo).args(["build", "--release", "--package", package]))?;
    let path = target_dir().join("release").join(package);
    path.canonicalize().map_err(Error::file("find", path))
}
