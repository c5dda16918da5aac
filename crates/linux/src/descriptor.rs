//! Another process's descriptors: `pidfd_getfd(2)`.

use std::io;
use std::os::fd::OwnedFd;

use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

/// A duplicate of descriptor `fd` of process `pid`: the same open file.
pub fn duplicate(pid: i32, fd: i32) -> io::Result<OwnedFd> {
    let pid = Pid::from_raw(pid).ok_or(io::ErrorKind::InvalidInput)?;
    let process = pidfd_open(pid, PidfdFlags::empty())?;
    Ok(pidfd_getfd(&process, fd, PidfdGetfdFlags::empty())?)
}
