//! The one nftables table, as text: its sets, maps, chains and rules, and the elements of one app. Pure.
//!
//! Rules are fixed; apps are elements of sets and maps. Adding or removing an app touches elements only (and, for a
//! named network's first or last member, a set and the chain `joined`), so the cost of a packet does not grow with the
//! number of apps. All of a change is one transaction.
//!
//! ```text
//! prerouting  raw    raw      drop spoofed sources; drop what apps send to 127.0.0.0/8
//!             filter tracked  drop new connections of an app that has too many
//!             nat    pre      published ports: machine's address → app's address; queries for names → our server
//!             filter counted  count meaningful packets from apps (after reply translation: real remote address)
//! output      nat    output   published ports, for clients on the machine
//! input       filter input    apps reach nothing on the machine itself, but answers and ping
//! forward     filter forward  to apps: published, joined, answers. From apps: outgoing only if allowed
//! postrouting filter count    count meaningful packets to apps (before source translation: real remote address)
//!             nat    post     outgoing NAT; loopback clients and an app's own hairpin get a routable source
//! ```
//!
//! A packet is *meaningful* unless it is ICMP or a TCP segment without SYN, FIN, RST and PSH of at most 100 bytes (an
//! IPv6 header, a TCP header and all its options: bare acknowledgements, keepalives, window probes).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use crate::app::AppNetwork;
use crate::config::{Addresses, GATEWAY_V4, NetworkConfig};
use crate::live::LIVE;
use crate::published::Published;

/// A bit of the marks of packets: some instance's table has looked at this one on its way through the machine. This one and
/// [`NetworkConfig::pass_mark`] are set at hooks after routing, and removed there by [`crate::guard`].
pub(crate) const ROUTED: u32 = 0x8000_0000;

/// Always blocked, like fe80::/10; see `RULES`.
const LINK_LOCAL_V4: Ipv4Net = Ipv4Net::new_assert(Ipv4Addr::new(169, 254, 0, 0), 16);

/// Members by network name.
pub(crate) type Networks = BTreeMap<String, BTreeSet<u32>>;

const SETS: &str = "\
add set inet TABLE source4 { type ifname . ipv4_addr; }
add set inet TABLE source6 { type ifname . ipv6_addr; }
add set inet TABLE outgoing { type ifname; }
add set inet TABLE activity { type ifname; counter; }
add set inet TABLE refused { type ifname; counter; }
add set inet TABLE ignore4 { type ifname . ipv4_addr; flags interval; }
add set inet TABLE ignore6 { type ifname . ipv6_addr; flags interval; }
add set inet TABLE guard4 { type ifname; }
add set inet TABLE guard6 { type ifname; }
add set inet TABLE named { type ifname; }
add set inet TABLE resolver { type inet_service; }
add map inet TABLE resolve4 { type ipv4_addr : ipv4_addr . inet_service; }
flush set inet TABLE resolver
flush map inet TABLE resolve4
add set inet TABLE blocked4 { type ipv4_addr; flags interval; auto-merge; }
add set inet TABLE blocked6 { type ipv6_addr; flags interval; auto-merge; }
flush set inet TABLE blocked4
flush set inet TABLE blocked6
add map inet TABLE any4 { type inet_proto . inet_service : ipv4_addr . inet_service; }
add map inet TABLE any6 { type inet_proto . inet_service : ipv6_addr . inet_service; }
add map inet TABLE at4 { type ipv4_addr . inet_proto . inet_service : ipv4_addr . inet_service; }
add map inet TABLE at6 { type ipv6_addr . inet_proto . inet_service : ipv6_addr . inet_service; }
";

/// Chains in the order in which a jump finds its target.
const CHAINS: [(&str, &str); 14] = [
    ("refuse", ""),
    ("publish", ""),
    ("joined", ""),
    ("to_app", ""),
    ("from_app", ""),
    ("raw", "{ type filter hook prerouting priority -300; policy accept; }"),
    ("tracked", "{ type filter hook prerouting priority -95; policy accept; }"),
    ("pre", "{ type nat hook prerouting priority -100; policy accept; }"),
    ("counted", "{ type filter hook prerouting priority -90; policy accept; }"),
    ("output", "{ type nat hook output priority -100; policy accept; }"),
    ("input", "{ type filter hook input priority 0; policy accept; }"),
    ("forward", "{ type filter hook forward priority 0; policy accept; }"),
    ("count", "{ type filter hook postrouting priority 90; policy accept; }"),
    ("post", "{ type nat hook postrouting priority 100; policy accept; }"),
];

