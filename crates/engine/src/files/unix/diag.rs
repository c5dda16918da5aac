//! Unix sockets as the kernel lists them (`sock_diag(7)`): who is connected to whom, who waits at which listener.

use std::collections::HashMap;
use std::io;

use rustix::io::Errno;
use rustix::net::netlink::{SOCK_DIAG, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recvfrom, sendto, socket_with};

const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// `NLM_F_REQUEST | NLM_F_DUMP`.
const DUMP: u16 = 0x301;
const ERROR: u16 = 2;
const DONE: u16 = 3;
const HEADER_BYTES: usize = 16;
/// `struct unix_diag_msg`.
const MESSAGE_BYTES: usize = 16;
/// `UDIAG_SHOW_PEER | UDIAG_SHOW_ICONS | UDIAG_SHOW_RQLEN`.
const SHOW: u32 = 0x4 | 0x8 | 0x10;
const PEER: u16 = 2;
const WAITING: u16 = 3;
const QUEUE: u16 = 4;
const SHUTDOWN: u16 = 6;
const BUFFER_BYTES: usize = 64 << 10;
/// Messages of one answer at most: more sockets than a machine has.
const MAX_MESSAGES: usize = 1 << 24;

/// A socket in the list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Entry {
    /// Inode of the socket that it is connected to; 0: one that nobody has accepted, or that has been closed.
    pub(super) peer: Option<u32>,
    /// Of a listener: inodes of the sockets whose connections wait, in order; 0: closed since.
    pub(super) waiting: Vec<u32>,
    /// Of a listener: the most that may wait.
    pub(super) backlog: u32,
    /// 1: not reading any more, 2: not writing any more.
    pub(super) shut: u8,
}

/// Sockets of the calling thread's network namespace, by inode.
pub(super) fn list() -> io::Result<HashMap<u32, Entry>> {
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, Some(SOCK_DIAG))?;
    bind(&socket, &SocketAddrNetlink::new(0, 0))?;
    let mut request = Vec::with_capacity(40);
    request.extend_from_slice(&40_u32.to_ne_bytes());
    request.extend_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    request.extend_from_slice(&DUMP.to_ne_bytes());
    request.extend_from_slice(&[0; 8]);
    // `struct unix_diag_req`: family, all states, any inode, what to show, no cookie.
    request.extend_from_slice(&[1, 0, 0, 0]);
    for word in [u32::MAX, 0, SHOW, u32::MAX, u32::MAX] {
        request.extend_from_slice(&word.to_ne_bytes());
    }
    sendto(&socket, &request, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
    let mut found = HashMap::new();
    let mut buffer = vec![0; BUFFER_BYTES];
    let mut messages = 0;
    loop {
        let length = match recvfrom(&socket, &mut *buffer, RecvFlags::TRUNC) {
            Err(Errno::INTR) => continue,
            other => other?.1,
        };
        let mut rest = buffer.get(..length).ok_or_else(|| damaged("longer than the buffer"))?;
        while !rest.is_empty() {
            messages += 1;
            let total = u32_at(rest, 0).unwrap_or(0) as usize;
            let message = rest.get(..total).filter(|message| message.len() >= HEADER_BYTES);
            let message = message.filter(|_| messages < MAX_MESSAGES).ok_or_else(|| damaged("length"))?;
            rest = rest.get(total.next_multiple_of(4)..).unwrap_or(&[]);
            let payload = &message[HEADER_BYTES..];
            match u16::from_ne_bytes([message[4], message[5]]) {
                DONE => return Ok(found),
                ERROR => {
                    let code = u32_at(payload, 0).unwrap_or(0) as i32;
                    return Err(io::Error::from_raw_os_error(code.saturating_neg()));
                }
                _ => {
                    let (inode, entry) = entry(payload).ok_or_else(|| damaged("short entry"))?;
                    found.insert(inode, entry);
                }
            }
        }
    }
}

fn damaged(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("damaged list of unix sockets: {what}"))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes)
}

fn entry(payload: &[u8]) -> Option<(u32, Entry)> {
    let inode = u32_at(payload, 4)?;
    let mut entry = Entry::default();
    let mut rest = payload.get(MESSAGE_BYTES..)?;
    while rest.len() >= 4 {
        let length = usize::from(u16::from_ne_bytes([rest[0], rest[1]]));
        let kind = u16::from_ne_bytes([rest[2], rest[3]]);
        let value = rest.get(4..length)?;
        match kind {
            PEER => entry.peer = Some(u32_at(value, 0)?),
            WAITING => entry.waiting = value.chunks_exact(4).filter_map(|word| u32_at(word, 0)).collect(),
            QUEUE => entry.backlog = u32_at(value, 4)?,
            SHUTDOWN => entry.shut = *value.first()?,
            _ => {}
        }
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or(&[]);
    }
    Some((inode, entry))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::fstat;
    use std::os::unix::net::{UnixListener, UnixStream};

    #[test]
    fn pairs_and_those_who_wait_are_found() {
        let inode = |fd: &dyn std::os::fd::AsFd| fstat(fd.as_fd()).unwrap().st_ino as u32;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let listener = UnixListener::bind(&path).unwrap();
        let one = UnixStream::connect(&path).unwrap();
        let two = UnixStream::connect(&path).unwrap();
        let (a, b) = UnixStream::pair().unwrap();
        a.shutdown(std::net::Shutdown::Write).unwrap();
        let found = list().unwrap();
        assert_eq!(found[&inode(&listener)].waiting, [inode(&one), inode(&two)]);
        assert!(found[&inode(&listener)].backlog > 0);
        assert_eq!(found[&inode(&one)].peer, Some(0));
        assert_eq!(found[&inode(&a)], Entry { peer: Some(inode(&b)), shut: 2, ..found[&inode(&a)].clone() });
        assert_eq!(found[&inode(&b)].shut, 1);
        drop(b);
        assert_eq!(list().unwrap()[&inode(&a)].peer, Some(0));
    }

    #[test]
    fn noise_is_refused() {
        assert!(entry(&[0; 15]).is_none());
        assert!(entry(&[[0; 16].as_slice(), &[200, 0, 2, 0]].concat()).is_none());
        assert!(entry(&[[0; 16].as_slice(), &[0, 0, 2, 0]].concat()).is_none());
    }
}
