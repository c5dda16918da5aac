//! `fanotify(7)`.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

/// A new group; flags as for `fanotify_init(2)`.
pub fn init(flags: u32, event_flags: u32) -> io::Result<OwnedFd> {
    // SAFETY: the call takes numbers only.
    let fd = unsafe { libc::fanotify_init(flags | libc::FAN_CLOEXEC, event_flags) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor for us; nobody else knows its number.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// `fanotify_mark(2)` of what a descriptor is open on, which may be an `O_PATH` one.
pub fn mark(group: impl AsFd, flags: u32, mask: u64, watched: impl AsFd) -> io::Result<()> {
    let path = CString::new(format!("/proc/self/fd/{}", watched.as_fd().as_raw_fd()))?;
    // SAFETY: the kernel reads `path` up to its zero.
    let answer = unsafe { libc::fanotify_mark(group.as_fd().as_raw_fd(), flags, mask, libc::AT_FDCWD, path.as_ptr()) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
