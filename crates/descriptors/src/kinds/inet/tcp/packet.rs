//! The end of a stream as its sender would say it: one packet to a socket of this machine, by a raw socket.
//!
//! Sources: RFC 9293 (3.1), RFC 791, RFC 8200; `raw(7)`.

use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, ipproto, sendto, socket_with};
use torpor_image::tree::{Connection, InetSocket};
use torpor_linux::socket::{self, Plain};
use torpor_linux::uapi::socket::{SO_MARK, SOL_SOCKET};

use crate::contract::connections::PASS_MARK;
use crate::kinds::inet::tcp::address;

const TCP: u8 = 6;
const HOPS: u8 = 64;
const TCP_HEADER_BYTES: usize = 20;
const FIN_AND_ACK: u8 = 0x11;

/// Sends the end of the stream from the peer of a connection that has just been made.
pub(crate) fn end_of_stream(found: &InetSocket, connection: &Connection) -> io::Result<()> {
    let ends = address(&found.remote).zip(address(&found.local));
    let (from, to) = ends.ok_or(io::ErrorKind::InvalidInput)?;
    let acknowledged = connection.written_to.wrapping_sub(connection.written.len() as u32);
    let bytes = packet(from, to, connection.received_to, acknowledged);
    let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    // A raw socket of this protocol brings its own header along, in both families.
    let raw: OwnedFd = socket_with(family, SocketType::RAW, SocketFlags::CLOEXEC, Some(ipproto::RAW))?;
    let mark = Plain::find(SOL_SOCKET, SO_MARK).ok_or(io::ErrorKind::InvalidInput)?;
    socket::set(&raw, mark, &PASS_MARK.to_ne_bytes())?;
    let there = match to.ip() {
        IpAddr::V4(ip) => SocketAddr::from((ip, 0)),
        // Addresses of a link only mean something on it.
        IpAddr::V6(ip) => SocketAddrV6::new(ip, 0, 0, scope(&found.local)).into(),
    };
    sendto(&raw, &bytes, SendFlags::empty(), &there)?;
    Ok(())
}

/// Interface of a `sockaddr_in6`.
fn scope(address: &[u8]) -> u32 {
    address.get(24..28).and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_ne_bytes)
}

fn packet(from: SocketAddr, to: SocketAddr, sequence: u32, acknowledged: u32) -> Vec<u8> {
    let mut tcp = Vec::with_capacity(TCP_HEADER_BYTES);
    tcp.extend(from.port().to_be_bytes());
    tcp.extend(to.port().to_be_bytes());
    tcp.extend(sequence.to_be_bytes());
    tcp.extend(acknowledged.to_be_bytes());
    // Header of five words; a window, which is set right afterwards; no checksum yet; no urgent data.
    tcp.extend([(TCP_HEADER_BYTES as u8 / 4) << 4, FIN_AND_ACK, 0xff, 0xff, 0, 0, 0, 0]);
    let mut pseudo = octets(from.ip());
    pseudo.extend(octets(to.ip()));
    pseudo.extend((TCP_HEADER_BYTES as u32).to_be_bytes());
    pseudo.extend([0, 0, 0, TCP]);
    let sum = checksum(&[pseudo, tcp.clone()].concat());
    tcp[16..18].copy_from_slice(&sum.to_be_bytes());
    [header(from.ip(), to.ip()), tcp].concat()
}

/// The header of the Internet protocol.
fn header(from: IpAddr, to: IpAddr) -> Vec<u8> {
    let mut header = if to.is_ipv4() {
        // Length, identification and checksum are the kernel's to fill in.
        vec![0x45, 0, 0, 0, 0, 0, 0, 0, HOPS, TCP, 0, 0]
    } else {
        let length = (TCP_HEADER_BYTES as u16).to_be_bytes();
        vec![0x60, 0, 0, 0, length[0], length[1], TCP, HOPS]
    };
    header.extend(octets(from));
    header.extend(octets(to));
    header
}

fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

/// RFC 1071.
fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or(0)));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_over_a_packet_with_its_checksum_is_zero() {
        let ends = ("10.0.0.1:80".parse().unwrap(), "10.0.0.2:5000".parse().unwrap());
        let whole = packet(ends.0, ends.1, 7, 9);
        assert_eq!(whole.len(), 40);
        let mut pseudo = whole[12..20].to_vec();
        pseudo.extend([0, 6, 0, 20]);
        assert_eq!(checksum(&[pseudo.as_slice(), &whole[20..]].concat()), 0);
        let ends = ("[fd00::1]:80".parse().unwrap(), "[fd00::2]:5000".parse().unwrap());
        assert_eq!(packet(ends.0, ends.1, 7, 9).len(), 60);
    }
}
