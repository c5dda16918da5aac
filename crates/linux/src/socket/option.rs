//! Options that are plain values, so that they can be read from one socket and set on another.
//!
//! Others hold addresses of memory (filters, zero-copy) or do something (membership of groups); those are not reached
//! from here, whatever number is given.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use super::check;

/// Bytes of the longest value.
const VALUE_BYTES: usize = 256;

const SOCKET: i32 = libc::SOL_SOCKET;
const IP: i32 = libc::IPPROTO_IP;
const IPV6: i32 = libc::IPPROTO_IPV6;
const TCP: i32 = libc::IPPROTO_TCP;
const UDP: i32 = libc::IPPROTO_UDP;
const RAW: i32 = libc::SOL_RAW;
const ICMPV6: i32 = libc::IPPROTO_ICMPV6;
const NETLINK: i32 = libc::SOL_NETLINK;
const PACKET: i32 = libc::SOL_PACKET;

/// What a program needs to set an option to something else than a new socket has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// Nothing.
    Nothing,
    /// CAP_NET_RAW or CAP_NET_ADMIN over its network namespace.
    Network,
    /// CAP_NET_ADMIN over its network namespace.
    NetworkAdministration,
    /// CAP_NET_BROADCAST over its network namespace.
    Broadcast,
    /// CAP_NET_ADMIN over the machine.
    Machine,
}

/// An option: how it is read and how it is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plain {
    /// Level.
    pub level: i32,
    /// Name to read it by.
    pub get: i32,
    /// Name to set it by: another one where limits would be in the way.
    pub set: i32,
    /// What is set is half of what is read (the kernel doubles it).
    pub halved: bool,
    /// It must be set when everything else is done: filling a queue, listening.
    pub late: bool,
    /// What a program must have to set it.
    pub needs: Needs,
}

const fn plain(level: i32, name: i32) -> Plain {
    Plain { level, get: name, set: name, halved: false, late: false, needs: Needs::Nothing }
}

const fn privileged(level: i32, name: i32, needs: Needs) -> Plain {
    Plain { needs, ..plain(level, name) }
}

const fn late(level: i32, name: i32) -> Plain {
    Plain { late: true, ..plain(level, name) }
}

