//! lighttpd's `mod_status` and nginx's `stub_status`: numbers that only the running server knows.
//!
//! nginx counts at once, so its counter must grow with every request. lighttpd adds up once a second, so its counter may
//! not fall, and the moment of its start, by the uptime that it states, must stay the same.

use std::net::SocketAddr;
use std::time::{SystemTime, UNIX_EPOCH};

use super::Session;
use super::http::KeepAlive;
use crate::error::Error;

/// A keep-alive connection to a server's status page.
#[derive(Debug)]
pub struct Status {
    http: KeepAlive,
    name: &'static str,
    path: &'static str,
    parse: fn(&str) -> Option<Numbers>,
    last: Numbers,
    started: Option<u64>,
}

/// What the page says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Numbers {
    requests: u64,
    /// In seconds, where the page says it.
    uptime: Option<u64>,
}

/// The clock and the uptime are in whole seconds, read one after the other.
const START_TOLERANCE_SECONDS: u64 = 2;

fn lighttpd_numbers(text: &str) -> Option<Numbers> {
    let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    Some(Numbers { requests: field("Total Accesses:")?, uptime: Some(field("Uptime:")?) })
}

fn nginx_numbers(text: &str) -> Option<Numbers> {
    let line = text.lines().nth(2)?;
    Some(Numbers { requests: line.split_whitespace().nth(2)?.parse().ok()?, uptime: None })
}

impl Numbers {
    /// When the server started, by its uptime now: seconds since the epoch.
    fn started(self) -> Option<u64> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
        self.uptime.map(|uptime| now.saturating_sub(uptime))
    }
}

impl Status {
    /// lighttpd at `address`.
    ///
    /// # Errors
    /// Where the page does not come.
    pub fn lighttpd(address: SocketAddr) -> Result<Self, Error> {
        Self::open("lighttpd", "/server-status?auto", lighttpd_numbers, address)
    }

    /// nginx at `address`.
    ///
    /// # Errors
    /// Where the page does not come.
    pub fn nginx(address: SocketAddr) -> Result<Self, Error> {
        Self::open("nginx", "/status", nginx_numbers, address)
    }

    fn open(
        name: &'static str,
        path: &'static str,
        parse: fn(&str) -> Option<Numbers>,
        address: SocketAddr,
    ) -> Result<Self, Error> {
        let http = KeepAlive::connect(address)?;
        let mut status = Self { http, name, path, parse, last: Numbers::default(), started: None };
        status.last = status.ask()?;
        status.started = status.last.started();
        Ok(status)
    }

    fn ask(&mut self) -> Result<Numbers, Error> {
        let text = self.http.get(self.path)?.text();
        (self.parse)(&text).ok_or_else(|| Error::answer(self.name, "its status page", text))
    }
}

impl Session for Status {
    fn step(&mut self) -> Result<(), Error> {
        let now = self.ask()?;
        let grown = match (self.started, now.started()) {
            (Some(then), Some(started)) => {
                now.requests >= self.last.requests && started.abs_diff(then) <= START_TOLERANCE_SECONDS
            }
            _ => now.requests > self.last.requests,
        };
        if !grown {
            let expected = format!("what follows {:?} of a server started at {:?}", self.last, self.started);
            return Err(Error::answer(self.name, expected, format!("{now:?}")));
        }
        self.last = now;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_pages_are_read() {
        let page = "Total Accesses: 12\nTotal kBytes: 1\nUptime: 34\nBusyServers: 1\n";
        assert_eq!(lighttpd_numbers(page), Some(Numbers { requests: 12, uptime: Some(34) }));
        let page =
            "Active connections: 1 \nserver accepts handled requests\n 5 5 9 \nReading: 0 Writing: 1 Waiting: 0 \n";
        assert_eq!(nginx_numbers(page), Some(Numbers { requests: 9, uptime: None }));
        assert_eq!(nginx_numbers("x"), None);
    }
}
