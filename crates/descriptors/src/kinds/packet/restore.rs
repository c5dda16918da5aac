//! Restoring a packet socket.

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::netdevice::name_to_index;
use torpor_image::tree::{OpenFile, PacketSocket};
use torpor_linux::socket;
use torpor_linux::uapi::socket::AF_PACKET;

use crate::context::Network;
use crate::contract::error::RestoreFileError;
use crate::kinds::socket::options::{self, fresh};
use crate::locks;

/// `ret #0`: takes nothing.
const NOTHING: [u8; 8] = [6, 0, 0, 0, 0, 0, 0, 0];
const NAME: &str = "a packet socket";

/// A socket with its address, which takes nothing yet.
pub(crate) fn restore(socket: &PacketSocket, file: &OpenFile, network: Network) -> Result<OwnedFd, RestoreFileError> {
    let fd = fresh((AF_PACKET, socket.kind, 0)).map_err(RestoreFileError::at("making", NAME))?;
    let index = |name: &[u8]| {
        let text = String::from_utf8_lossy(name);
        match name_to_index(&fd, &text) {
            Err(Errno::NODEV) if network == Network::New => Ok(None),
            found => found.map(Some).map_err(RestoreFileError::at("looking for interface", &*text)),
        }
    };
    options::set_early_in(&fd, &socket.options, network, NAME)?;
    socket::attach_filter(&fd, &NOTHING).map_err(RestoreFileError::at("making", NAME))?;
    let interface = if socket.interface.is_empty() { Some(0) } else { index(&socket.interface)? };
    if let Some(interface) = interface
        && (socket.protocol != 0 || interface != 0)
    {
        let address = address(socket.protocol, interface);
        socket::bind(&fd, &address).map_err(RestoreFileError::at("binding", NAME))?;
    }
    for membership in &socket.memberships {
        let Some(interface) = index(&membership.interface)? else { continue };
        for _ in 0..membership.count {
            let asked = socket::packet_membership(&fd, interface, membership.kind, &membership.address);
            asked.map_err(RestoreFileError::at("asking for packets for", NAME))?;
        }
    }
    locks::set_flags(&fd, file, NAME)?;
    Ok(fd)
}

/// From now on it takes packets.
pub(crate) fn listen(fd: &OwnedFd, socket: &PacketSocket) -> Result<(), RestoreFileError> {
    if !options::has_filter(&socket.options) {
        socket::detach_filter(fd).map_err(RestoreFileError::at("opening", NAME))?;
    }
    options::set_late(fd, &socket.options, NAME)
}

/// A `sockaddr_ll`.
fn address(protocol: u16, interface: u32) -> [u8; 20] {
    let mut address = [0; 20];
    address[..2].copy_from_slice(&(AF_PACKET as u16).to_ne_bytes());
    address[2..4].copy_from_slice(&protocol.to_be_bytes());
    address[4..8].copy_from_slice(&interface.to_ne_bytes());
    address
}
