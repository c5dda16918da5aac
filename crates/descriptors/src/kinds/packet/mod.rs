//! Packet sockets (`packet(7)`): sniffers, DHCP clients, protocols of their own.
//!
//! Protocol, interface and memberships come from the kernel's list, options from the socket. Refused are what others can
//! see or what cannot be read: ring buffers, groups of sockets that share the packets (fanout), packets that have not been read.
//! What it has counted (`PACKET_STATISTICS`) begins anew, for to read it is to clear it.
//!
//! A socket that is made again takes no packets, by a filter, before the tree goes on ([`listen`]): what restoring itself
//! sends is none of the program's business. Interfaces are found by their names. Where the network has been made anew since, those of the
//! program's own are gone: the socket is then as one whose interface has been removed, which takes nothing.

mod dump;
mod restore;

pub(crate) use self::dump::describe;
pub(crate) use self::restore::{listen, restore};
