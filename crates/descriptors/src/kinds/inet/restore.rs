//! Restoring an Internet socket.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{listen, sockopt};
use torpor_image::tree::{FileId, FileKind, InetSocket, InetState, OpenFile};
use torpor_linux::socket;
use torpor_linux::uapi::socket::{AF_INET, IPPROTO_TCP, SOCK_STREAM};

use super::port::Sharing;
use super::{datagram, port, shown, tcp};
use crate::context::Network;
use crate::contract::error::RestoreFileError;
use crate::kinds::socket::Kind;
use crate::kinds::socket::options::{self, fresh};
use crate::locks;

/// First half of making: the socket with its address. Where the network has been made since, an address of the program's own
/// is gone: the socket stays bound to it, as it would to one that is removed.
/// `shares`: another socket of the tree has its port, see [`super::port`].
pub(crate) fn restore(
    socket: &InetSocket,
    network: Network,
    shares: Option<Sharing>,
) -> Result<OwnedFd, RestoreFileError> {
    let name = shown(socket);
    match &socket.state {
        InetState::Established { repair: None } => return reset(socket),
        InetState::Established { repair: Some(connection) } => return tcp::restore::restore(socket, connection, &name),
        _ => {}
    }
    let fd = fresh(socket.kind).map_err(RestoreFileError::at("making", &*name))?;
    options::set_early_in(&fd, &socket.options, network, &name)?;
    if let Some(sharing) = shares {
        sharing.allow(&fd).map_err(RestoreFileError::at("preparing", &*name))?;
    }
    if !socket.local.is_empty() {
        let bind = || match socket::bind(&fd, &socket.local) {
            Err(error) if network == Network::New && options::is_gone(&error) => bind_free(&fd, socket),
            bound => bound,
        };
        // Connections that the old socket had may linger (TIME_WAIT); they are in nobody's way.
        if socket.kind.1 == SOCK_STREAM {
            reusing(&fd, bind, &name, "binding")?;
        } else {
            bind().map_err(RestoreFileError::at("binding", &*name))?;
        }
    }
    Ok(fd)
}

/// Binds it to an address that is not there.
fn bind_free(fd: &OwnedFd, socket: &InetSocket) -> io::Result<()> {
    let ipv4 = socket.kind.0 == AF_INET;
    let before = if ipv4 { sockopt::ip_freebind(fd)? } else { sockopt::ipv6_freebind(fd)? };
    let set = |value| if ipv4 { sockopt::set_ip_freebind(fd, value) } else { sockopt::set_ipv6_freebind(fd, value) };
    set(true)?;
    socket::bind(fd, &socket.local)?;
    Ok(set(before)?)
}

/// Does something with a socket whose port may be in use by connections.
fn reusing<E: Into<io::Error>>(
    fd: &OwnedFd,
    work: impl FnOnce() -> Result<(), E>,
    name: &str,
    step: &'static str,
) -> Result<(), RestoreFileError> {
    let reuse = sockopt::socket_reuseaddr(fd).map_err(RestoreFileError::at("looking at", name))?;
    let set = |value| sockopt::set_socket_reuseaddr(fd, value).map_err(RestoreFileError::at("preparing", name));
    set(true)?;
    work().map_err(RestoreFileError::at(step, name))?;
    set(reuse)
}

/// A connection within the tree over an address that is not this network's. Where that cannot be told, making it fails and says why.
pub(crate) fn has_lost_address(socket: &InetSocket) -> bool {
    [&socket.local, &socket.remote].into_iter().any(|end| {
        let mut address = end.clone();
        // Any port.
        if let Some(port) = address.get_mut(2..4) {
            port.fill(0);
        }
        let bound = fresh(socket.kind).map_err(io::Error::from).and_then(|fd| socket::bind(&fd, &address));
        bound.is_err_and(|error| options::is_gone(&error))
    })
}

