//! Reading our sets and maps straight from the kernel: packet counts, and after a restart what each app had.
//!
//! The kernel is the only record of what is attached, so a worker that crashed between any two steps finds the truth.
//! Keys are laid out as the kernel keeps them: every part of a concatenation padded to four bytes, numbers in network
//! order. See `nf_tables.h`.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use rustix::io::Errno;

use crate::app::{AppNetwork, is_label};
use crate::config::NetworkConfig;
use crate::netlink::{Netlink, attribute, attributes, bytes_at, push_attribute, text};
use crate::published::{Protocol, Published};
use crate::sysctl::Guards;

const SUBSYSTEM: u16 = 10 << 8;
const GET_CHAIN: u16 = SUBSYSTEM | 4;
const GET_RULE: u16 = SUBSYSTEM | 7;
const GET_SET: u16 = SUBSYSTEM | 10;
const GET_SET_ELEMENTS: u16 = SUBSYSTEM | 13;
const FAMILY_INET: u8 = 1;
const FAMILY_ANY: u8 = 0;
const NFGENMSG_BYTES: usize = 4;
const INTERFACE_BYTES: usize = 16;

const SET_TABLE: u16 = 1;
const SET_NAME: u16 = 2;
const RULE_TABLE: u16 = 1;
const LIST_TABLE: u16 = 1;
const LIST_SET: u16 = 2;
const LIST_ELEMENTS: u16 = 3;
const ELEMENT_KEY: u16 = 1;
const ELEMENT_DATA: u16 = 2;
const ELEMENT_EXPRESSION: u16 = 7;
const ELEMENT_KEY_END: u16 = 10;
const ELEMENT_EXPRESSIONS: u16 = 11;
const LIST_ELEMENT: u16 = 1;
const DATA_VALUE: u16 = 1;
const EXPRESSION_DATA: u16 = 2;
const COUNTER_PACKETS: u16 = 2;
const CHAIN_TABLE: u16 = 1;
const CHAIN_NAME: u16 = 3;
const CHAIN_HOOK: u16 = 4;
const CHAIN_POLICY: u16 = 5;
const HOOK_NUMBER: u16 = 1;
const HOOK_FORWARD: u32 = 2;
const POLICY_DROP: u32 = 0;

fn header(family: u8) -> Vec<u8> {
    vec![family, 0, 0, 0]
}

fn named(value: &str) -> Vec<u8> {
    let mut bytes = value.as_bytes().to_vec();
    bytes.push(0);
    bytes
}

/// The packets counted for each app, by index. `NotFound` when the table is gone.
pub(crate) fn activity(netlink: &mut Netlink, config: &NetworkConfig) -> io::Result<HashMap<u32, u64>> {
    counted(netlink, config, "activity")
}

/// As [`activity`], of packets that would have begun a connection beyond an app's share.
pub(crate) fn refused(netlink: &mut Netlink, config: &NetworkConfig) -> io::Result<HashMap<u32, u64>> {
    counted(netlink, config, "refused")
}

fn counted(netlink: &mut Netlink, config: &NetworkConfig, set: &str) -> io::Result<HashMap<u32, u64>> {
    let prefix = config.interface_prefix();
    each_element(netlink, &config.instance, set, |counts: &mut HashMap<u32, u64>, element| {
        if let Some(index) = element.interface().and_then(|name| config.index_after(&prefix, name)) {
            counts.insert(index, element.packets);
        }
    })
}

/// What every attached app has; `None` when there is no table.
pub(crate) fn attached(netlink: &mut Netlink, config: &NetworkConfig) -> io::Result<Option<BTreeMap<u32, AppNetwork>>> {
    let counts = match activity(netlink, config) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other?,
    };
    let mut apps: BTreeMap<u32, AppNetwork> = counts.into_keys().map(|index| (index, AppNetwork::default())).collect();
    for index in members(netlink, config, "outgoing")? {
        if let Some(app) = apps.get_mut(&index) {
            app.outgoing = true;
        }
    }
    for name in network_names(netlink, config)? {
        for index in members(netlink, config, &crate::ruleset::network_set(&name))? {
            if let Some(app) = apps.get_mut(&index) {
                app.join.push(name.clone());
            }
        }
    }
    for set in ["ignore4", "ignore6"] {
        for (index, net) in ignored(netlink, config, set)? {
            if let Some(app) = apps.get_mut(&index) {
                app.ignore.push(net);
            }
        }
    }
    for (index, port) in published(netlink, config)? {
        if let Some(app) = apps.get_mut(&index) {
            app.ports.push(port);
        }
    }
    Ok(Some(apps))
}

