//! Dumping an Internet socket.

use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::ioctl_fionread;
use rustix::net::sockopt;
use torpor_image::tree::{FileId, FileKind, InetSocket, InetState, Message};
use torpor_linux::socket;
use torpor_linux::uapi::socket::{
    AF_INET, AF_INET6, IPPROTO_MPTCP, IPPROTO_TCP, IPPROTO_UDP, SOCK_DGRAM, SOCK_RAW, SOCK_STREAM,
};
use torpor_linux::uapi::tcp::{TCP_CLOSE, TCP_ESTABLISHED, TCP_LISTEN, TCP_SYN_SENT};

use super::shut::Shuts;
use super::tcp::Connections;
use super::{name, port, raw, tcp, text};
use crate::contract::Request;
use crate::contract::reason::{Described, Reason};
use crate::kinds::socket::multicast::Groups;
use crate::kinds::socket::options::{self, Defaults};
use crate::kinds::socket::{Kind, queue};
use crate::list::Item;

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
        None if kind.1 == SOCK_RAW => raw::remote(kind, item.stat.st_ino)?,
        None => Vec::new(),
    };
    if sockopt::socket_cookie(&item.fd).is_err() {
        return Err(Reason::parkable(format!("{} that the kernel does not describe", name(kind)), ""));
    }
    let mut shut = 0;
    let (state, queue) = match kind.1 {
        SOCK_STREAM if kind.2 == IPPROTO_TCP || kind.2 == IPPROTO_MPTCP => {
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
        SOCK_DGRAM if kind.2 == IPPROTO_UDP => {
            shut = shut_of(tables, item, kind)?;
            // Looked at once only: see `queue`.
            let waiting = if request.look_only { Vec::new() } else { datagrams(item, &local)? };
            (InetState::Idle, waiting)
        }
        SOCK_DGRAM | SOCK_RAW => {
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
    if kind.1 != SOCK_STREAM {
        options.extend(tables.groups.joined(&item.fd, kind, request.go_on)?);
    }
    // A raw socket's port is its protocol.
    let bound = if kind.1 == SOCK_RAW {
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
    const SOCKET: &[u8] = b"socket:";
    if !item.link.starts_with(SOCKET) {
        return Ok(None);
    }
    let kind = options::kind(&item.fd)?;
    if !matches!(kind, (AF_INET | AF_INET6, SOCK_STREAM, IPPROTO_TCP | IPPROTO_MPTCP)) {
        return Ok(None);
    }
    let (number, _, backlog) = socket::tcp_state(&item.fd)?;
    let listens = number == TCP_LISTEN && sockopt::socket_acceptconn(&item.fd)?;
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
        TCP_LISTEN if listens && queued == 0 => Ok(InetState::Listening { backlog }),
        TCP_LISTEN if listens => {
            let what = format!("{name} on {}, at which {queued} connections wait to be accepted", text(local));
            Err(Reason::parkable(what, "try again when the program has accepted them"))
        }
        TCP_CLOSE if polled(&item.fd)?.contains(PollFlags::RDHUP) => {
            let what = format!("{name} whose connection has ended, and which the program has not closed");
            Err(Reason::parkable(what, "try again when it has"))
        }
        TCP_CLOSE if polled(&item.fd)?.contains(PollFlags::ERR) => {
            let what = format!("{name} with an error that the program has not seen");
            Err(Reason::parkable(what, "try again when it has"))
        }
        TCP_CLOSE => Ok(InetState::Idle),
        TCP_SYN_SENT => {
            let what = format!("{name} that is connecting to {}", text(remote));
            Err(Reason::outside(what, "try again when it is connected, and has been closed"))
        }
        state => {
            let how =
                if state == TCP_ESTABLISHED { "connected to" } else { "in the middle of closing its connection to" };
            let what = format!("{name} on {} {how} {}", text(local), text(remote));
            const REMEDY: &str = "checkpoint a tree that contains both ends, or with --tcp-established, which keeps the peer \
                                  waiting until the restore";
            Err(Reason::outside(what, if kind.2 == IPPROTO_TCP { REMEDY } else { "close it" }))
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
