//! Whether two processes share a kernel object: `kcmp(2)`.

use std::cmp::Ordering;
use std::io;

/// Orders the address spaces of two processes; equal means that they share one (`vfork`, `CLONE_VM`).
pub fn address_spaces(a: i32, b: i32) -> io::Result<Ordering> {
    const KCMP_VM: libc::c_int = 1;
    // SAFETY: kcmp takes numbers only.
    let result = unsafe { libc::syscall(libc::SYS_kcmp, a, b, KCMP_VM, 0, 0) };
    match result {
        0 => Ok(Ordering::Equal),
        1 => Ok(Ordering::Less),
        2 => Ok(Ordering::Greater),
        3 => Err(io::Error::other("kcmp cannot order these processes")),
        _ => Err(io::Error::last_os_error()),
    }
}
