//! What can go wrong in a developer command: mostly what can in a test, so most of it is the testkit's.

use std::io;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

pub(crate) use torpor_testkit::error::chain;

/// What the machine lacks where a program cannot be started.
const HINT: &str = "it is missing, or not in PATH";

/// Errors of developer commands.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// Files, programs, servers.
    #[error(transparent)]
    Testkit(#[from] torpor_testkit::Error),
    /// There is no such program to measure.
    #[error("no program `{name}` to measure; there are {known}")]
    Unknown { name: String, known: String },
    /// A peer is not installed.
    #[error("{what} is missing: {hint}")]
    Missing { what: String, hint: &'static str },
    /// Fuzzing.
    #[error(transparent)]
    Fuzz(#[from] crate::fuzz::FuzzError),
    /// Clippy found something, or did not run.
    #[error("clippy: {0}")]
    Lints(String),
    /// Tests failed.
    #[error("failed: {0}")]
    Tests(String),
    /// Benchmarks failed.
    #[error("not measured: {0}; the errors are above")]
    Benchmarks(String),
    /// A document lacks what the benchmark writes into.
    #[error("{path}: {what}")]
    Document { path: PathBuf, what: String },
    /// A Lua state cannot be made or restored.
    #[error(transparent)]
    State(#[from] torpor_lua::StateError),
    /// A Clef cannot be stored.
    #[error(transparent)]
    Store(#[from] torpor_clef::StoreError),
    /// JSON could not be written or read.
    #[error("encoding or decoding JSON")]
    Encode(#[from] serde_json::Error),
}

impl Error {
    /// A closure for `map_err`: `step` on `path` failed.
    pub(crate) fn file(step: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let error = torpor_testkit::Error::file(step, path);
        move |source| error(source).into()
    }

    /// A closure for `map_err`: `step` with `server` failed.
    pub(crate) fn network(
        server: &dyn std::fmt::Display,
        step: &'static str,
    ) -> impl FnOnce(io::Error) -> Self + use<> {
        let error = torpor_testkit::Error::network(server.to_string(), step);
        move |source| error(source).into()
    }

    /// A closure for `map_err`: `program` could not be started.
    pub(crate) fn spawn(program: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let program = program.into();
        move |source| torpor_testkit::Error::Spawn { program, hint: HINT, source }.into()
    }

    /// A failed program, with more words behind those that it wrote to standard error; another error stays as it is.
    pub(crate) fn with_log(self, words: impl FnOnce() -> String) -> Self {
        match self {
            Self::Testkit(torpor_testkit::Error::Command { command, status, stderr }) => {
                let stderr = format!("{stderr} {}", words()).trim().to_owned();
                torpor_testkit::Error::Command { command, status, stderr }.into()
            }
            other => other,
        }
    }
}

/// Runs `command` to its end; its output if it succeeded.
pub(crate) fn run(command: &mut Command) -> Result<Output, Error> {
    Ok(torpor_testkit::error::run(command.stdin(Stdio::null()), HINT)?)
}
