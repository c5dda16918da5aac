//! Rules of nftables as the kernel takes them: lists of expressions, each an attribute of a netlink message. Pure.
//!
//! Only what the tables of [`crate::owned`] need; every other rule is compiled by the program `nft`. An expression reads or
//! writes registers; a comparison that does not hold ends the rule. See `nf_tables.h`; `nft --debug=netlink` prints the same
//! lists for rules in text.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::netlink::{push_attribute, push_nested};

/// The register that every expression here works with: 16 bytes.
const REGISTER: u32 = 1;
const VERDICT_REGISTER: u32 = 0;
const LIST_ELEMENT: u16 = 1;
const NAME: u16 = 1;
const DATA: u16 = 2;
const DATA_VALUE: u16 = 1;
const DATA_VERDICT: u16 = 2;
const VERDICT_CODE: u16 = 1;

/// What is read of a packet.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Meta {
    /// The packet's mark.
    Mark = 3,
    /// Name of the interface that it came in by.
    InputName = 6,
    /// Name of the interface that it leaves by.
    OutputName = 7,
    /// `NFPROTO_IPV4` or `NFPROTO_IPV6`.
    Family = 15,
}

/// A packet's family, as [`Meta::Family`] has it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Family {
    V4 = 2,
    V6 = 10,
}

/// Which packet of a tracked connection an address is taken from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Direction {
    /// The first packet, before translation.
    Original = 0,
    /// Its answer, before translation back.
    Reply = 1,
}

/// A rule under construction.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rule(Vec<u8>);

impl Rule {
    /// A rule that matches everything.
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// The value of `NFTA_RULE_EXPRESSIONS`.
    pub(crate) fn expressions(&self) -> &[u8] {
        &self.0
    }

    fn push(mut self, name: &str, data: &[u8]) -> Self {
        let mut element = Vec::new();
        push_attribute(&mut element, NAME, &[name.as_bytes(), &[0]].concat());
        push_nested(&mut element, DATA, data);
        push_nested(&mut self.0, LIST_ELEMENT, &element);
        self
    }

    fn load(self, key: Meta) -> Self {
        let mut data = Vec::new();
        number(&mut data, 1, REGISTER);
        number(&mut data, 2, key as u32);
        self.push("meta", &data)
    }

    fn compare(self, equal: bool, value: &[u8]) -> Self {
        let mut data = Vec::new();
        number(&mut data, 1, REGISTER);
        number(&mut data, 2, u32::from(!equal));
        push_value(&mut data, 3, value);
        self.push("cmp", &data)
    }

    /// The register becomes (register & mask) ^ flip, byte by byte.
    fn bitwise(self, mask: &[u8], flip: &[u8]) -> Self {
        let mut data = Vec::new();
        number(&mut data, 1, REGISTER);
        number(&mut data, 2, REGISTER);
        number(&mut data, 3, mask.len() as u32);
        push_value(&mut data, 4, mask);
        push_value(&mut data, 5, flip);
        self.push("bitwise", &data)
    }

    /// Goes on where an interface's name begins with `prefix` (or, not `equal`, does not).
    pub(crate) fn interface(self, which: Meta, equal: bool, prefix: &str) -> Self {
        self.load(which).compare(equal, prefix.as_bytes())
    }

    /// Goes on for packets of one family.
    pub(crate) fn family(self, family: Family) -> Self {
        self.load(Meta::Family).compare(true, &[family as u8])
    }

    /// Goes on where one of these bits of the packet's mark is set (or, not `set`, none is).
    pub(crate) fn mark_bit(self, bits: u32, set: bool) -> Self {
        self.load(Meta::Mark).bitwise(&bits.to_ne_bytes(), &[0; 4]).compare(!set, &[0; 4])
    }

    /// Clears bits of the packet's mark.
    pub(crate) fn clear_mark_bits(self, bits: u32) -> Self {
        self.change_mark(bits, 0)
    }

    /// Sets bits of the packet's mark.
    pub(crate) fn set_mark_bits(self, bits: u32) -> Self {
        self.change_mark(bits, bits)
    }

    fn change_mark(self, bits: u32, to: u32) -> Self {
        let mut data = Vec::new();
        number(&mut data, 2, Meta::Mark as u32);
        number(&mut data, 3, REGISTER);
        self.load(Meta::Mark).bitwise(&(!bits).to_ne_bytes(), &to.to_ne_bytes()).push("meta", &data)
    }

    /// Goes on for packets of tracked connections whose source, in this direction, is in `net`.
    pub(crate) fn connection_source(self, direction: Direction, net: IpNet) -> Self {
        const SOURCE_V4: u32 = 19;
        const SOURCE_V6: u32 = 21;
        let mut data = Vec::new();
        number(&mut data, 1, REGISTER);
        number(&mut data, 2, if net.addr().is_ipv4() { SOURCE_V4 } else { SOURCE_V6 });
        push_attribute(&mut data, 3, &[direction as u8]);
        let (mask, network) = (octets(net.netmask()), octets(net.network()));
        self.push("ct", &data).bitwise(&mask, &vec![0; mask.len()]).compare(true, &network)
    }

    /// Drops the packet.
    pub(crate) fn drop(self) -> Self {
        const NF_DROP: u32 = 0;
        let (mut verdict, mut value, mut data) = (Vec::new(), Vec::new(), Vec::new());
        number(&mut verdict, VERDICT_CODE, NF_DROP);
        push_nested(&mut value, DATA_VERDICT, &verdict);
        number(&mut data, 1, VERDICT_REGISTER);
        push_nested(&mut data, 2, &value);
        self.push("immediate", &data)
    }
}

fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

/// Appends a number as nftables has it: in network order.
pub(crate) fn number(to: &mut Vec<u8>, kind: u16, value: u32) {
    push_attribute(to, kind, &value.to_be_bytes());
}

fn push_value(to: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let mut inner = Vec::new();
    push_attribute(&mut inner, DATA_VALUE, value);
    push_nested(to, kind, &inner);
}
