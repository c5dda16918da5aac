//! How UDP and raw sockets have been shut down (`shutdown(2)`).
//!
//! Polling a socket tells that it is shut for reading, or for both; that it is shut for writing alone only the kernel's list of
//! sockets tells (`sock_diag(7)`, `INET_DIAG_SHUTDOWN`). The list lacks UDP sockets without a port, and kernels without
//! `CONFIG_INET_UDP_DIAG` or `CONFIG_INET_RAW_DIAG` have none: such sockets count as open for writing.

use std::collections::HashMap;
use std::io;

use rustix::io::Errno;

use torpor_linux::uapi::socket::IPPROTO_UDP;

use crate::kinds::socket::diag::{attributes, u32_at};
use crate::kinds::socket::{Kind, diag};

const RAW: u8 = 255;
/// `struct inet_diag_sockid`, and `struct inet_diag_msg`, which has one behind four bytes.
const ID_BYTES: usize = 48;
const MESSAGE_BYTES: usize = 72;
const INODE: usize = 68;
const SHUTDOWN: u16 = 8;
/// 1: not reading any more, 2: not writing any more.
const BOTH: u8 = 3;

/// Sockets of the calling thread's network namespace that are shut down, by family and protocol; listed when first asked for.
#[derive(Debug, Default)]
pub(crate) struct Shuts(HashMap<(u8, u8), HashMap<u64, u8>>);

impl Shuts {
    /// What the list says of the socket with this inode.
    pub(crate) fn of(&mut self, kind: Kind, inode: u64) -> io::Result<u8> {
        let protocol = if kind.2 == IPPROTO_UDP { IPPROTO_UDP as u8 } else { RAW };
        let list = match self.0.entry((kind.0 as u8, protocol)) {
            std::collections::hash_map::Entry::Occupied(known) => known.into_mut(),
            std::collections::hash_map::Entry::Vacant(place) => place.insert(listed(kind.0 as u8, protocol)?),
        };
        Ok(list.get(&inode).copied().unwrap_or(0))
    }
}

fn listed(family: u8, protocol: u8) -> io::Result<HashMap<u64, u8>> {
    // `struct inet_diag_req_v2`: family, protocol, no extensions, padding, all states, any addresses.
    let mut request = vec![family, protocol, 0, 0];
    request.extend_from_slice(&u32::MAX.to_ne_bytes());
    request.extend_from_slice(&[0; ID_BYTES]);
    let mut found = HashMap::new();
    let listed = diag::list(&request, |payload| {
        let (inode, shut) = entry(payload)?;
        if shut != 0 {
            found.insert(u64::from(inode), shut);
        }
        Some(())
    });
    match listed {
        Err(error) if error.raw_os_error() == Some(Errno::NOENT.raw_os_error()) => Ok(HashMap::new()),
        other => other.map(|()| found),
    }
}

fn entry(payload: &[u8]) -> Option<(u32, u8)> {
    let (inode, mut shut) = (u32_at(payload, INODE)?, 0);
    attributes(payload.get(MESSAGE_BYTES..)?, |kind, value| {
        if kind == SHUTDOWN {
            shut = *value.first()? & BOTH;
        }
        Some(())
    })?;
    Some((inode, shut))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::fstat;
    use rustix::net::{Shutdown, shutdown};
    use std::net::UdpSocket;

    #[test]
    fn sockets_that_are_shut_for_writing_are_found() {
        let (one, other) = (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
        one.connect(other.local_addr().unwrap()).unwrap();
        shutdown(&one, Shutdown::Write).unwrap();
        let mut shuts = Shuts::default();
        let mut of = |socket: &UdpSocket| shuts.of((2, 2, IPPROTO_UDP), fstat(socket).unwrap().st_ino).unwrap();
        assert_eq!((of(&one), of(&other)), (2, 0));
    }

    #[test]
    fn short_entries_are_refused() {
        assert_eq!(entry(&[0; 71]), None);
        assert_eq!(entry(&[0; 72]), Some((0, 0)));
    }
}
