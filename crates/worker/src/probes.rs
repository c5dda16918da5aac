//! Keeping health checks and scanners from waking an app: which events of its sockets count.
//!
//! Only for apps whose policy looks at single sockets (`wake_on = "data"`, or ignored sources). While such an app sleeps,
//! its TCP listeners have `TCP_DEFER_ACCEPT` set, so that a connection reaches the accept queue with its first data. A probe
//! that connects and closes gets there too, dead; those are accepted and closed here. The backlog is widened, so that
//! many at once, and clients that say nothing, do not use it up. What was set before is put back on waking. A program sees nothing of it, except that a connection without data is
//! accepted only after [`DEFER_SECONDS`].

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};

use ipnet::IpNet;
use rustix::net::{AddressFamily, RecvFlags, SocketAddrAny, SocketType, sockopt};
use serde::{Deserialize, Serialize};
use torpor_api::spec::Idle;
use torpor_engine::{Source, Watch};
use torpor_linux::closer::AppFile;
use torpor_linux::descriptor::duplicate;
use torpor_linux::tcp;
use torpor_network::sock_diag::{AcceptQueue, SockDiag, drain, set_backlog};

/// A client that says nothing for this long is taken to wait for the server to speak first.
const DEFER_SECONDS: u32 = 60;

/// Connections that may wait for data at a listener of a sleeping app.
const BACKLOG: u32 = 4096;

/// Datagrams and connections looked at for one event; more count as one that wakes.
const MAX_LOOKS: usize = 4096;

/// Where the sockets of a sleeping app are found.
#[derive(Debug)]
pub(crate) enum Sockets<'a> {
    /// Its processes have them.
    OfProcesses,
    /// It has no processes.
    Parked {
        /// By the process that had it and its number there.
        files: &'a HashMap<(i32, i32), AppFile>,
        /// A process in its network namespace.
        init: i32,
    },
}

impl Sockets<'_> {
    fn get(&self, pid: i32, fd: i32) -> io::Result<AppFile> {
        match self {
            Self::OfProcesses => duplicate(pid, fd),
            Self::Parked { files, .. } => files.get(&(pid, fd)).ok_or(io::ErrorKind::NotFound)?.try_clone(),
        }
    }

    fn netns(&self, pid: i32) -> io::Result<std::fs::File> {
        let pid = if let Self::Parked { init, .. } = self { *init } else { pid };
        std::fs::File::open(format!("/proc/{pid}/ns/net"))
    }
}

/// A listener whose option is changed, and what it was before.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Deferred {
    pid: i32,
    fd: i32,
    /// `TCP_DEFER_ACCEPT`, seconds.
    before: u32,
    /// Most connections that may wait to be accepted.
    backlog: u32,
}

fn is_internet(socket: BorrowedFd<'_>) -> bool {
    sockopt::socket_domain(socket).is_ok_and(|domain| domain == AddressFamily::INET || domain == AddressFamily::INET6)
}

fn is_listener(socket: BorrowedFd<'_>) -> bool {
    is_internet(socket)
        && sockopt::socket_type(socket).is_ok_and(|kind| kind == SocketType::STREAM)
        && sockopt::socket_acceptconn(socket).unwrap_or(false)
}

/// The listeners of a sleeping app as they are; to be kept before [`defer`] changes them.
pub(crate) fn listeners(watch: &Watch, sockets: &Sockets<'_>) -> Vec<Deferred> {
    let mut found = Vec::new();
    for source in watch.sources() {
        match listener_as_is(source, sockets) {
            Ok(listener) => found.extend(listener),
            // Without it a mere connection wakes: worse, not wrong.
            Err(error) => tracing::debug!(pid = source.pid, fd = source.fd, %error, "looking for listeners"),
        }
    }
    found
}

fn listener_as_is(source: &Source, sockets: &Sockets<'_>) -> io::Result<Option<Deferred>> {
    let socket = sockets.get(source.pid, source.fd)?;
    if !is_listener(socket.as_fd()) {
        return Ok(None);
    }
    let before = tcp::defer_accept(&socket)?;
    let queue = accept_queue(source, sockets)?;
    Ok(queue.map(|queue| Deferred { pid: source.pid, fd: source.fd, before, backlog: queue.limit }))
}

