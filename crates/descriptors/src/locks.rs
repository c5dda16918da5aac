//! Locks of files: `flock(2)`, `fcntl(2)`, leases.
//!
//! `/proc/PID/fdinfo/FD` lists those that were taken through this open file: the process's own POSIX locks, and the locks
//! of the open file itself.
//!
//! POSIX locks are taken again by their process, and so are `flock` locks and leases, which show who took them; the others, and
//! those whose taker cannot, on the descriptor that was made. Such a lease is taken last ([`super::RestoredFiles::finish`]): it would be
//! broken by the opening of other descriptors.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{FlockOperation, OFlags, fcntl_setfl, flock};
use torpor_image::tree::{FileLock, LockKind, OpenFile};
use torpor_linux::fcntl;

use crate::contract::error::RestoreFileError;
use crate::contract::flags::ASYNC;

/// `F_RDLCK`, `F_WRLCK`.
const READ: i32 = 0;
const WRITE: i32 = 1;

/// The locks in a text of fdinfo, of a process with the id `pid`; `flock` locks and leases have the machine's id of who took them; `None` if one is not as the kernel writes them.
pub(crate) fn parse(text: &str, pid: i32) -> Option<Vec<FileLock>> {
    let lines = text.lines().filter_map(|line| line.strip_prefix("lock:"));
    lines.map(|line| lock(line, pid)).collect()
}

/// `1: POSIX  ADVISORY  WRITE 359 00:13:11691 0 EOF`
fn lock(line: &str, pid: i32) -> Option<FileLock> {
    let mut words = line.split_ascii_whitespace().skip(1);
    let kind = match words.next()? {
        "POSIX" => LockKind::Posix,
        "OFDLCK" => LockKind::OpenFile,
        "FLOCK" => LockKind::Flock,
        "LEASE" => LockKind::Lease,
        _ => return None,
    };
    // A lease that is being broken has to be given up now; that cannot be kept waiting.
    if !matches!(words.next()?, "ADVISORY" | "ACTIVE") {
        return None;
    }
    let mode = match words.next()? {
        "READ" => READ,
        "WRITE" => WRITE,
        _ => return None,
    };
    let (holder, _file): (i32, _) = (words.next()?.parse().ok()?, words.next()?);
    let start: u64 = words.next()?.parse().ok()?;
    let bytes = match words.next()? {
        "EOF" => 0,
        end => end.parse::<u64>().ok()?.checked_sub(start)?.checked_add(1)?,
    };
    let pid = match kind {
        LockKind::Posix => pid,
        LockKind::OpenFile => 0,
        LockKind::Flock | LockKind::Lease => holder.max(0),
    };
    Some(FileLock { kind, mode, pid, start, bytes })
}

/// Takes the locks that belong to the open file and to none of its processes, but not leases.
pub(crate) fn take(fd: BorrowedFd<'_>, file: &OpenFile, name: &str) -> Result<(), RestoreFileError> {
    for lock in &file.locks {
        match lock.kind {
            // Who is named takes it.
            LockKind::Flock if lock.pid != 0 => {}
            LockKind::Flock => {
                let exclusive = lock.mode == WRITE;
                let operation = if exclusive {
                    FlockOperation::NonBlockingLockExclusive
                } else {
                    FlockOperation::NonBlockingLockShared
                };
                flock(fd, operation).map_err(RestoreFileError::at("locking", name))?;
            }
            LockKind::OpenFile => {
                let (start, bytes) = (lock.start as i64, lock.bytes as i64);
                fcntl::set_open_file_lock(fd, lock.mode, start, bytes)
                    .map_err(RestoreFileError::at("locking", name))?;
            }
            LockKind::Posix | LockKind::Lease => {}
        }
    }
    Ok(())
}

/// Takes leases.
pub(crate) fn take_leases(fd: BorrowedFd<'_>, file: &OpenFile, name: &str) -> Result<(), RestoreFileError> {
    for lock in file.locks.iter().filter(|lock| lock.kind == LockKind::Lease) {
        fcntl::set_lease(fd, lock.mode).map_err(RestoreFileError::at("taking a lease of", name))?;
    }
    Ok(())
}

/// Sets the flags of a descriptor whose making did not take them.
pub(crate) fn set_flags(fd: impl AsFd, file: &OpenFile, name: &str) -> Result<(), RestoreFileError> {
    let flags = OFlags::from_bits_retain(file.flags & !ASYNC);
    fcntl_setfl(fd, flags).map_err(RestoreFileError::at("setting flags of", name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_is_read() {
        let text = "pos:\t0\nlock:\t1: POSIX  ADVISORY  WRITE 359 00:13:11691 10 19\n\
                    lock:\t2: FLOCK  ADVISORY  READ  359 00:13:11691 0 EOF\n\
                    lock:\t3: OFDLCK ADVISORY  READ  -1 00:13:11691 5 5\n\
                    lock:\t4: LEASE  ACTIVE    READ  359 00:13:11691 0 EOF\n";
        let locks = parse(text, 7).unwrap();
        let lock = |kind, mode, pid, start, bytes| FileLock { kind, mode, pid, start, bytes };
        assert_eq!(locks[0], lock(LockKind::Posix, WRITE, 7, 10, 10));
        assert_eq!(locks[1], lock(LockKind::Flock, READ, 359, 0, 0));
        assert_eq!(locks[2], lock(LockKind::OpenFile, READ, 0, 5, 1));
        assert_eq!(locks[3], lock(LockKind::Lease, READ, 359, 0, 0));
        assert!(parse("lock:\t4: LEASE  BREAKING  READ  359 00:13:11691 0 EOF\n", 7).is_none());
        assert_eq!(parse("pos:\t0\n", 7).unwrap(), []);
    }
}