/// Every option that is known to be plain, in the order in which they are to be set.
pub const PLAIN: &[Plain] = &[
    privileged(SOCKET, libc::SO_DEBUG, Needs::Machine),
    plain(SOCKET, libc::SO_REUSEADDR),
    plain(SOCKET, libc::SO_REUSEPORT),
    plain(SOCKET, libc::SO_BROADCAST),
    plain(SOCKET, libc::SO_DONTROUTE),
    plain(SOCKET, libc::SO_KEEPALIVE),
    plain(SOCKET, libc::SO_OOBINLINE),
    plain(SOCKET, libc::SO_LINGER),
    plain(SOCKET, libc::SO_BINDTODEVICE),
    privileged(SOCKET, libc::SO_MARK, Needs::Network),
    plain(SOCKET, libc::SO_NO_CHECK),
    // After SO_MARK and IP_TOS, which change it.
    plain(IP, libc::IP_TOS),
    privileged(SOCKET, libc::SO_PRIORITY, Needs::Network),
    plain(SOCKET, libc::SO_PASSCRED),
    plain(SOCKET, libc::SO_PASSSEC),
    plain(SOCKET, SO_PASSPIDFD),
    late(SOCKET, SO_PASSRIGHTS),
    plain(SOCKET, libc::SO_RCVTIMEO),
    plain(SOCKET, libc::SO_SNDTIMEO),
    plain(SOCKET, libc::SO_TIMESTAMP),
    plain(SOCKET, libc::SO_TIMESTAMPNS),
    plain(SOCKET, SO_TIMESTAMP_NEW),
    plain(SOCKET, SO_TIMESTAMPNS_NEW),
    plain(SOCKET, libc::SO_TIMESTAMPING),
    // After the old one: which of the two was set decides the form of what the program gets.
    plain(SOCKET, SO_TIMESTAMPING_NEW),
    privileged(SOCKET, libc::SO_TXTIME, Needs::NetworkAdministration),
    plain(SOCKET, libc::SO_SELECT_ERR_QUEUE),
    plain(SOCKET, libc::SO_WIFI_STATUS),
    plain(SOCKET, libc::SO_NOFCS),
    plain(SOCKET, libc::SO_RXQ_OVFL),
    privileged(SOCKET, libc::SO_BUSY_POLL, Needs::NetworkAdministration),
    privileged(SOCKET, libc::SO_PREFER_BUSY_POLL, Needs::NetworkAdministration),
    plain(SOCKET, libc::SO_MAX_PACING_RATE),
    plain(SOCKET, libc::SO_ZEROCOPY),
    plain(SOCKET, SO_TXREHASH),
    privileged(SOCKET, SO_RCVMARK, Needs::Network),
    privileged(SOCKET, SO_RCVPRIORITY, Needs::Network),
    late(SOCKET, SO_INQ),
    Plain { set: libc::SO_SNDBUFFORCE, halved: true, ..late(SOCKET, libc::SO_SNDBUF) },
    Plain { set: libc::SO_RCVBUFFORCE, halved: true, ..late(SOCKET, libc::SO_RCVBUF) },
    late(SOCKET, SO_BUF_LOCK),
    late(SOCKET, libc::SO_RCVLOWAT),
    late(SOCKET, libc::SO_PEEK_OFF),
    late(SOCKET, libc::SO_LOCK_FILTER),
    plain(IP, libc::IP_TTL),
    plain(IP, libc::IP_HDRINCL),
    plain(IP, libc::IP_OPTIONS),
    plain(IP, libc::IP_RECVOPTS),
    plain(IP, libc::IP_RETOPTS),
    plain(IP, libc::IP_PKTINFO),
    plain(IP, libc::IP_MTU_DISCOVER),
    plain(IP, libc::IP_RECVERR),
    plain(IP, libc::IP_RECVTTL),
    plain(IP, libc::IP_RECVTOS),
    plain(IP, libc::IP_FREEBIND),
    plain(IP, libc::IP_PASSSEC),
    privileged(IP, libc::IP_TRANSPARENT, Needs::Network),
    plain(IP, libc::IP_RECVORIGDSTADDR),
    plain(IP, libc::IP_MINTTL),
    plain(IP, libc::IP_NODEFRAG),
    plain(IP, IP_CHECKSUM),
    plain(IP, libc::IP_BIND_ADDRESS_NO_PORT),
    plain(IP, IP_RECVFRAGSIZE),
    plain(IP, IP_RECVERR_RFC4884),
    plain(IP, libc::IP_MULTICAST_IF),
    plain(IP, libc::IP_MULTICAST_TTL),
    plain(IP, libc::IP_MULTICAST_LOOP),
    plain(IP, libc::IP_MULTICAST_ALL),
    plain(IP, IP_UNICAST_IF),
    plain(IP, IP_LOCAL_PORT_RANGE),
    plain(IPV6, libc::IPV6_V6ONLY),
    plain(IPV6, libc::IPV6_UNICAST_HOPS),
    plain(IPV6, libc::IPV6_MULTICAST_IF),
    plain(IPV6, libc::IPV6_MULTICAST_HOPS),
    plain(IPV6, libc::IPV6_MULTICAST_LOOP),
    plain(IPV6, libc::IPV6_MULTICAST_ALL),
    plain(IPV6, libc::IPV6_MTU_DISCOVER),
    plain(IPV6, libc::IPV6_RECVERR),
    plain(IPV6, libc::IPV6_FLOWINFO),
    plain(IPV6, libc::IPV6_FLOWINFO_SEND),
    plain(IPV6, libc::IPV6_RECVPKTINFO),
    plain(IPV6, libc::IPV6_RECVHOPLIMIT),
    plain(IPV6, libc::IPV6_RECVRTHDR),
    plain(IPV6, libc::IPV6_RECVHOPOPTS),
    plain(IPV6, libc::IPV6_RECVDSTOPTS),
    plain(IPV6, libc::IPV6_RECVTCLASS),
    plain(IPV6, libc::IPV6_TCLASS),
    plain(IPV6, libc::IPV6_DONTFRAG),
    plain(IPV6, IPV6_2292PKTINFO),
    plain(IPV6, IPV6_2292HOPOPTS),
    plain(IPV6, IPV6_2292DSTOPTS),
    plain(IPV6, IPV6_2292RTHDR),
    plain(IPV6, IPV6_2292HOPLIMIT),
    plain(IPV6, libc::IPV6_RECVPATHMTU),
    plain(IPV6, IPV6_RECVFRAGSIZE),
    plain(IPV6, IPV6_ROUTER_ALERT_ISOLATE),
    plain(IPV6, IPV6_HDRINCL),
    plain(IPV6, libc::IPV6_CHECKSUM),
    privileged(IPV6, libc::IPV6_HOPOPTS, Needs::Network),
    privileged(IPV6, libc::IPV6_RTHDRDSTOPTS, Needs::Network),
    plain(IPV6, libc::IPV6_RTHDR),
    privileged(IPV6, libc::IPV6_DSTOPTS, Needs::Network),
    plain(IPV6, libc::IPV6_AUTOFLOWLABEL),
    plain(IPV6, libc::IPV6_ADDR_PREFERENCES),
    plain(IPV6, libc::IPV6_MINHOPCOUNT),
    plain(IPV6, libc::IPV6_RECVORIGDSTADDR),
    privileged(IPV6, libc::IPV6_TRANSPARENT, Needs::Network),
    plain(IPV6, libc::IPV6_FREEBIND),
    plain(IPV6, IPV6_UNICAST_IF),
    plain(IPV6, IPV6_RECVERR_RFC4884),
    plain(TCP, libc::TCP_NODELAY),
    plain(TCP, libc::TCP_MAXSEG),
    plain(TCP, libc::TCP_CORK),
    plain(TCP, libc::TCP_KEEPIDLE),
    plain(TCP, libc::TCP_KEEPINTVL),
    plain(TCP, libc::TCP_KEEPCNT),
    plain(TCP, libc::TCP_SYNCNT),
    plain(TCP, libc::TCP_LINGER2),
    plain(TCP, libc::TCP_DEFER_ACCEPT),
    plain(TCP, libc::TCP_WINDOW_CLAMP),
    privileged(TCP, libc::TCP_CONGESTION, Needs::NetworkAdministration),
    plain(TCP, libc::TCP_USER_TIMEOUT),
    plain(TCP, libc::TCP_THIN_LINEAR_TIMEOUTS),
    plain(TCP, libc::TCP_FASTOPEN),
    plain(TCP, TCP_NOTSENT_LOWAT),
    plain(TCP, libc::TCP_FASTOPEN_CONNECT),
    plain(TCP, TCP_FASTOPEN_NO_COOKIE),
    plain(TCP, libc::TCP_SAVE_SYN),
    plain(TCP, TCP_INQ),
    plain(TCP, TCP_TX_DELAY),
    plain(TCP, libc::TCP_FASTOPEN_KEY),
    plain(TCP, TCP_RTO_MAX_MS),
    plain(TCP, TCP_RTO_MIN_US),
    plain(TCP, TCP_DELACK_MAX_US),
    plain(UDP, libc::UDP_CORK),
    plain(UDP, UDP_ENCAP),
    plain(UDP, UDP_NO_CHECK6_TX),
    plain(UDP, UDP_NO_CHECK6_RX),
    plain(UDP, libc::UDP_SEGMENT),
    plain(UDP, libc::UDP_GRO),
    plain(RAW, ICMP_FILTER),
    plain(ICMPV6, ICMPV6_FILTER),
    plain(NETLINK, libc::NETLINK_PKTINFO),
    plain(NETLINK, libc::NETLINK_BROADCAST_ERROR),
    plain(NETLINK, libc::NETLINK_NO_ENOBUFS),
    privileged(NETLINK, libc::NETLINK_LISTEN_ALL_NSID, Needs::Broadcast),
    plain(NETLINK, libc::NETLINK_CAP_ACK),
    plain(NETLINK, libc::NETLINK_EXT_ACK),
    plain(NETLINK, libc::NETLINK_GET_STRICT_CHK),
    plain(PACKET, libc::PACKET_COPY_THRESH),
    plain(PACKET, libc::PACKET_AUXDATA),
    plain(PACKET, libc::PACKET_ORIGDEV),
    plain(PACKET, libc::PACKET_VERSION),
    plain(PACKET, libc::PACKET_RESERVE),
    plain(PACKET, libc::PACKET_LOSS),
    plain(PACKET, libc::PACKET_VNET_HDR),
    // After PACKET_VNET_HDR, which changes it.
    plain(PACKET, PACKET_VNET_HDR_SZ),
    plain(PACKET, libc::PACKET_TIMESTAMP),
    plain(PACKET, PACKET_TX_HAS_OFF),
    plain(PACKET, PACKET_QDISC_BYPASS),
    plain(PACKET, PACKET_IGNORE_OUTGOING),
];

