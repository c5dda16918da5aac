//! Where apps live: the instance's name and its address pools, and everything that follows from an app's index.
//!
//! Nothing here is stored: the interface name, both MAC addresses and both IP addresses of an app are functions of the
//! configuration and of its index, so a worker that restarts knows them without asking.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;
use std::path::PathBuf;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use crate::error::NetworkError;

/// Longest instance name, in bytes.
const MAX_INSTANCE_BYTES: usize = 32;
/// Longest prefix of interface names, in bytes; with `-` and five digits it stays below `IFNAMSIZ` (16).
const MAX_PREFIX_BYTES: usize = 6;
/// Largest index of an app.
pub const MAX_INDEX: u32 = 65_000;
/// The next hop of every app, and the address as which the machine's own loopback clients appear to apps.
pub const GATEWAY_V4: Ipv4Addr = Ipv4Addr::new(169, 254, 1, 1);
/// The IPv6 next hop of every app.
pub const GATEWAY_V6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
/// Name of the app's own interface.
pub const APP_INTERFACE: &str = "eth0";
/// Offset of the machine's address in the IPv6 pool: just above the largest index.
const HOST_V6_OFFSET: u128 = 0x1_0000;
/// IPv4 networks in which no pool can lie: their addresses never reach an interface, or mean something else to the kernel.
const UNUSABLE: [Ipv4Net; 5] = [
    Ipv4Net::new_assert(Ipv4Addr::new(0, 0, 0, 0), 8),
    Ipv4Net::new_assert(Ipv4Addr::LOCALHOST, 8),
    Ipv4Net::new_assert(Ipv4Addr::new(169, 254, 0, 0), 16),
    Ipv4Net::new_assert(Ipv4Addr::new(224, 0, 0, 0), 4),
    Ipv4Net::new_assert(Ipv4Addr::new(240, 0, 0, 0), 4),
];
/// Largest packets of an interface, in bytes: IPv6 needs 1280, a veth takes no more than 65,535.
const MTU_BYTES: RangeInclusive<u32> = 1280..=65_535;
/// Most networks in [`NetworkConfig::blocked`].
pub const MAX_BLOCKED: usize = 1024;
/// Metadata services of clouds whose addresses are not link-local: they hand out the machine's credentials.
pub const METADATA: [IpAddr; 7] = [
    // Azure; its name server, too.
    IpAddr::V4(Ipv4Addr::new(168, 63, 129, 16)),
    // Alibaba Cloud.
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
    // Oracle Cloud (classic).
    IpAddr::V4(Ipv4Addr::new(192, 0, 0, 192)),
    // AWS.
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
    // Google Cloud.
    IpAddr::V6(Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254)),
    // Oracle Cloud.
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xc1, 0, 0, 0, 0, 0xa9fe, 0xa9fe)),
    // Scaleway.
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0x42, 0, 0, 0, 0, 0, 0x42)),
];

/// How the network of all apps of one instance is set up.
#[derive(Clone, Debug)]
pub struct NetworkConfig {
    /// Names the nftables table and, shortened, the interfaces; 1 to 32 of `a-z` and `0-9`, a letter first.
    pub instance: String,
    /// App number `n` has the `n`th address of this pool, which has a prefix of at most 30 bits; not loopback, link-local,
    /// multicast or reserved.
    pub v4_pool: Ipv4Net,
    /// App number `n` has the `n`th address of this pool; a unique local prefix of at most 104 bits.
    pub v6_pool: Ipv6Net,
    /// Directory that holds what must be put back on teardown; must survive a restart of the worker, not a reboot.
    pub run_dir: PathBuf,
    /// Largest packet on the apps' interfaces, in bytes, 1280 to 65,535; absent: that of the interface with the default route.
    pub mtu_bytes: Option<u32>,
    /// Apps reach nothing in these networks but name servers (port 53); at most [`MAX_BLOCKED`].
    pub blocked: Vec<IpNet>,
    /// Most connections that the machine tracks for one app; a new one beyond is dropped. 0: no limit; absent: an eighth
    /// of what the machine can track (`nf_conntrack_max`).
    pub connections_per_app: Option<u32>,
}

impl NetworkConfig {
    /// The default network: instance `torpor`, 10.213.0.0/16 and fd74:6f72:706f::/64.
    pub fn new(run_dir: impl Into<PathBuf>) -> Self {
        Self {
            instance: "torpor".to_owned(),
            v4_pool: Ipv4Net::new_assert(Ipv4Addr::new(10, 213, 0, 0), 16),
            v6_pool: Ipv6Net::new_assert(Ipv6Addr::new(0xfd74, 0x6f72, 0x706f, 0, 0, 0, 0, 0), 64),
            run_dir: run_dir.into(),
            mtu_bytes: None,
            blocked: METADATA.map(IpNet::from).to_vec(),
            connections_per_app: None,
        }
    }

