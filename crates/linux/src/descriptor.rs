//! Another process's descriptors: `pidfd_getfd(2)`.

use std::io;
use std::os::fd::AsFd;

use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use crate::closer::AppFile;

/// A duplicate of descriptor `fd` of process `pid`: the same open file.
pub fn duplicate(pid: i32, fd: i32) -> io::Result<AppFile> {
    let pid = Pid::from_raw(pid).ok_or(io::ErrorKind::InvalidInput)?;
    let process = pidfd_open(pid, PidfdFlags::empty())?;
    Ok(duplicate_of(process, fd)?)
}

/// A duplicate of descriptor `fd` of the process of a pidfd.
pub fn duplicate_of(process: impl AsFd, fd: i32) -> rustix::io::Result<AppFile> {
    pidfd_getfd(process, fd, PidfdGetfdFlags::empty()).map(AppFile::from)
}