/// Sets listeners so that only data reaches their accept queues, and many connections may be on their way.
pub(crate) fn defer(listeners: &[Deferred], sockets: &Sockets<'_>) {
    set(listeners, sockets, |listener| (DEFER_SECONDS, listener.backlog.max(BACKLOG)));
}

/// Puts the listeners back.
pub(crate) fn undefer(listeners: &[Deferred], sockets: &Sockets<'_>) {
    set(listeners, sockets, |listener| (listener.before, listener.backlog));
}

fn set(listeners: &[Deferred], sockets: &Sockets<'_>, values: impl Fn(&Deferred) -> (u32, u32)) {
    for listener in listeners {
        let (seconds, backlog) = values(listener);
        let set = sockets.get(listener.pid, listener.fd).and_then(|socket| {
            tcp::set_defer_accept(&socket, seconds)?;
            set_backlog(socket.as_fd(), backlog)
        });
        if let Err(error) = set {
            tracing::warn!(pid = listener.pid, fd = listener.fd, %error, "setting a listener");
        }
    }
}

/// What waits at a listening socket.
fn accept_queue(source: &Source, sockets: &Sockets<'_>) -> io::Result<Option<AcceptQueue>> {
    let inode = source.what.strip_prefix("socket:[").and_then(|rest| rest.strip_suffix(']'));
    let inode: u64 = inode.and_then(|inode| inode.parse().ok()).ok_or(io::ErrorKind::InvalidData)?;
    let netns = sockets.netns(source.pid)?;
    SockDiag::open_in(netns.as_fd())?.accept_queue(inode)
}

/// Whether an event of `source` is one to wake for. Dead probes and ignored datagrams are taken out of the way.
pub(crate) fn counts(source: &Source, sockets: &Sockets<'_>, idle: &Idle) -> bool {
    match look(source, sockets, idle) {
        Ok(counts) => counts,
        Err(error) => {
            tracing::debug!(pid = source.pid, fd = source.fd, %error, "looking at a socket; waking for it");
            true
        }
    }
}

fn look(source: &Source, sockets: &Sockets<'_>, idle: &Idle) -> io::Result<bool> {
    if !source.what.starts_with("socket:") {
        return Ok(true);
    }
    let socket = sockets.get(source.pid, source.fd)?;
    if !is_internet(socket.as_fd()) {
        return Ok(true);
    }
    if is_listener(socket.as_fd()) {
        return listener(source, &socket, sockets, idle);
    }
    if sockopt::socket_type(&socket)? == SocketType::DGRAM {
        return datagrams(&socket, &idle.ignore);
    }
    // A connection: what its client sends counts unless it is ignored.
    let peer = rustix::net::getpeername(&socket)?.and_then(|peer| SocketAddr::try_from(peer).ok());
    Ok(!peer.is_some_and(|peer| ignored(peer.ip(), &idle.ignore)))
}

fn listener(source: &Source, socket: &AppFile, sockets: &Sockets<'_>, idle: &Idle) -> io::Result<bool> {
    let Some(queue) = accept_queue(source, sockets)? else { return Ok(true) };
    // One without data in the queue of a listener that defers has waited for the server to speak first.
    if queue.alive().any(|one| !ignored(one.remote.ip(), &idle.ignore)) {
        return Ok(true);
    }
    // Dead ones, and ignored ones, which are answered by being closed: they must not fill the queue.
    drain(socket.as_fd(), queue.queued)?;
    Ok(false)
}

/// Whether a datagram waits that is not from an ignored source; ignored ones before it are thrown away.
fn datagrams(socket: &AppFile, ignore: &[IpNet]) -> io::Result<bool> {
    for _ in 0..MAX_LOOKS {
        let mut byte = [0; 1];
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        let from = match rustix::net::recvfrom(socket, &mut byte, flags) {
            Ok((_, _, from)) => from.and_then(|from: SocketAddrAny| SocketAddr::try_from(from).ok()),
            Err(rustix::io::Errno::AGAIN) => return Ok(false),
            // An error that the program is waiting to be told of.
            Err(_) => return Ok(true),
        };
        if !from.is_some_and(|from| ignored(from.ip(), ignore)) {
            return Ok(true);
        }
        rustix::net::recvfrom(socket, &mut byte, RecvFlags::DONTWAIT)?;
    }
    Ok(true)
}

fn ignored(address: IpAddr, ignore: &[IpNet]) -> bool {
    let address = address.to_canonical();
    ignore.iter().any(|net| net.contains(&address))
}
