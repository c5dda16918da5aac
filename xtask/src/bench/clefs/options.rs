//! The parts of the benchmark, and how to measure each.

use std::path::PathBuf;

use clap::Args;

/// What is measured together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Part {
    States,
    Files,
    Processes,
    Connections,
    Durable,
    Counters,
    Idle,
    Sleeping,
}

pub(super) const PARTS: [Part; 8] = [
    Part::States,
    Part::Files,
    Part::Processes,
    Part::Connections,
    Part::Durable,
    Part::Counters,
    Part::Idle,
    Part::Sleeping,
];

/// How to measure a part. It prints its rows as JSON.
#[derive(Debug, Args)]
pub(crate) struct Options {
    #[arg(value_enum)]
    pub(super) part: Part,
    /// The program that runs Clefs behind HTTP, and checkpoints processes
    #[arg(long)]
    pub(super) torpor: PathBuf,
    #[arg(long)]
    pub(super) quick: bool,
}

impl Options {
    /// So many runs, or few.
    pub(super) const fn runs(&self, runs: usize, few: usize) -> usize {
        if self.quick { few } else { runs }
    }
}

impl Part {
    /// Its name in commands.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::States => "states",
            Self::Files => "files",
            Self::Processes => "processes",
            Self::Connections => "connections",
            Self::Durable => "durable",
            Self::Counters => "counters",
            Self::Idle => "idle",
            Self::Sleeping => "sleeping",
        }
    }
}
