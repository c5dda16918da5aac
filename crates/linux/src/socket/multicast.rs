//! Groups that a socket has joined: `MCAST_JOIN_GROUP`, `MCAST_MSFILTER` (RFC 3678).

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use super::{ADDRESS_BYTES, check};

/// Where the group's address is in `struct group_req` and `struct group_filter`, behind the interface's number.
const GROUP_OFFSET: usize = 8;
/// Bytes of `struct group_req`.
pub const REQUEST_BYTES: usize = GROUP_OFFSET + ADDRESS_BYTES;
const FILTER_BYTES: usize = REQUEST_BYTES + 8;
/// Everybody but the sources listed.
const EXCLUDE: u32 = 0;

/// A `struct group_req`: an interface and the group's `sockaddr`.
pub fn group_request(interface: u32, group: &[u8]) -> [u8; REQUEST_BYTES] {
    let mut request = [0; REQUEST_BYTES];
    request[..4].copy_from_slice(&interface.to_ne_bytes());
    let length = group.len().min(ADDRESS_BYTES);
    request[GROUP_OFFSET..GROUP_OFFSET + length].copy_from_slice(&group[..length]);
    request
}

/// Whether a socket has joined a group, and if so, whether it takes it from everybody.
pub fn membership(socket: impl AsFd, level: i32, request: &[u8; REQUEST_BYTES]) -> io::Result<Option<bool>> {
    let mut filter = [0; FILTER_BYTES];
    filter[..REQUEST_BYTES].copy_from_slice(request);
    let mut len = FILTER_BYTES as libc::socklen_t;
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: the kernel reads and writes at most `len` bytes of `filter`, which has as many; it has room for no sources.
    let answer =
        check(unsafe { libc::getsockopt(fd, level, libc::MCAST_MSFILTER, filter.as_mut_ptr().cast(), &raw mut len) });
    let number = |at: usize| u32::from_ne_bytes([filter[at], filter[at + 1], filter[at + 2], filter[at + 3]]);
    match answer {
        Ok(_) => Ok(Some(number(REQUEST_BYTES) == EXCLUDE && number(REQUEST_BYTES + 4) == 0)),
        Err(error) if error.raw_os_error() == Some(libc::EADDRNOTAVAIL) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Joins a group.
pub fn join(socket: impl AsFd, level: i32, request: &[u8; REQUEST_BYTES]) -> io::Result<()> {
    let (fd, len) = (socket.as_fd().as_raw_fd(), REQUEST_BYTES as libc::socklen_t);
    // SAFETY: the kernel reads `len` bytes of `request`, which has as many.
    check(unsafe { libc::setsockopt(fd, level, libc::MCAST_JOIN_GROUP, request.as_ptr().cast(), len) }).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;

    #[test]
    fn memberships_are_seen() {
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        let mut group = (libc::AF_INET as u16).to_ne_bytes().to_vec();
        group.extend_from_slice(&[0, 0, 239, 1, 2, 3, 0, 0, 0, 0, 0, 0, 0, 0]);
        // Loopback.
        let request = group_request(1, &group);
        assert_eq!(membership(&socket, libc::IPPROTO_IP, &request).unwrap(), None);
        join(&socket, libc::IPPROTO_IP, &request).unwrap();
        assert_eq!(membership(&socket, libc::IPPROTO_IP, &request).unwrap(), Some(true));
    }
}
