//! Established TCP connections, by `TCP_REPAIR`.
//!
//! A connection is what both of its ends know: a byte that one has acknowledged is not in the other's queue any more. So both must
//! be read as of one moment, or what one says must be older.
//!
//! ```text
//! both ends in the tree    read again until no end has been told more than the other's image has (the processes stand still,
//!                          so only what was on its way moves); made again, they talk to each other by themselves
//! the other end outside    its packets are kept away by a ConnectionLock from before it is read until it is there again: else
//!                          the kernel would acknowledge what is in no image, or answer with a reset
//! ```
//! A socket is in repair mode only while it is read; a program whose capture is killed in between would find it dead, did not a
//! [`CrashGuard`](torpor_linux::guard::Guard) put it right. Where the tree is ended, duplicates of its connections are put into repair mode as soon as it cannot run again ([`silence`]), and are
//! closed after it: without a word.
//!
//! # Making
//! [`restore::restore`] connects without a packet and fills the queues; [`restore::go_on`], when all sockets are there, writes what had not
//! been sent, and shuts down what was shut down. The end of the stream that an outside peer has sent is said again in its name by
//! a packet of our own ([`packet`]), which the lock lets through by its mark. The lock goes when the program runs, for what the
//! kernel acknowledges before that is lost with a restore that fails; then [`restore::nudge`] makes up for what it has dropped.

mod dump;
mod packet;
pub(crate) mod restore;

use std::net::{IpAddr, SocketAddr};

use crate::contract::connections::Ends;
use torpor_image::tree::{FileKind, InetState, Machine, Tree};
use torpor_linux::closer::AppFile;
use torpor_linux::tcp::repair::{Mode, repair};
use torpor_linux::uapi::tcp::{
    TCP_CLOSE_WAIT, TCP_CLOSING, TCP_ESTABLISHED, TCP_FIN_WAIT1, TCP_FIN_WAIT2, TCP_LAST_ACK,
};

pub(crate) use self::dump::{Connections, shut_for_reading, take};

/// States with a peer that knows of the connection.
const CONNECTED: [u8; 6] = [TCP_ESTABLISHED, TCP_FIN_WAIT1, TCP_FIN_WAIT2, TCP_CLOSE_WAIT, TCP_LAST_ACK, TCP_CLOSING];
/// The program has ended its side, and the peer has not acknowledged that.
const OWN_END_WAITS: [u8; 3] = [TCP_FIN_WAIT1, TCP_LAST_ACK, TCP_CLOSING];
/// The peer has ended its side.
const PEER_ENDED: [u8; 3] = [TCP_CLOSE_WAIT, TCP_LAST_ACK, TCP_CLOSING];

/// The name under which an image's connections are locked.
pub fn lock_name(machine: &Machine) -> String {
    format!("torpor_tcp_{:x}", machine.boot[0] ^ machine.monotonic_ns)
}

/// Connections of a tree whose other ends are outside.
pub fn outside(tree: &Tree) -> Vec<Ends> {
    let ends = tree.files.iter().filter_map(|file| match &file.kind {
        FileKind::Inet(socket) => match &socket.state {
            InetState::Established { repair: Some(connection) } if connection.outside => {
                Some((address(&socket.local)?, address(&socket.remote)?))
            }
            _ => None,
        },
        _ => None,
    });
    ends.collect()
}

/// A `sockaddr`; IPv4 addresses mapped into IPv6 are IPv4's.
fn address(bytes: &[u8]) -> Option<SocketAddr> {
    let port = u16::from_be_bytes(*bytes.get(2..4)?.first_chunk()?);
    let ip: IpAddr = if super::is_v4(bytes) {
        <[u8; 4]>::try_from(bytes.get(4..8)?).ok()?.into()
    } else {
        <[u8; 16]>::try_from(bytes.get(8..24)?).ok()?.into()
    };
    Some(SocketAddr::new(ip.to_canonical(), port))
}

/// From now on connections whose processes never run again tell their peers nothing, whoever closes them last.
pub fn silence(connections: &[AppFile]) {
    for fd in connections {
        // Those that cannot be put into repair mode have ended meanwhile: nobody is there to be told.
        let _ = repair(fd, Mode::On);
    }
}
