//! Packets that an interface takes for a packet socket's sake: `PACKET_ADD_MEMBERSHIP`, `packet(7)`.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use super::check;

/// Bytes of the longest address (`MAX_ADDR_LEN`).
const ADDRESS_BYTES: usize = 32;

/// `struct packet_mreq_max`.
#[repr(C)]
struct Request {
    interface: i32,
    kind: u16,
    address_bytes: u16,
    address: [u8; ADDRESS_BYTES],
}

/// Asks interface `interface` for packets of this kind (`PACKET_MR_*`).
pub fn packet_membership(socket: impl AsFd, interface: u32, kind: u16, address: &[u8]) -> io::Result<()> {
    let wrong = |_| io::ErrorKind::InvalidInput;
    let mut request = Request {
        interface: i32::try_from(interface).map_err(wrong)?,
        kind,
        address_bytes: u16::try_from(address.len()).map_err(wrong)?,
        address: [0; ADDRESS_BYTES],
    };
    request.address.get_mut(..address.len()).ok_or(io::ErrorKind::InvalidInput)?.copy_from_slice(address);
    let (fd, len) = (socket.as_fd().as_raw_fd(), size_of::<Request>() as libc::socklen_t);
    // SAFETY: the kernel reads `len` bytes of `request`, which is as long.
    check(unsafe {
        libc::setsockopt(fd, libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, (&raw const request).cast(), len)
    })
    .map(drop)
}