// Numbers of `include/uapi` that libc does not have.
const SO_TIMESTAMP_NEW: i32 = 63;
const SO_TIMESTAMPNS_NEW: i32 = 64;
const SO_TIMESTAMPING_NEW: i32 = 65;
const SO_BUF_LOCK: i32 = 72;
const SO_TXREHASH: i32 = 74;
const SO_RCVMARK: i32 = 75;
const SO_PASSPIDFD: i32 = 76;
const SO_RCVPRIORITY: i32 = 82;
const SO_PASSRIGHTS: i32 = 83;
const SO_INQ: i32 = 84;
const IP_CHECKSUM: i32 = 23;
const IP_RECVFRAGSIZE: i32 = 25;
const IP_RECVERR_RFC4884: i32 = 26;
const IP_UNICAST_IF: i32 = 50;
const IP_LOCAL_PORT_RANGE: i32 = 51;
const IPV6_2292PKTINFO: i32 = 2;
const IPV6_2292HOPOPTS: i32 = 3;
const IPV6_2292DSTOPTS: i32 = 4;
const IPV6_2292RTHDR: i32 = 5;
const IPV6_2292HOPLIMIT: i32 = 8;
const IPV6_ROUTER_ALERT_ISOLATE: i32 = 30;
const IPV6_HDRINCL: i32 = 36;
const IPV6_UNICAST_IF: i32 = 76;
const IPV6_RECVFRAGSIZE: i32 = 77;
const IPV6_RECVERR_RFC4884: i32 = 31;
const TCP_NOTSENT_LOWAT: i32 = 25;
const TCP_FASTOPEN_NO_COOKIE: i32 = 34;
const TCP_INQ: i32 = 36;
const TCP_TX_DELAY: i32 = 37;
const TCP_RTO_MAX_MS: i32 = 44;
const TCP_RTO_MIN_US: i32 = 45;
const TCP_DELACK_MAX_US: i32 = 46;
const UDP_ENCAP: i32 = 100;
const UDP_NO_CHECK6_TX: i32 = 101;
const UDP_NO_CHECK6_RX: i32 = 102;
const ICMP_FILTER: i32 = 1;
const ICMPV6_FILTER: i32 = 1;
const PACKET_TX_HAS_OFF: i32 = 19;
const PACKET_QDISC_BYPASS: i32 = 20;
const PACKET_IGNORE_OUTGOING: i32 = 23;
const PACKET_VNET_HDR_SZ: i32 = 24;

