//! What a daemon must not share with another on the same machine: instance name, address pools, ports.
//!
//! A slot is a number with an exclusive `flock(2)` as long as its daemon lives; the kernel frees it with the process.

use std::fs::File;
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::path::PathBuf;

use rustix::fs::FlockOperation;
use rustix::io::Errno;

use crate::error::Error;

/// Slots, and so daemons at the same time.
const SLOTS: u16 = 64;
/// First port of slot 0; below the kernel's range for outgoing connections.
const FIRST_PORT: u16 = 16_000;
/// Ports of one slot.
pub(crate) const PORTS: u16 = 250;

/// A taken slot.
#[derive(Debug)]
pub(crate) struct Slot {
    number: u16,
    next_port: u16,
    _lock: File,
}

impl Slot {
    /// Takes the first free slot.
    pub(crate) fn take() -> Result<Self, Error> {
        let dir = PathBuf::from("/tmp/torpor-test-slots");
        std::fs::create_dir_all(&dir).map_err(Error::file("make the directory", &dir))?;
        for number in 0..SLOTS {
            let path = dir.join(number.to_string());
            let file = File::create(&path).map_err(Error::file("open the lock", &path))?;
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Self { number, next_port: 0, _lock: file }),
                Err(Errno::WOULDBLOCK) => {}
                Err(errno) => return Err(Error::file("lock", path)(errno.into())),
            }
        }
        Err(Error::Missing { what: format!("free slot: {SLOTS} test daemons already run") })
    }

    /// Name of the instance: a letter first, then letters and digits.
    pub(crate) fn instance(&self) -> String {
        format!("ttest{}", self.number)
    }

    /// A private /16.
    pub(crate) fn v4_pool(&self) -> String {
        format!("10.{}.0.0/16", 128 + self.number)
    }

    /// A unique local /64.
    pub(crate) fn v6_pool(&self) -> String {
        format!("fd74:6f72:7465:{:x}::/64", self.number)
    }

    /// The next port of the slot that nobody listens on, TCP or UDP.
    pub(crate) fn port(&mut self) -> Result<u16, Error> {
        while self.next_port < PORTS {
            let port = FIRST_PORT + self.number * PORTS + self.next_port;
            self.next_port += 1;
            let address = (Ipv4Addr::UNSPECIFIED, port);
            if TcpListener::bind(address).is_ok() && UdpSocket::bind(address).is_ok() {
                return Ok(port);
            }
        }
        Err(Error::Missing { what: format!("free port in slot {} of {PORTS} ports", self.number) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_differ_and_are_given_back() {
        let (mut first, second) = (Slot::take().unwrap(), Slot::take().unwrap());
        assert_ne!(first.instance(), second.instance());
        assert_ne!(first.v4_pool(), second.v4_pool());
        assert_ne!(first.port().unwrap(), first.port().unwrap());
        assert!(u32::from(FIRST_PORT) + u32::from(SLOTS) * u32::from(PORTS) <= 32_768);
    }
}
