//! HTTP/1.1, as much as a test needs: GET, keep-alive, `Content-Length`, chunks; time to first byte.

use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use super::Stream;
use crate::error::Error;

/// Longest body that is taken.
const BODY_BYTES: usize = 64 << 20;

/// An answer.
#[derive(Clone, Debug)]
pub struct Response {
    /// Status code.
    pub status: u16,
    /// Body.
    pub body: Vec<u8>,
    /// From just before the request was sent (for [`get`]: before connecting) to the first byte of the answer.
    pub first_byte: Duration,
}

impl Response {
    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// [`Response::first_byte`] in microseconds.
    pub fn first_byte_us(&self) -> f64 {
        self.first_byte.as_nanos() as f64 / 1000.0
    }
}

/// A connection that stays open.
#[derive(Debug)]
pub struct KeepAlive {
    stream: Stream,
}

impl KeepAlive {
    /// Connects.
    ///
    /// # Errors
    /// Where nobody accepts.
    pub fn connect(address: SocketAddr) -> Result<Self, Error> {
        Ok(Self { stream: Stream::connect("http", address)? })
    }

    /// The connection itself.
    pub fn tcp(&self) -> &TcpStream {
        self.stream.tcp()
    }

    /// `GET path`; the time begins just before the request is sent.
    ///
    /// # Errors
    /// Where no whole answer comes.
    pub fn get(&mut self, path: &str) -> Result<Response, Error> {
        let start = Instant::now();
        self.request(path, start)
    }

    fn request(&mut self, path: &str, start: Instant) -> Result<Response, Error> {
        self.stream.send(format!("GET {path} HTTP/1.1\r\nHost: test\r\n\r\n").as_bytes())?;
        self.stream.first_byte()?;
        let first_byte = start.elapsed();
        let status_line = self.stream.line()?;
        let status = status_line.split(' ').nth(1).and_then(|code| code.parse().ok());
        let Some(status) = status.filter(|_| status_line.starts_with("HTTP/1.")) else {
            return Err(self.stream.answer("an HTTP status line", status_line));
        };
        let mut length = None;
        let mut chunked = false;
        loop {
            let line = self.stream.line()?;
            if line.is_empty() {
                break;
            }
            let Some((name, value)) = line.split_once(':') else {
                return Err(self.stream.answer("an HTTP header", line));
            };
            let value = value.trim();
            if name.eq_ignore_ascii_case("content-length") {
                length = value.parse::<usize>().ok();
            } else if name.eq_ignore_ascii_case("transfer-encoding") {
                chunked = value.eq_ignore_ascii_case("chunked");
            }
        }
        let body = match (chunked, length) {
            (true, _) => self.chunks()?,
            (false, Some(length)) if length <= BODY_BYTES => self.stream.exactly(length)?,
            (false, length) => return Err(self.stream.answer("a body of known length", format!("{length:?}"))),
        };
        Ok(Response { status, body, first_byte })
    }

    fn chunks(&mut self) -> Result<Vec<u8>, Error> {
        let mut body = Vec::new();
        loop {
            let line = self.stream.line()?;
            let length = usize::from_str_radix(line.split(';').next().unwrap_or_default(), 16).unwrap_or(usize::MAX);
            if length > BODY_BYTES - body.len() {
                return Err(self.stream.answer("the length of a chunk", line));
            }
            body.extend(self.stream.exactly(length)?);
            let end = self.stream.line()?;
            if !end.is_empty() {
                return Err(self.stream.answer("the end of a chunk", end));
            }
            if length == 0 {
                return Ok(body);
            }
        }
    }
}

/// `GET path` on a connection of its own; the time begins before connecting.
///
/// # Errors
/// Where no whole answer comes.
pub fn get(address: SocketAddr, path: &str) -> Result<Response, Error> {
    let start = Instant::now();
    KeepAlive::connect(address)?.request(path, start)
}
