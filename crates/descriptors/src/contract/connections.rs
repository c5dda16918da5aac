//! Holding back the peers of TCP connections whose other ends are outside of the tree.

use std::io;
use std::net::SocketAddr;

/// Firewall mark of packets that a [`ConnectionLock`] must let through.
pub const PASS_MARK: u32 = 0x746f_7270;

/// A connection by its ends: the program's, and the other one.
pub type Ends = (SocketAddr, SocketAddr);

/// Keeps a connection's peer waiting.
pub trait ConnectionLock: Sync {
    /// From now on no packet passes in either direction, but those with [`PASS_MARK`]; until [`Self::release`] or this process's
    /// end, whatever ends it, and that of what it has forked.
    fn hold(&self, connections: &[Ends]) -> io::Result<()>;
    /// Of the connections that are held, where there is no socket nothing answers; beyond this process's end, under this name.
    fn keep(&self, name: &str) -> io::Result<()>;
    /// Lets packets pass again: of what is held, and of what was kept under this name.
    fn release(&self, name: &str) -> io::Result<()>;
}