/// `APPS` stands for the interfaces of all apps, `GW4` for the gateway, `HOST6` for the machine's IPv6 address.
///
/// - `pre`: queries come to our name server while that marks packets; `input` lets them in there, and nowhere else.
/// - `pre`: a packet from outside for 127.0.0.1 must not find a port that is published there only: it is left to the
///   kernel, which drops it.
/// - `refuse`: counts packets beyond an app's share of connections.
/// - `from_app`: link-local addresses and those of `blocked` hold the metadata services of clouds, which give out the
///   machine's credentials; only name servers are reached there. IPv4 addresses
///   are blocked in their translated form (NAT64), too. Addresses of the pools that no app has do not leave the
///   machine.
/// - `input`, `forward`: what our table has looked at gets the mark without which the guard drops it.
/// - `forward`: `guard` holds interfaces on which only we have switched forwarding on; between them nothing is
///   forwarded, as before.
/// - ICMP and ICMPv6 go by number: `nft` looks their names up in `/etc/protocols`, which small systems lack.
const RULES: &str = "\
publish meta l4proto { tcp, udp } dnat ip to ip daddr . meta l4proto . th dport map @at4
publish meta l4proto { tcp, udp } dnat ip to meta l4proto . th dport map @any4
publish meta l4proto { tcp, udp } dnat ip6 to ip6 daddr . meta l4proto . th dport map @at6
publish meta l4proto { tcp, udp } dnat ip6 to meta l4proto . th dport map @any6
refuse iifname @refused
refuse drop
raw iifname != APPS accept
raw meta nfproto ipv4 iifname . ip saddr != @source4 drop
raw meta nfproto ipv6 iifname . ip6 saddr != @source6 drop
raw ip daddr 127.0.0.0/8 drop
raw ip6 daddr ::1 drop
pre iifname @named meta mark & LIVE == LIVE meta l4proto { tcp, udp } th dport 53 dnat ip to ip daddr map @resolve4
pre iifname APPS ip daddr GW4 meta mark & LIVE == LIVE meta l4proto { tcp, udp } th dport 53 dnat ip to ip daddr map @resolve4
pre iifname != \"lo\" ip daddr 127.0.0.0/8 return
pre fib daddr type local jump publish
pre iifname APPS ip daddr GW4 jump publish
pre iifname APPS ip6 daddr HOST6 jump publish
output fib daddr type local jump publish
input meta mark set meta mark | PASS
input iifname != APPS accept
input ct state established,related accept
input ip daddr 127.0.0.1 ct status dnat meta l4proto { tcp, udp } th dport @resolver accept
input icmp type echo-request accept
input icmpv6 type echo-request accept
input drop
to_app ct state established,related accept
to_app ct status dnat accept
to_app iifname APPS jump joined
to_app drop
from_app ct state established,related accept
from_app ip daddr 169.254.0.0/16 meta l4proto { tcp, udp } th dport != 53 drop
from_app ip daddr 169.254.0.0/16 meta l4proto != { tcp, udp } drop
from_app ip6 daddr fe80::/10 drop
from_app ip daddr @blocked4 meta l4proto { tcp, udp } th dport != 53 drop
from_app ip daddr @blocked4 meta l4proto != { tcp, udp } drop
from_app ip6 daddr @blocked6 meta l4proto { tcp, udp } th dport != 53 drop
from_app ip6 daddr @blocked6 meta l4proto != { tcp, udp } drop
from_app ip daddr POOL4 drop
from_app ip6 daddr POOL6 drop
from_app iifname @outgoing accept
from_app drop
forward meta mark set meta mark | ROUTED
forward oifname APPS meta mark set meta mark | PASS
forward iifname APPS meta mark set meta mark | PASS
forward oifname APPS goto to_app
forward iifname APPS goto from_app
forward meta nfproto ipv4 iifname @guard4 oifname @guard4 drop
forward meta nfproto ipv6 iifname @guard6 oifname @guard6 drop
counted iifname != APPS return
counted meta l4proto { 1, 58 } return
counted tcp flags & (fin | syn | rst | psh) == 0 meta length <= 100 return
counted iifname . ip daddr @ignore4 return
counted iifname . ip6 daddr @ignore6 return
counted iifname @activity
count oifname != APPS return
count meta l4proto { 1, 58 } return
count tcp flags & (fin | syn | rst | psh) == 0 meta length <= 100 return
count oifname . ip saddr @ignore4 return
count oifname . ip6 saddr @ignore6 return
count oifname @activity
post iifname APPS oifname != APPS masquerade
post oifname APPS ip saddr 127.0.0.0/8 snat ip to GW4
post oifname APPS ip6 saddr ::1 snat ip6 to HOST6
post iifname APPS iifname . ip daddr @source4 snat ip to GW4
post iifname APPS iifname . ip6 daddr @source6 snat ip6 to HOST6
";

