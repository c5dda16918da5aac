//! A plain netlink socket: requests, dumps, and a bounded reader of messages and attributes.
//!
//! For the kernel's tables that no well-kept crate reads cheaply: set elements of nftables, connection tracking and
//! socket diagnostics. Everything read is length-checked; a message that lies about its length ends the reading with
//! `InvalidData`. The kernel answers while the request is being sent, so the calls do not wait for anything else.
//!
//! A socket belongs to the network namespace of the thread that opened it, wherever it is used later.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{self, AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};

const HEADER_BYTES: usize = 16;
const BUFFER_BYTES: usize = 128 << 10;
const LISTEN_BUFFER_BYTES: usize = 32 << 10;
const RECEIVE_BUFFER_BYTES: usize = 1 << 20;
/// Most that one dump may return: a full connection-tracking table of a large machine stays below.
const MAX_DUMP_BYTES: usize = 1 << 30;
const MAX_ATTEMPTS: u32 = 8;
const TIMEOUT: Duration = Duration::from_secs(10);

const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const NLM_F_DUMP_INTR: u16 = 0x10;
const NLM_F_DUMP: u16 = 0x300;
/// `NFNL_MSG_BATCH_BEGIN`, `NFNL_MSG_BATCH_END`, and their body: `struct nfgenmsg` for nftables.
const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
const BATCH_BODY: [u8; 4] = [0, 0, 0, 10];

/// A message of a [`Netlink::batch`].
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) kind: u16,
    /// Beside those of every request.
    pub(crate) flags: u16,
    pub(crate) payload: Vec<u8>,
}

/// An open socket.
#[derive(Debug)]
pub(crate) struct Netlink {
    socket: OwnedFd,
    sequence: u32,
    buffer: Vec<u8>,
}

impl Netlink {
    /// Opens a socket in the calling thread's network namespace.
    pub(crate) fn open(protocol: Protocol) -> io::Result<Self> {
        Self::from_socket(bound(protocol, SocketFlags::CLOEXEC, 0)?)
    }

