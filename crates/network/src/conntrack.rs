//! Forgetting the flows of an app that is gone.
//!
//! The kernel translates a flow as it did when it saw the first packet. Without this, a UDP client that keeps sending to
//! a published port would reach the old app's address (or the next app that has it) for minutes.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use rustix::net::netlink as protocols;

use crate::netlink::{Netlink, attribute, bytes_at, push_attribute, push_nested};

const SUBSYSTEM: u16 = 1 << 8;
const GET: u16 = SUBSYSTEM | 1;
const DELETE: u16 = SUBSYSTEM | 2;
const NFGENMSG_BYTES: usize = 4;
const TUPLE_ORIGINAL: u16 = 1;
const TUPLE_REPLY: u16 = 2;
const ID: u16 = 12;
const ZONE: u16 = 18;
const TUPLE_IP: u16 = 1;
const TUPLE_PROTOCOL: u16 = 2;
const V4_SOURCE: u16 = 1;
const V4_DESTINATION: u16 = 2;
const V6_SOURCE: u16 = 3;
const V6_DESTINATION: u16 = 4;
const PROTOCOL_NUMBER: u16 = 1;
const DESTINATION_PORT: u16 = 3;

/// Addresses of a tracked flow.
pub(crate) struct Flow {
    /// Source and destination as the first packet had them, and as its answer has them.
    pub(crate) addresses: [Option<IpAddr>; 4],
    /// Protocol and destination port of the first packet.
    pub(crate) destination: Option<(u8, u16)>,
}

impl Flow {
    /// Whether one end, before or after translation, satisfies `test`.
    pub(crate) fn touches(&self, test: impl Fn(IpAddr) -> bool) -> bool {
        self.addresses.iter().flatten().any(|ip| test(*ip))
    }
}

/// Forgets every flow in the calling thread's namespace that satisfies `doomed`; says how many there were.
pub(crate) fn forget(doomed: impl Fn(&Flow) -> bool) -> io::Result<usize> {
    let mut netlink = Netlink::open(protocols::NETFILTER)?;
    let requests = netlink.dump(GET, &[0; NFGENMSG_BYTES], |found: &mut Vec<Vec<u8>>, _, payload| {
        if let Some((request, flow)) = parse(payload)
            && doomed(&flow)
        {
            found.push(request);
        }
        Ok(())
    })?;
    for request in &requests {
        match netlink.request(DELETE, request) {
            // It ended by itself.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            other => other?,
        }
    }
    Ok(requests.len())
}

/// The request that deletes a flow, and its addresses.
fn parse(payload: &[u8]) -> Option<(Vec<u8>, Flow)> {
    let family = *payload.first()?;
    let body = payload.get(NFGENMSG_BYTES..)?;
    let (original, reply) = (attribute(body, TUPLE_ORIGINAL)?, attribute(body, TUPLE_REPLY)?);
    let mut request = vec![family, 0, 0, 0];
    push_nested(&mut request, TUPLE_ORIGINAL, original);
    // The id, so that a new flow with the same addresses is not taken for this one.
    for kind in [ZONE, ID] {
        if let Some(value) = attribute(body, kind) {
            push_attribute(&mut request, kind, value);
        }
    }
    let [a, b] = ends(original);
    let [c, d] = ends(reply);
    Some((request, Flow { addresses: [a, b, c, d], destination: destination(original) }))
}

fn ends(tuple: &[u8]) -> [Option<IpAddr>; 2] {
    let ip = attribute(tuple, TUPLE_IP).unwrap_or(&[]);
    let one = |v4, v6| {
        let v4 = attribute(ip, v4).and_then(|value| bytes_at::<4>(value, 0)).map(|b| IpAddr::from(Ipv4Addr::from(b)));
        let v6 = attribute(ip, v6).and_then(|value| bytes_at::<16>(value, 0)).map(|b| IpAddr::from(Ipv6Addr::from(b)));
        v4.or(v6)
    };
    [one(V4_SOURCE, V6_SOURCE), one(V4_DESTINATION, V6_DESTINATION)]
}

fn destination(tuple: &[u8]) -> Option<(u8, u16)> {
    let protocol = attribute(tuple, TUPLE_PROTOCOL)?;
    let number = *attribute(protocol, PROTOCOL_NUMBER)?.first()?;
    let port = bytes_at(attribute(protocol, DESTINATION_PORT)?, 0).map(u16::from_be_bytes)?;
    Some((number, port))
}
