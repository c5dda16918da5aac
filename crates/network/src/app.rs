//! What one app wants of the network, and whether that is possible beside the others.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;

use crate::error::NetworkError;

/// Most published ports of one app.
pub const MAX_PORTS: usize = 1024;
/// Most networks that one app joins.
pub const MAX_JOINED: usize = 32;
/// Most ignored networks of one app.
pub const MAX_IGNORED: usize = 256;

/// TCP or UDP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

impl Protocol {
    /// `IPPROTO_…`.
    pub const fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
        }
    }

    /// From `IPPROTO_…`.
    pub const fn from_number(number: u8) -> Option<Self> {
        match number {
            6 => Some(Self::Tcp),
            17 => Some(Self::Udp),
            _ => None,
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        })
    }
}

/// A port of the machine that leads to a port of the app.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Published {
    /// The machine's address; absent: all of them. `0.0.0.0` and `::` mean all of that family.
    pub host_ip: Option<IpAddr>,
    /// The machine's port.
    pub host: u16,
    /// The app's port.
    pub app: u16,
    /// TCP or UDP.
    pub protocol: Protocol,
}

impl Published {
    /// Whether it takes packets for IPv4 (`false`) or IPv6 (`true`) addresses of the machine.
    pub fn serves(&self, v6: bool) -> bool {
        self.host_ip.is_none_or(|ip| ip.is_ipv6() == v6)
    }

    /// The one address that it is for, if not all.
    pub fn only(&self) -> Option<IpAddr> {
        self.host_ip.filter(|ip| !ip.is_unspecified())
    }

    /// Whether both would take the same packet.
    pub fn overlaps(&self, other: &Self) -> bool {
        let one_family = [false, true].into_iter().any(|v6| self.serves(v6) && other.serves(v6));
        let one_address = match (self.only(), other.only()) {
            (Some(a), Some(b)) => a == b,
            _ => one_family,
        };
        self.protocol == other.protocol && self.host == other.host && one_address
    }
}

impl fmt::Display for Published {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host_ip {
            None => write!(f, "{}/{}", self.host, self.protocol),
            Some(IpAddr::V4(ip)) => write!(f, "{ip}:{}/{}", self.host, self.protocol),
            Some(IpAddr::V6(ip)) => write!(f, "[{ip}]:{}/{}", self.host, self.protocol),
        }
    }
}

/// What one app wants.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AppNetwork {
    /// Published ports.
    pub ports: Vec<Published>,
    /// May open connections to the outside, by NAT.
    pub outgoing: bool,
    /// Names of networks (DNS labels); apps that share one reach each other.
    pub join: Vec<String>,
    /// Packets from and to these addresses are not counted as activity.
    pub ignore: Vec<IpNet>,
}

impl AppNetwork {
    /// The same wishes in one fixed form: sorted, without repetitions, ignored networks merged.
    pub(crate) fn normalised(&self) -> Result<Self, NetworkError> {
        let invalid = |what: String| Err(NetworkError::Invalid { what });
        let mut one = self.clone();
        one.ports.sort_unstable();
        one.ports.dedup();
        one.join.sort_unstable();
        one.join.dedup();
        one.ignore = IpNet::aggregate(&one.ignore.iter().map(IpNet::trunc).collect());
        one.ignore.sort_unstable();
        if one.ports.len() > MAX_PORTS || one.join.len() > MAX_JOINED || one.ignore.len() > MAX_IGNORED {
            return invalid(format!(
                "{} ports, {} joined and {} ignored networks are too many: at most {MAX_PORTS}, {MAX_JOINED} and \
                 {MAX_IGNORED} are allowed for one app",
                one.ports.len(),
                one.join.len(),
                one.ignore.len()
            ));
        }
        for port in &one.ports {
            if port.host == 0 || port.app == 0 {
                return invalid(format!("published port {port} to {}: a port is 1 to 65535", port.app));
            }
        }
        for (at, port) in one.ports.iter().enumerate() {
            if let Some(other) = one.ports[at + 1..].iter().find(|other| other.overlaps(port)) {
                return invalid(format!("ports {port} and {other} of one app take the same packets"));
            }
        }
        if let Some(name) = one.join.iter().find(|name| !is_label(name)) {
            return invalid(format!("network name `{name}` is not 1 to 63 of a-z, 0-9 and -"));
        }
        Ok(one)
    }
}

/// Whether `name` is a DNS label: what may stand in the name of a kernel set.
pub(crate) fn is_label(name: &str) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    (1..=63).contains(&name.len()) && name.bytes().all(inner) && !name.starts_with('-') && !name.ends_with('-')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(host_ip: Option<&str>, host: u16) -> Published {
        Published { host_ip: host_ip.map(|ip| ip.parse().unwrap()), host, app: 80, protocol: Protocol::Tcp }
    }

    #[test]
    fn ports_that_take_the_same_packets_overlap() {
        let all = port(None, 80);
        let one = port(Some("127.0.0.1"), 80);
        assert!(all.overlaps(&one) && one.overlaps(&all) && one.overlaps(&one));
        assert!(!one.overlaps(&port(Some("127.0.0.2"), 80)));
        assert!(!one.overlaps(&port(Some("::1"), 80)));
        assert!(!port(Some("0.0.0.0"), 80).overlaps(&port(Some("::"), 80)));
        assert!(port(Some("0.0.0.0"), 80).overlaps(&one));
        assert!(!all.overlaps(&port(None, 81)));
        assert!(!all.overlaps(&Published { protocol: Protocol::Udp, ..all }));
    }

    #[test]
    fn what_is_wrong_in_itself_is_refused() {
        let refuse = |app: AppNetwork| app.normalised().unwrap_err().to_string();
        let with = |ports: Vec<Published>| AppNetwork { ports, ..AppNetwork::default() };
        assert!(refuse(with(vec![port(None, 0)])).contains("1 to 65535"));
        assert!(refuse(with(vec![port(None, 80), port(Some("127.0.0.1"), 80)])).contains("take the same packets"));
        for name in ["", "a b", "a\"; flush ruleset", "-a", "A"] {
            let app = AppNetwork { join: vec![name.to_owned()], ..AppNetwork::default() };
            assert!(refuse(app).contains("network name"), "{name}");
        }
        let ignore = ["10.0.0.0/8", "10.1.2.3/16", "10.0.0.0/8"].map(|net| net.parse().unwrap()).to_vec();
        let merged = AppNetwork { ignore, ..AppNetwork::default() }.normalised().unwrap();
        assert_eq!(merged.ignore, ["10.0.0.0/8".parse::<IpNet>().unwrap()]);
    }
}
