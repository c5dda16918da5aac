//! Internet sockets: TCP that listens or is not connected, UDP, raw.
//!
//! Established connections are [`tcp`]'s. One that is on its way or waits to be accepted is refused.
//!
//! All addresses are bound before the first socket listens or connects, because a listener keeps others from its port.

mod datagram;
mod dump;
pub(crate) mod port;
pub(crate) mod raw;
mod restore;
mod shut;
pub(crate) mod tcp;

use torpor_image::tree::InetSocket;
use torpor_linux::uapi::socket::{AF_INET, IPPROTO_MPTCP, IPPROTO_TCP, IPPROTO_UDP, SOCK_DGRAM, SOCK_RAW, SOCK_STREAM};

use crate::kinds::socket::{Kind, queue};

pub(crate) use self::dump::{Tables, describe, without_peers};
pub use self::restore::restore_listeners;
pub(crate) use self::restore::{finish, has_lost_address, reset, restore};

/// Port of a `sockaddr_in` or `sockaddr_in6`.
pub(crate) fn port(address: &[u8]) -> u16 {
    address.get(2..4).map_or(0, |port| u16::from_be_bytes([port[0], port[1]]))
}

/// An address, for people.
fn text(address: &[u8]) -> String {
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
    let bytes = |range| address.get(range);
    let ip = if address.len() >= 28 {
        bytes(8..24).and_then(|ip| <[u8; 16]>::try_from(ip).ok()).map(|ip| IpAddr::V6(Ipv6Addr::from(ip)))
    } else {
        bytes(4..8).and_then(|ip| <[u8; 4]>::try_from(ip).ok()).map(|ip| IpAddr::V4(Ipv4Addr::from(ip)))
    };
    ip.map_or_else(|| "no address".to_owned(), |ip| SocketAddr::new(ip, port(address)).to_string())
}

fn name(kind: Kind) -> &'static str {
    match (kind.1, kind.2) {
        (SOCK_STREAM, IPPROTO_TCP) => "a TCP socket",
        (SOCK_STREAM, IPPROTO_MPTCP) => "an MPTCP socket",
        (SOCK_DGRAM, IPPROTO_UDP) => "a UDP socket",
        (SOCK_DGRAM, _) => "a ping socket",
        (SOCK_RAW, _) => "a raw socket",
        _ => "a socket",
    }
}

/// A socket, for people.
pub(crate) fn shown(socket: &InetSocket) -> String {
    if !socket.remote.is_empty() {
        format!("{} on {} connected to {}", name(socket.kind), text(&socket.local), text(&socket.remote))
    } else if socket.local.is_empty() {
        name(socket.kind).to_owned()
    } else {
        format!("{} on {}", name(socket.kind), text(&socket.local))
    }
}

/// It is IPv4's family.
pub(crate) fn is_v4(address: &[u8]) -> bool {
    address.first_chunk().is_some_and(|family| i32::from(u16::from_ne_bytes(*family)) == AF_INET)
}
