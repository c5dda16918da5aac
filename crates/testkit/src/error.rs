//! What can go wrong while tests are set up or a server is asked.

use std::io;
use std::path::PathBuf;
use std::process::{Command, Output};

/// The testkit's errors.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file could not be used.
    #[error("cannot {step} {path}")]
    File {
        /// What was to be done with it.
        step: &'static str,
        /// Which.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A program of the machine could not be started.
    #[error("cannot run `{program}`; {hint}")]
    Spawn {
        /// Its name.
        program: String,
        /// What to install.
        hint: &'static str,
        /// The cause.
        source: io::Error,
    },
    /// A program of the machine failed.
    #[error("`{command}` ended with {status}: {stderr}")]
    Command {
        /// With its arguments.
        command: String,
        /// Its exit status.
        status: String,
        /// The end of what it wrote to standard error.
        stderr: String,
    },
    /// A recipe asks for what the distribution's tree does not have.
    #[error("the distribution's tree has no {what}")]
    Missing {
        /// Package or file.
        what: String,
    },
    /// A connection failed.
    #[error("{server}: cannot {step}")]
    Network {
        /// Program or address.
        server: String,
        /// What was to be done.
        step: &'static str,
        /// The cause.
        source: io::Error,
    },
    /// A server's answer is not the one that its state calls for.
    #[error("{server}: expected {expected}, got `{got}`")]
    Answer {
        /// Program or address.
        server: String,
        /// In words.
        expected: String,
        /// As it came, shortened.
        got: String,
    },
    /// A condition did not come true in time.
    #[error("after {seconds} s still not: {what}{last}")]
    Deadline {
        /// The condition.
        what: String,
        /// How long it was waited for.
        seconds: u64,
        /// What was seen last, after a colon; may be empty.
        last: String,
    },
}

impl Error {
    /// A closure for `map_err`: `step` on `path` failed.
    pub fn file(step: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { step, path, source }
    }

    /// A closure for `map_err`: `step` with `server` failed.
    pub fn network(server: impl Into<String>, step: &'static str) -> impl FnOnce(io::Error) -> Self {
        let server = server.into();
        move |source| Self::Network { server, step, source }
    }

    /// `server` should have answered `expected`.
    pub fn answer(server: &str, expected: impl Into<String>, got: impl AsRef<[u8]>) -> Self {
        let got: String = String::from_utf8_lossy(got.as_ref()).chars().take(300).collect();
        Self::Answer { server: server.to_owned(), expected: expected.into(), got }
    }
}

/// An error with its causes, in one line.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(&format!(": {cause}"));
        source = cause.source();
    }
    text
}

/// Runs `command` to its end; its output if it succeeded. `hint` says what to install where it is missing.
///
/// # Errors
/// Where it cannot be started or fails, with the end of what it wrote to standard error.
pub fn run(command: &mut Command, hint: &'static str) -> Result<Output, Error> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|source| Error::Spawn { program, hint, source })?;
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
