//! Sockets as a capture needs them: addresses as bytes, what waits in a socket without taking it, options by number.
//!
//! Sources: `socket(7)`, `unix(7)`, `recvmsg(2)`.

mod filter;
pub(crate) mod message;
mod multicast;
mod option;
mod packet;

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

pub use filter::{attach_filter, attached_filter, detach_filter};
pub use message::{Peeked, Sent, before_last_piece, peek, send};
pub use multicast::{REQUEST_BYTES, group_request, join, membership};
pub use option::{Needs, PLAIN, Plain, get, set};
pub use packet::packet_membership;

/// Bytes of the longest address (`sockaddr_storage`).
pub const ADDRESS_BYTES: usize = 128;
/// `SIOCUNIXFILE`.
const UNIX_FILE: libc::Ioctl = 0x89E0;
/// `SO_PEERPIDFD`.
const PEER_PIDFD: libc::c_int = 77;
/// `SIOCOUTQ`.
const UNSENT: libc::Ioctl = 0x5411;

pub(crate) fn check(answer: libc::c_int) -> io::Result<libc::c_int> {
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(answer) }
}

/// The process at the other end of a Unix socket (`SO_PEERPIDFD`, Linux 6.5): a pidfd. For a socket that has connected, that is
/// the process that called `listen(2)`.
///
/// # Errors
/// `ESRCH` or `EINVAL` where that process has ended.
pub fn peer_process(socket: impl AsFd) -> io::Result<OwnedFd> {
    let mut pidfd: libc::c_int = -1;
    let mut len = size_of::<libc::c_int>() as libc::socklen_t;
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: the kernel writes at most `len` bytes to `pidfd`, which has as many.
    check(unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, PEER_PIDFD, (&raw mut pidfd).cast(), &raw mut len) })?;
    // SAFETY: the kernel has just opened it for this call; nobody else knows the number.
    Ok(unsafe { OwnedFd::from_raw_fd(pidfd) })
}

/// The address that a socket is bound to: a `sockaddr` of its family.
pub fn local_address(socket: impl AsFd) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; ADDRESS_BYTES];
    let mut len = ADDRESS_BYTES as libc::socklen_t;
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: the kernel writes at most `len` bytes to `bytes`, which has as many.
    check(unsafe { libc::getsockname(fd, bytes.as_mut_ptr().cast(), &raw mut len) })?;
    bytes.truncate(len as usize);
    Ok(bytes)
}

/// The address that a socket is connected to; `None` if it is not.
pub fn remote_address(socket: impl AsFd) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = vec![0; ADDRESS_BYTES];
    let mut len = ADDRESS_BYTES as libc::socklen_t;
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: the kernel writes at most `len` bytes to `bytes`, which has as many.
    match check(unsafe { libc::getpeername(fd, bytes.as_mut_ptr().cast(), &raw mut len) }) {
        Ok(_) => {
            bytes.truncate(len as usize);
            Ok(Some(bytes))
        }
        Err(error) if error.raw_os_error() == Some(libc::ENOTCONN) => Ok(None),
        Err(error) => Err(error),
    }
}

/// `bind(2)` to an address given as a `sockaddr`.
pub fn bind(socket: impl AsFd, address: &[u8]) -> io::Result<()> {
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: the kernel reads `address.len()` bytes from `address`.
    check(unsafe { libc::bind(fd, address.as_ptr().cast(), address.len() as libc::socklen_t) }).map(drop)
}

/// `connect(2)` to an address given as a `sockaddr`.
pub fn connect(socket: impl AsFd, address: &[u8]) -> io::Result<()> {
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: the kernel reads `address.len()` bytes from `address`.
    check(unsafe { libc::connect(fd, address.as_ptr().cast(), address.len() as libc::socklen_t) }).map(drop)
}