/// How many rules the table has while these networks are there.
pub(crate) fn rule_count(limit: Option<u32>, networks: &Networks) -> usize {
    RULES.lines().count() + usize::from(limit.is_some()) + networks.len()
}

/// The set and the rule that limit the tracked connections that an app begins; counted where the first packet comes in,
/// before it is tracked for good (*confirmed*). Later packets of a connection that nobody has answered are as `new` as its
/// first one, but not counted: what the app has begun within its share goes on.
fn limited(config: &NetworkConfig, limit: u32) -> String {
    let (table, prefix) = (&config.instance, config.interface_prefix());
    format!(
        "add set inet {table} connections {{ type ifname; size 65535; flags dynamic; }}\n\
         flush set inet {table} connections\n\
         add rule inet {table} tracked iifname \"{prefix}*\" ct state new ct status & confirmed == 0 \
         add @connections {{ iifname ct count over {limit} }} jump refuse\n"
    )
}

/// A table with nothing but the limit, to find out whether the kernel knows it.
pub(crate) fn only_limit(config: &NetworkConfig) -> String {
    let table = &config.instance;
    let hook = CHAINS.iter().find(|(name, _)| *name == "tracked").map_or("", |(_, hook)| hook);
    let chains = format!("add chain inet {table} refuse\nadd chain inet {table} tracked {hook}");
    format!("add table inet {table}\n{chains}\n{}", limited(config, 1))
}

/// The table with its rules, whether or not an older worker has made it: sets, elements and counters stay, rules are
/// written anew.
pub(crate) fn base(config: &NetworkConfig, limit: Option<u32>, apps: &BTreeMap<u32, AppNetwork>) -> String {
    let networks = &networks(apps);
    let table = &config.instance;
    let mut text = format!("add table inet {table}\n");
    text.push_str(&SETS.replace("TABLE", table));
    for net in &config.blocked {
        let set = if net.addr().is_ipv4() { "blocked4" } else { "blocked6" };
        let _ = writeln!(text, "add element inet {table} {set} {{ {} }}", net.trunc());
    }
    let blocked4 = config.blocked.iter().filter_map(|net| if let IpNet::V4(net) = net { Some(*net) } else { None });
    for net in blocked4.chain([LINK_LOCAL_V4]) {
        let _ = writeln!(text, "add element inet {table} blocked6 {{ {} }}", translated(net));
    }
    for (chain, hook) in CHAINS {
        let _ = writeln!(text, "add chain inet {table} {chain} {hook}");
        let _ = writeln!(text, "flush chain inet {table} {chain}");
    }
    let rules = RULES
        .replace("APPS", &format!("\"{}*\"", config.interface_prefix()))
        .replace("GW4", &GATEWAY_V4.to_string())
        .replace("HOST6", &config.host_v6().to_string())
        .replace("POOL4", &config.v4_pool.trunc().to_string())
        .replace("POOL6", &config.v6_pool.trunc().to_string())
        .replace("PASS", &config.pass_mark().to_string())
        .replace("ROUTED", &ROUTED.to_string())
        .replace("LIVE", &LIVE.to_string());
    for rule in rules.lines() {
        let _ = writeln!(text, "add rule inet {table} {rule}");
    }
    if let Some(limit) = limit {
        text.push_str(&limited(config, limit));
    }
    for (name, members) in networks {
        let _ = writeln!(text, "add set inet {table} {} {{ type ifname; }}", network_set(name));
        // An older worker's table has no such set.
        for index in members {
            let _ = writeln!(text, "add element inet {table} named {{ \"{}\" }}", config.interface(*index));
        }
    }
    // Nor this one.
    for index in apps.keys() {
        let _ = writeln!(text, "add element inet {table} refused {{ \"{}\" }}", config.interface(*index));
    }
    text.push_str(&joined(config, networks));
    text
}

