//! Small clients on plain sockets: they measure, and they prove that a server's in-memory state is still there.

pub mod clamav;
pub mod counter;
pub mod dns;
pub mod http;
pub mod mariadb;
pub mod postgres;
pub mod redis;
pub mod smtp;
pub mod status;

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::error::Error;

/// How long a client waits for an answer, unless told otherwise.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// An open connection (or what stands for it) to a program whose state it knows.
pub trait Session: Send {
    /// One request on the same connection; checks that the state is the one that the steps before have left.
    ///
    /// # Errors
    /// [`Error::Answer`] where the state is another, as after a restart; [`Error::Network`] where the connection broke.
    fn step(&mut self) -> Result<(), Error>;
}

/// A TCP connection read by lines and counts.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) server: String,
    reader: BufReader<TcpStream>,
}

impl Stream {
    /// Connects to `address`, as `name`.
    pub(crate) fn connect(name: &str, address: SocketAddr) -> Result<Self, Error> {
        let server = format!("{name} on {address}");
        let open = || -> io::Result<TcpStream> {
            let stream = TcpStream::connect_timeout(&address, ANSWER_TIMEOUT)?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
            stream.set_write_timeout(Some(ANSWER_TIMEOUT))?;
            Ok(stream)
        };
        let stream = open().map_err(Error::network(&server, "connect"))?;
        Ok(Self { server, reader: BufReader::new(stream) })
    }

    pub(crate) fn tcp(&self) -> &TcpStream {
        self.reader.get_ref()
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.reader.get_mut().write_all(bytes).map_err(Error::network(&self.server, "send"))
    }

    /// A line without its end.
    pub(crate) fn line(&mut self) -> Result<String, Error> {
        self.until(b'\n').map(|line| String::from_utf8_lossy(&line).trim_end().to_owned())
    }

    /// What comes up to `end`, with it unless the connection ended before.
    pub(crate) fn until(&mut self, end: u8) -> Result<Vec<u8>, Error> {
        let mut line = Vec::new();
        let count = self.reader.read_until(end, &mut line).map_err(Error::network(&self.server, "read a line"))?;
        if count == 0 {
            return Err(Error::network(&self.server, "read a line")(io::ErrorKind::UnexpectedEof.into()));
        }
        Ok(line)
    }

    pub(crate) fn exactly(&mut self, count: usize) -> Result<Vec<u8>, Error> {
        let mut bytes = Vec::new();
        let limit = count as u64;
        let got = self.reader.by_ref().take(limit).read_to_end(&mut bytes);
        match got {
            Ok(got) if got == count => Ok(bytes),
            Ok(_) => Err(Error::network(&self.server, "read an answer")(io::ErrorKind::UnexpectedEof.into())),
            Err(source) => Err(Error::network(&self.server, "read an answer")(source)),
        }
    }

    /// Waits for the first byte of an answer without taking it.
    pub(crate) fn first_byte(&mut self) -> Result<(), Error> {
        let filled = self.reader.fill_buf().map_err(Error::network(&self.server, "hear an answer"))?;
        if filled.is_empty() {
            return Err(Error::network(&self.server, "hear an answer")(io::ErrorKind::UnexpectedEof.into()));
        }
        Ok(())
    }

    pub(crate) fn answer(&self, expected: impl Into<String>, got: impl AsRef<[u8]>) -> Error {
        Error::answer(&self.server, expected, got)
    }
}
