//! Login ids, as `/proc` tells and sets them.

use std::fs;
use std::io;

use crate as proc;

/// Nobody has logged in.
pub const UNSET: u32 = u32::MAX;
/// What a thread sets its own by.
pub const OWN: &str = "/proc/thread-self/loginuid";

/// The login id of a thread, as the machine numbers users; `None` where the kernel has no audit.
pub fn of(pid: i32, tid: i32) -> io::Result<Option<u32>> {
    read(&format!("/proc/{pid}/task/{tid}/loginuid"))
}

/// The calling thread's.
pub fn own() -> io::Result<Option<u32>> {
    read(OWN)
}

/// Sets the calling thread's, and so that of what it starts. Who has one already needs `CAP_AUDIT_CONTROL`.
pub fn set_own(user: u32) -> io::Result<()> {
    fs::write(OWN, user.to_string())
}

fn read(path: &str) -> io::Result<Option<u32>> {
    match proc::read(path) {
        Ok(text) => text.trim().parse().map(Some).map_err(|_| proc::unexpected(path)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
