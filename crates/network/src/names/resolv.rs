//! `/etc/resolv.conf`, and what of it apps get.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr};

use crate::config::GATEWAY_V4;

const FILE: &str = "/etc/resolv.conf";
/// Name servers that resolvers look at (`MAXNS`).
const SERVERS: usize = 3;

/// A resolver's configuration; see resolv.conf(5).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResolvConf {
    servers: Vec<IpAddr>,
    /// Domains that are tried behind a name, in lower case.
    search: Vec<String>,
    /// All other lines.
    rest: Vec<String>,
}

impl ResolvConf {
    /// The machine's.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn machine() -> io::Result<Self> {
        fs::read_to_string(FILE).map(|text| Self::parse(&text))
    }

    /// From its text; what is not understood is kept as it is.
    pub fn parse(text: &str) -> Self {
        let mut conf = Self::default();
        for line in text.lines() {
            let mut words = line.split_ascii_whitespace();
            match (words.next(), words.next().map(str::parse::<IpAddr>)) {
                (Some("nameserver"), Some(Ok(server))) => conf.servers.push(server),
                // One with a scope is reached from one interface of the machine only.
                (Some("nameserver"), _) => {}
                (Some("search" | "domain"), _) => {
                    let domains = line.split_ascii_whitespace().skip(1);
                    // The last such line counts.
                    conf.search = domains.map(|domain| domain.trim_matches('.').to_ascii_lowercase()).collect();
                    conf.rest.push(line.to_owned());
                }
                _ => conf.rest.push(line.to_owned()),
            }
        }
        conf.servers.truncate(SERVERS);
        conf
    }

    /// The machine's name servers, in order.
    pub(super) fn servers(&self) -> &[IpAddr] {
        &self.servers
    }

    pub(super) fn search(&self) -> &[String] {
        &self.search
    }

    /// Those of the machine's name servers that apps reach and whose queries our table can lead to us.
    pub(super) fn direct(&self) -> Vec<Ipv4Addr> {
        let v4 = |server: &IpAddr| if let IpAddr::V4(ip) = server { Some(*ip) } else { None };
        self.servers.iter().filter_map(v4).filter(|ip| !ip.is_loopback() && !ip.is_unspecified()).collect()
    }

    /// An app's file. The machine's name servers on its loopback are out of its reach: where it has no others, the app asks us,
    /// by the gateway's address. So it does where there are only such of IPv6 and it is to find apps by `names`.
    pub fn for_app(&self, names: bool) -> String {
        let direct = self.direct();
        let reachable = self.servers.iter().copied().filter(|server| !server.is_loopback() && !server.is_unspecified());
        let mut servers: Vec<IpAddr> =
            if names { direct.into_iter().map(IpAddr::V4).collect() } else { reachable.collect() };
        if servers.is_empty() {
            servers.push(GATEWAY_V4.into());
        }
        let servers = servers.iter().map(|server| format!("nameserver {server}"));
        servers.chain(self.rest.iter().cloned()).fold(String::new(), |mut text, line| {
            let _ = writeln!(text, "{line}");
            text
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn apps_get_servers_that_they_reach() {
        let conf = ResolvConf::parse("# x\nnameserver 127.0.0.53\nsearch A.example. b\noptions edns0\n");
        assert_eq!(conf.for_app(false), "nameserver 169.254.1.1\n# x\nsearch A.example. b\noptions edns0\n");
        assert_eq!(conf.search(), ["a.example", "b"]);
        let conf =
            ResolvConf::parse("nameserver 192.0.2.1\nnameserver 2001:db8::1\nnameserver fe80::1%eth0\nnameserver ::1");
        assert_eq!(conf.for_app(false), "nameserver 192.0.2.1\nnameserver 2001:db8::1\n");
        assert_eq!(conf.for_app(true), "nameserver 192.0.2.1\n");
        let conf = ResolvConf::parse("nameserver 2001:db8::1");
        assert_eq!(
            (conf.for_app(false), conf.for_app(true)),
            ("nameserver 2001:db8::1\n".to_owned(), "nameserver 169.254.1.1\n".to_owned())
        );
    }
}
