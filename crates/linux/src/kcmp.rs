//! Whether two processes share a kernel object: `kcmp(2)`.

use std::cmp::Ordering;
use std::io;

/// What two processes or threads may share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Shared {
    /// The address space (`CLONE_VM`).
    Memory = 1,
    /// The table of descriptors (`CLONE_FILES`).
    Descriptors = 2,
    /// Root and working directory (`CLONE_FS`).
    Directories = 3,
    /// Undo operations of semaphores (`CLONE_SYSVSEM`).
    Semaphores = 6,
}

/// Orders the address spaces of two processes; equal means that they share one (`vfork`, `CLONE_VM`).
pub fn address_spaces(a: i32, b: i32) -> io::Result<Ordering> {
    compare(Shared::Memory, a, b)
}

/// Orders what two processes or threads have of a kind; equal means that they share it.
pub fn compare(what: Shared, a: i32, b: i32) -> io::Result<Ordering> {
    // SAFETY: kcmp takes numbers only.
    let result = unsafe { libc::syscall(libc::SYS_kcmp, a, b, what as libc::c_int, 0, 0) };
    match result {
        0 => Ok(Ordering::Equal),
        1 => Ok(Ordering::Less),
        2 => Ok(Ordering::Greater),
        3 => Err(io::Error::other("kcmp cannot order these processes")),
        _ => Err(io::Error::last_os_error()),
    }
}
