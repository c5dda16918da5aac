//! Messages with descriptors and senders: looking at them where they wait, and sending them.

use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use super::{ADDRESS_BYTES, check};

/// Descriptors that one message carries at most (`SCM_MAX_FD`).
pub(crate) const MAX_FILES: usize = 253;
/// Room for the descriptors and the credentials of a message, with slack for what we do not know.
const CONTROL_BYTES: usize = 2048;
/// A descriptor of the sender (`SO_PASSPIDFD`); libc lacks it.
const SCM_PIDFD: i32 = 4;

/// A message that waits in a socket.
#[derive(Debug, Default)]
pub struct Peeked {
    /// Its bytes, as many as were asked for.
    pub bytes: Vec<u8>,
    /// Bytes that it has in all (datagrams), or that were given (streams).
    pub length: usize,
    /// Where it comes from: a `sockaddr`, empty if nobody knows.
    pub from: Vec<u8>,
    /// Duplicates of the descriptors that it carries.
    pub files: Vec<OwnedFd>,
    /// Process, user and group of its sender, if the socket asks for them (`SO_PASSCRED`).
    pub credentials: Option<(i32, u32, u32)>,
    /// What goes with it did not fit (this process has too many descriptors open).
    pub cut: bool,
}

/// What is to be sent.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sent<'a> {
    /// Bytes.
    pub bytes: &'a [u8],
    /// Receiver, where the socket is not connected: a `sockaddr`, or empty.
    pub to: &'a [u8],
    /// Descriptors that go along.
    pub files: &'a [BorrowedFd<'a>],
    /// Who the sender is to be.
    pub credentials: Option<(i32, u32, u32)>,
}

#[repr(C, align(8))]
struct Control([u8; CONTROL_BYTES]);

/// Looks at what waits in a socket, at its peek offset, without taking it. `None`: nothing waits there. A stream that has
/// ended gives a message without bytes.
pub fn peek(socket: impl AsFd, most_bytes: usize) -> io::Result<Option<Peeked>> {
    let mut bytes = vec![0; most_bytes];
    let mut from = vec![0; ADDRESS_BYTES];
    let mut control = Control([0; CONTROL_BYTES]);
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: all zero is a valid msghdr: null pointers with lengths of zero.
    let mut header: libc::msghdr = unsafe { mem::zeroed() };
    header.msg_name = from.as_mut_ptr().cast();
    header.msg_namelen = ADDRESS_BYTES as libc::socklen_t;
    header.msg_iov = &raw mut part;
    header.msg_iovlen = 1;
    header.msg_control = (&raw mut control).cast();
    header.msg_controllen = CONTROL_BYTES as _;
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT | libc::MSG_TRUNC | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: every pointer in `header` leads to a buffer of the length beside it, and all of them live through the call.
    let length = match unsafe { libc::recvmsg(socket.as_fd().as_raw_fd(), &raw mut header, flags) } {
        length if length >= 0 => length as usize,
        _ => {
            let error = io::Error::last_os_error();
            return if error.kind() == io::ErrorKind::WouldBlock { Ok(None) } else { Err(error) };
        }
    };
    let mut peeked = Peeked { length, cut: header.msg_flags & libc::MSG_CTRUNC != 0, ..Peeked::default() };
    take_control(&header, &mut peeked);
    bytes.truncate(length);
    from.truncate(header.msg_namelen as usize);
    Ok(Some(Peeked { bytes, from, ..peeked }))
}

/// Of `bytes` bytes that wait in a unix stream socket from its peek offset on: how many lie before the piece that the last of
/// them belongs to. Looking does not tell where one sent piece ends and the next begins, but the kernel copies piece by
/// piece, and stops before one for which there is no memory.
pub fn before_last_piece(socket: impl AsFd, bytes: usize) -> io::Result<usize> {
    const PAGE: usize = 4096;
    let Some(before) = bytes.checked_sub(1) else { return Ok(0) };
    let readable = before.next_multiple_of(PAGE);
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping without access, at a place that the kernel chooses; nothing else lies there.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), readable + PAGE, libc::PROT_NONE, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let answer = peek_against_wall(socket, start.cast(), readable, bytes);
    // SAFETY: the mapping made above, whose address nobody has kept.
    unsafe { libc::munmap(start, readable + PAGE) };
    answer
}