impl Plain {
    /// The option that is read by this number; `None` if it is not one of [`PLAIN`].
    pub fn find(level: i32, get: i32) -> Option<&'static Self> {
        PLAIN.iter().find(|option| option.level == level && option.get == get)
    }
}

/// Reads an option.
pub fn get(socket: impl AsFd, option: &Plain) -> io::Result<Vec<u8>> {
    let known = Plain::find(option.level, option.get).ok_or(io::ErrorKind::InvalidInput)?;
    let mut value = vec![0; VALUE_BYTES];
    let mut len = VALUE_BYTES as libc::socklen_t;
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: the kernel writes at most `len` bytes to `value`, which has as many; options that are listed as plain
    // write nowhere else.
    check(unsafe { libc::getsockopt(fd, known.level, known.get, value.as_mut_ptr().cast(), &raw mut len) })?;
    value.truncate(len as usize);
    Ok(value)
}

/// Sets an option to what [`get`] has read.
pub fn set(socket: impl AsFd, option: &Plain, value: &[u8]) -> io::Result<()> {
    let known = Plain::find(option.level, option.get).ok_or(io::ErrorKind::InvalidInput)?;
    let halved;
    let mut value = value;
    if known.halved {
        let whole = i32::from_ne_bytes(value.try_into().map_err(|_| io::ErrorKind::InvalidInput)?);
        halved = (whole / 2).to_ne_bytes();
        value = &halved;
    }
    let (fd, len) = (socket.as_fd().as_raw_fd(), value.len() as libc::socklen_t);
    // SAFETY: the kernel reads `len` bytes from `value`; options that are listed as plain read nothing else.
    check(unsafe { libc::setsockopt(fd, known.level, known.set, value.as_ptr().cast(), len) }).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, UdpSocket};

    #[test]
    fn every_option_is_there_once() {
        for (n, option) in PLAIN.iter().enumerate() {
            let again = PLAIN[..n].iter().find(|other| (other.level, other.get) == (option.level, option.get));
            assert_eq!(again, None);
        }
    }

    #[test]
    fn what_is_read_can_be_set() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let size = Plain::find(SOCKET, libc::SO_RCVBUF).unwrap();
        let before = get(&socket, size).unwrap();
        set(&socket, size, &400_000_i32.to_ne_bytes()).unwrap();
        assert_eq!(get(&socket, size).unwrap(), 400_000_i32.to_ne_bytes());
        set(&socket, size, &before).unwrap();
        assert_eq!(get(&socket, size).unwrap(), before);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let congestion = Plain::find(TCP, libc::TCP_CONGESTION).unwrap();
        set(&listener, congestion, b"reno").unwrap();
        assert!(get(&listener, congestion).unwrap().starts_with(b"reno\0"));
    }

    #[test]
    fn options_with_addresses_in_them_are_not_reached() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let filter = plain(SOCKET, libc::SO_ATTACH_FILTER);
        assert!(set(&socket, &filter, &[0; 16]).is_err());
        assert!(get(&socket, &filter).is_err());
    }
}
