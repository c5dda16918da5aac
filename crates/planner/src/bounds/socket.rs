//! Sockets: kinds that an app may make, with addresses of their family.

use torpor_image::tree::{
    Connection, InetSocket, InetState, Message, PacketMembership, PacketSocket, SocketOption, UnixSocket, UnixState,
};
use torpor_linux::uapi::socket::{
    AF_INET, AF_INET6, IPPROTO_ICMP, IPPROTO_ICMPV6, IPPROTO_MPTCP, IPPROTO_TCP, IPPROTO_UDP, NETLINK_GENERIC,
    NETLINK_KOBJECT_UEVENT, NETLINK_ROUTE, NETLINK_SOCK_DIAG, SOCK_DGRAM, SOCK_RAW, SOCK_SEQPACKET, SOCK_STREAM,
};

use super::{Vetting, capability};

const HIGHEST_PROTOCOL: i32 = 255;
/// `sizeof(struct sockaddr_storage)`.
const ADDRESS_BYTES: usize = 128;
/// `sun_path`.
const NAME_BYTES: usize = 108;
/// Sequenced messages and datagrams of any kind are shorter.
const MESSAGE_BYTES: usize = 64 << 20;

/// Empty, or an address of this family.
fn is_address(address: &[u8], family: i32) -> bool {
    let own = address.first_chunk().is_some_and(|bytes| i32::from(u16::from_ne_bytes(*bytes)) == family);
    address.is_empty() || (own && address.len() <= ADDRESS_BYTES)
}

impl Vetting<'_> {
    pub(super) fn unix(&mut self, socket: &mut UnixSocket) {
        let UnixSocket { kind, name, path, state, options, queue, shut, peer_credentials } = socket;
        let known = [SOCK_STREAM, SOCK_DGRAM, SOCK_SEQPACKET].contains(kind) && *shut <= 3;
        self.sure(known && name.len() <= NAME_BYTES, || format!("a unix socket of type {kind}"));
        // What is not abstract is a path.
        let abstract_name = name.first().is_none_or(|first| *first == 0);
        self.sure(abstract_name || !name.contains(&0), || "a unix socket with a name that cannot be".to_owned());
        if let Some(path) = path {
            self.path(path);
        }
        match state {
            UnixState::Idle
            | UnixState::Listening { backlog: _, waiting: _ }
            | UnixState::Connected { peer: _ }
            | UnixState::Lost { reset: _ } => {}
        }
        self.options(options);
        for Message { bytes, files: _, from, credentials } in queue {
            self.sure(bytes.len() <= MESSAGE_BYTES && from.len() <= ADDRESS_BYTES, || "a message".to_owned());
            if let Some((_, user, group)) = credentials {
                self.users(&[*user, *group], "who sent a message");
            }
        }
        if let Some((_, user, group)) = peer_credentials {
            self.users(&[*user, *group], "the other end of a unix socket");
        }
    }

    pub(super) fn inet(&mut self, socket: &mut InetSocket) {
        let InetSocket { kind, local, remote, state, options, queue, shut } = socket;
        let (family, of_type, protocol) = *kind;
        let known = match (family, of_type) {
            (AF_INET | AF_INET6, SOCK_STREAM) => matches!(protocol, IPPROTO_TCP | IPPROTO_MPTCP),
            // Of the last two, which ping, every program may have one.
            (AF_INET | AF_INET6, SOCK_DGRAM) => matches!(protocol, IPPROTO_UDP | IPPROTO_ICMP | IPPROTO_ICMPV6),
            (AF_INET | AF_INET6, SOCK_RAW) => {
                (0..=HIGHEST_PROTOCOL).contains(&protocol) && self.bounds.has(capability::NET_RAW)
            }
            _ => false,
        };
        self.sure(known && *shut <= 3, || {
            format!("a socket of family {family}, type {of_type} and protocol {protocol} without the capability for it")
        });
        let addressed = is_address(local, family) && is_address(remote, family);
        self.sure(addressed, || "a socket with an address of another family".to_owned());
        match state {
            InetState::Idle | InetState::Listening { backlog: _ } | InetState::Established { repair: None } => {}
            InetState::Established { repair: Some(connection) } => {
                // Its peer speaks with the app that this is a copy of: it is reset.
                let Connection { .. } = **connection;
            }
            InetState::Closed => self.refuse("a connection that has ended"),
        }
        self.options(options);
        for Message { bytes, files: _, from, credentials: _ } in queue {
            let sane = protocol == IPPROTO_UDP && bytes.len() <= usize::from(u16::MAX) && is_address(from, family);
            self.sure(sane, || "a datagram that cannot be".to_owned());
        }
    }

    pub(super) fn netlink(&mut self, (of_type, protocol): (i32, i32), groups: &[u32], options: &mut Vec<SocketOption>) {
        let known = [NETLINK_ROUTE, NETLINK_SOCK_DIAG, NETLINK_KOBJECT_UEVENT, NETLINK_GENERIC].contains(&protocol);
        self.sure(known && [SOCK_RAW, SOCK_DGRAM].contains(&of_type), || {
            format!("a netlink socket of type {of_type} and protocol {protocol}")
        });
        // Which groups need a capability is their families' matter.
        let may = protocol != NETLINK_GENERIC || self.bounds.has(capability::NET_ADMIN);
        self.sure(groups.is_empty() || may, || "groups of generic netlink without CAP_NET_ADMIN".to_owned());
        self.sure(groups.iter().all(|group| *group > 0 && *group <= 1 << 16), || "a group of netlink".to_owned());
        self.options(options);
    }

    pub(super) fn packet(&mut self, socket: &mut PacketSocket) {
        let PacketSocket { kind, protocol: _, interface: _, memberships, options } = socket;
        let may = self.bounds.has(capability::NET_RAW);
        self.sure(may && [SOCK_DGRAM, SOCK_RAW].contains(kind), || "a packet socket without CAP_NET_RAW".to_owned());
        // Their lengths were checked.
        for PacketMembership { interface: _, kind: _, address: _, count: _ } in memberships {}
        self.options(options);
    }
}
