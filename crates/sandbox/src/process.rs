//! Processes by pid and start time, and how they end.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, WaitIdStatus, pidfd_open};
use serde::{Deserialize, Serialize};
use torpor_proc as proc;

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExitStatus {
    /// By itself, with this status.
    Exited(i32),
    /// By this signal.
    Signaled(i32),
    /// Nobody could tell: its init was killed, too.
    Unknown,
}

impl ExitStatus {
    /// From the number that `wait(2)` gives.
    pub(crate) fn from_wait(status: i32) -> Self {
        match status & 0x7f {
            0 => Self::Exited((status >> 8) & 0xff),
            signal => Self::Signaled(signal),
        }
    }

    /// From what `waitid(2)` gives for an ended process.
    pub(crate) fn from_waitid(status: &WaitIdStatus) -> Self {
        match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => Self::Exited(code),
            (None, Some(signal)) => Self::Signaled(signal),
            (None, None) => Self::Unknown,
        }
    }

    /// As a shell reports it: 128 + signal; 255 if nobody could tell.
    pub fn shell(self) -> i32 {
        match self {
            Self::Exited(code) => code,
            Self::Signaled(signal) => 128 + signal,
            Self::Unknown => 255,
        }
    }
}

/// A process that cannot be taken for another one that got its pid later, not even after a reboot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// As the worker's pid namespace numbers it.
    pub pid: i32,
    /// When it started, in clock ticks since boot (`/proc/PID/stat`).
    pub start_ticks: u64,
    /// Which boot (`/proc/sys/kernel/random/boot_id`).
    pub boot: String,
}

fn boot() -> std::io::Result<String> {
    Ok(proc::read("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

impl Identity {
    /// Of a process that is alive and cannot be reaped meanwhile; none if it is not there. Any other reason why it cannot be
    /// examined, such as a want of descriptors, is an error: it says nothing of the process.
    pub(crate) fn of(pid: i32) -> std::io::Result<Option<Self>> {
        let stat = unless_gone(proc::stat::read(&format!("/proc/{pid}/stat")))?;
        stat.map(|stat| Ok(Self { pid, start_ticks: stat.start_ticks, boot: boot()? })).transpose()
    }

    /// A descriptor for exactly this process; none if it is gone.
    pub(crate) fn open(&self) -> std::io::Result<Option<OwnedFd>> {
        // First the descriptor, then the check: whatever has the pid later has another start time.
        let Some(pidfd) = open(self.pid)? else { return Ok(None) };
        Ok((Self::of(self.pid)?.as_ref() == Some(self)).then_some(pidfd))
    }
}

/// A descriptor for whatever process has this pid; none if there is none.
pub(crate) fn open(pid: i32) -> std::io::Result<Option<OwnedFd>> {
    let Some(pid) = Pid::from_raw(pid) else { return Ok(None) };
    match pidfd_open(pid, PidfdFlags::empty()) {
        Err(rustix::io::Errno::SRCH | rustix::io::Errno::INVAL) => Ok(None),
        other => Ok(Some(other?)),
    }
}

/// The ids of a process (`NSpid` in `/proc/PID/status`), from the worker's pid namespace to its own; none if it is gone.
pub(crate) fn ids(pid: i32) -> std::io::Result<Option<Vec<i32>>> {
    status_numbers(pid, "NSpid")
}

/// Whether somebody traces a process: then it stays a zombie until its tracer has seen its end.
fn is_traced(pid: i32) -> std::io::Result<bool> {
    Ok(status_numbers(pid, "TracerPid")?.is_some_and(|tracer| tracer.first() != Some(&0)))
}

/// The numbers of a line in `/proc/PID/status`; none if the process is gone.
fn status_numbers(pid: i32, name: &str) -> std::io::Result<Option<Vec<i32>>> {
    let text = unless_gone(proc::read(&format!("/proc/{pid}/status")))?;
    Ok(text.and_then(|text| proc::numbers(proc::field(&text, name)?)))
}

/// None where the process is gone.
fn unless_gone<T>(result: std::io::Result<T>) -> std::io::Result<Option<T>> {
    match result {
        Err(error) if proc::gone(&error) => Ok(None),
        other => other.map(Some),
    }
}

/// Waits until `parent` has reaped every child that has ended and that nobody traces; at most so long.
pub(crate) fn wait_for_reaping(parent: i32, within: Duration) -> std::io::Result<()> {
    let started = Instant::now();
    while started.elapsed() < within {
        let children = unless_gone(proc::processes::children(parent, parent))?.unwrap_or_default();
        let mut left = None;
        for child in children {
            if let Some(pidfd) = open(child)?
                && !is_traced(child)?
                && wait_for_end(&pidfd, Some(Duration::ZERO))?
            {
                left = Some(pidfd);
                break;
            }
        }
        let Some(zombie) = left else { return Ok(()) };
        // Kernels before 6.9 do not tell: so look again soon.
        let soon = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
        match poll(&mut [PollFd::from_borrowed_fd(zombie.as_fd(), PollFlags::empty())], Some(&soon)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Waits until the process of a pidfd has ended; false after `within`. None waits without end.
pub(crate) fn wait_for_end(pidfd: &OwnedFd, within: Option<Duration>) -> std::io::Result<bool> {
    Ok(first_readable(&[pidfd.as_fd()], within)?.is_some())
}

/// Waits until one of the descriptors is readable or hung up: the first such one; none after `within`. None waits without end.
pub(crate) fn first_readable(fds: &[BorrowedFd<'_>], within: Option<Duration>) -> std::io::Result<Option<usize>> {
    let started = Instant::now();
    let mut polled: Vec<_> = fds.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
    loop {
        let timeout = within.map(|within| {
            let left = within.saturating_sub(started.elapsed());
            Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() }
        });
        match poll(&mut polled, timeout.as_ref()) {
            Ok(_) => return Ok(polled.iter().position(|fd| !fd.revents().is_empty())),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recycled_pid_is_not_taken() {
        let own = Identity::of(std::process::id().cast_signed()).unwrap().unwrap();
        assert!(own.open().unwrap().is_some());
        assert!(Identity { start_ticks: own.start_ticks + 1, ..own.clone() }.open().unwrap().is_none());
        assert!(
            Identity { pid: own.pid, start_ticks: own.start_ticks, boot: "another".into() }.open().unwrap().is_none()
        );
        assert!(Identity { pid: 0, ..own }.open().unwrap().is_none());
    }

    #[test]
    fn ids_of_ourselves_and_of_nobody() {
        let own = std::process::id().cast_signed();
        assert_eq!(ids(own).unwrap().unwrap().first(), Some(&own));
        assert_eq!(ids(i32::MAX).unwrap(), None);
    }

    #[test]
    fn wait_statuses() {
        assert_eq!(ExitStatus::from_wait(7 << 8), ExitStatus::Exited(7));
        assert_eq!(ExitStatus::from_wait(9), ExitStatus::Signaled(9));
        assert_eq!(ExitStatus::from_wait(11 | 0x80), ExitStatus::Signaled(11));
        assert_eq!(ExitStatus::Signaled(9).shell(), 137);
    }
}
