//! Tables that belong to a netlink socket (`NFT_TABLE_F_OWNER`, Linux 5.12).
//!
//! Nobody but the owner can change such a table, and `nft flush ruleset` passes it over. The kernel removes it when the
//! last descriptor of the socket is closed: so it lives exactly as long as whoever holds one, however they end.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::netlink as protocols;

use crate::expression::{Rule, number};
use crate::netlink::{Message, Netlink, push_attribute, push_nested};

const SUBSYSTEM: u16 = 10 << 8;
const NEW_TABLE: u16 = SUBSYSTEM;
const DELETE_TABLE: u16 = SUBSYSTEM | 2;
const NEW_CHAIN: u16 = SUBSYSTEM | 3;
const NEW_RULE: u16 = SUBSYSTEM | 6;
/// `struct nfgenmsg` of the family inet.
const INET: [u8; 4] = [1, 0, 0, 0];
const NLM_F_CREATE: u16 = 0x400;
const NLM_F_APPEND: u16 = 0x800;
const FLAG_OWNER: u32 = 2;

/// Where a chain of type filter is hooked in.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Hook {
    Prerouting = 0,
    Input = 1,
    Forward = 2,
}

/// A chain of type filter, which accepts what its rules do not drop.
#[derive(Debug)]
pub(crate) struct Chain {
    pub(crate) name: &'static str,
    pub(crate) hook: Hook,
    pub(crate) priority: i32,
    pub(crate) rules: Vec<Rule>,
}

/// A table and the socket that owns it.
#[derive(Debug)]
pub(crate) struct OwnedTable {
    netlink: Netlink,
    name: String,
}

impl OwnedTable {
    /// An owner for a table of this name, which need not be there; `socket`: one that owned it before.
    pub(crate) fn new(name: String, socket: Option<OwnedFd>) -> io::Result<Self> {
        let netlink = match socket {
            Some(socket) => Netlink::from_socket(socket)?,
            None => Netlink::open(protocols::NETFILTER)?,
        };
        Ok(Self { netlink, name })
    }

    /// Writes the table with these chains in the place of what is there, in one transaction.
    ///
    /// # Errors
    /// `EPERM` where another socket owns a table of this name.
    pub(crate) fn write(&mut self, chains: &[Chain]) -> io::Result<()> {
        let mut messages = vec![self.table(NEW_TABLE), self.table(DELETE_TABLE), self.table(NEW_TABLE)];
        for chain in chains {
            messages.push(self.chain(chain));
            messages.extend(chain.rules.iter().map(|rule| self.rule(chain.name, rule)));
        }
        self.netlink.batch(&messages)
    }

    /// Removes the table.
    pub(crate) fn remove(&mut self) -> io::Result<()> {
        let messages = [self.table(NEW_TABLE), self.table(DELETE_TABLE)];
        self.netlink.batch(&messages)
    }

    fn message(kind: u16, flags: u16, body: &[u8]) -> Message {
        Message { kind, flags, payload: [&INET, body].concat() }
    }

    fn table(&self, kind: u16) -> Message {
        let mut body = Vec::new();
        push_attribute(&mut body, 1, &self.named());
        if kind == NEW_TABLE {
            number(&mut body, 2, FLAG_OWNER);
            return Self::message(kind, NLM_F_CREATE, &body);
        }
        Self::message(kind, 0, &body)
    }

    fn chain(&self, chain: &Chain) -> Message {
        let (mut hook, mut body) = (Vec::new(), Vec::new());
        number(&mut hook, 1, chain.hook as u32);
        push_attribute(&mut hook, 2, &chain.priority.to_be_bytes());
        push_attribute(&mut body, 1, &self.named());
        push_attribute(&mut body, 3, &with_end(chain.name));
        push_nested(&mut body, 4, &hook);
        push_attribute(&mut body, 7, &with_end("filter"));
        Self::message(NEW_CHAIN, NLM_F_CREATE, &body)
    }

    fn rule(&self, chain: &str, rule: &Rule) -> Message {
        let mut body = Vec::new();
        push_attribute(&mut body, 1, &self.named());
        push_attribute(&mut body, 2, &with_end(chain));
        push_nested(&mut body, 4, rule.expressions());
        Self::message(NEW_RULE, NLM_F_CREATE | NLM_F_APPEND, &body)
    }

    fn named(&self) -> Vec<u8> {
        with_end(&self.name)
    }
}

impl AsFd for OwnedTable {
    /// The socket: a duplicate of it keeps the table.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.netlink.as_fd()
    }
}

fn with_end(text: &str) -> Vec<u8> {
    let mut bytes = text.as_bytes().to_vec();
    bytes.push(0);
    bytes
}
