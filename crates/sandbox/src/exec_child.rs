//! A further program of a sandbox, as the worker holds it: its child.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::process::{Pid, WaitId, WaitIdOptions, getsid, waitid};

use crate::cgroup::Cgroup;
use crate::error::{SandboxError, While};
use crate::process::{ExitStatus, first_readable, open, wait_for_end};
use crate::sandbox::deliver;

/// A program in a sandbox, a child of this process. Dropped before it has been waited for, it is killed and reaped.
#[derive(Debug)]
pub struct ExecChild {
    pid: i32,
    pidfd: OwnedFd,
    terminal: Option<OwnedFd>,
}

/// What [`ExecChild::ends_before`] has waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Before {
    /// The command has ended.
    Ended,
    /// The other descriptor is readable or hung up.
    Other,
    /// Neither in time.
    TimeOut,
}

impl ExecChild {
    pub(crate) const fn new(pid: i32, pidfd: OwnedFd, terminal: Option<OwnedFd>) -> Self {
        Self { pid, pidfd, terminal }
    }

    /// Kills and reaps it; where it does not end in this time, a thread of its own reaps it when it does.
    pub(crate) fn end(self, within: Duration) {
        // What cannot be signalled has ended, and what cannot be waited for is left to the drop.
        let _ = self.signal(libc::SIGKILL).and_then(|()| self.ends_within(within));
    }

    /// Its pid.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Readable once it has ended.
    pub fn pidfd(&self) -> &OwnedFd {
        &self.pidfd
    }

    /// The worker's side of its terminal, if it has one; once.
    pub fn take_terminal(&mut self) -> Option<OwnedFd> {
        self.terminal.take()
    }

    /// Waits for its end. Once only: afterwards the process is forgotten.
    ///
    /// # Errors
    /// When it has been waited for before.
    pub fn wait(&self) -> Result<ExitStatus, SandboxError> {
        let doing = || format!("waiting for process {}", self.pid);
        loop {
            match waitid(WaitId::PidFd(self.pidfd.as_fd()), WaitIdOptions::EXITED) {
                Ok(Some(status)) => return Ok(ExitStatus::from_waitid(&status)),
                Ok(None) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error).whilst(doing),
            }
        }
    }

    /// Whether it ends within so long; it must still be waited for.
    ///
    /// # Errors
    /// What `poll` says.
    pub fn ends_within(&self, within: Duration) -> Result<bool, SandboxError> {
        wait_for_end(&self.pidfd, Some(within)).whilst(|| format!("waiting for process {}", self.pid))
    }

    /// Waits for its end or until `other` is readable or hung up, at most so long; none waits without end. Ended, it must still be
    /// waited for.
    ///
    /// # Errors
    /// What `poll` says.
    pub fn ends_before(&self, other: Option<BorrowedFd<'_>>, within: Option<Duration>) -> Result<Before, SandboxError> {
        let fds: Vec<_> = [self.pidfd.as_fd()].into_iter().chain(other).collect();
        let first = first_readable(&fds, within).whilst(|| format!("waiting for process {}", self.pid))?;
        Ok(match first {
            Some(0) => Before::Ended,
            Some(_) => Before::Other,
            None => Before::TimeOut,
        })
    }

    /// Sends a signal to every process of `cgroup` that is in its session, itself among them; how many there are. Its own end does not
    /// end its session: call it before [`ExecChild::wait`], until then its number is no other session's.
    ///
    /// # Errors
    /// When the processes of the group cannot be listed, or one not be signalled.
    pub fn signal_session(&self, cgroup: &Cgroup, signal: i32) -> Result<usize, SandboxError> {
        let mut reached = 0;
        for pid in cgroup.processes()? {
            // First the descriptor: if it is still of the session afterwards, it is the process that was looked at.
            let Some(pidfd) = open(pid).whilst(|| format!("opening process {pid}"))? else { continue };
            let session = Pid::from_raw(pid).map(|pid| getsid(Some(pid)));
            if matches!(session, Some(Ok(session)) if session.as_raw_nonzero().get() == self.pid) {
                deliver(pidfd.as_fd(), signal, pid)?;
                reached += 1;
            }
        }
        Ok(reached)
    }

    /// Sends it a signal. Fine if it has ended.
    ///
    /// # Errors
    /// For a number that is no signal.
    pub fn signal(&self, signal: i32) -> Result<(), SandboxError> {
        deliver(self.pidfd.as_fd(), signal, self.pid)
    }
}

impl Drop for ExecChild {
    /// A command whose owner has gone is killed. It is reaped whatever happens: nobody else can, and its sandbox would not end.
    fn drop(&mut self) {
        let reap = |pidfd: &OwnedFd, options| waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED | options);
        match self.signal(libc::SIGKILL).map(|()| reap(&self.pidfd, WaitIdOptions::NOHANG)) {
            // It has not ended yet.
            Ok(Ok(None)) => {}
            // Now, or before.
            Ok(Ok(Some(_)) | Err(_)) => return,
            Err(error) => tracing::error!(%error, pid = self.pid, "ending a command"),
        }
        let pid = self.pid;
        let reaping = self.pidfd.try_clone().and_then(|pidfd| {
            let thread = std::thread::Builder::new().name("exec-reap".to_owned());
            thread.spawn(move || while let Err(rustix::io::Errno::INTR) = reap(&pidfd, WaitIdOptions::empty()) {})
        });
        if let Err(error) = reaping {
            tracing::error!(%error, pid, "reaping a command: its app cannot end before the daemon does");
        }
    }
}