/// IPv4 addresses as translators show them to networks of IPv6 alone (RFC 6052, the well-known prefix).
fn translated(net: Ipv4Net) -> Ipv6Net {
    const PREFIX: u128 = 0x0064_ff9b << 96;
    const PREFIX_BITS: u8 = 96;
    let ip = Ipv6Addr::from(PREFIX | u128::from(u32::from(net.network())));
    Ipv6Net::new_assert(ip, PREFIX_BITS + net.prefix_len())
}

/// Leads queries of apps for these name servers to a port of the machine's 127.0.0.1.
pub(crate) fn lead_queries(config: &NetworkConfig, ways: &BTreeMap<Ipv4Addr, u16>) -> String {
    let (table, to) = (&config.instance, Ipv4Addr::LOCALHOST);
    let mut text = format!("flush map inet {table} resolve4\nflush set inet {table} resolver\n");
    for (server, port) in ways {
        let _ = writeln!(text, "add element inet {table} resolver {{ {port} }}");
        let _ = writeln!(text, "add element inet {table} resolve4 {{ {server} : {to} . {port} }}");
    }
    text
}

/// The table with its rules and the elements of all `apps`: for a table that somebody has removed.
pub(crate) fn whole(config: &NetworkConfig, limit: Option<u32>, apps: &BTreeMap<u32, AppNetwork>) -> String {
    let networks = networks(apps);
    let mut text = base(config, limit, apps);
    for (index, app) in apps {
        if let Ok(addresses) = config.addresses(*index) {
            text.push_str(&change(config, &addresses, None, Some(app), &networks, &networks));
        }
    }
    text
}

/// Who is in which network.
pub(crate) fn networks(apps: &BTreeMap<u32, AppNetwork>) -> Networks {
    let mut networks = Networks::new();
    for (index, app) in apps {
        for name in &app.join {
            networks.entry(name.clone()).or_default().insert(*index);
        }
    }
    networks
}

/// Removes the table and all that is in it.
pub(crate) fn remove_table(config: &NetworkConfig) -> String {
    // Added first, so that removing what is not there is no error.
    format!("add table inet {0}\ndelete table inet {0}\n", config.instance)
}

/// The set of a named network's members.
pub(crate) fn network_set(name: &str) -> String {
    format!("net_{name}")
}

/// One app's change from `old` to `new`: one transaction. `before` and `after` are all networks.
pub(crate) fn change(
    config: &NetworkConfig,
    addresses: &Addresses,
    old: Option<&AppNetwork>,
    new: Option<&AppNetwork>,
    before: &Networks,
    after: &Networks,
) -> String {
    let table = &config.instance;
    let list = |app: Option<&AppNetwork>| app.map(|app| elements(addresses, app)).unwrap_or_default();
    let (old, new) = (list(old), list(new));
    let mut text = String::new();
    for name in after.keys().filter(|name| !before.contains_key(*name)) {
        let _ = writeln!(text, "add set inet {table} {} {{ type ifname; }}", network_set(name));
    }
    // What stays is not touched, so counters go on.
    for Element { set, key, .. } in old.difference(&new) {
        let _ = writeln!(text, "delete element inet {table} {set} {{ {key} }}");
    }
    for Element { set, key, data } in new.difference(&old) {
        let colon = if data.is_empty() { "" } else { " : " };
        let _ = writeln!(text, "add element inet {table} {set} {{ {key}{colon}{data} }}");
    }
    if before.keys().ne(after.keys()) {
        let _ = writeln!(text, "flush chain inet {table} joined");
        text.push_str(&joined(config, after));
        for name in before.keys().filter(|name| !after.contains_key(*name)) {
            let _ = writeln!(text, "delete set inet {table} {}", network_set(name));
        }
    }
    text
}

