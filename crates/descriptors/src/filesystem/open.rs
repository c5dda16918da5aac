//! Opening files again, and files below a directory.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{Dir, Mode, OFlags, ResolveFlags, openat2};
use torpor_image::tree::Bytes;

use crate::contract::flags::ASYNC;

/// Set in the flags of files made with `O_TMPFILE`, beside `O_DIRECTORY`.
const TEMPORARY: u32 = 0o20_000_000;

const DIRECTORY: u32 = 0o200_000;

/// Flags to open a file with that is there: as it was open, without what made it (`O_TMPFILE`).
pub(crate) fn reopened(flags: u32) -> u32 {
    let made = if flags & TEMPORARY != 0 { TEMPORARY | DIRECTORY } else { 0 };
    flags & !(ASYNC | made)
}

/// Opens what a descriptor leads to again, with other flags.
pub fn reopen(fd: BorrowedFd<'_>, flags: u32) -> rustix::io::Result<OwnedFd> {
    use std::os::fd::AsRawFd;
    // The name in /proc is a link.
    let flags = OFlags::from_bits_retain(flags).difference(OFlags::NOFOLLOW) | OFlags::CLOEXEC | OFlags::NOCTTY;
    rustix::fs::open(format!("/proc/self/fd/{}", fd.as_raw_fd()), flags, Mode::empty())
}

/// Opens an entry of a directory, and nothing else than that.
pub(crate) fn below(directory: &OwnedFd, name: &[u8], flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    openat2(directory, name, flags | OFlags::CLOEXEC, Mode::empty(), resolve)
}

/// Names in a directory, but for itself and the one above.
pub fn names(directory: &OwnedFd) -> io::Result<Vec<Bytes>> {
    let mut found = Vec::new();
    // Its own position: another look begins at the beginning.
    let own = below_itself(directory)?;
    for entry in Dir::new(own)? {
        let name = entry?.file_name().to_bytes().to_vec();
        if name != b"." && name != b".." {
            found.push(name);
        }
    }
    Ok(found)
}

fn below_itself(directory: &OwnedFd) -> rustix::io::Result<OwnedFd> {
    below(directory, b".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOATIME)
}

/// A name for an open file, whatever it was opened for.
pub(crate) fn place(file: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}
