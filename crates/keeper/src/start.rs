//! Starting a keeper where none runs.
//!
//! Starters take turns by an exclusive `flock(2)` on `SOCKET.start`, so that of two only the first spawns and the second
//! finds it running. A starter holds the lock no longer than [`START_TIMEOUT`] and what killing a silent one takes; if it is killed, the kernel frees it.

use std::ffi::OsStr;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use crate::client::Client;
use crate::error::Error;
use crate::limits::{COMPLAINT_BYTES, START_TIMEOUT};
use crate::place::take_turns;
use crate::process::{DETACH, READY};
use crate::{hidden, silent};

/// How a new keeper is set up; a keeper that already runs stays as it is.
#[derive(Clone, Debug, Default)]
pub struct StartOptions {
    /// `cgroup.procs` files that the keeper writes its process id to, before anything else.
    pub cgroup_procs: Vec<PathBuf>,
    /// Where its standard error goes (appended; made with mode 0600); absent: nowhere.
    pub log: Option<PathBuf>,
}

impl Client {
    /// Connects to the keeper on `path`; one that does not answer within [`crate::limits::REPLY_TIMEOUT`], twice, is killed, so is
    /// one that lives and does not listen for as long, and the end of one that is just ending is waited for. Where none runs, starts `program` with `args` (the words that lead to
    /// [`crate::run`]) as a process that is nobody's child, in a session of its own, and waits until it listens.
    ///
    /// # Errors
    /// [`Error::Start`] with the new keeper's own words when it could not start; otherwise as [`Client::connect`].
    pub fn connect_or_spawn(
        path: &Path,
        program: &Path,
        args: &[&OsStr],
        options: &StartOptions,
    ) -> Result<Self, Error> {
        match Self::connect(path) {
            Err(Error::NotRunning { .. } | Error::TimedOut { .. } | Error::Closed { .. }) => {}
            outcome => return outcome,
        }
        let _lock = take_turns(path)?;
        match Self::connect(path).or_else(|error| match error {
            Error::NotRunning { .. } => hidden::connect(path),
            error => Err(error),
        }) {
            Err(Error::NotRunning { .. }) => {}
            Err(Error::TimedOut { .. }) => silent::kill(path)?,
            Err(Error::Closed { .. }) => silent::wait_for_end(path)?,
            outcome => return outcome,
        }
        spawn(path, program, args, options)?;
        Self::connect(path)
    }
}

/// Spawns the keeper and waits for its byte.
fn spawn(path: &Path, program: &Path, args: &[&OsStr], options: &StartOptions) -> Result<(), Error> {
    let (mut ready, theirs) = io::pipe().map_err(|source| Error::Kernel { step: "make a pipe", source })?;
    let mut command = Command::new(program);
    command.args(args).arg(DETACH).arg("--socket").arg(path);
    for file in &options.cgroup_procs {
        command.arg("--cgroup-procs").arg(file);
    }
    if let Some(log) = &options.log {
        command.arg("--log").arg(log);
    }
    let not_run = |source| Error::File { step: "run", path: program.to_owned(), source };
    let mut child = command.stdin(Stdio::null()).stdout(theirs).stderr(Stdio::null()).spawn().map_err(not_run)?;
    // `command` holds our copy of the pipe's writing end; without it the pipe ends when the keeper does.
    drop(command);
    let outcome = hear(&mut ready, path);
    if outcome.is_err() {
        // It may hang: it is ours, and not yet the keeper.
        child.kill().map_err(not_run)?;
    }
    child.wait().map_err(not_run)?;
    outcome
}

/// Waits until the pipe says that the keeper listens, or why not.
fn hear(ready: &mut io::PipeReader, path: &Path) -> Result<(), Error> {
    let failed = |source| Error::Kernel { step: "hear from the new keeper", source };
    let deadline = Instant::now() + START_TIMEOUT;
    let mut said = Vec::new();
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = rustix::time::Timespec::try_from(left).map_err(|_| failed(io::ErrorKind::InvalidInput.into()))?;
        let mut fds = [PollFd::new(ready, PollFlags::IN)];
        match poll(&mut fds, Some(&left)) {
            Ok(0) => return Err(Error::TimedOut { path: path.to_owned(), timeout: START_TIMEOUT }),
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(failed(errno.into())),
        }
        let mut part = [0; 512];
        let count = ready.read(&mut part).map_err(failed)?;
        if said.is_empty() && part[..count].first() == Some(&READY) {
            return Ok(());
        }
        said.extend_from_slice(&part[..count]);
        if count == 0 || said.len() as u64 >= COMPLAINT_BYTES {
            let complaint = match String::from_utf8_lossy(&said).trim() {
                "" => "it ended without a word".to_owned(),
                words => words.to_owned(),
            };
            return Err(Error::Start { path: path.to_owned(), complaint });
        }
    }
}
