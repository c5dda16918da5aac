//! What waits in a socket, looked at message after message.
//!
//! `MSG_PEEK` begins where `SO_PEEK_OFF` says. The option belongs to the socket, so it is put back as it was; if this process is
//! killed in between, the program's own peeking (if it peeks at all) would begin elsewhere.
//!
//! An empty message is shown to the first who peeks from an offset on, and to nobody later: the kernel takes it for one that has
//! been seen. So queues of messages are looked into when they are captured, and not before. One that was looked into by a
//! capture that came to nothing loses its empty messages at the next, if the program has not read them meanwhile.

use std::io;
use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::ioctl_fionread;
use torpor_linux::closer::AppFile;
use torpor_linux::socket::{Peeked, before_last_piece, peek};

use crate::kinds::socket::options::{peek_offset, set_peek_offset};

/// Looked at first; longer ones are looked at again.
const DATAGRAM_BYTES: usize = 64 << 10;
/// Messages of one socket at most: more than any socket's buffer can hold.
const MAX_MESSAGES: usize = 1 << 20;

/// A message as it waits.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) bytes: Vec<u8>,
    /// A `sockaddr`, empty if unknown.
    pub(crate) from: Vec<u8>,
    pub(crate) files: Vec<AppFile>,
    pub(crate) credentials: Option<(i32, u32, u32)>,
}

impl From<Peeked> for Waiting {
    fn from(peeked: Peeked) -> Self {
        let Peeked { bytes, from, files, credentials, .. } = peeked;
        let files = files.into_iter().map(AppFile::from).collect();
        Self { bytes, from, files, credentials }
    }
}

/// Everything that waits in a stream socket.
pub(crate) fn stream(fd: impl AsFd) -> io::Result<Vec<Waiting>> {
    let fd = fd.as_fd();
    let bytes = ioctl_fionread(fd)? as usize;
    if bytes == 0 {
        return Ok(Vec::new());
    }
    kept(fd, || {
        let mut found = Vec::new();
        let mut offset = 0;
        while offset < bytes && found.len() < MAX_MESSAGES {
            let Some(message) = at(fd, offset, bytes)?.filter(|message| message.length > 0) else { break };
            let length = message.bytes.len();
            if message.files.is_empty() {
                found.push(message.into());
            } else {
                split(fd, offset, message, &mut found)?;
            }
            offset += length;
        }
        Ok(found)
    })
}

/// Descriptors come with the last of the pieces that one reading gave: finds where that piece begins.
fn split(fd: impl AsFd, offset: usize, message: Peeked, found: &mut Vec<Waiting>) -> io::Result<()> {
    let fd = fd.as_fd();
    set_offset(fd, offset)?;
    let least = before_last_piece(fd, message.bytes.len())?.min(message.bytes.len());
    let (before, piece) = message.bytes.split_at(least);
    if !before.is_empty() {
        let credentials = message.credentials;
        found.push(Waiting { bytes: before.to_vec(), from: Vec::new(), files: Vec::new(), credentials });
    }
    let piece = piece.to_vec();
    found.push(Waiting { bytes: piece, ..message.into() });
    Ok(())
}

/// Every message that waits in a socket that keeps them apart.
pub(crate) fn messages(fd: impl AsFd, ended: bool) -> io::Result<Vec<Waiting>> {
    let fd = fd.as_fd();
    let mut readable = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    poll(&mut readable, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))?;
    if !readable[0].revents().contains(PollFlags::IN) {
        return Ok(Vec::new());
    }
    kept(fd, || {
        let mut found = Vec::new();
        let mut offset = 0;
        while found.len() < MAX_MESSAGES {
            let Some(mut message) = at(fd, offset, DATAGRAM_BYTES)? else { break };
            if message.length == 0 && ended {
                break;
            }
            if message.length > message.bytes.len() {
                let Some(whole) = at(fd, offset, message.length)? else { break };
                message = whole;
            }
            offset += message.length;
            found.push(message.into());
        }
        Ok(found)
    })
}

fn at(fd: impl AsFd, offset: usize, bytes: usize) -> io::Result<Option<Peeked>> {
    let fd = fd.as_fd();
    set_offset(fd, offset)?;
    let peeked = peek(fd, bytes)?;
    match &peeked {
        Some(message) if message.cut => {
            Err(io::Error::other("too many descriptors are open to look at those in flight"))
        }
        _ => Ok(peeked),
    }
}

fn set_offset(fd: impl AsFd, offset: usize) -> io::Result<()> {
    let place = i32::try_from(offset).map_err(io::Error::other)?;
    set_peek_offset(fd, &place.to_ne_bytes())
}

/// Does something and puts the peek offset back.
fn kept<T>(fd: impl AsFd, work: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let fd = fd.as_fd();
    let before = peek_offset(fd)?;
    let result = work();
    set_peek_offset(fd, &before)?;
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::{UnixDatagram, UnixStream};
    use torpor_linux::socket::{Sent, send};

    #[test]
    fn descriptors_stay_with_their_bytes() {
        let (a, b) = UnixStream::pair().unwrap();
        let null = std::fs::File::open("/dev/null").unwrap();
        let files = [null.as_fd()];
        send(&a, &Sent { bytes: b"first", ..Sent::default() }).unwrap();
        send(&a, &Sent { bytes: b"second", files: &files, ..Sent::default() }).unwrap();
        send(&a, &Sent { bytes: b"third", ..Sent::default() }).unwrap();
        for _ in 0..2 {
            let found = stream(&b).unwrap();
            let shape: Vec<(&[u8], usize)> = found.iter().map(|one| (one.bytes.as_slice(), one.files.len())).collect();
            assert_eq!(shape, [(&b"first"[..], 0), (&b"second"[..], 1), (&b"third"[..], 0)]);
        }
        assert_eq!(peek_offset(&b).unwrap(), (-1_i32).to_ne_bytes());
    }

    #[test]
    fn datagrams_stay_apart_whatever_their_length() {
        let (a, b) = UnixDatagram::pair().unwrap();
        assert!(messages(&b, false).unwrap().is_empty());
        let long = vec![7; 100_000];
        for part in [&b"one"[..], b"", &long, b"two"] {
            a.send(part).unwrap();
        }
        let found = messages(&b, false).unwrap();
        let lengths: Vec<usize> = found.iter().map(|one| one.bytes.len()).collect();
        assert_eq!(lengths, [3, 0, 100_000, 3]);
        assert_eq!(found[2].bytes, long);
    }
}
