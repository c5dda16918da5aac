//! Descriptors that must stay open as long as the app has processes, whoever else is killed.
//!
//! Init has both ends of a socket pair. The worker borrows them (`pidfd_getfd(2)`) and sends itself messages with descriptors, which nobody
//! receives: what waits in a socket is open as long as the socket is. Another worker peeks at them. Init itself does nothing for it.
//!
//! Source: `unix(7)` on `SCM_RIGHTS` and `SO_PEEK_OFF`.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};

use rustix::io::{Errno, FdFlags, fcntl_dupfd_cloexec, fcntl_setfd};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, recv, socketpair};
use rustix::process::{PidfdGetfdFlags, pidfd_getfd};
use torpor_linux::socket::{Plain, Sent, peek, send, set};

/// Numbers of both ends in init: behind all others, and few enough for the table that every process has.
const SENDING: i32 = 62;
const RECEIVING: i32 = 63;
/// Bytes of a message.
const MOST_BYTES: usize = 256;
/// Room for messages: hundreds.
const QUEUE_BYTES: i32 = 1 << 20;

/// A message that init holds.
#[derive(Debug)]
pub struct Deposit {
    /// What it says.
    pub bytes: Vec<u8>,
    /// Duplicates of the descriptors that go with it.
    pub files: Vec<OwnedFd>,
}

/// Gives this process, which becomes init, both ends; they outlive its exec.
pub(crate) fn open_in_init() -> io::Result<()> {
    let (sending, receiving) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    for (end, number) in [(sending, SENDING), (receiving, RECEIVING)] {
        let end = fcntl_dupfd_cloexec(&end, number)?;
        if end.as_raw_fd() != number {
            return Err(Errno::BUSY.into());
        }
        fcntl_setfd(&end, FdFlags::empty())?;
        let _ = end.into_raw_fd();
    }
    Ok(())
}

/// The ends of an init; none where an older version has made it.
fn end_of(init: BorrowedFd<'_>, number: i32) -> io::Result<Option<OwnedFd>> {
    match pidfd_getfd(init, number, PidfdGetfdFlags::empty()) {
        Ok(end) => Ok(Some(end)),
        Err(Errno::BADF) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// See [`crate::Sandbox::deposit`].
pub(crate) fn deposit(init: BorrowedFd<'_>, bytes: &[u8], files: &[BorrowedFd<'_>]) -> io::Result<bool> {
    if bytes.is_empty() || bytes.len() > MOST_BYTES {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let Some(sending) = end_of(init, SENDING)? else { return Ok(false) };
    set_option(&sending, libc::SO_SNDBUF, QUEUE_BYTES)?;
    send(&sending, &Sent { bytes, files, ..Sent::default() })?;
    Ok(true)
}

/// See [`crate::Sandbox::can_hold_deposits`].
pub(crate) fn can_hold(init: BorrowedFd<'_>) -> io::Result<bool> {
    Ok(end_of(init, SENDING)?.is_some())
}

/// See [`crate::Sandbox::deposits`].
pub(crate) fn all(init: BorrowedFd<'_>) -> io::Result<Vec<Deposit>> {
    let mut deposits = Vec::new();
    let Some(receiving) = end_of(init, RECEIVING)? else { return Ok(deposits) };
    // Each look goes on behind the last one.
    set_option(&receiving, libc::SO_PEEK_OFF, 0)?;
    while let Some(message) = peek(&receiving, MOST_BYTES)? {
        if message.cut || message.length > MOST_BYTES || message.length == 0 {
            return Err(Errno::MFILE.into());
        }
        deposits.push(Deposit { bytes: message.bytes, files: message.files });
    }
    set_option(&receiving, libc::SO_PEEK_OFF, -1)?;
    Ok(deposits)
}

/// See [`crate::Sandbox::clear_deposits`].
pub(crate) fn clear(init: BorrowedFd<'_>) -> io::Result<()> {
    let Some(receiving) = end_of(init, RECEIVING)? else { return Ok(()) };
    loop {
        // Without room for descriptors they are closed.
        match recv(&receiving, &mut [0_u8; 1], RecvFlags::DONTWAIT | RecvFlags::TRUNC) {
            Ok(_) => {}
            Err(Errno::AGAIN) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

fn set_option(socket: &OwnedFd, name: i32, value: i32) -> io::Result<()> {
    let option = Plain::find(libc::SOL_SOCKET, name).ok_or(io::ErrorKind::Unsupported)?;
    set(socket, option, &value.to_ne_bytes())
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;

    use rustix::fs::{MemfdFlags, memfd_create};
    use rustix::process::{PidfdFlags, getpid, pidfd_open};

    use super::*;

    #[test]
    fn deposits_stay_in_their_order_until_they_are_cleared() {
        // This process in the place of init.
        open_in_init().unwrap();
        let init = pidfd_open(getpid(), PidfdFlags::empty()).unwrap();
        let init = init.as_fd();
        for round in 0..2 {
            assert!(all(init).unwrap().is_empty());
            for n in 0..300_u64 {
                let file = File::from(memfd_create("deposited", MemfdFlags::CLOEXEC).unwrap());
                file.write_all_at(&n.to_le_bytes(), 0).unwrap();
                assert!(deposit(init, format!("message {n}").as_bytes(), &[file.as_fd(), file.as_fd()]).unwrap());
            }
            for look in 0..2 {
                let found = all(init).unwrap();
                assert_eq!(found.len(), 300, "round {round}, look {look}");
                for (n, Deposit { bytes, files }) in (0_u64..).zip(found) {
                    let mut stored = [0; 8];
                    let [file, _] = <[OwnedFd; 2]>::try_from(files).unwrap();
                    File::from(file).read_exact_at(&mut stored, 0).unwrap();
                    assert_eq!((bytes, u64::from_le_bytes(stored)), (format!("message {n}").into_bytes(), n));
                }
            }
            clear(init).unwrap();
        }
        assert!(deposit(init, b"", &[]).is_err() && deposit(init, &[0; MOST_BYTES + 1], &[]).is_err());
    }
}
