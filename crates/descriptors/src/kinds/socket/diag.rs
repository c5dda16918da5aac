//! Lists of sockets as the kernel gives them: `sock_diag(7)`.

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
const BUFFER_BYTES: usize = 64 << 10;
/// Messages of one answer at most: more sockets than a machine has.
const MAX_MESSAGES: usize = 1 << 24;

/// Asks for all sockets of the calling thread's network namespace that `request` is about; `each` reads one, or finds that it
/// is damaged.
pub(crate) fn list(request: &[u8], mut each: impl FnMut(&[u8]) -> Option<()>) -> io::Result<()> {
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, Some(SOCK_DIAG))?;
    bind(&socket, &SocketAddrNetlink::new(0, 0))?;
    let length = u32::try_from(HEADER_BYTES + request.len()).map_err(io::Error::other)?;
    let mut message = length.to_ne_bytes().to_vec();
    message.extend_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    message.extend_from_slice(&DUMP.to_ne_bytes());
    message.extend_from_slice(&[0; 8]);
    message.extend_from_slice(request);
    sendto(&socket, &message, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
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
                DONE => return Ok(()),
                ERROR => {
                    let code = u32_at(payload, 0).unwrap_or(0) as i32;
                    return Err(io::Error::from_raw_os_error(code.saturating_neg()));
                }
                _ => each(payload).ok_or_else(|| damaged("short entry"))?,
            }
        }
    }
}

/// Reads the attributes behind an entry: kind and value of each.
pub(crate) fn attributes(bytes: &[u8], mut each: impl FnMut(u16, &[u8]) -> Option<()>) -> Option<()> {
    let mut rest = bytes;
    while rest.len() >= 4 {
        let length = usize::from(u16::from_ne_bytes([rest[0], rest[1]]));
        each(u16::from_ne_bytes([rest[2], rest[3]]), rest.get(4..length)?)?;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or(&[]);
    }
    Some(())
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes)
}

fn damaged(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("damaged list of sockets: {what}"))
}