/// Names of all networks that have a set, empty ones too.
pub(crate) fn network_names(netlink: &mut Netlink, config: &NetworkConfig) -> io::Result<Vec<String>> {
    let mut request = header(FAMILY_INET);
    push_attribute(&mut request, SET_TABLE, &named(&config.instance));
    netlink.dump(GET_SET, &request, |names: &mut Vec<String>, _, payload| {
        let body = payload.get(NFGENMSG_BYTES..).unwrap_or(&[]);
        if attribute(body, SET_TABLE).map(text) == Some(&config.instance) {
            let name = attribute(body, SET_NAME).map(text).and_then(|name| name.strip_prefix("net_"));
            names.extend(name.filter(|name| is_label(name)).map(str::to_owned));
        }
        Ok(())
    })
}

/// How many rules our table has; 0 where it is missing.
pub(crate) fn rule_count(netlink: &mut Netlink, config: &NetworkConfig) -> io::Result<usize> {
    let mut request = header(FAMILY_INET);
    push_attribute(&mut request, RULE_TABLE, &named(&config.instance));
    let count = netlink.dump(GET_RULE, &request, |count: &mut usize, _, payload| {
        let body = payload.get(NFGENMSG_BYTES..).unwrap_or(&[]);
        *count += usize::from(attribute(body, RULE_TABLE).map(text) == Some(&config.instance));
        Ok(())
    });
    absent_is_empty(count)
}

/// The guarded interfaces of all other instances on this machine; `None` when there is no other instance.
pub(crate) fn foreign_guards(netlink: &mut Netlink, config: &NetworkConfig) -> io::Result<Option<Guards>> {
    let tables = netlink.dump(GET_SET, &header(FAMILY_INET), |tables: &mut BTreeSet<String>, _, payload| {
        let body = payload.get(NFGENMSG_BYTES..).unwrap_or(&[]);
        let table = attribute(body, SET_TABLE).map_or("", text);
        if attribute(body, SET_NAME).map(text) == Some("guard6") && table != config.instance {
            tables.insert(table.to_owned());
        }
        Ok(())
    })?;
    let mut guards = None;
    for table in tables {
        let guards: &mut Guards = guards.get_or_insert_default();
        for (set, names) in [("guard4", &mut guards.v4), ("guard6", &mut guards.v6)] {
            let found = each_element(netlink, &table, set, |found: &mut Vec<String>, element| {
                found.extend(element.interface().map(str::to_owned));
            });
            // The other instance may go away while it is looked at.
            names.extend(absent_is_empty(found)?);
        }
    }
    Ok(guards)
}

/// Chains of others, as `table chain`, that drop what they do not know on its way through the machine.
pub(crate) fn foreign_forward_drops(netlink: &mut Netlink, config: &NetworkConfig) -> io::Result<Vec<String>> {
    netlink.dump(GET_CHAIN, &header(FAMILY_ANY), |found: &mut Vec<String>, _, payload| {
        let body = payload.get(NFGENMSG_BYTES..).unwrap_or(&[]);
        let number = |value: &[u8]| bytes_at(value, 0).map(u32::from_be_bytes);
        let hook = attribute(body, CHAIN_HOOK).and_then(|hook| attribute(hook, HOOK_NUMBER)).and_then(number);
        let policy = attribute(body, CHAIN_POLICY).and_then(number);
        // Families ip, inet and ip6; a bridge or arp chain is not on our way.
        let routed = matches!(payload.first(), Some(1 | 2 | 10));
        let table = attribute(body, CHAIN_TABLE).map_or("", text);
        if routed && hook == Some(HOOK_FORWARD) && policy == Some(POLICY_DROP) && table != config.instance {
            found.push(format!("{table} {}", attribute(body, CHAIN_NAME).map_or("", text)));
        }
        Ok(())
    })
}

