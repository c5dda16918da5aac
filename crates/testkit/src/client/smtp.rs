//! SMTP: a server that speaks first, and a session with its envelope begun.

use std::net::SocketAddr;

use super::{Session, Stream};
use crate::error::Error;

/// An open session.
#[derive(Debug)]
pub struct Smtp {
    stream: Stream,
}

impl Smtp {
    /// Connects, waits for the greeting, says EHLO and begins an envelope.
    ///
    /// # Errors
    /// Where the server refuses.
    pub fn open(address: SocketAddr) -> Result<Self, Error> {
        let mut smtp = Self { stream: Stream::connect("smtp", address)? };
        smtp.expect("220")?;
        smtp.say("EHLO test", "250")?;
        smtp.say("MAIL FROM:<from@servers.test>", "250")?;
        Ok(smtp)
    }

    /// Says `line` and wants an answer that begins with `code`.
    ///
    /// # Errors
    /// Where it is another.
    pub fn say(&mut self, line: &str, code: &str) -> Result<String, Error> {
        self.stream.send(format!("{line}\r\n").as_bytes())?;
        self.expect(code)
    }

    fn expect(&mut self, code: &str) -> Result<String, Error> {
        loop {
            let line = self.stream.line()?;
            if !line.starts_with(code) {
                return Err(self.stream.answer(code, line));
            }
            // `250-` goes on, `250 ` is the last line.
            if line.as_bytes().get(3) != Some(&b'-') {
                return Ok(line);
            }
        }
    }

    /// Ends the envelope with a message to `to`; what the server says to it names its place in the queue.
    ///
    /// # Errors
    /// Where it is not taken.
    pub fn deliver(mut self, to: &str, text: &str) -> Result<String, Error> {
        self.begin(to, text)?;
        self.end()
    }

    /// Ends the envelope and begins a message to `to`.
    ///
    /// # Errors
    /// Where it is not taken.
    pub fn begin(&mut self, to: &str, text: &str) -> Result<(), Error> {
        self.say(&format!("RCPT TO:<{to}>"), "250")?;
        self.say("DATA", "354")?;
        self.stream.send(format!("Subject: test\r\n\r\n{text}\r\n").as_bytes())
    }

    /// Ends the message that was begun.
    ///
    /// # Errors
    /// Where it is not taken.
    pub fn end(mut self) -> Result<String, Error> {
        let answer = self.say(".", "250")?;
        self.say("QUIT", "221")?;
        Ok(answer)
    }
}

impl Session for Smtp {
    fn step(&mut self) -> Result<(), Error> {
        self.say("NOOP", "250")?;
        // Refused only because this session remembers its sender.
        self.say("MAIL FROM:<other@servers.test>", "503").map(drop)
    }
}
