//! A keeper that does not answer: stopped, or in a wait of the kernel that does not end. It is killed; what is lost with it is
//! what is lost with one that dies. One that hangs up on whoever connects is about to end: its end is waited for.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::process::{Signal, pidfd_send_signal};
use rustix::time::Timespec;

use crate::client::Client;
use crate::error::Error;
use crate::limits::KILL_TIMEOUT;
use crate::place::{beside, take_turns};

impl Client {
    /// Kills the keeper on `path` if it answers nothing within [`crate::limits::REPLY_TIMEOUT`]; whether it was killed.
    ///
    /// # Errors
    /// Where it cannot be found or killed.
    pub fn end_silent(path: &Path) -> Result<bool, Error> {
        let _lock = take_turns(path)?;
        match Self::connect(path) {
            Err(Error::TimedOut { .. }) => kill(path).map(|()| true),
            // Who has to do with it hears of it.
            Ok(_) | Err(_) => Ok(false),
        }
    }

    /// Ends the keeper on `path`, if there is one, as [`Client::shutdown`] does; one that does not answer is killed. Its socket
    /// is gone then.
    ///
    /// # Errors
    /// As [`Client::shutdown`], or where it cannot be found or killed.
    pub fn end(path: &Path) -> Result<(), Error> {
        let end = match Self::connect(path).and_then(Self::shutdown) {
            Ok(()) | Err(Error::NotRunning { .. }) => return Ok(()),
            Err(Error::TimedOut { .. }) => kill,
            Err(Error::Closed { .. }) => wait_for_end,
            Err(error) => return Err(error),
        };
        let _lock = take_turns(path)?;
        end(path)?;
        remove(path)
    }
}

/// Kills whoever listens on `path`, which is the keeper: only it and we may make sockets there. Waits for its end. The caller has
/// the turn ([`take_turns`]).
pub(crate) fn kill(path: &Path) -> Result<(), Error> {
    match listener(path)? {
        Some(process) => kill_process(path, &process),
        None => Ok(()),
    }
}

/// Kills `process`, the keeper of `path`, and waits for its end.
pub(crate) fn kill_process(path: &Path, process: &OwnedFd) -> Result<(), Error> {
    let failed = |errno: Errno| Error::Kernel { step: "kill the keeper that does not answer", source: errno.into() };
    tracing::error!(path = %path.display(), "the keeper does not answer and is killed; what only it held is lost");
    match pidfd_send_signal(process, Signal::KILL) {
        Ok(()) | Err(Errno::SRCH) => {}
        Err(errno) => return Err(failed(errno)),
    }
    if !ends(process).map_err(failed)? {
        // A thread of it waits in the kernel for a file that a signal does not help. It never runs its program again, so its
        // lock is worth nothing; but it is held until then.
        tracing::error!("the keeper has been killed and does not end: a file that it held does not let it");
        remove(&beside(path, ".lock"))?;
    }
    Ok(())
}

/// Waits until the process that listens on `path` has ended. The kernel closes the connections to a killed process before it
/// closes the socket that takes new ones, and that before it frees the lock.
///
/// # Errors
/// [`Error::Closed`] where it has not ended within [`KILL_TIMEOUT`].
pub(crate) fn wait_for_end(path: &Path) -> Result<(), Error> {
    let Some(process) = listener(path)? else { return Ok(()) };
    match ends(&process) {
        Ok(true) => Ok(()),
        Ok(false) => Err(Error::Closed { path: path.to_owned() }),
        Err(errno) => Err(Error::Kernel { step: "wait for the end of the keeper", source: errno.into() }),
    }
}

/// The process that listens on `path`; `None` where there is none.
fn listener(path: &Path) -> Result<Option<OwnedFd>, Error> {
    match Client::listener(path) {
        Ok(process) => Ok(Some(process)),
        Err(Error::NotRunning { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether the process ends within [`KILL_TIMEOUT`].
fn ends(process: &OwnedFd) -> Result<bool, Errno> {
    let limit = Timespec { tv_sec: KILL_TIMEOUT.as_secs().cast_signed(), tv_nsec: 0 };
    let mut fds = [PollFd::new(process, PollFlags::IN)];
    Ok(retry_on_intr(|| poll(&mut fds, Some(&limit)))? > 0)
}

fn remove(path: &Path) -> Result<(), Error> {
    match fs::remove_file(path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(Error::File { step: "remove", path: path.to_owned(), source })
        }
        _ => Ok(()),
    }
}
