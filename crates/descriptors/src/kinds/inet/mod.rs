//! Internet sockets: TCP that listens or is not connected, UDP, raw.
//!
//! Established connections are [`tcp`]'s. One that is on its way or waits to be accepted is refused.
//!
//! All addresses are bound before the first socket listens or connects, because a listener keeps others from its port.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, ioctl_fionread};
use rustix::net::{listen, sockopt};
use torpor_image::tree::{FileId, FileKind, InetSocket, InetState, Message, OpenFile};
use torpor_linux::socket;

use self::port::Sharing;
use self::shut::Shuts;
use self::tcp::Connections;
use crate::contract::Request;
use crate::contract::error::RestoreFileError;
use crate::contract::reason::{Described, Reason};
use crate::kinds::socket::multicast::Groups;
use crate::kinds::socket::options::{self, Defaults, fresh};
use crate::kinds::socket::{Kind, queue};
use crate::list::Item;
use crate::locks;

const INET: i32 = 2;
const STREAM: i32 = 1;
const DATAGRAM: i32 = 2;
const RAW: i32 = 3;
const TCP: i32 = 6;
pub(crate) const UDP: i32 = 17;
const MPTCP: i32 = 262;

const ESTABLISHED: u8 = 1;
const SYN_SENT: u8 = 2;
const CLOSED: u8 = 7;
const LISTEN: u8 = 10;

mod datagram;
pub(crate) mod port;
pub(crate) mod raw;
mod shut;
pub(crate) mod tcp;

/// What is known of all sockets of a tree.
#[derive(Debug)]
pub(crate) struct Tables {
    connections: Connections,
    shuts: Shuts,
    groups: Groups,
}

impl Tables {
    pub(crate) fn new(connections: Connections) -> Self {
        Self { connections, shuts: Shuts::default(), groups: Groups::default() }
    }
}

/// Port of a `sockaddr_in` or `sockaddr_in6`.
pub(crate) fn port(address: &[u8]) -> u16 {
    address.get(2..4).map_or(0, |port| u16::from_be_bytes([port[0], port[1]]))
}

/// An address, for people.
fn text(address: &[u8]) -> String {
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
    let bytes = |range| address.get(range);
    let ip = if address.len() >= 28 {
        bytes(8..24).and_then(|ip| <[u8; 16]>::try_from(ip).ok()).map(|ip| IpAddr::V6(Ipv6Addr::from(ip)))
    } else {
        bytes(4..8).and_then(|ip| <[u8; 4]>::try_from(ip).ok()).map(|ip| IpAddr::V4(Ipv4Addr::from(ip)))
    };
    ip.map_or_else(|| "no address".to_owned(), |ip| SocketAddr::new(ip, port(address)).to_string())
}

fn name(kind: Kind) -> &'static str {
    match (kind.1, kind.2) {
        (STREAM, TCP) => "a TCP socket",
        (STREAM, MPTCP) => "an MPTCP socket",
        (DATAGRAM, UDP) => "a UDP socket",
        (DATAGRAM, _) => "a ping socket",
        (RAW, _) => "a raw socket",
        _ => "a socket",
    }
}

