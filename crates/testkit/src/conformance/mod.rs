//! The conformance suite: small C programs, one per kind of state, that set something up, are captured and restored by an
//! engine, and then check themselves.
//!
//! The programs are in `crates/testkit/conformance`; the list is made from their `PROGRAM` lines. They speak by plain files
//! (`ready`, `go`, `result` in a directory of their own), so the same programs run natively ([`native`]), under Torpor
//! and under CRIU ([`Engine`]).

mod apps;
mod engine;
mod execution;
mod judge;
mod process;

use std::path::{Path, PathBuf};

pub use self::apps::{Apps, Between};
pub use self::engine::{Criu, Engine, Step, Torpor};
pub use self::execution::{Begun, Execution};
pub use self::judge::{Mode, Verdict, captured, native, says_late};

use crate::error::Error;
use crate::native::compile;
use crate::pool::{GIGANTIC, LARGE, Pools};

macro_rules! sources {
    ($($name:literal: $title:literal,)*) => {
        &[$(Source {
            name: $name,
            title: $title,
            text: include_str!(concat!("../../conformance/", $name, ".c")),
        },)*]
    };
}

const HEADER: &str = include_str!("../../conformance/conformance.h");
const SOURCES: &[Source] = sources! {
    "processes": "Processes and threads",
    "credentials": "Credentials and filters",
    "context": "Directories, limits, scheduling, prctl",
    "namespaces": "Namespaces",
    "signals": "Signals",
    "timers": "Timers",
    "futexes": "Locks and restartable sequences",
    "registers": "Registers",
    "blocked": "Interrupted calls",
    "memory": "Memory of one process",
    "shared": "Shared memory",
    "huge": "Huge pages of a pool",
    "files": "Files, directories, terminals, devices",
    "locks": "File locks",
    "pipes": "Pipes",
    "unix": "Unix sockets",
    "inet": "Network sockets",
    "events": "Descriptors of events",
    "surroundings": "What programs leave around them",
    "kernel": "Other kernel objects",
};

/// A C source with several programs.
#[derive(Debug)]
struct Source {
    name: &'static str,
    title: &'static str,
    text: &'static str,
}

/// One program of the suite.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// Its name; unique.
    pub name: &'static str,
    /// What it shows, in a few words.
    pub what: &'static str,
    /// Heading that it stands under.
    pub group: &'static str,
    source: usize,
}

/// All programs, in the order of their sources.
pub fn programs() -> Vec<Program> {
    let lines = SOURCES.iter().enumerate().flat_map(|(at, source)| source.text.lines().map(move |line| (at, line)));
    let program = |(source, line): (usize, &'static str)| {
        let (name, rest) = line.strip_prefix("PROGRAM(")?.split_once(", \"")?;
        let (what, _) = rest.split_once("\")")?;
        Some(Program { name, what, group: SOURCES[source].title, source })
    };
    lines.filter_map(program).collect()
}

/// The program `name`.
///
/// # Errors
/// Where there is no such program.
pub fn program(name: &str) -> Result<Program, Error> {
    let found = programs().into_iter().find(|program| program.name == name);
    found.ok_or_else(|| Error::Missing { what: format!("conformance program {name}") })
}

/// The group of those that need huge pages.
const HUGE: &str = "Huge pages of a pool";

/// The huge pages that these programs need, added to the machine's pools; `None` if they need none.
///
/// # Errors
/// Where the lock for that cannot be had.
pub fn pools(programs: &[Program]) -> Result<Option<Pools>, Error> {
    let needed = programs.iter().any(|program| program.group == HUGE);
    let gigantic = programs.iter().any(|program| program.name == "huge_gigantic");
    // All of them at once.
    needed.then(|| Pools::add(&[(LARGE, 32), (GIGANTIC, gigantic.into())])).transpose()
}

impl Program {
    /// Its executable, which takes its name as the argument.
    ///
    /// # Errors
    /// Where gcc or the static C library is missing.
    pub fn executable(&self) -> Result<PathBuf, Error> {
        let Source { name, text, .. } = SOURCES[self.source];
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("conformance").join(format!("{name}.c"));
        compile(&format!("conformance-{name}"), &file, &[text, HEADER], &["-Werror"])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_program_is_listed_once() {
        let all = programs();
        let names: BTreeSet<&str> = all.iter().map(|program| program.name).collect();
        assert_eq!(names.len(), all.len());
        let lines = SOURCES.iter().flat_map(|source| source.text.lines()).filter(|line| line.starts_with("PROGRAM("));
        assert_eq!(lines.count(), all.len());
        assert!(all.iter().all(|program| !program.what.contains('|')), "a bar would break the table");
        assert_eq!(program("vfork").unwrap().group, "Processes and threads");
        assert!(program("nothing").is_err());
    }
}
