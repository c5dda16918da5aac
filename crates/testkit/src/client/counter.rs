//! The counter programs: a nonce chosen at the start, and how many requests there were.

use std::net::SocketAddr;

use super::Session;
use super::http::KeepAlive;
use crate::error::Error;

/// A keep-alive connection to a counter.
#[derive(Debug)]
pub struct Counter {
    http: KeepAlive,
    nonce: String,
    count: u64,
}

/// Takes `nonce=… count=…` apart.
fn parse(text: &str) -> Option<(String, u64)> {
    let (nonce, count) = text.trim().strip_prefix("nonce=")?.split_once(" count=")?;
    Some((nonce.to_owned(), count.parse().ok()?))
}

impl Counter {
    /// Connects and asks once.
    ///
    /// # Errors
    /// Where it does not answer as a counter.
    pub fn open(address: SocketAddr) -> Result<Self, Error> {
        let mut http = KeepAlive::connect(address)?;
        let text = http.get("/")?.text();
        let (nonce, count) =
            parse(&text).ok_or_else(|| Error::answer(&address.to_string(), "nonce and count", &text))?;
        Ok(Self { http, nonce, count })
    }
}

impl Session for Counter {
    fn step(&mut self) -> Result<(), Error> {
        let text = self.http.get("/")?.text();
        // Others may count meanwhile; backwards or under another nonce is another process.
        match parse(&text) {
            Some((nonce, count)) if nonce == self.nonce && count > self.count => {
                self.count = count;
                Ok(())
            }
            _ => Err(Error::answer("counter", format!("nonce={} count>{}", self.nonce, self.count), text)),
        }
    }
}
