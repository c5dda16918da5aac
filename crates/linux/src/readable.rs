//! Waiting in a tokio task until a descriptor is readable, or has something urgent.

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Registers a descriptor with the runtime, for reading.
pub fn register(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    register_for(fd, Interest::READABLE)
}

/// Registers a descriptor with the runtime, for reading and writing.
pub fn register_both(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    register_for(fd, Interest::READABLE | Interest::WRITABLE)
}

/// Registers a descriptor with the runtime, for `POLLPRI`.
pub fn register_priority(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    register_for(fd, Interest::PRIORITY)
}

fn register_for(fd: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: `AsyncFd` asks for a descriptor that stays open and the same until it is deregistered. It owns the `OwnedFd`,
    // which is closed by its drop only, and `AsyncFd` gives it out only when it deregisters.
    let registered = unsafe { AsyncFd::register_with_interest(fd, interest) };
    registered.map_err(io::Error::from)
}
