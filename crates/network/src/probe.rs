//! What this machine offers the network, for `torpor doctor`. Changes nothing.

use torpor_linux::probe::{Outcome, Probe};

use crate::config::NetworkConfig;
use crate::error::NetworkError;
use crate::link::Links;
use crate::netlink::Netlink;
use crate::sock_diag::{SockDiag, TcpState};
use crate::{connections, nft, ruleset, sets, sysctl};

fn with_cause(error: &dyn std::error::Error) -> String {
    error.source().map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}"))
}

/// Looks for all that the network needs.
pub async fn probe(config: &NetworkConfig) -> Vec<Probe> {
    let mut checks = vec![version().await];
    if checks[0].outcome == Outcome::Ok {
        checks.push(rules(config).await);
        checks.push(connection_limit(config).await);
        checks.push(kept_connections().await);
    }
    checks.push(forwarding());
    checks.push(localnet());
    checks.push(v6());
    checks.push(pools(config).await);
    checks.push(foreign_drops(config));
    checks.push(diag());
    checks
}

async fn version() -> Probe {
    let meaning = "install the package nftables (version 1.0 or later)";
    match nft::version().await {
        Ok(version) => Probe::new("nft program", Outcome::Ok, version, meaning),
        Err(error) => Probe::new("nft program", Outcome::Missing, with_cause(&error), meaning),
    }
}

/// Has the kernel check our whole table under another name.
async fn rules(config: &NetworkConfig) -> Probe {
    let trial = NetworkConfig { instance: format!("probe{}", std::process::id()), ..config.clone() };
    let script = ruleset::base(&trial, None, &std::collections::BTreeMap::new());
    let meaning = "the kernel needs nf_tables with the family inet, nat, masquerade, fib, conntrack and counters \
                   (CONFIG_NF_TABLES_INET, CONFIG_NFT_NAT, CONFIG_NFT_MASQ, CONFIG_NFT_FIB_INET, CONFIG_NFT_CT), and \
                   CAP_NET_ADMIN";
    match nft::check(&trial.instance, "check the rules", &script).await {
        Ok(()) => Probe::new("nftables rules", Outcome::Ok, "the kernel takes all of them", meaning),
        Err(error) => Probe::new("nftables rules", Outcome::Missing, with_cause(&error), meaning),
    }
}

/// Whether apps can be kept from filling the machine's table of connections.
async fn connection_limit(config: &NetworkConfig) -> Probe {
    let name = "limit of connections";
    let trial = NetworkConfig { instance: format!("probe{}", std::process::id()), ..config.clone() };
    let meaning = "one app can fill the machine's table of connections: the kernel needs CONFIG_NFT_CONNLIMIT";
    if config.connections_per_app == Some(0) {
        return Probe::new(name, Outcome::Ok, "none, as configured", "");
    }
    match nft::check(&trial.instance, "check the limit of connections", &ruleset::only_limit(&trial)).await {
        Ok(()) => Probe::new(name, Outcome::Ok, "the kernel counts connections of each app", meaning),
        Err(error) => Probe::new(name, Outcome::Degraded, with_cause(&error), meaning),
    }
}

/// Those of a checkpoint that has not been restored, or that was killed and is none.
async fn kept_connections() -> Probe {
    let name = "kept TCP connections";
    let meaning = "their peers wait until `torpor restore` brings back the image of a `torpor checkpoint --tcp-established`. \
                   If none will, or where the program runs: nft delete table inet NAME, which gives up what has no socket \
                   (nft list table inet NAME tells which connections these are)";
    match nft::tables().await {
        Ok(listed) => match connections::kept(&listed).collect::<Vec<_>>().as_slice() {
            [] => Probe::new(name, Outcome::Ok, "none", meaning),
            kept => Probe::new(name, Outcome::Degraded, format!("nftables tables {}", kept.join(", ")), meaning),
        },
        Err(error) => Probe::new(name, Outcome::Degraded, with_cause(&error), "they could not be looked for"),
    }
}

fn forwarding() -> Probe {
    let name = "IPv4 forwarding";
    match sysctl::read("ipv4/ip_forward") {
        Ok(value) if value == "0" => Probe::new(
            name,
            Outcome::Ok,
            "off; switched on per interface while apps are attached, guarded by our table",
            "",
        ),
        Ok(_) => Probe::new(name, Outcome::Ok, "on already; left as it is", ""),
        Err(error) => Probe::new(name, Outcome::Missing, with_cause(&error), "packets cannot be forwarded to apps"),
    }
}

fn localnet() -> Probe {
    let name = "published ports on 127.0.0.1";
    match sysctl::read("ipv4/conf/default/route_localnet") {
        Ok(_) => Probe::new(name, Outcome::Ok, "route_localnet, set on the interfaces of apps only", ""),
        Err(error) => {
            Probe::new(name, Outcome::Degraded, with_cause(&error), "published ports do not answer on 127.0.0.1")
        }
    }
}

fn v6() -> Probe {
    let meaning = "apps get IPv4 only";
    if sysctl::has_v6() {
        Probe::new("IPv6", Outcome::Ok, "there", meaning)
    } else {
        Probe::new("IPv6", Outcome::Degraded, "disabled or not in the kernel", meaning)
    }
}

async fn pools(config: &NetworkConfig) -> Probe {
    let surveyed = async { Links::open()?.survey(config).await }.await;
    let meaning = "configure other address pools";
    match surveyed {
        Ok(mtu) => {
            let found = format!("{} and {} are free, packets of up to {mtu} bytes", config.v4_pool, config.v6_pool);
            Probe::new("address pools", Outcome::Ok, found, meaning)
        }
        Err(error) => Probe::new("address pools", Outcome::Missing, with_cause(&error), meaning),
    }
}

fn foreign_drops(config: &NetworkConfig) -> Probe {
    let name = "other firewalls";
    let prefix = config.interface_prefix();
    let meaning = format!(
        "they drop what they do not know, and a packet must pass every table: published ports and outgoing connections \
         may not work. Let the interfaces of apps through there; with Docker: iptables -I DOCKER-USER -i {prefix}+ -j \
         ACCEPT; iptables -I DOCKER-USER -o {prefix}+ -j ACCEPT (and the same with ip6tables)"
    );
    let found = Netlink::open(rustix::net::netlink::NETFILTER)
        .and_then(|mut netlink| sets::foreign_forward_drops(&mut netlink, config))
        .map_err(NetworkError::netlink("list nftables chains"));
    match found {
        Ok(found) if found.is_empty() => {
            Probe::new(name, Outcome::Ok, "none that drops forwarded packets by policy", "")
        }
        Ok(found) => Probe::new(name, Outcome::Degraded, format!("policy drop in {}", found.join(", ")), &meaning),
        Err(error) => Probe::new(name, Outcome::Degraded, with_cause(&error), "other firewalls could not be looked at"),
    }
}

fn diag() -> Probe {
    let name = "socket diagnostics";
    let meaning = "load the module tcp_diag: without it nothing tells dead probes from requests, and taken ports are found \
                   too late";
    match SockDiag::open().and_then(|mut diag| diag.tcp(&[TcpState::Listen], 0)) {
        Ok(_) => Probe::new(name, Outcome::Ok, "tcp_diag answers", meaning),
        Err(error) => Probe::new(name, Outcome::Degraded, error.to_string(), meaning),
    }
}
