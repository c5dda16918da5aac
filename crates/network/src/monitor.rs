//! Noticing that somebody removes our table or parts of it: the kernel tells each change of nftables to a multicast group.

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::net::netlink as protocols;
use tokio::io::unix::AsyncFd;

use crate::netlink::{attribute, bytes_at, heard, listen, text};

/// `NFNLGRP_NFTABLES`, as a mask.
const GROUP: u32 = 1 << 6;
const SUBSYSTEM: u16 = 10 << 8;
const DELETE_TABLE: u16 = SUBSYSTEM | 2;
const DELETE_CHAIN: u16 = SUBSYSTEM | 5;
const DELETE_RULE: u16 = SUBSYSTEM | 8;
const NEW_GENERATION: u16 = SUBSYSTEM | 15;
const NFGENMSG_BYTES: usize = 4;
/// The first attribute of tables, chains and rules is the table's name.
const TABLE: u16 = 1;
const GENERATION_PID: u16 = 2;
const GENERATION_PROCESS: u16 = 3;

/// Something of a table was removed; perhaps by ourselves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Removal {
    /// Who did it last, as `nft (pid 12)`; absent where the kernel's message was lost.
    pub(crate) by: Option<String>,
}

/// Hears of removals in one table.
#[derive(Debug)]
pub(crate) struct Monitor {
    socket: AsyncFd<OwnedFd>,
    table: String,
}

impl Monitor {
    /// Hears of everything from now on, in the calling thread's network namespace.
    pub(crate) fn open(table: &str) -> io::Result<Self> {
        let socket = torpor_linux::readable::register(listen(protocols::NETFILTER, GROUP)?)?;
        Ok(Self { socket, table: table.to_owned() })
    }

    /// The next removal, or several at once. Where messages were lost, there may have been none.
    pub(crate) async fn removal(&self) -> io::Result<Removal> {
        loop {
            let mut ready = self.socket.readable().await?;
            ready.clear_ready();
            let (mut found, mut process) = (false, None);
            let whole = heard(self.socket.get_ref(), |kind, payload| {
                let body = payload.get(NFGENMSG_BYTES..).unwrap_or(&[]);
                match kind {
                    DELETE_TABLE | DELETE_CHAIN | DELETE_RULE => {
                        found |= attribute(body, TABLE).map(text) == Some(&self.table);
                    }
                    // The last message of a transaction.
                    NEW_GENERATION if found && process.is_none() => process = author(body),
                    _ => {}
                }
            })?;
            if found || !whole {
                return Ok(Removal { by: process });
            }
        }
    }
}

fn author(generation: &[u8]) -> Option<String> {
    let pid = attribute(generation, GENERATION_PID).and_then(|value| bytes_at(value, 0)).map(u32::from_be_bytes)?;
    let name = attribute(generation, GENERATION_PROCESS).map_or("?", text);
    Some(format!("{name} (pid {pid})"))
}

/// How long to wait before the table is written anew: not at all the first time, longer and longer while it is removed
/// again and again.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    delay: Duration,
    last: Option<Instant>,
}

impl Backoff {
    const FIRST: Duration = Duration::from_millis(10);
    /// Longest time that the table stays missing for our sake.
    const LONGEST: Duration = Duration::from_secs(5);
    /// After so long without a removal the next one is the first.
    const FORGIVEN: Duration = Duration::from_secs(30);

    /// The delay for a removal that is noticed `now`.
    pub(crate) fn next(&mut self, now: Instant) -> Duration {
        let calm = self.last.is_none_or(|last| now.saturating_duration_since(last) > Self::FORGIVEN);
        let delay = if calm { Duration::ZERO } else { self.delay };
        self.delay = if calm { Self::FIRST } else { (self.delay * 2).min(Self::LONGEST) };
        self.last = Some(now);
        delay
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_delay_grows_to_its_bound_and_is_forgotten() {
        let (mut backoff, start) = (Backoff::default(), Instant::now());
        assert_eq!(backoff.next(start), Duration::ZERO);
        let delays: Vec<u64> = (0..12).map(|_| backoff.next(start).as_millis() as u64).collect();
        assert_eq!(delays, [10, 20, 40, 80, 160, 320, 640, 1280, 2560, 5000, 5000, 5000]);
        let later = start + Backoff::FORGIVEN + Duration::from_millis(1);
        assert_eq!(backoff.next(later), Duration::ZERO);
        assert_eq!(backoff.next(later), Backoff::FIRST);
    }
}
