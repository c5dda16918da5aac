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
        smtp.say("MAIL FROM:<from@zoo.test>", "250")?;
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

    /// Ends the envelope with a message; what the server says to it names its place in the queue.
    ///
    /// # Errors
    /// Where it is not taken.
    pub fn deliver(mut self, text: &str) -> Result<String, Error> {
        self.say("RCPT TO:<to@zoo.test>", "250")?;
        self.say("DATA", "354")?;
        let answer = self.say(&format!("Subject: test\r\n\r\n{text}\r\n."), "250")?;
        self.say("QUIT", "221")?;
        Ok(answer)
    }
}

impl Session for Smtp {
    fn step(&mut self) -> Result<(), Error> {
        self.say("NOOP", "250")?;
        // Refused only because this session remembers its sender.
        self.say("MAIL FROM:<other@zoo.test>", "503").map(drop)
    }
}