/// One element as the kernel gives it.
struct Element<'a> {
    key: &'a [u8],
    key_end: Option<&'a [u8]>,
    data: &'a [u8],
    packets: u64,
}

impl Element<'_> {
    fn interface(&self) -> Option<&str> {
        self.key.get(..INTERFACE_BYTES).map(text)
    }
}

fn each_element<T: Default>(
    netlink: &mut Netlink,
    table: &str,
    set: &str,
    mut each: impl FnMut(&mut T, &Element<'_>),
) -> io::Result<T> {
    let mut request = header(FAMILY_INET);
    push_attribute(&mut request, LIST_TABLE, &named(table));
    push_attribute(&mut request, LIST_SET, &named(set));
    netlink.dump(GET_SET_ELEMENTS, &request, |result: &mut T, _, payload| {
        let body = payload.get(NFGENMSG_BYTES..).unwrap_or(&[]);
        for (_, bytes) in attributes(attribute(body, LIST_ELEMENTS).unwrap_or(&[])) {
            let value = |kind| attribute(bytes, kind).and_then(|nested| attribute(nested, DATA_VALUE));
            if let Some(key) = value(ELEMENT_KEY) {
                let data = value(ELEMENT_DATA).unwrap_or(&[]);
                each(result, &Element { key, key_end: value(ELEMENT_KEY_END), data, packets: packets(bytes) });
            }
        }
        Ok(())
    })
}

fn packets(element: &[u8]) -> u64 {
    let expression = attribute(element, ELEMENT_EXPRESSION)
        .or_else(|| attribute(element, ELEMENT_EXPRESSIONS).and_then(|list| attribute(list, LIST_ELEMENT)));
    expression
        .and_then(|expression| attribute(expression, EXPRESSION_DATA))
        .and_then(|counter| attribute(counter, COUNTER_PACKETS))
        .and_then(|value| bytes_at(value, 0))
        .map_or(0, u64::from_be_bytes)
}

fn members(netlink: &mut Netlink, config: &NetworkConfig, set: &str) -> io::Result<Vec<u32>> {
    let result = each_element(netlink, &config.instance, set, |found: &mut Vec<u32>, element| {
        found.extend(element.interface().and_then(|name| config.index_of(name)));
    });
    absent_is_empty(result)
}

/// A set that this version has and an older one had not is empty, not an error.
fn absent_is_empty<T: Default>(result: io::Result<T>) -> io::Result<T> {
    match result {
        Err(error) if error.raw_os_error() == Some(Errno::NOENT.raw_os_error()) => Ok(T::default()),
        other => other,
    }
}

fn ignored(netlink: &mut Netlink, config: &NetworkConfig, set: &str) -> io::Result<Vec<(u32, IpNet)>> {
    let result = each_element(netlink, &config.instance, set, |found: &mut Vec<(u32, IpNet)>, element| {
        let first = element.key.get(INTERFACE_BYTES..).and_then(address);
        let last = element.key_end.and_then(|end| end.get(INTERFACE_BYTES..)).and_then(address).or(first);
        let index = element.interface().and_then(|name| config.index_of(name));
        found.extend(index.zip(first.zip(last).and_then(|(first, last)| network(first, last))));
    });
    absent_is_empty(result)
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => bytes_at::<4>(bytes, 0).map(|b| Ipv4Addr::from(b).into()),
        16 => bytes_at::<16>(bytes, 0).map(|b| Ipv6Addr::from(b).into()),
        _ => None,
    }
}

/// The network from `first` to `last`, if it is one.
fn network(first: IpAddr, last: IpAddr) -> Option<IpNet> {
    let net = match (first, last) {
        (IpAddr::V4(a), IpAddr::V4(b)) => {
            let length = (u32::from(a) ^ u32::from(b)).leading_zeros() as u8;
            IpNet::V4(Ipv4Net::new(a, length).ok()?)
        }
        (IpAddr::V6(a), IpAddr::V6(b)) => {
            let length = (u128::from(a) ^ u128::from(b)).leading_zeros() as u8;
            IpNet::V6(Ipv6Net::new(a, length).ok()?)
        }
        _ => return None,
    };
    (net.network() == first && net.broadcast() == last).then_some(net)
}