/// A TCP socket whose peer has reset the connection, as programs know it from networks that fail.
pub(crate) fn reset(socket: &InetSocket) -> Result<OwnedFd, RestoreFileError> {
    made_reset(socket.kind).map_err(RestoreFileError::at("resetting", shown(socket)))
}

fn made_reset(kind: Kind) -> rustix::io::Result<OwnedFd> {
    let fd = fresh(kind)?;
    let loopback: IpAddr = if kind.0 == AF_INET { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() };
    // Its peer is plain TCP: what it does is all that counts.
    let peer = fresh((kind.0, SOCK_STREAM, IPPROTO_TCP))?;
    rustix::net::bind(&peer, &SocketAddr::new(loopback, 0))?;
    listen(&peer, 1)?;
    let there = rustix::net::getsockname(&peer)?;
    rustix::net::connect(&fd, &there)?;
    let accepted = rustix::net::accept(&peer)?;
    // Closing it now sends a reset.
    sockopt::set_socket_linger(&accepted, Some(Duration::ZERO))?;
    Ok(fd)
}

/// Both halves of all sockets that are `wanted`, in a network that was made anew: those that others reach.
pub fn restore_listeners(
    files: &[OpenFile],
    wanted: impl Fn(&InetSocket) -> bool,
) -> Result<BTreeMap<FileId, OwnedFd>, RestoreFileError> {
    let ports = port::shared(files);
    let sockets: Vec<(FileId, &OpenFile, &InetSocket)> = (0..)
        .zip(files)
        .filter_map(|(id, file)| match &file.kind {
            FileKind::Inet(socket) if wanted(socket) => Some((id, file, &**socket)),
            _ => None,
        })
        .collect();
    let mut made = BTreeMap::new();
    for (id, _, socket) in &sockets {
        made.insert(*id, restore(socket, Network::New, ports.get(id).copied())?);
    }
    for (id, file, socket) in &sockets {
        finish(&made[id], socket, file, Network::New)?;
    }
    for (id, _, socket) in &sockets {
        ports.get(id).map_or(Ok(()), |sharing| sharing.settle(&made[id], socket))?;
    }
    Ok(made)
}

/// Second half: what it does with its address.
pub(crate) fn finish(
    fd: &OwnedFd,
    socket: &InetSocket,
    file: &OpenFile,
    network: Network,
) -> Result<(), RestoreFileError> {
    let name = shown(socket);
    match &socket.state {
        InetState::Listening { backlog } => {
            // Connections of the tree may have its port by now.
            let backlog = (*backlog).min(i32::MAX as u32) as i32;
            reusing(fd, || listen(fd, backlog), &name, "listening on")?;
        }
        InetState::Idle => {
            if !socket.queue.is_empty() {
                datagram::fill(fd, socket).map_err(RestoreFileError::at("filling", &*name))?;
            }
            if !socket.remote.is_empty() {
                let connected = socket::connect(fd, &socket.remote);
                options::unless_gone(connected, network).map_err(RestoreFileError::at("connecting", &*name))?;
            }
            let how = match socket.shut & 3 {
                1 => Some(rustix::net::Shutdown::Read),
                2 => Some(rustix::net::Shutdown::Write),
                3 => Some(rustix::net::Shutdown::Both),
                _ => None,
            };
            if let Some(how) = how {
                match rustix::net::shutdown(fd, how) {
                    // It is shut all the same.
                    Err(Errno::NOTCONN) if socket.kind.1 != SOCK_STREAM => {}
                    other => other.map_err(RestoreFileError::at("shutting", &*name))?,
                }
            }
        }
        // What is left of one that was made waits for the others.
        InetState::Established { .. } => return locks::set_flags(fd, file, &name),
        InetState::Closed => {
            return Err(RestoreFileError::at("making a connection of", name)(Errno::OPNOTSUPP));
        }
    }
    options::set_late(fd, &socket.options, &name)?;
    locks::set_flags(fd, file, &name)
}
