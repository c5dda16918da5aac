//! Datagrams that come from where they came from: sent as whole packets, with the sender's address, over loopback.
//!
//! The addresses that a datagram was sent to are not kept; where the socket takes any, it comes from this machine.

use std::io;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::sockopt;
use torpor_image::tree::InetSocket;
use torpor_linux::socket::{Sent, send};
use torpor_linux::uapi::socket::{AF_INET, AF_INET6, IPPROTO_RAW, IPPROTO_UDP, SOCK_RAW};

use crate::kinds::inet::is_v4;
use crate::kinds::socket::options::fresh;

const UDP_HEADER_BYTES: usize = 8;
const V4_HEADER_BYTES: usize = 20;
const LIFE: u8 = 64;
/// `::ffff:0:0/96`: an IPv4 address where IPv6 ones are.
const MAPPED: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];

/// Both ends of a datagram.
enum Ends {
    V4([u8; 4], [u8; 4]),
    V6([u8; 16], [u8; 16]),
}

/// Puts the recorded datagrams into a bound socket.
pub(crate) fn fill(fd: &OwnedFd, socket: &InetSocket) -> io::Result<()> {
    // Room for all of them, whatever is set afterwards.
    let room: usize = socket.queue.iter().map(|message| message.bytes.len() + 4096).sum();
    let before = sockopt::socket_recv_buffer_size(fd)?;
    if room > before {
        sockopt::set_socket_recv_buffer_size_force(fd, room)?;
    }
    for message in &socket.queue {
        let (from, to) = (&message.from, &socket.local);
        let ends = ends(from, to).ok_or(Errno::INVAL)?;
        let ports = [from.get(2..4).ok_or(Errno::INVAL)?, to.get(2..4).ok_or(Errno::INVAL)?].concat();
        let (family, packet, receiver) = packet(&ends, &ports, &message.bytes).ok_or(Errno::MSGSIZE)?;
        let sender = fresh((family, SOCK_RAW, IPPROTO_RAW))?;
        send(&sender, &Sent { bytes: &packet, to: &receiver, ..Sent::default() })?;
    }
    // Empty ones are seen once only.
    let same = socket.queue.iter().any(|message| message.bytes.is_empty()) || {
        let arrived = super::queue::messages(fd, false)?;
        arrived.len() == socket.queue.len()
            && arrived.iter().zip(&socket.queue).all(|(is, was)| is.bytes == was.bytes && is.from == was.from)
    };
    if room > before {
        // What is read is twice what is set.
        sockopt::set_socket_recv_buffer_size_force(fd, before / 2)?;
    }
    if same { Ok(()) } else { Err(io::Error::other("datagrams did not arrive as they were (a firewall on loopback?)")) }
}

fn ends(from: &[u8], to: &[u8]) -> Option<Ends> {
    if is_v4(to) {
        let to: [u8; 4] = to.get(4..8)?.try_into().ok()?;
        let to = if to == [0; 4] { [127, 0, 0, 1] } else { to };
        return Some(Ends::V4(from.get(4..8)?.try_into().ok()?, to));
    }
    let (from, to): ([u8; 16], [u8; 16]) = (from.get(8..24)?.try_into().ok()?, to.get(8..24)?.try_into().ok()?);
    match from.strip_prefix(&MAPPED) {
        Some(from) => {
            let to = to.strip_prefix(&MAPPED).and_then(|to| <[u8; 4]>::try_from(to).ok()).unwrap_or([127, 0, 0, 1]);
            Some(Ends::V4(from.try_into().ok()?, to))
        }
        None => {
            let mut local = to;
            if to == [0; 16] {
                local[15] = 1;
            }
            Some(Ends::V6(from, local))
        }
    }
}

/// Family, packet, and the `sockaddr` to send it to.
fn packet(ends: &Ends, ports: &[u8], bytes: &[u8]) -> Option<(i32, Vec<u8>, Vec<u8>)> {
    let length = u16::try_from(UDP_HEADER_BYTES + bytes.len()).ok()?;
    let mut datagram = ports.to_vec();
    datagram.extend_from_slice(&length.to_be_bytes());
    datagram.extend_from_slice(&[0, 0]);
    datagram.extend_from_slice(bytes);
    match ends {
        Ends::V4(from, to) => {
            let total = u16::try_from(V4_HEADER_BYTES + datagram.len()).ok()?;
            let mut packet = vec![0x45, 0];
            packet.extend_from_slice(&total.to_be_bytes());
            // Identification, fragments; the kernel fills in the checksum. UDP's may be absent.
            packet.extend_from_slice(&[0, 0, 0, 0, LIFE, IPPROTO_UDP as u8, 0, 0]);
            packet.extend_from_slice(from);
            packet.extend_from_slice(to);
            packet.extend_from_slice(&datagram);
            let mut receiver = (AF_INET as u16).to_ne_bytes().to_vec();
            receiver.extend_from_slice(&[0, 0]);
            receiver.extend_from_slice(to);
            receiver.extend_from_slice(&[0; 8]);
            Some((AF_INET, packet, receiver))
        }
        Ends::V6(from, to) => {
            let sum = checksum(from, to, &datagram);
            datagram[6..8].copy_from_slice(&sum.to_be_bytes());
            let mut packet = vec![0x60, 0, 0, 0];
            packet.extend_from_slice(&length.to_be_bytes());
            packet.extend_from_slice(&[IPPROTO_UDP as u8, LIFE]);
            packet.extend_from_slice(from);
            packet.extend_from_slice(to);
            packet.extend_from_slice(&datagram);
            let mut receiver = (AF_INET6 as u16).to_ne_bytes().to_vec();
            receiver.extend_from_slice(&[0; 6]);
            receiver.extend_from_slice(to);
            receiver.extend_from_slice(&[0; 4]);
            Some((AF_INET6, packet, receiver))
        }
    }
}

/// UDP's checksum over IPv6 (RFC 8200, 8.1), which must be there; 0 is written as all ones.
fn checksum(from: &[u8; 16], to: &[u8; 16], datagram: &[u8]) -> u16 {
    let length = (datagram.len() as u32).to_be_bytes();
    let pseudo = [from.as_slice(), to, &length, &[0, 0, 0, IPPROTO_UDP as u8]].concat();
    let words = |bytes: &[u8]| -> u64 {
        bytes.chunks(2).map(|pair| u64::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]))).sum()
    };
    let mut sum = words(&pseudo) + words(datagram);
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    match !(sum as u16) {
        0 => 0xffff,
        sum => sum,
    }
}
