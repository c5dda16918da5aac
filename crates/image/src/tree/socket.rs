//! Sockets.

use serde::{Deserialize, Serialize};

use super::frugal;
use super::{Bytes, FileId, PathState};

/// A value for `setsockopt(2)`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SocketOption {
    /// Level.
    pub level: i32,
    /// Name.
    pub name: i32,
    /// Value.
    #[serde(deserialize_with = "frugal::list")]
    pub value: Bytes,
}

/// A TCP, UDP or raw socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InetSocket {
    /// Family, type and protocol, as given to `socket(2)`.
    pub kind: (i32, i32, i32),
    /// Address that it is bound to: a `sockaddr`, empty if none.
    #[serde(deserialize_with = "frugal::list")]
    pub local: Bytes,
    /// Address that it is connected to: a `sockaddr`, empty if none.
    #[serde(deserialize_with = "frugal::list")]
    pub remote: Bytes,
    /// What it does.
    pub state: InetState,
    /// Its options, in the order in which they are to be set before `bind`.
    #[serde(deserialize_with = "frugal::list")]
    pub options: Vec<SocketOption>,
    /// Datagrams that have not been read.
    #[serde(deserialize_with = "frugal::list")]
    pub queue: Vec<Message>,
    /// `shutdown(2)`: 1 reading, 2 writing.
    pub shut: u8,
}

/// States of an Internet socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum InetState {
    /// Neither listening nor an established stream.
    Idle,
    /// Listens.
    Listening {
        /// Backlog.
        backlog: u32,
    },
    /// An established TCP connection: comes back only if the socket itself is parked, or by `TCP_REPAIR`.
    Established {
        /// What `TCP_REPAIR` needs; absent: only the parked socket will do.
        #[serde(deserialize_with = "frugal::maybe_boxed")]
        repair: Option<Box<Connection>>,
    },
    /// A TCP connection that has ended; reading gives what is left in `queue`, then the end.
    Closed,
}

/// A TCP connection: what its socket knows of it. Sequence numbers are those behind the queues, without ends of the stream.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Connection {
    /// The other end is not in the tree: its packets are kept away until this one is there again.
    pub outside: bool,
    /// Where its state is: `include/net/tcp_states.h`.
    pub state: u8,
    /// Behind what has been received.
    pub received_to: u32,
    /// Behind what has been written.
    pub written_to: u32,
    /// What has been received and not been read.
    #[serde(deserialize_with = "frugal::list")]
    pub received: Bytes,
    /// What has been written and not been acknowledged.
    #[serde(deserialize_with = "frugal::list")]
    pub written: Bytes,
    /// How much of that has been sent.
    pub sent: u32,
    /// Largest segment, bytes.
    pub segment: u32,
    /// Window scales: the peer's and ours.
    pub scale: Option<(u8, u8)>,
    /// Selective acknowledgements.
    pub selective: bool,
    /// Timestamps.
    pub timestamps: bool,
    /// Their clock.
    pub timestamp: u32,
    /// `struct tcp_repair_window`.
    pub window: [u32; 5],
    /// `SO_SNDBUF` and `SO_RCVBUF`.
    pub buffers: (u32, u32),
}

/// A unix socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnixSocket {
    /// `SOCK_STREAM`, `SOCK_DGRAM` or `SOCK_SEQPACKET`.
    pub kind: i32,
    /// Name that it is bound to: begins with a zero byte if it is abstract; empty if none.
    #[serde(deserialize_with = "frugal::list")]
    pub name: Bytes,
    /// The file of a bound socket, if it is still there.
    pub path: Option<PathState>,
    /// What it does.
    pub state: UnixState,
    /// Its options.
    #[serde(deserialize_with = "frugal::list")]
    pub options: Vec<SocketOption>,
    /// Messages that have not been read (for a stream: in one or more pieces).
    #[serde(deserialize_with = "frugal::list")]
    pub queue: Vec<Message>,
    /// `shutdown(2)`: 1 reading, 2 writing.
    pub shut: u8,
    /// `SO_PEERCRED`: process, user, group.
    pub peer_credentials: Option<(i32, u32, u32)>,
}

/// States of a unix socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum UnixState {
    /// Not connected.
    Idle,
    /// Listens.
    Listening {
        /// Backlog.
        backlog: u32,
        /// Connections that wait to be accepted: sockets of the tree that have connected.
        #[serde(deserialize_with = "frugal::list")]
        waiting: Vec<FileId>,
    },
    /// Connected to a socket of the tree.
    Connected {
        /// The other one.
        peer: FileId,
    },
    /// Was connected to a socket that has been closed.
    Lost {
        /// It was closed before it had read everything, and the program has not been told (`ECONNRESET`).
        reset: bool,
    },
}

/// A message that waits in a socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// Its bytes.
    #[serde(deserialize_with = "frugal::list")]
    pub bytes: Bytes,
    /// Descriptors in flight.
    #[serde(deserialize_with = "frugal::list")]
    pub files: Vec<FileId>,
    /// Where it comes from: a `sockaddr`, empty if unknown.
    #[serde(deserialize_with = "frugal::list")]
    pub from: Bytes,
    /// Who sent it (`SCM_CREDENTIALS`): process, user, group.
    pub credentials: Option<(i32, u32, u32)>,
}

/// A packet socket (`packet(7)`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PacketSocket {
    /// `SOCK_RAW` or `SOCK_DGRAM`.
    pub kind: i32,
    /// Protocol of the packets that it takes (`ETH_P_*`); 0: none.
    pub protocol: u16,
    /// Name of the interface that it is bound to; empty: all of them.
    #[serde(deserialize_with = "frugal::list")]
    pub interface: Bytes,
    /// What it has asked of interfaces (`PACKET_ADD_MEMBERSHIP`).
    #[serde(deserialize_with = "frugal::list")]
    pub memberships: Vec<PacketMembership>,
    /// Its options.
    #[serde(deserialize_with = "frugal::list")]
    pub options: Vec<SocketOption>,
}

/// Packets that an interface takes for a socket's sake.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PacketMembership {
    /// Name of the interface.
    #[serde(deserialize_with = "frugal::list")]
    pub interface: Bytes,
    /// `PACKET_MR_*`.
    pub kind: u16,
    /// Address of the group; empty where there is none.
    #[serde(deserialize_with = "frugal::list")]
    pub address: Bytes,
    /// How often it was asked for.
    pub count: u32,
}