pub(crate) fn describe(
    request: &Request<'_>,
    (tables, defaults): (&mut Tables, &mut Defaults),
    id: FileId,
    item: &Item,
    kind: Kind,
) -> Described<FileKind> {
    let local = socket::local_address(&item.fd)?;
    let remote = match socket::remote_address(&item.fd)? {
        Some(remote) => remote,
        None if kind.1 == RAW => raw::remote(kind, item.stat.st_ino)?,
        None => Vec::new(),
    };
    if sockopt::socket_cookie(&item.fd).is_err() {
        return Err(Reason::parkable(format!("{} that the kernel does not describe", name(kind)), ""));
    }
    let mut shut = 0;
    let (state, queue) = match kind.1 {
        STREAM if kind.2 == TCP || kind.2 == MPTCP => {
            let state = match tables.connections.take(id) {
                Some(connection) => {
                    let connection = connection?;
                    shut = tcp::shut_for_reading(&connection, polled(&item.fd)?.contains(PollFlags::RDHUP));
                    InetState::Established { repair: Some(connection) }
                }
                None => stream(item, kind, &local, &remote)?,
            };
            (state, Vec::new())
        }
        DATAGRAM if kind.2 == UDP => {
            shut = shut_of(tables, item, kind)?;
            // Looked at once only: see `queue`.
            let waiting = if request.look_only { Vec::new() } else { datagrams(item, &local)? };
            (InetState::Idle, waiting)
        }
        DATAGRAM | RAW => {
            if ioctl_fionread(&item.fd).is_ok_and(|bytes| bytes > 0) || polled(&item.fd)?.contains(PollFlags::IN) {
                let what = format!("{} with packets that the program has not read", name(kind));
                return Err(Reason::parkable(what, "try again when it has"));
            }
            shut = shut_of(tables, item, kind)?;
            (InetState::Idle, Vec::new())
        }
        _ => {
            let what = format!("{} of type {} and protocol {}", name(kind), kind.1, kind.2);
            return Err(Reason::parkable(what, "close it before the checkpoint"));
        }
    };
    let mut options = defaults.options(&item.fd, kind)?;
    if kind.1 != STREAM {
        options.extend(tables.groups.joined(&item.fd, kind, request.go_on)?);
    }
    // A raw socket's port is its protocol.
    let bound = if kind.1 == RAW {
        local.get(4..).is_some_and(|rest| rest.iter().any(|byte| *byte != 0))
    } else {
        port(&local) != 0
    };
    Ok(FileKind::Inet(Box::new(InetSocket {
        kind,
        local: if bound { local } else { Vec::new() },
        remote,
        state,
        options,
        queue,
        shut,
    })))
}

/// A TCP socket of which only what does not depend on its peers can come back; `None`: it is no such socket.
pub(crate) fn without_peers(defaults: &mut Defaults, item: &Item) -> Described<Option<FileKind>> {
    const INET6: i32 = 10;
    const SOCKET: &[u8] = b"socket:";
    if !item.link.starts_with(SOCKET) {
        return Ok(None);
    }
    let kind = options::kind(&item.fd)?;
    if !matches!(kind, (INET | INET6, STREAM, TCP | MPTCP)) {
        return Ok(None);
    }
    let (number, _, backlog) = socket::tcp_state(&item.fd)?;
    let listens = number == LISTEN && sockopt::socket_acceptconn(&item.fd)?;
    let state = if listens { InetState::Listening { backlog } } else { InetState::Established { repair: None } };
    let local = if listens { socket::local_address(&item.fd)? } else { Vec::new() };
    let options = defaults.options(&item.fd, kind)?;
    let socket = InetSocket { kind, local, remote: Vec::new(), state, options, queue: Vec::new(), shut: 0 };
    Ok(Some(FileKind::Inet(Box::new(socket))))
}

fn polled(fd: &OwnedFd) -> rustix::io::Result<PollFlags> {
    let mut polled = [PollFd::new(fd, PollFlags::IN | PollFlags::RDHUP)];
    poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))?;
    Ok(polled[0].revents())
}

fn shut_of(tables: &mut Tables, item: &Item, kind: Kind) -> Described<u8> {
    let events = polled(&item.fd)?;
    if events.contains(PollFlags::ERR) {
        let what = format!("{} with an error that the program has not seen", name(kind));
        return Err(Reason::parkable(what, "try again when it has"));
    }
    let polled = match (events.contains(PollFlags::HUP), events.contains(PollFlags::RDHUP)) {
        (true, _) => 3,
        (false, true) => 1,
        (false, false) => 0,
    };
    Ok(polled | tables.shuts.of(kind, item.stat.st_ino)?)
}

fn stream(item: &Item, kind: Kind, local: &[u8], remote: &[u8]) -> Described<InetState> {
    let (number, queued, backlog) = socket::tcp_state(&item.fd)?;
    let listens = sockopt::socket_acceptconn(&item.fd)?;
    let name = name(kind);
    match number {
        LISTEN if listens && queued == 0 => Ok(InetState::Listening { backlog }),
        LISTEN if listens => {
            let what = format!("{name} on {}, at which {queued} connections wait to be accepted", text(local));
            Err(Reason::parkable(what, "try again when the program has accepted them"))
        }
        CLOSED if polled(&item.fd)?.contains(PollFlags::RDHUP) => {
            let what = format!("{name} whose connection has ended, and which the program has not closed");
            Err(Reason::parkable(what, "try again when it has"))
        }
        CLOSED if polled(&item.fd)?.contains(PollFlags::ERR) => {
            let what = format!("{name} with an error that the program has not seen");
            Err(Reason::parkable(what, "try again when it has"))
        }
        CLOSED => Ok(InetState::Idle),
        SYN_SENT => {
            let what = format!("{name} that is connecting to {}", text(remote));
            Err(Reason::outside(what, "try again when it is connected, and has been closed"))
        }
        state => {
            let how = if state == ESTABLISHED { "connected to" } else { "in the middle of closing its connection to" };
            let what = format!("{name} on {} {how} {}", text(local), text(remote));
            const REMEDY: &str = "checkpoint a tree that contains both ends, or with --tcp-established, which keeps the peer \
                                  waiting until the restore";
            Err(Reason::outside(what, if kind.2 == TCP { REMEDY } else { "close it" }))
        }
    }
}

