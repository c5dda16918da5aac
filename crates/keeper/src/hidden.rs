//! A keeper that holds its lock while nobody listens on its socket: the socket's file was removed. It binds the name again by itself
//! ([`crate::place`]), which takes a moment. One that does not is no better than one that does not answer ([`crate::silent`]): it is killed.

use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::client::Client;
use crate::error::Error;
use crate::limits::REPLY_TIMEOUT;
use crate::place::{beside, open_lock};
use crate::silent;

/// Interval of the attempts to connect. Polled, because the release of a lock causes no event.
const AGAIN: Duration = Duration::from_millis(20);
/// Most that is read of a lock, in bytes.
const LOCK_BYTES: u64 = 32;

/// Connects to a keeper that was found not to listen. Waits for one that holds the lock, and kills it if it does not listen again within
/// [`REPLY_TIMEOUT`]. The caller has the turn ([`crate::place::take_turns`]).
///
/// # Errors
/// [`Error::NotRunning`] where there is none, or none any more; [`Error::Hidden`] where it is unknown which process it is;
/// otherwise as [`Client::connect`].
pub(crate) fn connect(path: &Path) -> Result<Client, Error> {
    let lock_path = beside(path, ".lock");
    let begun = Instant::now();
    loop {
        let holder = holder(&lock_path)?;
        let outcome = Client::connect(path);
        let (Some(holder), true) = (holder, matches!(outcome, Err(Error::NotRunning { .. }))) else { return outcome };
        if begun.elapsed() >= REPLY_TIMEOUT {
            let hidden = || Error::Hidden { path: path.to_owned(), lock: lock_path };
            silent::kill_process(path, &holder.ok_or_else(hidden)?)?;
            return outcome;
        }
        std::thread::sleep(AGAIN);
    }
}

/// The process that holds the lock. The outer `None`: no process holds it. The inner `None`: the holder has not written its process id,
/// as older versions do not.
fn holder(lock: &Path) -> Result<Option<Option<OwnedFd>>, Error> {
    let mut file = open_lock(lock)?;
    let failed = |source| Error::File { step: "read", path: lock.to_owned(), source };
    if !is_held(&file).map_err(|errno| failed(errno.into()))? {
        return Ok(None);
    }
    let mut text = String::new();
    (&mut file).take(LOCK_BYTES).read_to_string(&mut text).map_err(failed)?;
    let pid = text.trim().parse().ok().and_then(Pid::from_raw);
    let process = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
    // It wrote its number once it had the lock, which the kernel drops with it: while that is held, the number is its own.
    Ok(is_held(&file).map_err(|errno| failed(errno.into()))?.then_some(process))
}

fn is_held(file: &File) -> Result<bool, Errno> {
    match rustix::fs::flock(file, FlockOperation::NonBlockingLockShared) {
        Ok(()) => rustix::fs::flock(file, FlockOperation::Unlock).map(|()| false),
        Err(Errno::WOULDBLOCK) => Ok(true),
        Err(errno) => Err(errno),
    }
}
