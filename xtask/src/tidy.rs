//! `cargo xtask tidy`: everything that is checked about the sources without running them.
//!
//! Checks of files work on a [`Tree`] in memory (path → text), so that each has tests with a good and a bad example. What a
//! compiler knows better (formatting, lints) is asked of `cargo fmt` and `cargo clippy`. Nothing is ever changed.

mod arrows;
mod circles;
mod dependencies;
mod documents;
mod machine;
mod mentions;
mod modules;
mod names;
mod rust;
mod sizes;
mod tokens;
mod tools;
mod tree;

use std::fmt;
use std::path::PathBuf;
use std::process::ExitCode;

use tree::Tree;

use crate::error::Error;

/// Check the sources: formatting, lints, structure, documents.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Leave out `cargo fmt` and `cargo clippy`.
    #[arg(long)]
    no_cargo: bool,
    /// Leave out `cargo clippy`, which compiles everything.
    #[arg(long)]
    no_clippy: bool,
}

/// Something that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Finding {
    path: PathBuf,
    /// From 1; 0: the whole file.
    line: usize,
    what: String,
}

impl Finding {
    fn new(path: impl Into<PathBuf>, line: usize, what: impl Into<String>) -> Self {
        Self { path: path.into(), line, what: what.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.path.display(), self.what),
            line => write!(f, "{}:{line}: {}", self.path.display(), self.what),
        }
    }
}

/// A check of files.
type Check = fn(&Tree) -> Vec<Finding>;

const CHECKS: [(&str, Check); 9] = [
    ("crate arrows", arrows::check),
    ("module arrows", circles::check),
    ("dependencies in use", dependencies::check),
    ("rust sources", rust::check),
    ("file sizes", sizes::check),
    ("file names", names::check),
    ("documents", documents::check),
    ("mentions", mentions::check),
    ("nothing of this machine", machine::check),
];

/// Runs every check and prints what it found.
pub(crate) fn run(args: &Args) -> ExitCode {
    let tree = match Tree::load() {
        Ok(tree) => tree,
        Err(error) => {
            eprintln!("tidy: {error}");
            return ExitCode::FAILURE;
        }
    };
    let mut summary: Vec<(&str, String)> = CHECKS.iter().map(|(name, check)| (*name, report(check(&tree)))).collect();
    for (tool, left_out) in [(tools::FORMATTING, args.no_cargo), (tools::CLIPPY, args.no_cargo || args.no_clippy)] {
        if !left_out {
            let result = tool.run(&tree.root, 0).map(report);
            summary.push((tool.name, result.unwrap_or_else(|why| why)));
        }
    }
    println!();
    for (name, result) in &summary {
        println!("{name:<24} {result}");
    }
    if summary.iter().all(|(_, result)| result == "ok") { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs clippy at the lowest priority, as long as other things matter more; prints what it found.
pub(crate) fn lint() -> Result<(), Error> {
    let root = tree::root();
    let result = tools::CLIPPY.run(&root, 19).map_or_else(|why| why, report);
    if result == "ok" { Ok(()) } else { Err(Error::Lints(result)) }
}

/// Prints findings and says how many they are.
fn report(mut findings: Vec<Finding>) -> String {
    findings.sort();
    for finding in &findings {
        println!("{finding}");
    }
    match findings.len() {
        0 => "ok".to_owned(),
        1 => "1 finding".to_owned(),
        more => format!("{more} findings"),
    }
}
