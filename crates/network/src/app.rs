//! What one app wants of the network, and whether that is possible beside the others.

use ipnet::IpNet;

use crate::error::NetworkError;
use crate::published::Published;

/// Most published ports of one app.
pub const MAX_PORTS: usize = 1024;
/// Most networks that one app joins.
pub const MAX_JOINED: usize = 32;
/// Most ignored networks of one app.
pub const MAX_IGNORED: usize = 256;

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
    use crate::published::Protocol;

    fn port(host_ip: Option<&str>, host: u16) -> Published {
        Published { host_ip: host_ip.map(|ip| ip.parse().unwrap()), host, app: 80, protocol: Protocol::Tcp }
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