/// Peeks `bytes` bytes, of which all but the last one have memory: up to `start + readable`.
fn peek_against_wall(socket: impl AsFd, start: *mut u8, readable: usize, bytes: usize) -> io::Result<usize> {
    if readable > 0 {
        // SAFETY: the first `readable` bytes of the caller's own mapping.
        check(unsafe { libc::mprotect(start.cast(), readable, libc::PROT_READ | libc::PROT_WRITE) })?;
    }
    // SAFETY: still inside of the mapping, which has a page behind `readable`; `bytes - 1` is at most `readable`.
    let first = unsafe { start.add(readable + 1 - bytes) };
    let mut part = libc::iovec { iov_base: first.cast(), iov_len: bytes };
    // SAFETY: all zero is a valid msghdr: null pointers with lengths of zero.
    let mut header: libc::msghdr = unsafe { mem::zeroed() };
    header.msg_iov = &raw mut part;
    header.msg_iovlen = 1;
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
    // SAFETY: the kernel writes to the mapping only; where it has no access it stops with what it has, or with EFAULT.
    match unsafe { libc::recvmsg(socket.as_fd().as_raw_fd(), &raw mut header, flags) } {
        before if before >= 0 => Ok(before as usize),
        _ => match io::Error::last_os_error() {
            error if error.raw_os_error() == Some(libc::EFAULT) => Ok(0),
            error => Err(error),
        },
    }
}

/// Reads the control messages of a filled header.
fn take_control(header: &libc::msghdr, peeked: &mut Peeked) {
    // SAFETY: the kernel has filled the control buffer that `header` names with whole messages, and set its length; the
    // macros walk it by these lengths.
    let mut message = unsafe { libc::CMSG_FIRSTHDR(header) };
    while !message.is_null() {
        // SAFETY: not null, so it is a control message inside of the buffer, with its length in front.
        let (level, kind, data, bytes) = unsafe {
            let bytes = ((*message).cmsg_len as usize).saturating_sub(libc::CMSG_LEN(0) as usize);
            ((*message).cmsg_level, (*message).cmsg_type, libc::CMSG_DATA(message), bytes)
        };
        match (level, kind) {
            (libc::SOL_SOCKET, libc::SCM_RIGHTS) => {
                for n in 0..bytes / size_of::<i32>() {
                    // SAFETY: the n-th descriptor lies inside of the message; the kernel has just made it for us.
                    peeked.files.push(unsafe { OwnedFd::from_raw_fd(data.cast::<i32>().add(n).read_unaligned()) });
                }
            }
            (libc::SOL_SOCKET, libc::SCM_CREDENTIALS) if bytes >= size_of::<libc::ucred>() => {
                // SAFETY: the message is long enough for a `ucred`, which is three numbers.
                let who = unsafe { data.cast::<libc::ucred>().read_unaligned() };
                peeked.credentials = Some((who.pid, who.uid, who.gid));
            }
            (libc::SOL_SOCKET, SCM_PIDFD) if bytes >= size_of::<i32>() => {
                // SAFETY: the message holds a descriptor that the kernel has just made for us, or an error number.
                let fd = unsafe { data.cast::<i32>().read_unaligned() };
                if fd >= 0 {
                    // SAFETY: as above; whoever reads the message gets one of their own.
                    drop(unsafe { OwnedFd::from_raw_fd(fd) });
                }
            }
            // Times, packet information and the like are made new for whoever reads.
            _ => {}
        }
        // SAFETY: as for the first.
        message = unsafe { libc::CMSG_NXTHDR(header, message) };
    }
}

