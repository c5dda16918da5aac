//! Netlink sockets that only ask, or listen to what the kernel announces.
//!
//! Those of other protocols (netfilter's queues, audit, connectors) have state in the kernel that cannot be seen.

use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use torpor_image::tree::{FileId, FileKind, NetlinkPeer, OpenFile, SocketOption};
use torpor_linux::socket;
use torpor_linux::uapi::socket::{
    AF_NETLINK, NETLINK_GENERIC, NETLINK_KOBJECT_UEVENT, NETLINK_ROUTE, NETLINK_SOCK_DIAG,
};

use crate::contract::error::RestoreFileError;
use crate::contract::reason::{Described, Reason};
use crate::kinds::socket::Kind;
use crate::kinds::socket::options::{self, Defaults, fresh};
use crate::list::Item;
use crate::locks;

/// Groups of the address; those above are joined one by one.
const ADDRESS_GROUPS: u32 = 32;

pub(crate) fn describe(
    (peers, defaults): (&mut Vec<NetlinkPeer>, &mut Defaults),
    id: FileId,
    item: &Item,
    kind: Kind,
) -> Described<FileKind> {
    if ![NETLINK_ROUTE, NETLINK_SOCK_DIAG, NETLINK_KOBJECT_UEVENT, NETLINK_GENERIC].contains(&kind.2) {
        let what = format!("a netlink socket of protocol {}, whose state in the kernel cannot be seen", kind.2);
        return Err(Reason::parkable(what, "close it before the checkpoint"));
    }
    let mut polled = [PollFd::new(&item.fd, PollFlags::IN)];
    poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))?;
    if !polled[0].revents().is_empty() {
        let what = "a netlink socket with messages that the program has not read";
        return Err(Reason::parkable(what, "try again when it has"));
    }
    let (port, _) = port_and_groups(&socket::local_address(&item.fd)?);
    match port_and_groups(&socket::remote_address(&item.fd)?.unwrap_or_default()) {
        (0, 0) => {}
        (port, groups) => peers.push(NetlinkPeer { file: id, port, groups }),
    }
    Ok(FileKind::Netlink {
        kind: (kind.1, kind.2),
        port,
        groups: socket::netlink_groups(&item.fd)?,
        options: defaults.options(&item.fd, kind)?,
    })
}

/// A `sockaddr_nl`: family, padding, port id, groups 1 to 32.
fn address(port: u32, groups: u32) -> Vec<u8> {
    let mut address = (AF_NETLINK as u16).to_ne_bytes().to_vec();
    address.extend_from_slice(&[0, 0]);
    address.extend_from_slice(&port.to_ne_bytes());
    address.extend_from_slice(&groups.to_ne_bytes());
    address
}

fn port_and_groups(address: &[u8]) -> (u32, u32) {
    let word = |at: usize| address.get(at..at + 4).and_then(|word| word.try_into().ok()).map_or(0, u32::from_ne_bytes);
    (word(4), word(8))
}

pub(crate) fn restore(
    (kind, port): ((i32, i32), u32),
    groups: &[u32],
    options: &[SocketOption],
    peer: Option<&NetlinkPeer>,
    file: &OpenFile,
) -> Result<OwnedFd, RestoreFileError> {
    const NAME: &str = "a netlink socket";
    let fd = fresh((AF_NETLINK, kind.0, kind.1)).map_err(RestoreFileError::at("making", NAME))?;
    options::set_early(&fd, options, NAME)?;
    let (low, high): (Vec<u32>, Vec<u32>) = groups.iter().partition(|group| **group <= ADDRESS_GROUPS);
    if port != 0 || !low.is_empty() {
        let bits = low.iter().fold(0_u32, |bits, group| bits | 1_u32.checked_shl(group.wrapping_sub(1)).unwrap_or(0));
        socket::bind(&fd, &address(port, bits)).map_err(RestoreFileError::at("binding", NAME))?;
    }
    for group in high {
        socket::join_netlink_group(&fd, group).map_err(RestoreFileError::at("joining a group with", NAME))?;
    }
    if let Some(peer) = peer {
        socket::connect(&fd, &address(peer.port, peer.groups)).map_err(RestoreFileError::at("connecting", NAME))?;
    }
    options::set_late(&fd, options, NAME)?;
    locks::set_flags(&fd, file, NAME)?;
    Ok(fd)
}