    /// One that was opened before, perhaps by a process that has ended.
    pub(crate) fn from_socket(socket: OwnedFd) -> io::Result<Self> {
        sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(TIMEOUT))?;
        // What an earlier user had asked last may have left answers; numbers go on from a time that is not repeated.
        let sequence = rustix::time::clock_gettime(rustix::time::ClockId::Boottime).tv_nsec as u32;
        Ok(Self { socket, sequence, buffer: vec![0; BUFFER_BYTES] })
    }

    /// Asks for a dump and hands each message's type and payload to `each`. A dump that the kernel marks as torn by a
    /// change is asked for again; `each` then sees a call of `restart` first.
    pub(crate) fn dump<T: Default>(
        &mut self,
        kind: u16,
        payload: &[u8],
        mut each: impl FnMut(&mut T, u16, &[u8]) -> io::Result<()>,
    ) -> io::Result<T> {
        for _ in 0..MAX_ATTEMPTS {
            let mut result = T::default();
            self.send(kind, NLM_F_REQUEST | NLM_F_DUMP, payload)?;
            match self.receive(&mut |kind, payload| each(&mut result, kind, payload)) {
                Ok(true) => return Ok(result),
                Ok(false) => {}
                // Changed while the kernel walked it (nf_tables answers so when the generation moved).
                Err(error) if error.raw_os_error() == Some(Errno::INTR.raw_os_error()) => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::Error::new(io::ErrorKind::Interrupted, "the kernel's table changed during every attempt to read it"))
    }

    /// Sends a request and waits for its acknowledgement.
    pub(crate) fn request(&mut self, kind: u16, payload: &[u8]) -> io::Result<()> {
        self.send(kind, NLM_F_REQUEST | NLM_F_ACK, payload)?;
        self.receive(&mut |_, _| Ok(())).map(|_| ())
    }

    /// Sends messages of nftables as one transaction: all of them are carried out, or none.
    pub(crate) fn batch(&mut self, messages: &[Message]) -> io::Result<()> {
        let mut text = Vec::new();
        self.append(&mut text, BATCH_BEGIN, NLM_F_REQUEST, &BATCH_BODY)?;
        let first = self.sequence;
        for message in messages {
            self.append(&mut text, message.kind, NLM_F_REQUEST | NLM_F_ACK | message.flags, &message.payload)?;
        }
        let last = self.sequence;
        self.append(&mut text, BATCH_END, NLM_F_REQUEST, &BATCH_BODY)?;
        net::sendto(&self.socket, &text, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
        self.answers(first, last)
    }

    /// Reads the answers to a batch. Every message is answered, unless the whole batch is refused at its beginning.
    fn answers(&mut self, first: u32, last: u32) -> io::Result<()> {
        let mut failure = None;
        loop {
            let (_, length, from) = match net::recvfrom(&self.socket, &mut *self.buffer, RecvFlags::TRUNC) {
                Err(Errno::INTR) => continue,
                other => other?,
            };
            if !from_kernel(from) {
                continue;
            }
            let mut rest = self.buffer.get(..length).ok_or_else(|| damaged("message longer than the buffer"))?;
            while !rest.is_empty() {
                let (header, payload, tail) = split_message(rest)?;
                rest = tail;
                let ours = header.sequence.wrapping_sub(first) <= last.wrapping_sub(first);
                if !ours || header.kind != NLMSG_ERROR {
                    continue;
                }
                let code = i32_at(payload, 0).unwrap_or(0);
                if code != 0 {
                    failure.get_or_insert_with(|| io::Error::from_raw_os_error(code.saturating_neg()));
                }
                if header.sequence == last || (header.sequence == first && code != 0) {
                    return failure.map_or(Ok(()), Err);
                }
            }
        }
    }

    fn send(&mut self, kind: u16, flags: u16, payload: &[u8]) -> io::Result<()> {
        let mut message = Vec::with_capacity(HEADER_BYTES + payload.len());
        self.append(&mut message, kind, flags, payload)?;
        net::sendto(&self.socket, &message, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
        Ok(())
    }

    /// Appends a message with the next number.
    fn append(&mut self, to: &mut Vec<u8>, kind: u16, flags: u16, payload: &[u8]) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let length = u32::try_from(HEADER_BYTES + payload.len()).map_err(|_| damaged("request"))?;
        to.extend_from_slice(&length.to_ne_bytes());
        to.extend_from_slice(&kind.to_ne_bytes());
        to.extend_from_slice(&flags.to_ne_bytes());
        to.extend_from_slice(&self.sequence.to_ne_bytes());
        to.extend_from_slice(&0_u32.to_ne_bytes());
        to.extend_from_slice(payload);
        to.resize(align(to.len()), 0);
        Ok(())
    }

    /// Reads until the end of the answer; whether it is consistent.
    fn receive(&mut self, each: &mut dyn FnMut(u16, &[u8]) -> io::Result<()>) -> io::Result<bool> {
        let mut buffer = std::mem::take(&mut self.buffer);
        let result = self.receive_into(&mut buffer, each);
        self.buffer = buffer;
        result
    }

    fn receive_into(&self, buffer: &mut [u8], each: &mut dyn FnMut(u16, &[u8]) -> io::Result<()>) -> io::Result<bool> {
        let mut consistent = true;
        let mut total = 0;
        let mut failure = None;
        while total < MAX_DUMP_BYTES {
            let (_, length, from) = match net::recvfrom(&self.socket, &mut *buffer, RecvFlags::TRUNC) {
                Err(Errno::INTR) => continue,
                other => other?,
            };
            if !from_kernel(from) {
                continue;
            }
            let mut rest = buffer.get(..length).ok_or_else(|| damaged("message longer than the buffer"))?;
            total += length;
            while !rest.is_empty() {
                let (header, payload, tail) = split_message(rest)?;
                rest = tail;
                // Left over from a request that failed earlier.
                if header.sequence != self.sequence {
                    continue;
                }
                consistent &= header.flags & NLM_F_DUMP_INTR == 0;
                match header.kind {
                    NLMSG_DONE | NLMSG_ERROR => {
                        let code = i32_at(payload, 0).unwrap_or(0);
                        return match failure {
                            Some(error) => Err(error),
                            None if code == 0 => Ok(consistent),
                            None => Err(io::Error::from_raw_os_error(code.saturating_neg())),
                        };
                    }
                    // Once `each` has refused, the rest is read and dropped, so that the socket stays usable.
                    kind if failure.is_none() => failure = each(kind, payload).err(),
                    _ => {}
                }
            }
        }
        Err(damaged("endless answer"))
    }
}

impl AsFd for Netlink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// A socket that gets the messages of these multicast groups (a mask), without waiting for them.
pub(crate) fn listen(protocol: Protocol, groups: u32) -> io::Result<OwnedFd> {
    bound(protocol, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, groups)
}

fn bound(protocol: Protocol, flags: SocketFlags, groups: u32) -> io::Result<OwnedFd> {
    let socket = net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, Some(protocol))?;
    net::bind(&socket, &SocketAddrNetlink::new(0, groups))?;
    sockopt::set_socket_recv_buffer_size(&socket, RECEIVE_BUFFER_BYTES)?;
    Ok(socket)
}

fn from_kernel(from: Option<net::SocketAddrAny>) -> bool {
    from.and_then(|from| SocketAddrNetlink::try_from(from).ok()).is_some_and(|from| from.pid() == 0)
}