/// Replaces the elements of the sets `guard4` and `guard6`.
pub(crate) fn guards(config: &NetworkConfig, v4: &BTreeSet<String>, v6: &BTreeSet<String>) -> String {
    let table = &config.instance;
    let mut text = String::new();
    for (set, names) in [("guard4", v4), ("guard6", v6)] {
        let _ = writeln!(text, "flush set inet {table} {set}");
        for name in names {
            let _ = writeln!(text, "add element inet {table} {set} {{ \"{name}\" }}");
        }
    }
    text
}

fn joined(config: &NetworkConfig, networks: &Networks) -> String {
    let mut text = String::new();
    for set in networks.keys().map(|name| network_set(name)) {
        let _ = writeln!(text, "add rule inet {} joined iifname @{set} oifname @{set} accept", config.instance);
    }
    text
}

/// An element of a set (without data) or map.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Element {
    set: String,
    key: String,
    data: String,
}

fn elements(addresses: &Addresses, app: &AppNetwork) -> BTreeSet<Element> {
    let name = format!("\"{}\"", addresses.interface);
    let element = |set: &str, key: String| Element { set: set.to_owned(), key, data: String::new() };
    let mut all = BTreeSet::from([
        element("source4", format!("{name} . {}", addresses.v4)),
        element("source6", format!("{name} . {}", addresses.v6)),
        element("activity", name.clone()),
        element("refused", name.clone()),
    ]);
    if app.outgoing {
        all.insert(element("outgoing", name.clone()));
    }
    if !app.join.is_empty() {
        all.insert(element("named", name.clone()));
    }
    for network in &app.join {
        all.insert(element(&network_set(network), name.clone()));
    }
    for net in &app.ignore {
        let set = if net.addr().is_ipv4() { "ignore4" } else { "ignore6" };
        all.insert(element(set, format!("{name} . {net}")));
    }
    for port in &app.ports {
        for ip in addresses.ips().into_iter().filter(|ip| port.serves(ip.is_ipv6())) {
            all.insert(published(port, ip));
        }
    }
    all
}

fn published(port: &Published, app: IpAddr) -> Element {
    let family = if app.is_ipv4() { '4' } else { '6' };
    let key = format!("{} . {}", port.protocol, port.host);
    let data = format!("{app} . {}", port.app);
    match port.only() {
        None => Element { set: format!("any{family}"), key, data },
        Some(host) => Element { set: format!("at{family}"), key: format!("{host} . {key}"), data },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::published::Protocol;

    #[test]
    fn a_change_touches_only_what_differs() {
        let config = NetworkConfig::new("/run/x");
        let addresses = config.addresses(7).unwrap();
        let port = Published { host_ip: None, host: 8080, app: 80, protocol: Protocol::Tcp };
        let old = AppNetwork { ports: vec![port], outgoing: true, join: vec!["a".into()], ignore: vec![] };
        let new = AppNetwork { outgoing: false, join: vec!["b".into()], ..old.clone() };
        let one = |name: &str| Networks::from([(name.to_owned(), BTreeSet::from([7]))]);
        let text = change(&config, &addresses, Some(&old), Some(&new), &one("a"), &one("b"));
        assert_eq!(
            text,
            "add set inet torpor net_b { type ifname; }\n\
             delete element inet torpor net_a { \"torpor-7\" }\n\
             delete element inet torpor outgoing { \"torpor-7\" }\n\
             add element inet torpor net_b { \"torpor-7\" }\n\
             flush chain inet torpor joined\n\
             add rule inet torpor joined iifname @net_b oifname @net_b accept\n\
             delete set inet torpor net_a\n"
        );
        assert_eq!(change(&config, &addresses, Some(&old), Some(&old), &one("a"), &one("a")), "");
    }

    #[test]
    fn every_rule_names_a_chain_that_exists() {
        for rule in RULES.lines() {
            let chain = rule.split(' ').next().unwrap();
            assert!(CHAINS.iter().any(|(name, _)| *name == chain), "{rule}");
        }
    }
}
