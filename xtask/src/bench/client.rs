//! The client: it opens a connection, sends one request, and measures the time to the first byte of the answer.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::error::Error;

/// Limit for an answer.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Pause between attempts to reach a server that is being restored or started.
const RETRY: Duration = Duration::from_micros(200);

/// The request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// `GET /`.
    Http,
    /// `GET key:1`.
    Redis,
}

impl Protocol {
    const fn request(self) -> &'static [u8] {
        match self {
            Self::Http => b"GET / HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n",
            Self::Redis => b"*2\r\n$3\r\nGET\r\n$5\r\nkey:1\r\n",
        }
    }
}

fn once(address: SocketAddr, protocol: Protocol, begun: Instant) -> io::Result<f64> {
    let mut stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.write_all(protocol.request())?;
    let mut buffer = [0; 4096];
    let mut got = stream.read(&mut buffer)?;
    let first_byte_us = begun.elapsed().as_nanos() as f64 / 1000.0;
    if got == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    // HTTP servers close the connection after the answer. Without reading all of it, closing would send a reset.
    while protocol == Protocol::Http && got > 0 {
        got = stream.read(&mut buffer)?;
    }
    Ok(first_byte_us)
}

/// Microseconds from the start of the connection to the first byte of the answer.
pub(crate) fn first_byte(address: SocketAddr, protocol: Protocol) -> Result<f64, Error> {
    once(address, protocol, Instant::now()).map_err(Error::network(&address, "get an answer"))
}

/// Microseconds from `begun` to the first byte of an answer. Repeats the request until the server answers.
pub(crate) fn first_byte_since(address: SocketAddr, protocol: Protocol, begun: Instant) -> Result<f64, Error> {
    loop {
        match once(address, protocol, begun) {
            Ok(us) => return Ok(us),
            Err(error) if begun.elapsed() > TIMEOUT => return Err(Error::network(&address, "get an answer")(error)),
            Err(_) => std::thread::sleep(RETRY),
        }
    }
}

/// Stores `bytes` in redis, in keys of a thousand bytes each.
pub(crate) fn fill_redis(address: SocketAddr, bytes: usize) -> Result<(), Error> {
    let fill = || -> io::Result<()> {
        let mut stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_nodelay(true)?;
        let keys: Vec<usize> = (0..(bytes / 1000).max(1)).collect();
        for some in keys.chunks(500) {
            let mut sets = Vec::new();
            for key in some {
                let (key, value) = (format!("key:{key}"), format!("{key:0>1000}"));
                write!(sets, "*3\r\n$3\r\nSET\r\n${}\r\n{key}\r\n$1000\r\n{value}\r\n", key.len())?;
            }
            stream.write_all(&sets)?;
            let wanted = b"+OK\r\n".repeat(some.len());
            let mut answers = vec![0; wanted.len()];
            stream.read_exact(&mut answers)?;
            if answers != wanted {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "redis did not take a key"));
            }
        }
        Ok(())
    };
    fill().map_err(Error::network(&address, "store data in redis"))
}