    /// Refuses what cannot work.
    pub fn validate(&self) -> Result<(), NetworkError> {
        let name = self.instance.as_bytes();
        let letters = name.iter().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
        if name.len() > MAX_INSTANCE_BYTES || !letters || !name.first().is_some_and(u8::is_ascii_lowercase) {
            return Err(NetworkError::Instance { name: self.instance.clone() });
        }
        if self.v4_pool.prefix_len() > 30 {
            let need = "a prefix of at most 30 bits";
            return Err(NetworkError::Pool { key: "v4_pool", pool: self.v4_pool.into(), need });
        }
        let overlaps = |net: &Ipv4Net| net.contains(&self.v4_pool) || self.v4_pool.contains(net);
        if UNUSABLE.iter().any(overlaps) {
            return Err(NetworkError::Pool {
                key: "v4_pool",
                pool: self.v4_pool.into(),
                need: "unicast addresses outside of 0.0.0.0/8, 127.0.0.0/8 (loopback), 169.254.0.0/16 (link-local), \
                       224.0.0.0/4 (multicast) and 240.0.0.0/4",
            });
        }
        let unique_local = self.v6_pool.network().octets()[0] & 0xfe == 0xfc;
        if !unique_local || self.v6_pool.prefix_len() > 104 {
            return Err(NetworkError::Pool {
                key: "v6_pool",
                pool: self.v6_pool.into(),
                need: "a unique local prefix (fc00::/7) of at most 104 bits",
            });
        }
        if let Some(mtu_bytes) = self.mtu_bytes.filter(|mtu_bytes| !MTU_BYTES.contains(mtu_bytes)) {
            let (least, most) = (MTU_BYTES.start(), MTU_BYTES.end());
            return Err(NetworkError::Invalid { what: format!("mtu_bytes {mtu_bytes} is not in {least}..={most}") });
        }
        if self.blocked.len() > MAX_BLOCKED {
            return Err(NetworkError::Invalid {
                what: format!("{} blocked networks are too many: at most {MAX_BLOCKED}", self.blocked.len()),
            });
        }
        Ok(())
    }

    /// Prefix of the interfaces of this instance, with its separator: `torpor-`.
    pub fn interface_prefix(&self) -> String {
        if self.instance.len() <= MAX_PREFIX_BYTES {
            return format!("{}-", self.instance);
        }
        // A long name is shortened to two letters and a hash, so that two long names do not meet.
        let hash = self.hash();
        format!("{}{:04x}-", &self.instance[..2], (hash >> 16) ^ (hash & 0xffff))
    }

    /// Group of the interfaces of this instance, by which all are removed at once (`ip link show group …`).
    pub(crate) fn interface_group(&self) -> u32 {
        self.hash() | 0x4000_0000
    }

    /// A bit of the marks of packets: our table has looked at this packet of one of our apps. Instances that share a machine
    /// have different ones, mostly.
    pub(crate) fn pass_mark(&self) -> u32 {
        const BITS: u32 = 7;
        0x0100_0000 << (self.hash() % BITS)
    }

    fn hash(&self) -> u32 {
        self.instance.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
    }

    /// The machine's side of an app's veth pair.
    pub fn interface(&self, index: u32) -> String {
        format!("{}{index}", self.interface_prefix())
    }

    /// The index in an interface name of this instance.
    pub fn index_of(&self, interface: &str) -> Option<u32> {
        self.index_after(&self.interface_prefix(), interface)
    }

    /// The index of the app that has this address.
    pub(crate) fn index_of_address(&self, ip: Ipv4Addr) -> Option<u32> {
        let index = u32::from(ip).checked_sub(u32::from(self.v4_pool.network()))?;
        (1..=self.max_index()).contains(&index).then_some(index)
    }

    /// The same with the prefix made once: this runs for every app at every read of the counts.
    pub(crate) fn index_after(&self, prefix: &str, interface: &str) -> Option<u32> {
        let digits = interface.strip_prefix(prefix)?;
        if digits.starts_with(['0', '+']) {
            return None;
        }
        digits.parse().ok().filter(|index| (1..=self.max_index()).contains(index))
    }

    /// The largest index that has an address.
    fn max_index(&self) -> u32 {
        let room = (1_u64 << (32 - self.v4_pool.prefix_len())) - 2;
        u32::try_from(room).unwrap_or(MAX_INDEX).min(MAX_INDEX)
    }

