//! Clefs: time to store and to restore their states, to answer durably, and how many find room. The experiments are those of Alto (figures 2 to
//! 6), beside CRIU and this project's checkpoints of plain processes, redis and Node.js.
//!
//! ```text
//! bench clefs ─▶ for each part a process of the optimised xtask: `bench clefs-part PART` ─▶ its rows, as JSON
//!                states     a Lua state in this process: snapshots, restores
//!                files      a state with an open file, beside a synced copy
//!                processes  the same Lua program in Debian's interpreter, beside: CRIU, checkpoint
//!                connections  a server with 100 connections: CRIU, checkpoint
//!                durable    message to answer, with the state on disk
//!                counters   a counter for each user behind HTTP, and its peers
//!                idle, sleeping   memory
//! ```
//! A process for each part, since memory is a quantity, and optimised, since microseconds are.

mod aims;
mod connections;
mod counters;
mod durable;
mod files;
mod load;
mod memory;
mod options;
mod part;
mod processes;
mod programs;
mod states;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;

pub(super) use self::options::Options as PartOptions;
use self::options::{PARTS, Part};
pub(super) use self::part::run as run_part;
use super::progress;
use super::samples::Measured;
use crate::error::Error;

/// Names in results: a Clef's state, of which a snapshot takes what has changed, or everything.
const TORPOR: &str = "torpor";
const FULL: &str = "torpor-full";
/// Levels in results.
const IMAGE: &str = "image";
const RUNNING: &str = "running";
const ASLEEP: &str = "asleep";
const DURABLE: &str = "durable";
const MEMORY: &str = "memory";

/// How to measure.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Few runs of everything: to see that all of it works
    #[arg(long)]
    quick: bool,
    /// Only these parts
    #[arg(long, value_enum, value_delimiter = ',')]
    parts: Vec<Part>,
}

impl Options {
    /// For `bench all`.
    pub(super) const fn brief(quick: bool) -> Self {
        Self { quick, parts: Vec::new() }
    }
}

/// Measures; `torpor` is the program that runs Clefs behind HTTP, and checkpoints processes.
pub(crate) fn run(options: &Options, torpor: &Path) -> Result<Measured, Error> {
    let xtask = super::built("xtask")?;
    let mut measured = Measured::default();
    let parts: Vec<Part> =
        PARTS.into_iter().filter(|part| options.parts.is_empty() || options.parts.contains(part)).collect();
    for (number, part) in parts.iter().enumerate() {
        progress(format_args!("{} ({} of {})", part.name(), number + 1, parts.len()));
        match part::measured(*part, &xtask, torpor, options.quick) {
            Ok(report) => {
                measured.samples.missing.extend(report.missing);
                measured.compared.extend(report.rows);
                measured.peers.extend(report.conditions.peers);
            }
            Err(error) => measured.samples.missing(part.name().to_owned(), &error),
        }
    }
    aims::tell(&measured.compared);
    Ok(measured)
}

/// Microseconds since then.
fn us(begun: Instant) -> f64 {
    begun.elapsed().as_nanos() as f64 / 1000.0
}

/// A directory on a disk: /tmp may be a memory file system.
fn disk_directory() -> Result<tempfile::TempDir, Error> {
    let dir = tempfile::Builder::new().prefix("torpor-bench-").tempdir_in("/var/tmp");
    dir.map_err(Error::file("make a directory in", "/var/tmp"))
}

/// A directory with nothing in it.
fn new_directory(path: &Path) -> Result<PathBuf, Error> {
    if path.exists() {
        fs::remove_dir_all(path).map_err(Error::file("remove", path))?;
    }
    fs::create_dir(path).map_err(Error::file("make", path))?;
    Ok(path.to_owned())
}
