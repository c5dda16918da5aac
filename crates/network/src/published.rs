//! Ports of the machine that lead to apps.

use std::fmt;
use std::net::IpAddr;

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
}
