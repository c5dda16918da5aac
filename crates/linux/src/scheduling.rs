//! How a thread is scheduled, and what else is known of it without tracing: `sched_getattr(2)`, `ioprio_get(2)`,
//! `get_robust_list(2)`.

use std::io;

use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

/// The kernel's `struct sched_attr` (its first version).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    size: u32,
    /// `SCHED_*`.
    pub policy: u32,
    /// `SCHED_FLAG_*`.
    pub flags: u64,
    /// Nice value.
    pub nice: i32,
    /// Real-time priority.
    pub priority: u32,
    /// Of `SCHED_DEADLINE`, nanoseconds; of the others a wished slice.
    pub runtime: u64,
    /// Of `SCHED_DEADLINE`, nanoseconds.
    pub deadline: u64,
    /// Of `SCHED_DEADLINE`, nanoseconds.
    pub period: u64,
}

const _: () = assert!(size_of::<Attributes>() == 48);

/// How `thread` is scheduled.
pub fn attributes(thread: i32) -> io::Result<Attributes> {
    let mut found = Attributes::default();
    let (place, size) = (&raw mut found, size_of::<Attributes>());
    // SAFETY: `place` is a valid place for `size` bytes for the whole call; every bit pattern is a valid value.
    let answer = unsafe { libc::syscall(libc::SYS_sched_getattr, thread, place, size, 0) };
    if answer == 0 { Ok(found) } else { Err(io::Error::last_os_error()) }
}

/// The I/O priority of `thread`; 0: none of its own.
pub fn io_priority(thread: i32) -> io::Result<u32> {
    const IOPRIO_WHO_PROCESS: libc::c_int = 1;
    // SAFETY: ioprio_get takes numbers only.
    let answer = unsafe { libc::syscall(libc::SYS_ioprio_get, IOPRIO_WHO_PROCESS, thread) };
    u32::try_from(answer).map_err(|_| io::Error::last_os_error())
}

/// Address and length of the list of robust futexes of `thread`.
pub fn robust_list(thread: i32) -> io::Result<(u64, u64)> {
    let (mut head, mut bytes) = (0_u64, 0_u64);
    let (head_place, bytes_place) = (&raw mut head, &raw mut bytes);
    // SAFETY: both are valid places for 8 bytes, what the kernel writes on 64-bit machines, for the whole call.
    let answer = unsafe { libc::syscall(libc::SYS_get_robust_list, thread, head_place, bytes_place) };
    if answer == 0 { Ok((head, bytes)) } else { Err(io::Error::last_os_error()) }
}

/// Keeps the calling thread on the processor that it runs on, and with it whatever it makes meanwhile. Dropping it lets the
/// thread run where it could before.
#[derive(Debug)]
pub(crate) struct Pinned {
    before: CpuSet,
}

impl Pinned {
    /// `None` where the kernel does not let us, or has more processors than a set of ours holds.
    pub(crate) fn here() -> Option<Self> {
        let before = sched_getaffinity(None).ok()?;
        let mut only = CpuSet::new();
        only.set(sched_getcpu());
        sched_setaffinity(None, &only).ok()?;
        Some(Self { before })
    }

    /// Where the thread could run before: for `sched_setaffinity(2)`.
    pub(crate) const fn before(&self) -> &CpuSet {
        &self.before
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // What was allowed before is allowed now; processors taken away meanwhile are left out by the kernel.
        let _ = sched_setaffinity(None, &self.before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pinned_thread_stays_until_it_is_let_go() {
        let before = sched_getaffinity(None).unwrap();
        let pinned = Pinned::here().unwrap();
        assert_eq!(pinned.before(), &before);
        let now = sched_getaffinity(None).unwrap();
        assert!(now.count() == 1 && now.is_set(sched_getcpu()));
        drop(pinned);
        assert_eq!(sched_getaffinity(None).unwrap(), before);
    }

    #[test]
    fn shows_this_thread() {
        attributes(0).unwrap();
        io_priority(0).unwrap();
        let (head, bytes) = robust_list(0).unwrap();
        assert!(head != 0 && bytes == 24);
    }
}
