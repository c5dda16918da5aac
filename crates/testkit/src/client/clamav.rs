//! clamd's protocol: a session in which streams are scanned, each answer with the number that it has in the session.

use std::net::SocketAddr;

use super::{Session, Stream};
use crate::error::Error;

/// What the only signature of the tests' ClamAV matches, wherever it is.
pub const MATCHED: &str = "torpor-servers-signature";
/// Its name.
const SIGNATURE: &str = "Servers.Test";
/// What is said of it.
pub const FOUND: &str = "Servers.Test.UNOFFICIAL FOUND";

/// The signature database: any kind of file, at any offset.
pub(crate) fn signatures() -> String {
    let hex: String = MATCHED.bytes().map(|byte| format!("{byte:02x}")).collect();
    format!("{SIGNATURE}:0:*:{hex}\n")
}

/// An open session.
#[derive(Debug)]
pub struct Clam {
    stream: Stream,
    scans: u32,
}

impl Clam {
    /// Connects, begins a session, and scans once.
    ///
    /// # Errors
    /// Where the server refuses, or does not find what it should.
    pub fn open(address: SocketAddr) -> Result<Self, Error> {
        let mut clam = Self { stream: Stream::connect("clamd", address)?, scans: 0 };
        clam.stream.send(b"zIDSESSION\0")?;
        clam.step()?;
        Ok(clam)
    }

    /// Has `content` scanned; what the server says of it.
    ///
    /// # Errors
    /// Where it does not answer, or with another number than the next of this session.
    pub fn scan(&mut self, content: &[u8]) -> Result<String, Error> {
        self.scan_pieces(&[content], || {})
    }

    /// As [`Clam::scan`], of a stream that comes in pieces; `between` happens behind each of them.
    ///
    /// # Errors
    /// As [`Clam::scan`].
    pub fn scan_pieces(&mut self, pieces: &[&[u8]], mut between: impl FnMut()) -> Result<String, Error> {
        self.stream.send(b"zINSTREAM\0")?;
        for piece in pieces {
            self.stream.send(&[&(piece.len() as u32).to_be_bytes(), *piece].concat())?;
            between();
        }
        self.stream.send(&[0; 4])?;
        self.scans += 1;
        let answer = self.stream.until(0)?;
        let text = String::from_utf8_lossy(&answer);
        let text = text.trim_end_matches('\0');
        let begin = format!("{}: stream: ", self.scans);
        let found = text.strip_prefix(&begin).map(str::to_owned);
        found.ok_or_else(|| self.stream.answer(format!("`{begin}`…"), &answer))
    }

    fn expect(&mut self, content: &[u8], expected: &str) -> Result<(), Error> {
        let answer = self.scan(content)?;
        if answer == expected { Ok(()) } else { Err(self.stream.answer(expected, answer)) }
    }
}

impl Session for Clam {
    fn step(&mut self) -> Result<(), Error> {
        self.expect(format!("before {MATCHED} behind").as_bytes(), FOUND)?;
        self.expect(b"nothing that any signature names", "OK")
    }
}
