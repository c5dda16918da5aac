//! What can go wrong in a developer command.

use std::io;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

/// Errors of developer commands.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// A file.
    #[error("cannot {step} {}", path.display())]
    File {
        step: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// A program could not be started.
    #[error("cannot run `{program}`")]
    Spawn {
        program: String,
        #[source]
        source: io::Error,
    },
    /// A program failed.
    #[error("`{command}` ended with {status}: {stderr}")]
    Command { command: String, status: String, stderr: String },
    /// A server could not be asked.
    #[error("{server}: cannot {step}")]
    Network {
        server: String,
        step: &'static str,
        #[source]
        source: io::Error,
    },
    /// Something did not happen in time.
    #[error("after {seconds} s still not: {what}")]
    Deadline { what: String, seconds: u64 },
    /// There is no such program to measure.
    #[error("no program `{name}` to measure; there are {known}")]
    Unknown { name: String, known: String },
    /// A peer is not installed.
    #[error("{what} is missing: {hint}")]
    Missing { what: String, hint: &'static str },
    /// The programs could not be made.
    #[error(transparent)]
    Testkit(#[from] torpor_testkit::Error),
    /// A result could not be written.
    #[error("writing the result")]
    Encode(#[from] serde_json::Error),
}

impl Error {
    /// A closure for `map_err`.
    pub(crate) fn file(step: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { step, path, source }
    }

    /// A closure for `map_err`.
    pub(crate) fn network(
        server: &dyn std::fmt::Display,
        step: &'static str,
    ) -> impl FnOnce(io::Error) -> Self + use<> {
        let server = server.to_string();
        move |source| Self::Network { server, step, source }
    }
}

/// An error with its causes, in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(&format!(": {cause}"));
        source = cause.source();
    }
    text
}

/// Runs `command` to its end; its output if it succeeded.
pub(crate) fn run(command: &mut Command) -> Result<Output, Error> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output().map_err(|source| Error::Spawn { program, source })?;
    if output.status.success() {
        return Ok(output);
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    let skip = stderr.chars().count().saturating_sub(2000);
    Err(Error::Command {
        command: format!("{command:?}"),
        status: output.status.to_string(),
        stderr: stderr.chars().skip(skip).collect::<String>().trim().to_owned(),
    })
}