/// The file that a unix socket is bound to, opened with `O_PATH`; `None` if it is not bound to one.
pub fn unix_file(socket: impl AsFd) -> io::Result<Option<OwnedFd>> {
    // SAFETY: SIOCUNIXFILE takes no argument.
    match check(unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), UNIX_FILE, 0) }) {
        // SAFETY: the kernel has just made this descriptor for us; nobody else knows its number.
        Ok(fd) => Ok(Some(unsafe { OwnedFd::from_raw_fd(fd) })),
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Bytes that a socket has sent and its peer has not taken (unix), or not acknowledged (TCP).
pub fn unsent(socket: impl AsFd) -> io::Result<u32> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: SIOCOUTQ writes an int to `bytes`, which lives through the call.
    check(unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), UNSENT, &raw mut bytes) })?;
    Ok(bytes.unsigned_abs())
}

/// Who is at the other end of a unix socket (`SO_PEERCRED`): process, user, group. `None` if nobody was.
pub fn peer_credentials(socket: impl AsFd) -> io::Result<Option<(i32, u32, u32)>> {
    let mut who = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: the kernel writes at most `len` bytes to `who`, which is three numbers and as long.
    check(unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERCRED, (&raw mut who).cast(), &raw mut len) })?;
    Ok((who.uid != u32::MAX).then_some((who.pid, who.uid, who.gid)))
}

/// Multicast groups that a netlink socket listens to, ascending.
pub fn netlink_groups(socket: impl AsFd) -> io::Result<Vec<u32>> {
    const WORDS: usize = 128;
    let mut bits = [0_u32; WORDS];
    let mut len = size_of_val(&bits) as libc::socklen_t;
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: the kernel writes at most `len` bytes to `bits`, which has as many.
    check(unsafe {
        libc::getsockopt(fd, libc::SOL_NETLINK, libc::NETLINK_LIST_MEMBERSHIPS, bits.as_mut_ptr().cast(), &raw mut len)
    })?;
    let groups =
        (0..bits.len() as u32 * u32::BITS).filter(|n| bits[(n / u32::BITS) as usize] >> (n % u32::BITS) & 1 == 1);
    Ok(groups.map(|n| n + 1).collect())
}

/// Lets a netlink socket listen to a multicast group.
pub fn join_netlink_group(socket: impl AsFd, group: u32) -> io::Result<()> {
    let (fd, len) = (socket.as_fd().as_raw_fd(), size_of::<u32>() as libc::socklen_t);
    // SAFETY: the kernel reads `len` bytes of `group`, which is as long.
    check(unsafe {
        libc::setsockopt(fd, libc::SOL_NETLINK, libc::NETLINK_ADD_MEMBERSHIP, (&raw const group).cast(), len)
    })
    .map(drop)
}

/// State of a TCP (or MPTCP) socket as `include/net/tcp_states.h` numbers it; of a listening one: connections that wait to
/// be accepted, and how many may.
pub fn tcp_state(socket: impl AsFd) -> io::Result<(u8, u32, u32)> {
    const INFO_BYTES: usize = 104;
    // `tcpi_unacked` and `tcpi_sacked`, behind eight bytes and four numbers.
    const QUEUED: usize = 24;
    let mut info = [0_u8; INFO_BYTES];
    let mut len = INFO_BYTES as libc::socklen_t;
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: the kernel writes at most `len` bytes to `info`, which has as many.
    check(unsafe { libc::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, info.as_mut_ptr().cast(), &raw mut len) })?;
    let number = |at: usize| u32::from_ne_bytes([info[at], info[at + 1], info[at + 2], info[at + 3]]);
    Ok((info[0], number(QUEUED), number(QUEUED + 4)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn addresses_are_their_bytes() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = local_address(&listener).unwrap();
        assert_eq!(address.len(), 16);
        assert_eq!(u16::from_be_bytes([address[2], address[3]]), listener.local_addr().unwrap().port());
        assert_eq!(remote_address(&listener).unwrap(), None);
        let (a, b) = UnixStream::pair().unwrap();
        assert_eq!(local_address(&a).unwrap().len(), 2);
        assert!(remote_address(&a).unwrap().is_some());
        assert!(unix_file(&a).unwrap().is_none());
        rustix::io::write(&b, b"abc").unwrap();
        assert!(unsent(&b).unwrap() > 0);
        assert_eq!(peer_credentials(&a).unwrap().map(|who| who.0), Some(std::process::id() as i32));
        assert_eq!(tcp_state(&listener).unwrap().0, 10);
        assert!(tcp_state(&listener).unwrap().2 > 0);
    }
}
