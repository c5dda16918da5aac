//! DNS over UDP and TCP: one query at a time, and server cookies (RFC 7873).
//!
//! A server's cookie is a keyed hash; BIND chooses the key at its start and keeps it in memory. With
//! `require-server-cookie` it answers `BADCOOKIE` to any other, so a query with an old cookie proves that the server still
//! has the key it had.

use std::io;
use std::net::{SocketAddr, UdpSocket};

use super::{ANSWER_TIMEOUT, Session, Stream};
use crate::error::Error;

const CLIENT_COOKIE: [u8; 8] = *b"torpor!!";
const OPTION_COOKIE: u16 = 10;
const TYPE_OPT: u16 = 41;
const BADCOOKIE: u16 = 23;
/// In the zone that BIND serves here, with one address.
pub const NAME: &str = "www.servers.test";

/// What an answer says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Response code, the extended bits included.
    pub code: u16,
    /// Addresses of the answer's A records.
    pub addresses: Vec<[u8; 4]>,
    /// The server's cookie, with ours before it.
    pub cookie: Option<Vec<u8>>,
}

/// A query for the A records of `name`; with `cookie`, in an OPT record.
pub fn query(id: u16, name: &str, cookie: Option<&[u8]>) -> Vec<u8> {
    let mut packet = Vec::new();
    for number in [id, 0, 1, 0, 0, u16::from(cookie.is_some())] {
        packet.extend_from_slice(&number.to_be_bytes());
    }
    for label in name.split('.').filter(|label| !label.is_empty()) {
        packet.push(label.len() as u8);
        packet.extend_from_slice(label.as_bytes());
    }
    packet.extend_from_slice(&[0, 0, 1, 0, 1]);
    if let Some(cookie) = cookie {
        packet.push(0);
        packet.extend_from_slice(&TYPE_OPT.to_be_bytes());
        packet.extend_from_slice(&1232_u16.to_be_bytes());
        packet.extend_from_slice(&[0; 4]);
        packet.extend_from_slice(&(cookie.len() as u16 + 4).to_be_bytes());
        packet.extend_from_slice(&OPTION_COOKIE.to_be_bytes());
        packet.extend_from_slice(&(cookie.len() as u16).to_be_bytes());
        packet.extend_from_slice(cookie);
    }
    packet
}

/// A cursor over a packet; nothing where it ends early.
struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn number(&mut self) -> Option<u16> {
        self.take(2).map(|bytes| u16::from_be_bytes([bytes[0], bytes[1]]))
    }

    fn skip_name(&mut self) -> Option<()> {
        loop {
            match self.take(1)?[0] {
                0 => return Some(()),
                length if length >= 0xc0 => return self.take(1).map(drop),
                length => drop(self.take(length.into())?),
            }
        }
    }
}

/// Reads the answer to query `id`.
pub fn parse(packet: &[u8], id: u16) -> Option<Answer> {
    let mut cursor = Cursor(packet);
    if cursor.number()? != id {
        return None;
    }
    let flags = cursor.number()?;
    if flags & 0x8000 == 0 {
        return None;
    }
    let questions = cursor.number()?;
    let records = [cursor.number()?, cursor.number()?, cursor.number()?];
    for _ in 0..questions {
        cursor.skip_name()?;
        cursor.take(4)?;
    }
    let mut answer = Answer { code: flags & 0xf, addresses: Vec::new(), cookie: None };
    for record in 0..records.iter().map(|&count| u32::from(count)).sum::<u32>() {
        cursor.skip_name()?;
        let kind = cursor.number()?;
        cursor.number()?;
        let ttl = cursor.take(4)?;
        let length = cursor.number()?;
        let data = cursor.take(length.into())?;
        if kind == 1 && record < u32::from(records[0]) {
            answer.addresses.push(data.try_into().ok()?);
        } else if kind == TYPE_OPT {
            answer.code |= u16::from(ttl[0]) << 4;
            let mut options = Cursor(data);
            while let Some(option) = options.number() {
                let length = options.number()?;
                let value = options.take(length.into())?;
                if option == OPTION_COOKIE {
                    answer.cookie = Some(value.to_vec());
                }
            }
        }
    }
    Some(answer)
}

/// A UDP socket that asks one name server, always from the same port.
#[derive(Debug)]
pub struct DnsUdp {
    socket: UdpSocket,
    server: String,
    id: u16,
}

