//! A part of the benchmark, in a process of its own.

use std::path::Path;
use std::process::{Command, Stdio};

use super::options::{Options, Part};
use super::{connections, counters, durable, files, memory, processes, states};
use crate::bench::conditions::Conditions;
use crate::bench::report::Report;
use crate::bench::samples::Measured;
use crate::error::Error;

/// What a process of `xtask`, an optimised build of this program, measures.
pub(super) fn measured(part: Part, xtask: &Path, torpor: &Path, quick: bool) -> Result<Report, Error> {
    let mut command = Command::new(xtask);
    command.args(["bench", "clefs-part", part.name(), "--torpor"]).arg(torpor);
    command.args(quick.then_some("--quick")).stdin(Stdio::null()).stderr(Stdio::inherit());
    let output = command.output().map_err(Error::spawn(xtask.display().to_string()))?;
    if !output.status.success() {
        return Err(Error::Benchmarks(part.name().to_owned()));
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// Measures a part, and prints what it has found.
pub(crate) fn run(options: &Options) -> Result<(), Error> {
    let mut measured = Measured::default();
    let done = match options.part {
        Part::States => states::run(options, &mut measured.samples),
        Part::Files => files::run(options, &mut measured.samples),
        Part::Processes => processes::run(options, &mut measured),
        Part::Connections => connections::run(options, &mut measured.samples),
        Part::Durable => durable::run(options, &mut measured.samples),
        Part::Counters => counters::run(options, &mut measured),
        Part::Idle => memory::idle(options, &mut measured.samples),
        Part::Sleeping => memory::sleeping(options, &mut measured.samples),
    };
    if let Err(error) = done {
        measured.samples.missing(format!("{} (all of it, or the rest)", options.part.name()), &error);
    }
    let report = Report::new(Conditions::default(), measured);
    println!("{}", serde_json::to_string(&report)?);
    Ok(())
}
