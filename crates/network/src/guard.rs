//! What keeps traffic of apps closed while our table is missing.
//!
//! Whatever removes our table (`nft flush ruleset`, as the machine's firewall runs when it starts) would leave apps without
//! isolation until it is written anew. The *guard* is a second table that such a flush passes over: it belongs to a netlink
//! socket (see [`crate::owned`]), of which the worker and the keeper each hold a descriptor, so that it outlives either.
//!
//! ```text
//! our table  input, forward   marks packets of our apps that it has looked at, and all that are routed
//! guard      input, forward   later: drops packets of our apps, and routed ones, without their mark
//!            …_end            later than every instance's guard: removes the marks
//! ```
//! Without our table no packet has the mark, so nothing passes from or to apps, and the machine does not route between
//! interfaces on which only we have switched forwarding on. Packets of translated connections that would reach the
//! machine itself for want of translation are dropped, too: its kernel would answer them with a reset.
//!
//! What stays open while our table is missing: the machine's own processes reach apps, as they always do; a new connection
//! to a published port is refused by the machine. Where worker and keeper are both dead there is no guard.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ipnet::IpNet;

use crate::config::NetworkConfig;
use crate::expression::{Direction, Family, Meta, Rule};
use crate::owned::{Chain, Hook, OwnedTable};
use crate::ruleset::ROUTED;

/// Later than our table's chains of the same hooks, which have priority 0.
const PRIORITY: i32 = 10;
/// Later than the guards of other instances.
const END_PRIORITY: i32 = 20;

/// Which families the machine routes for our sake only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RoutesForUs {
    pub(crate) v4: bool,
    pub(crate) v6: bool,
}

/// The guard of one instance.
#[derive(Debug)]
pub(crate) struct Guard {
    table: OwnedTable,
    written: Option<RoutesForUs>,
}

impl Guard {
    /// A guard that is not written yet; `socket`: that of an earlier worker's guard.
    pub(crate) fn new(config: &NetworkConfig, socket: Option<OwnedFd>) -> io::Result<Self> {
        Ok(Self { table: OwnedTable::new(table_name(config), socket)?, written: None })
    }

    /// Puts the guard in force, unless it is so already.
    pub(crate) fn write(&mut self, config: &NetworkConfig, routes: RoutesForUs) -> io::Result<()> {
        if self.written == Some(routes) {
            return Ok(());
        }
        self.table.write(&chains(config, routes))?;
        self.written = Some(routes);
        Ok(())
    }

    /// Removes it.
    pub(crate) fn remove(&mut self) -> io::Result<()> {
        if self.written.take().is_some() {
            self.table.remove()?;
        }
        Ok(())
    }
}

impl AsFd for Guard {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.table.as_fd()
    }
}

/// The guard's table.
pub(crate) fn table_name(config: &NetworkConfig) -> String {
    format!("{}_guard", config.instance)
}

fn chains(config: &NetworkConfig, routes: RoutesForUs) -> Vec<Chain> {
    let prefix = config.interface_prefix();
    let pass = config.pass_mark();
    let unmarked = || Rule::new().mark_bit(pass, false);
    let unmark = |bits| vec![Rule::new().mark_bit(bits, true).clear_mark_bits(bits)];
    let mut forward = vec![
        unmarked().interface(Meta::OutputName, true, &prefix).drop(),
        unmarked().interface(Meta::InputName, true, &prefix).drop(),
    ];
    for (strict, family) in [(routes.v4, Family::V4), (routes.v6, Family::V6)] {
        if strict {
            forward.push(Rule::new().mark_bit(ROUTED, false).family(family).drop());
        }
    }
    let mut input = vec![unmarked().interface(Meta::InputName, true, &prefix).drop()];
    for pool in [IpNet::V4(config.v4_pool), IpNet::V6(config.v6_pool)] {
        for direction in [Direction::Original, Direction::Reply] {
            let strays = Rule::new().interface(Meta::InputName, false, &prefix);
            input.push(strays.connection_source(direction, pool).drop());
        }
    }
    let chain = |name, hook, priority, rules| Chain { name, hook, priority, rules };
    vec![
        chain("forward", Hook::Forward, PRIORITY, forward),
        chain("input", Hook::Input, PRIORITY, input),
        chain("forward_end", Hook::Forward, END_PRIORITY, unmark(pass | ROUTED)),
        chain("input_end", Hook::Input, END_PRIORITY, unmark(pass)),
    ]
}