/// All published ports with the app that has each.
fn published(netlink: &mut Netlink, config: &NetworkConfig) -> io::Result<Vec<(u32, Published)>> {
    let mut all: BTreeMap<(u32, Protocol, u16, u16), Vec<Option<IpAddr>>> = BTreeMap::new();
    for (set, address_bytes, v6) in [("any4", 0, false), ("any6", 0, true), ("at4", 4, false), ("at6", 16, true)] {
        let result = each_element(netlink, &config.instance, set, |found: &mut Vec<_>, element| {
            found.extend(port_of(config, element, address_bytes, v6));
        });
        for (index, port) in absent_is_empty(result)? {
            all.entry((index, port.protocol, port.host, port.app)).or_default().push(port.host_ip);
        }
    }
    let all_v4 = Some(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
    let all_v6 = Some(IpAddr::V6(Ipv6Addr::UNSPECIFIED));
    let mut ports = Vec::new();
    for ((index, protocol, host, app), mut ips) in all {
        if ips.contains(&all_v4) && ips.contains(&all_v6) {
            ips.retain(|ip| *ip != all_v4 && *ip != all_v6);
            ips.push(None);
        }
        ports.extend(ips.into_iter().map(|host_ip| (index, Published { host_ip, host, app, protocol })));
    }
    Ok(ports)
}

fn port_of(config: &NetworkConfig, element: &Element<'_>, host_bytes: usize, v6: bool) -> Option<(u32, Published)> {
    let app_bytes = if v6 { 16 } else { 4 };
    let unspecified = if v6 { IpAddr::V6(Ipv6Addr::UNSPECIFIED) } else { IpAddr::V4(Ipv4Addr::UNSPECIFIED) };
    let host_ip = if host_bytes == 0 { unspecified } else { address(element.key.get(..host_bytes)?)? };
    let offset = match address(element.data.get(..app_bytes)?)? {
        IpAddr::V4(ip) => u128::from(u32::from(ip).checked_sub(u32::from(config.v4_pool.network()))?),
        IpAddr::V6(ip) => u128::from(ip).checked_sub(u128::from(config.v6_pool.network()))?,
    };
    let number = |bytes: &[u8], at| bytes_at(bytes, at).map(u16::from_be_bytes);
    let port = Published {
        host_ip: Some(host_ip),
        host: number(element.key, host_bytes + 4)?,
        app: number(element.data, app_bytes)?,
        protocol: Protocol::from_number(*element.key.get(host_bytes)?)?,
    };
    Some((u32::try_from(offset).ok()?, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_networks_only_when_aligned() {
        let net = |a: &str, b: &str| network(a.parse().unwrap(), b.parse().unwrap()).map(|n| n.to_string());
        assert_eq!(net("10.0.0.0", "10.255.255.255").as_deref(), Some("10.0.0.0/8"));
        assert_eq!(net("1.2.3.4", "1.2.3.4").as_deref(), Some("1.2.3.4/32"));
        assert_eq!(net("0.0.0.0", "255.255.255.255").as_deref(), Some("0.0.0.0/0"));
        assert_eq!(net("fd00::", "fd00::ffff").as_deref(), Some("fd00::/112"));
        assert_eq!(net("10.0.0.1", "10.0.0.2"), None);
        assert_eq!(net("10.0.0.1", "fd00::"), None);
    }

    #[test]
    fn short_elements_are_no_ports() {
        let config = NetworkConfig::new("/run/x");
        let key = [6, 0, 0, 0, 0x1f, 0x90, 0, 0];
        let data = [10, 213, 0, 1, 0, 80, 0, 0];
        let element = |k, d| Element { key: &key[..k], key_end: None, data: &data[..d], packets: 0 };
        let (index, port) = port_of(&config, &element(8, 8), 0, false).unwrap();
        assert_eq!((index, port.host, port.app, port.protocol), (1, 8080, 80, Protocol::Tcp));
        for short in 0..6 {
            assert!(port_of(&config, &element(short, 8), 0, false).is_none());
            assert!(port_of(&config, &element(8, short), 0, false).is_none());
        }
    }
}
