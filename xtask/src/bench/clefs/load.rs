//! The client of the counters: connections that stay open, each with one request at a time, in HTTP or in the protocol of redis.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};

use super::us;

/// Limit for an answer.
const TIMEOUT: Duration = Duration::from_secs(20);
/// More than any answer has.
const MOST_BYTES: usize = 4096;

/// How a counter is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    /// `GET /KEY`, kept alive.
    Http,
    /// `INCR KEY`.
    Redis,
}

impl Protocol {
    fn write_request(self, key: u32, to: &mut Vec<u8>) {
        let key = format!("user{key}");
        let written = match self {
            Self::Http => write!(to, "GET /{key} HTTP/1.1\r\nHost: bench\r\n\r\n"),
            Self::Redis => write!(to, "*2\r\n$4\r\nINCR\r\n${}\r\n{key}\r\n", key.len()),
        };
        // A vector takes everything.
        drop(written);
    }

    /// The length of the answer at the beginning of some bytes, if all of it is there.
    fn answer_len(self, bytes: &[u8]) -> io::Result<Option<usize>> {
        let end: &[u8] = if self == Self::Http { b"\r\n\r\n" } else { b"\r\n" };
        let Some(head) = bytes.windows(end.len()).position(|window| window == end) else { return Ok(None) };
        let wrong = || io::Error::new(io::ErrorKind::InvalidData, String::from_utf8_lossy(bytes).into_owned());
        let text = str::from_utf8(&bytes[..head]).map_err(|_| wrong())?;
        let body = match self {
            Self::Http => {
                let length = text.lines().find_map(|line| {
                    let (name, value) = line.split_once(':')?;
                    name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
                });
                let is_well = text.starts_with("HTTP/1.1 200");
                length.filter(|_| is_well).ok_or_else(wrong)?
            }
            Self::Redis if text.starts_with(':') => 0,
            Self::Redis => return Err(wrong()),
        };
        let all = head + end.len() + body;
        Ok((bytes.len() >= all).then_some(all))
    }
}

/// A connection that stays open.
pub(super) struct Connection {
    stream: TcpStream,
    protocol: Protocol,
    request: Vec<u8>,
    answer: Vec<u8>,
}

impl Connection {
    pub(super) fn open(address: SocketAddr, protocol: Protocol) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        Ok(Self { stream, protocol, request: Vec::new(), answer: Vec::with_capacity(MOST_BYTES) })
    }

    /// Sends requests in one go.
    fn send(&mut self, keys: impl Iterator<Item = u32>) -> io::Result<()> {
        self.request.clear();
        keys.for_each(|key| self.protocol.write_request(key, &mut self.request));
        self.stream.write_all(&self.request)
    }

    /// Reads what is there, once; whether all of an answer has come, which is then taken.
    fn receive(&mut self) -> io::Result<bool> {
        let mut bytes = [0; MOST_BYTES];
        let got = self.stream.read(&mut bytes)?;
        if got == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.answer.extend_from_slice(&bytes[..got]);
        self.take()
    }

    fn take(&mut self) -> io::Result<bool> {
        let len = self.protocol.answer_len(&self.answer)?;
        if let Some(len) = len {
            self.answer.drain(..len);
        }
        Ok(len.is_some())
    }

    /// Microseconds from a request to the end of its answer.
    pub(super) fn ask(&mut self, key: u32) -> io::Result<f64> {
        self.ask_together(key..key + 1)
    }

    /// The same of requests that are sent in one go.
    pub(super) fn ask_together(&mut self, keys: std::ops::Range<u32>) -> io::Result<f64> {
        let begun = Instant::now();
        self.send(keys.clone())?;
        for _ in keys {
            while !self.take()? && !self.receive()? {}
        }
        Ok(us(begun))
    }
}

/// Load on a server.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    pub(super) protocol: Protocol,
    pub(super) connections: usize,
    /// Requests are for these, in turn.
    pub(super) keys: u32,
    /// Rates are taken of so many times of this length, behind one that warms up.
    pub(super) parts: usize,
    pub(super) part: Duration,
}

/// Requests per second, in each part.
pub(super) fn rates(address: SocketAddr, load: Load) -> io::Result<Vec<f64>> {
    let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let mut connections = Vec::with_capacity(load.connections);
    for number in 0..load.connections {
        let connection = Connection::open(address, load.protocol)?;
        let data = epoll::EventData::new_u64(number as u64);
        epoll::add(&poll, &connection.stream, data, epoll::EventFlags::IN)?;
        connections.push(connection);
    }
    let mut key = 0;
    let mut next = || {
        key = (key + 1) % load.keys;
        std::iter::once(key)
    };
    connections.iter_mut().try_for_each(|connection| connection.send(next()))?;
    let (mut rates, mut begun, mut count) = (Vec::new(), Instant::now(), 0_u32);
    let mut events = Vec::with_capacity(load.connections);
    let timeout = Timespec { tv_sec: TIMEOUT.as_secs() as i64, tv_nsec: 0 };
    while rates.len() <= load.parts {
        events.clear();
        if epoll::wait(&poll, spare_capacity(&mut events), Some(&timeout))? == 0 {
            return Err(io::ErrorKind::TimedOut.into());
        }
        for event in &events {
            let connection = &mut connections[event.data.u64() as usize];
            if connection.receive()? {
                count += 1;
                connection.send(next())?;
            }
        }
        if begun.elapsed() >= load.part {
            rates.push(f64::from(count) / begun.elapsed().as_secs_f64());
            (begun, count) = (Instant::now(), 0);
        }
    }
    rates.remove(0);
    Ok(rates)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_taken_when_all_of_it_is_there() {
        let answer = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\nContent-Length: 2\r\n\r\n17HTTP";
        let len = |bytes: &[u8]| Protocol::Http.answer_len(bytes).unwrap();
        assert_eq!(len(answer), Some(answer.len() - 4));
        assert_eq!([len(&answer[..answer.len() - 5]), len(&answer[..20])], [None, None]);
        assert!(Protocol::Http.answer_len(b"HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n").is_err());
        assert_eq!(Protocol::Redis.answer_len(b":12\r\n:13").unwrap(), Some(5));
        assert_eq!(Protocol::Redis.answer_len(b":12").unwrap(), None);
        assert!(Protocol::Redis.answer_len(b"-ERR\r\n").is_err());
    }
}
