//! What rustix lacks of `fcntl(2)`: owners and signals of descriptors, leases, locks of open files, seals' company.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// `F_SETSIG` and `F_GETSIG`; libc does not name them everywhere.
const F_SETSIG: libc::c_int = 10;
const F_GETSIG: libc::c_int = 11;
const F_SETOWN_EX: libc::c_int = 15;
const F_GETOWN_EX: libc::c_int = 16;

/// Who is told by `SIGIO`: `struct f_owner_ex`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Owner {
    /// `F_OWNER_TID` (0), `F_OWNER_PID` (1), `F_OWNER_PGRP` (2).
    pub kind: i32,
    /// Id as the caller's pid namespace numbers it; 0: nobody.
    pub id: i32,
}

fn check(answer: libc::c_int) -> io::Result<libc::c_int> {
    if answer == -1 { Err(io::Error::last_os_error()) } else { Ok(answer) }
}

fn with_number(fd: impl AsFd, command: libc::c_int, value: libc::c_int) -> io::Result<libc::c_int> {
    // SAFETY: only called with commands whose argument is a number.
    check(unsafe { libc::fcntl(fd.as_fd().as_raw_fd(), command, value) })
}

/// Who is told about I/O on `fd`.
pub fn owner(fd: impl AsFd) -> io::Result<Owner> {
    let mut owner = Owner::default();
    // SAFETY: F_GETOWN_EX writes a `struct f_owner_ex` (two ints, as `Owner`) to `owner`, which lives through the call.
    check(unsafe { libc::fcntl(fd.as_fd().as_raw_fd(), F_GETOWN_EX, &raw mut owner) })?;
    Ok(owner)
}

/// Sets who is told about I/O on `fd`; `ESRCH` if there is no such process.
pub fn set_owner(fd: impl AsFd, owner: Owner) -> io::Result<()> {
    // SAFETY: F_SETOWN_EX reads a `struct f_owner_ex` (two ints, as `Owner`) from `owner`, which lives through the call.
    check(unsafe { libc::fcntl(fd.as_fd().as_raw_fd(), F_SETOWN_EX, &raw const owner) }).map(drop)
}

/// Signal that is sent instead of `SIGIO`; 0: `SIGIO` itself.
pub fn signal(fd: impl AsFd) -> io::Result<i32> {
    with_number(fd, F_GETSIG, 0)
}

/// Sets the signal that is sent instead of `SIGIO`.
pub fn set_signal(fd: impl AsFd, signal: i32) -> io::Result<()> {
    with_number(fd, F_SETSIG, signal).map(drop)
}

/// Takes a lease (`F_RDLCK`, `F_WRLCK`) on `fd`.
pub fn set_lease(fd: impl AsFd, mode: i32) -> io::Result<()> {
    with_number(fd, libc::F_SETLEASE, mode).map(drop)
}

/// Whether somebody has the file of `fd`, a descriptor for reading only, open for writing; no where the file can have no leases.
pub fn has_writer(fd: impl AsFd) -> bool {
    // One for reading is given only where nobody can write.
    let lease = set_lease(&fd, libc::F_RDLCK);
    if lease.is_ok() {
        // It is ours: taking it back does not fail.
        let _ = set_lease(fd, libc::F_UNLCK);
    }
    lease.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
}

/// Takes a lock of an open file (`F_OFD_SETLK`) on `bytes` bytes from `start`, 0 meaning to the end; does not wait.
pub fn set_open_file_lock(fd: impl AsFd, mode: i32, start: i64, bytes: i64) -> io::Result<()> {
    let lock = libc::flock {
        l_type: mode as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: start,
        l_len: bytes,
        l_pid: 0,
    };
    // SAFETY: F_OFD_SETLK reads a `struct flock` from `lock`, which lives through the call.
    check(unsafe { libc::fcntl(fd.as_fd().as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) }).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_writer_is_seen() {
        let path = std::env::temp_dir().join(format!("torpor-writer-{}", std::process::id()));
        let writer = std::fs::File::create(&path).unwrap();
        let reader = std::fs::File::open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(has_writer(&reader));
        drop(writer);
        // A process that another test starts at this moment has a copy for as long as that takes.
        let gone = || !has_writer(&reader);
        assert!((0..1000).any(|_| gone() || {
            std::thread::sleep(std::time::Duration::from_millis(1));
            false
        }));
    }

    #[test]
    fn owners_and_signals_are_kept() {
        let (a, _b) = std::os::unix::net::UnixStream::pair().unwrap();
        assert_eq!(owner(&a).unwrap().id, 0);
        let own = Owner { kind: 1, id: std::process::id() as i32 };
        set_owner(&a, own).unwrap();
        set_signal(&a, 12).unwrap();
        assert_eq!((owner(&a).unwrap(), signal(&a).unwrap()), (own, 12));
        assert!(set_owner(&a, Owner { kind: 1, id: i32::MAX }).is_err());
    }

    #[test]
    fn a_lock_of_an_open_file_keeps_others_out() {
        let file = tempfile();
        let other = std::fs::File::options().write(true).open(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap();
        set_open_file_lock(&file, libc::F_WRLCK, 10, 5).unwrap();
        assert!(set_open_file_lock(&other, libc::F_WRLCK, 12, 1).is_err());
        set_open_file_lock(&other, libc::F_WRLCK, 15, 0).unwrap();
    }

    fn tempfile() -> std::fs::File {
        let fd = rustix::fs::memfd_create("locks", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        fd.into()
    }
}