/// The messages that a multicast socket has now: type and payload. `false` where some were lost.
pub(crate) fn heard(socket: &OwnedFd, mut each: impl FnMut(u16, &[u8])) -> io::Result<bool> {
    let (mut buffer, mut whole) = (vec![0; LISTEN_BUFFER_BYTES], true);
    loop {
        let (_, length, from) = match net::recvfrom(socket, &mut *buffer, RecvFlags::TRUNC) {
            Ok(received) => received,
            Err(Errno::INTR) => continue,
            Err(Errno::AGAIN) => return Ok(whole),
            Err(Errno::NOBUFS) => {
                whole = false;
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        if !from_kernel(from) {
            continue;
        }
        // A message longer than the buffer is as good as lost.
        whole &= length <= buffer.len();
        let mut rest = &buffer[..length.min(buffer.len())];
        while let Ok((header, payload, tail)) = split_message(rest) {
            each(header.kind, payload);
            rest = tail;
        }
    }
}

struct Header {
    kind: u16,
    flags: u16,
    sequence: u32,
}

fn split_message(bytes: &[u8]) -> io::Result<(Header, &[u8], &[u8])> {
    let length = u32_at(bytes, 0).ok_or_else(|| damaged("short message"))? as usize;
    let message = bytes.get(..length).filter(|m| m.len() >= HEADER_BYTES).ok_or_else(|| damaged("message length"))?;
    let header = Header {
        kind: u16_at(message, 4).unwrap_or(0),
        flags: u16_at(message, 6).unwrap_or(0),
        sequence: u32_at(message, 8).unwrap_or(0),
    };
    let tail = bytes.get(align(length)..).unwrap_or(&[]);
    Ok((header, &message[HEADER_BYTES..], tail))
}

/// An error for an answer that does not hold together.
pub(crate) fn damaged(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("damaged netlink answer: {what}"))
}

const fn align(length: usize) -> usize {
    (length + 3) & !3
}

/// The attributes in `bytes`: type (without its flags) and value. Ends at the first that does not fit.
pub(crate) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(u16_at(bytes, 0)?);
        let kind = u16_at(bytes, 2)? & 0x3fff;
        let value = bytes.get(4..length)?;
        bytes = bytes.get(align(length)..).unwrap_or(&[]);
        Some((kind, value))
    })
}

/// The value of the first attribute of type `kind`.
pub(crate) fn attribute(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    attributes(bytes).find(|(found, _)| *found == kind).map(|(_, value)| value)
}

/// Appends an attribute.
pub(crate) fn push_attribute(to: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let length = u16::try_from(value.len() + 4).expect("attributes that we send are short");
    to.extend_from_slice(&length.to_ne_bytes());
    to.extend_from_slice(&kind.to_ne_bytes());
    to.extend_from_slice(value);
    to.resize(align(to.len()), 0);
}

/// Appends a nested attribute.
pub(crate) fn push_nested(to: &mut Vec<u8>, kind: u16, value: &[u8]) {
    push_attribute(to, kind | 0x8000, value);
}

/// A text attribute: up to its NUL.
pub(crate) fn text(value: &[u8]) -> &str {
    let end = value.iter().position(|b| *b == 0).unwrap_or(value.len());
    std::str::from_utf8(&value[..end]).unwrap_or("")
}

/// `N` bytes at `offset`.
pub(crate) fn bytes_at<const N: usize>(bytes: &[u8], offset: usize) -> Option<[u8; N]> {
    bytes.get(offset..offset.checked_add(N)?)?.try_into().ok()
}

/// A number in the machine's byte order.
pub(crate) fn u16_at(bytes: &[u8], offset: usize) -> Option<u16> {
    bytes_at(bytes, offset).map(u16::from_ne_bytes)
}

/// A number in the machine's byte order.
pub(crate) fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    bytes_at(bytes, offset).map(u32::from_ne_bytes)
}

fn i32_at(bytes: &[u8], offset: usize) -> Option<i32> {
    bytes_at(bytes, offset).map(i32::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_that_lie_end_the_reading() {
        let mut bytes = Vec::new();
        push_attribute(&mut bytes, 1, b"abc");
        push_nested(&mut bytes, 2, &[1, 2, 3, 4]);
        let whole: Vec<_> = attributes(&bytes).collect();
        assert_eq!(whole, [(1, &b"abc"[..]), (2, &[1, 2, 3, 4][..])]);
        for cut in 0..bytes.len() {
            assert!(attributes(&bytes[..cut]).count() <= 2);
        }
        for length in 0..4_u16 {
            let mut wrong = bytes.clone();
            wrong[..2].copy_from_slice(&length.to_ne_bytes());
            assert_eq!(attributes(&wrong).count(), 0, "length {length}");
        }
        bytes[0] = 255;
        assert_eq!(attributes(&bytes).count(), 0);
    }

    #[test]
    fn messages_that_lie_are_refused() {
        assert!(split_message(&[]).is_err());
        assert!(split_message(&[16, 0, 0, 0]).is_err());
        assert!(split_message(&[15; 16]).is_err());
        let mut good = [0_u8; 20];
        good[0] = 18;
        let (_, payload, tail) = split_message(&good).unwrap();
        assert_eq!((payload.len(), tail.len()), (2, 0));
        good[0] = 21;
        assert!(split_message(&good).is_err());
    }
}