    /// The address as which IPv6 loopback clients of the machine appear to apps.
    pub fn host_v6(&self) -> Ipv6Addr {
        Ipv6Addr::from(u128::from(self.v6_pool.network()) + HOST_V6_OFFSET)
    }

    /// What app number `index` gets.
    pub fn addresses(&self, index: u32) -> Result<Addresses, NetworkError> {
        let max = self.max_index();
        if index == 0 || index > max {
            return Err(NetworkError::Index { index, pool: self.v4_pool, max });
        }
        let [.., high, low] = index.to_be_bytes();
        Ok(Addresses {
            interface: self.interface(index),
            v4: Ipv4Addr::from(u32::from(self.v4_pool.network()) + index),
            v6: Ipv6Addr::from(u128::from(self.v6_pool.network()) + u128::from(index)),
            host_mac: [0x02, 0x74, 0x70, 0x01, high, low],
            app_mac: [0x02, 0x74, 0x70, 0x02, high, low],
        })
    }
}

/// What an app's index gives it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// The machine's side of the veth pair.
    pub interface: String,
    /// The app's IPv4 address.
    pub v4: Ipv4Addr,
    /// The app's IPv6 address; configured only where the machine has IPv6.
    pub v6: Ipv6Addr,
    /// Link address of the machine's side.
    pub host_mac: [u8; 6],
    /// Link address of the app's side.
    pub app_mac: [u8; 6],
}

impl Addresses {
    /// Both addresses.
    pub fn ips(&self) -> [IpAddr; 2] {
        [self.v4.into(), self.v6.into()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_follows_from_the_index() {
        let config = NetworkConfig::new("/run/x");
        config.validate().unwrap();
        let app = config.addresses(258).unwrap();
        assert_eq!(app.v4, Ipv4Addr::new(10, 213, 1, 2));
        assert_eq!(app.v6, "fd74:6f72:706f::102".parse::<Ipv6Addr>().unwrap());
        assert_eq!(app.interface, "torpor-258");
        assert_eq!(config.index_of("torpor-258"), Some(258));
        for wrong in ["torpor-0258", "torpor-+258", "torpor-", "torpor-0", "torpor-99999", "torpor1-2", "eth0"] {
            assert_eq!(config.index_of(wrong), None, "{wrong}");
        }
        assert!(config.addresses(0).is_err());
        assert!(config.addresses(MAX_INDEX).is_ok());
        assert!(config.addresses(MAX_INDEX + 1).is_err());
    }

    #[test]
    fn refuses_pools_and_packets_that_cannot_work() {
        let refused = |v4_pool: &str, mtu_bytes| {
            let v4_pool = v4_pool.parse().unwrap();
            NetworkConfig { v4_pool, mtu_bytes, ..NetworkConfig::new("/run/x") }.validate().map_err(|e| e.to_string())
        };
        for pool in
            ["127.0.0.0/16", "127.0.0.0/8", "126.0.0.0/7", "0.0.0.0/0", "0.0.0.0/8", "169.254.0.0/16", "224.0.0.0/16"]
        {
            assert!(refused(pool, None).unwrap_err().contains("v4_pool"), "{pool}");
        }
        assert!(refused("255.255.0.0/16", None).unwrap_err().contains("v4_pool"));
        for mtu_bytes in [0, 65, 1279, 65_536, u32::MAX] {
            assert!(refused("10.1.0.0/16", Some(mtu_bytes)).unwrap_err().contains("mtu_bytes"), "{mtu_bytes}");
        }
        for (pool, mtu_bytes) in [("10.1.0.0/16", 1280), ("100.64.0.0/10", 65_535), ("126.0.0.0/8", 1500)] {
            refused(pool, Some(mtu_bytes)).unwrap();
        }
    }

    #[test]
    fn names_stay_below_the_kernels_limit_and_apart() {
        let with = |instance: &str| NetworkConfig { instance: instance.to_owned(), ..NetworkConfig::new("/run/x") };
        let long = with("torporsecond").interface(MAX_INDEX);
        assert!(long.len() < 16, "{long}");
        assert_ne!(with("torporsecond").interface_prefix(), with("torporsecone").interface_prefix());
        for wrong in ["", "1a", "A", "a b", "a;b", &"a".repeat(33)] {
            assert!(with(wrong).validate().is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn pools_that_cannot_work_are_refused() {
        let mut config = NetworkConfig::new("/run/x");
        config.v6_pool = "2001:db8::/64".parse().unwrap();
        assert!(config.validate().is_err());
        config = NetworkConfig { v4_pool: "10.0.0.0/24".parse().unwrap(), ..NetworkConfig::new("/run/x") };
        assert!(config.addresses(254).is_ok());
        assert!(config.addresses(255).is_err());
    }
}