/// Sends a message without waiting; gives the bytes that went.
///
/// # Errors
/// `EINVAL` for more descriptors than a message carries; what `sendmsg` says otherwise.
pub fn send(socket: impl AsFd, message: &Sent<'_>) -> io::Result<usize> {
    if message.files.len() > MAX_FILES {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    let mut control = Vec::new();
    if !message.files.is_empty() {
        let numbers = message.files.iter().flat_map(|file| file.as_raw_fd().to_ne_bytes());
        push_control(&mut control, libc::SCM_RIGHTS, &numbers.collect::<Vec<u8>>());
    }
    if let Some((pid, uid, gid)) = message.credentials {
        let who = [pid.to_ne_bytes(), uid.to_ne_bytes(), gid.to_ne_bytes()].concat();
        push_control(&mut control, libc::SCM_CREDENTIALS, &who);
    }
    let mut part = libc::iovec { iov_base: message.bytes.as_ptr().cast_mut().cast(), iov_len: message.bytes.len() };
    // SAFETY: all zero is a valid msghdr: null pointers with lengths of zero.
    let mut header: libc::msghdr = unsafe { mem::zeroed() };
    if !message.to.is_empty() {
        header.msg_name = message.to.as_ptr().cast_mut().cast();
        header.msg_namelen = message.to.len() as libc::socklen_t;
    }
    header.msg_iov = &raw mut part;
    header.msg_iovlen = 1;
    if !control.is_empty() {
        header.msg_control = control.as_mut_ptr().cast();
        header.msg_controllen = (control.len() * size_of::<u64>()) as _;
    }
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: every pointer in `header` leads to a buffer of the length beside it; the kernel only reads them, and all of
    // them live through the call.
    let sent = unsafe { libc::sendmsg(socket.as_fd().as_raw_fd(), &raw const header, flags) };
    if sent < 0 { check(-1).map(|_| 0) } else { Ok(sent as usize) }
}

/// Appends a control message of `SOL_SOCKET` (aligned as the kernel wants it).
fn push_control(to: &mut Vec<u64>, kind: i32, data: &[u8]) {
    const HEADER: usize = size_of::<libc::cmsghdr>();
    const { assert!(HEADER == 16) };
    to.push((HEADER + data.len()) as u64);
    let level = libc::SOL_SOCKET.to_ne_bytes();
    let kind = kind.to_ne_bytes();
    to.push(u64::from_ne_bytes([level[0], level[1], level[2], level[3], kind[0], kind[1], kind[2], kind[3]]));
    for chunk in data.chunks(size_of::<u64>()) {
        let mut word = [0; size_of::<u64>()];
        word[..chunk.len()].copy_from_slice(chunk);
        to.push(u64::from_ne_bytes(word));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::sockopt;
    use std::os::unix::net::{UnixDatagram, UnixStream};

    #[test]
    fn looking_takes_nothing() {
        let (a, b) = UnixStream::pair().unwrap();
        assert!(peek(&b, 64).unwrap().is_none());
        let null = std::fs::File::open("/dev/null").unwrap();
        let files = [null.as_fd(), null.as_fd()];
        assert_eq!(send(&a, &Sent { bytes: b"abc", files: &files, ..Sent::default() }).unwrap(), 3);
        for _ in 0..2 {
            let peeked = peek(&b, 64).unwrap().unwrap();
            assert_eq!((peeked.bytes.as_slice(), peeked.files.len(), peeked.cut), (&b"abc"[..], 2, false));
            assert_eq!(peeked.credentials, None);
        }
    }

    #[test]
    fn pieces_are_told_apart() {
        let (a, b) = UnixStream::pair().unwrap();
        for (part, before) in [(&b"x"[..], 0), (b"abc", 1), (&[7; 5000], 4), (b"end", 5004)] {
            send(&a, &Sent { bytes: part, ..Sent::default() }).unwrap();
            assert_eq!(before_last_piece(&b, before + part.len()).unwrap(), before);
        }
        assert_eq!(before_last_piece(&b, 0).unwrap(), 0);
    }

    #[test]
    fn datagrams_say_their_length_and_sender() {
        let (a, b) = UnixDatagram::pair().unwrap();
        sockopt::set_socket_passcred(&b, true).unwrap();
        send(&a, &Sent { bytes: &[7; 100], ..Sent::default() }).unwrap();
        let peeked = peek(&b, 10).unwrap().unwrap();
        assert_eq!((peeked.bytes.len(), peeked.length), (10, 100));
        assert_eq!(peeked.credentials.map(|who| who.0), Some(std::process::id() as i32));
    }
}