impl DnsUdp {
    /// A socket for the server at `address`; nothing is sent yet.
    ///
    /// # Errors
    /// Where there is no route.
    pub fn connect(address: SocketAddr) -> Result<Self, Error> {
        let server = format!("dns on udp {address}");
        let open = || -> io::Result<UdpSocket> {
            let any = if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
            let socket = UdpSocket::bind(any)?;
            socket.connect(address)?;
            socket.set_read_timeout(Some(ANSWER_TIMEOUT))?;
            Ok(socket)
        };
        let socket = open().map_err(Error::network(&server, "open a socket"))?;
        Ok(Self { socket, server, id: 0 })
    }

    /// One query, sent once.
    ///
    /// # Errors
    /// Where no answer comes.
    pub fn ask(&mut self, name: &str, cookie: Option<&[u8]>) -> Result<Answer, Error> {
        self.id = self.id.wrapping_add(1);
        let mut packet = vec![0; 4096];
        let mut exchange = || -> io::Result<usize> {
            self.socket.send(&query(self.id, name, cookie))?;
            self.socket.recv(&mut packet)
        };
        let count = exchange().map_err(Error::network(&self.server, "ask"))?;
        packet.truncate(count);
        let answer = parse(&packet, self.id);
        answer.ok_or_else(|| Error::answer(&self.server, "a DNS answer", format!("{packet:?}")))
    }
}

/// A TCP connection to a name server; it may ask many times.
#[derive(Debug)]
pub struct DnsTcp {
    stream: Stream,
    id: u16,
}

impl DnsTcp {
    /// Connects.
    ///
    /// # Errors
    /// Where nobody accepts.
    pub fn connect(address: SocketAddr) -> Result<Self, Error> {
        Ok(Self { stream: Stream::connect("dns", address)?, id: 0 })
    }

    /// One query.
    ///
    /// # Errors
    /// Where no answer comes.
    pub fn ask(&mut self, name: &str) -> Result<Answer, Error> {
        self.id = self.id.wrapping_add(1);
        let packet = query(self.id, name, None);
        let mut framed = (packet.len() as u16).to_be_bytes().to_vec();
        framed.extend(packet);
        self.stream.send(&framed)?;
        let length = self.stream.exactly(2)?;
        let packet = self.stream.exactly(u16::from_be_bytes([length[0], length[1]]).into())?;
        parse(&packet, self.id).ok_or_else(|| self.stream.answer("a DNS answer", format!("{packet:?}")))
    }
}

/// A name server, known by its cookie.
#[derive(Debug)]
pub struct CookieSession {
    udp: DnsUdp,
    cookie: Vec<u8>,
}

impl CookieSession {
    /// Learns the server's cookie and uses it once.
    ///
    /// # Errors
    /// Where it gives none or does not take it back.
    pub fn open(address: SocketAddr) -> Result<Self, Error> {
        let mut udp = DnsUdp::connect(address)?;
        let answer = udp.ask(NAME, Some(&CLIENT_COOKIE))?;
        match answer.cookie {
            Some(cookie) if answer.code == BADCOOKIE => {
                let mut session = Self { udp, cookie };
                session.step()?;
                Ok(session)
            }
            _ => Err(Error::answer("dns", "BADCOOKIE and the server's cookie", format!("{answer:?}"))),
        }
    }
}

impl Session for CookieSession {
    fn step(&mut self) -> Result<(), Error> {
        let answer = self.udp.ask(NAME, Some(&self.cookie))?;
        if answer.code != 0 || answer.addresses != [[192, 0, 2, 80]] {
            return Err(Error::answer("dns", "192.0.2.80 for a cookie it made before", format!("{answer:?}")));
        }
        if let Some(cookie) = answer.cookie {
            self.cookie = cookie;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broken_answer_is_nothing() {
        let mut packet = query(7, "www.servers.test", Some(&CLIENT_COOKIE));
        assert_eq!(parse(&packet, 7), None, "a query is no answer");
        packet[2] = 0x80;
        let answer = parse(&packet, 7).unwrap();
        assert_eq!(answer.cookie.as_deref(), Some(&CLIENT_COOKIE[..]));
        assert_eq!(parse(&packet, 8), None);
        for end in 0..packet.len() {
            assert_eq!(parse(&packet[..end], 7), None, "cut at {end}");
        }
    }
}