fn datagrams(item: &Item, local: &[u8]) -> Described<Vec<Message>> {
    let found = queue::messages(&item.fd, false)?;
    if !found.is_empty() && port(local) == 0 {
        return Err(Reason::parkable("a UDP socket without an address, at which datagrams wait", ""));
    }
    let message =
        |one: queue::Waiting| Message { bytes: one.bytes, files: Vec::new(), from: one.from, credentials: None };
    Ok(found.into_iter().map(message).collect())
}

/// First half of making: the socket with its address. Where the network has been made `anew` since, an address of the program's own
/// is gone: the socket stays bound to it, as it would to one that is removed.
/// `shares`: another socket of the tree has its port, see [`super::port`].
pub(crate) fn restore(socket: &InetSocket, anew: bool, shares: Option<Sharing>) -> Result<OwnedFd, RestoreFileError> {
    let name = shown(socket);
    match &socket.state {
        InetState::Established { repair: None } => return reset(socket),
        InetState::Established { repair: Some(connection) } => return tcp::restore::restore(socket, connection, &name),
        _ => {}
    }
    let fd = fresh(socket.kind).map_err(RestoreFileError::at("making", &*name))?;
    options::set_early_in(&fd, &socket.options, anew, &name)?;
    if let Some(sharing) = shares {
        sharing.allow(&fd).map_err(RestoreFileError::at("preparing", &*name))?;
    }
    if !socket.local.is_empty() {
        let bind = || match socket::bind(&fd, &socket.local) {
            Err(error) if anew && options::is_gone(&error) => bind_free(&fd, socket),
            bound => bound,
        };
        // Connections that the old socket had may linger (TIME_WAIT); they are in nobody's way.
        if socket.kind.1 == STREAM {
            reusing(&fd, bind, &name, "binding")?;
        } else {
            bind().map_err(RestoreFileError::at("binding", &*name))?;
        }
    }
    Ok(fd)
}

/// Binds it to an address that is not there.
fn bind_free(fd: &OwnedFd, socket: &InetSocket) -> io::Result<()> {
    let ipv4 = socket.kind.0 == INET;
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
    let loopback: IpAddr = if kind.0 == INET { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() };
    // Its peer is plain TCP: what it does is all that counts.
    let peer = fresh((kind.0, STREAM, TCP))?;
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
        made.insert(*id, restore(socket, true, ports.get(id).copied())?);
    }
    for (id, file, socket) in &sockets {
        finish(&made[id], socket, file, true)?;
    }
    for (id, _, socket) in &sockets {
        ports.get(id).map_or(Ok(()), |sharing| sharing.settle(&made[id], socket))?;
    }
    Ok(made)
}

/// A socket, for people.
pub(crate) fn shown(socket: &InetSocket) -> String {
    if !socket.remote.is_empty() {
        format!("{} on {} connected to {}", name(socket.kind), text(&socket.local), text(&socket.remote))
    } else if socket.local.is_empty() {
        name(socket.kind).to_owned()
    } else {
        format!("{} on {}", name(socket.kind), text(&socket.local))
    }
}

/// Second half: what it does with its address.
pub(crate) fn finish(fd: &OwnedFd, socket: &InetSocket, file: &OpenFile, anew: bool) -> Result<(), RestoreFileError> {
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
                options::unless_gone(connected, anew).map_err(RestoreFileError::at("connecting", &*name))?;
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
                    Err(Errno::NOTCONN) if socket.kind.1 != STREAM => {}
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

/// It is IPv4's family.
pub(crate) fn is_v4(address: &[u8]) -> bool {
    address.first_chunk().is_some_and(|family| i32::from(u16::from_ne_bytes(*family)) == INET)
}
