//! `clone3(2)`.

use std::convert::Infallible;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Nothing asked for: for `..` in literals.
pub(crate) const NO_ARGUMENTS: libc::clone_args = libc::clone_args {
    flags: 0,
    pidfd: 0,
    child_tid: 0,
    parent_tid: 0,
    exit_signal: 0,
    stack: 0,
    stack_size: 0,
    tls: 0,
    set_tid: 0,
    set_tid_size: 0,
    cgroup: 0,
};

/// Held for writing while this process is forked, with a copy of its memory.
static FORKS: RwLock<()> = RwLock::new(());

/// As long as it is there, no copy of this process's memory is made: for mappings that no copy may have.
pub(crate) fn hold_forks() -> RwLockReadGuard<'static, ()> {
    FORKS.read().unwrap_or_else(PoisonError::into_inner)
}

/// To be held by whoever makes a copy of this process's memory, until it is made.
pub(crate) fn forking() -> RwLockWriteGuard<'static, ()> {
    FORKS.write().unwrap_or_else(PoisonError::into_inner)
}

/// Makes a copy of this process, in which `child` runs; gives its id and a descriptor of it. Who waits for children as usual does
/// not have it among them.
///
/// # Safety
/// `child` makes system calls only: another thread may have held a lock, the allocator's for one, that nobody gives back in the
/// copy.
pub(crate) unsafe fn fork(child: impl FnOnce() -> Infallible) -> io::Result<(i32, OwnedFd)> {
    let mut process: libc::c_int = -1;
    let mut arguments =
        libc::clone_args { flags: libc::CLONE_PIDFD as u64, pidfd: &raw mut process as u64, ..NO_ARGUMENTS };
    let forking = forking();
    // SAFETY: without CLONE_VM this is a fork, and the caller answers for what the child does. `arguments` and `process`
    // outlive the call.
    let pid = unsafe { libc::syscall(libc::SYS_clone3, &raw mut arguments, size_of::<libc::clone_args>()) };
    if pid == 0 {
        child();
    }
    let error = io::Error::last_os_error();
    drop(forking);
    if pid < 0 {
        return Err(error);
    }
    // SAFETY: CLONE_PIDFD made this descriptor and nobody else knows it.
    Ok((pid as i32, unsafe { OwnedFd::from_raw_fd(process) }))
}
