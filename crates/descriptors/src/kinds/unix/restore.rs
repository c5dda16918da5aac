//! Making unix sockets.
//!
//! 1. Listeners, and sockets that are connected to nobody, are bound; pairs are made. A socket that was accepted has its
//!    listener's name, so it is made by connecting to that listener, or to one of ours with that name.
//! 2. Queues are filled through the other ends: descriptors in flight may be any of the tree's, so everything else is there
//!    by now.
//! 3. Ends are shut or closed, clients that wait to be accepted connect, and what would have been in the way is set.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{Shutdown, SocketFlags, SocketType, accept_with, listen, shutdown, socketpair};
use torpor_image::tree::{FileId, FileKind, Message, OpenFile, UnixSocket, UnixState};
use torpor_linux::restorer::as_process;
use torpor_linux::socket::{self, Sent, send};
use torpor_linux::uapi::socket::{AF_UNIX, SOCK_DGRAM};

use crate::contract::error::RestoreFileError;
use crate::filesystem::Root;
use crate::kinds::socket::Kind;
use crate::kinds::socket::options;
use crate::kinds::socket::options::fresh;
use crate::kinds::unix::address::{Scratch, address, as_peer, as_user, reach, text};
use crate::locks;

/// Open files by [`FileId`].
pub(crate) type Files = [Option<OwnedFd>];

/// Unix sockets being made.
#[derive(Debug, Default)]
pub(crate) struct Making {
    scratch: Scratch,
    /// The other ends of sockets whose peers have been closed.
    partners: HashMap<FileId, OwnedFd>,
    /// Sockets that were made together.
    pairs: HashMap<FileId, FileId>,
    /// Sockets that were kept, with all that is in them.
    kept: HashSet<FileId>,
    /// Process ids of the tree are ours, and free.
    own_ids: bool,
}

fn unix(files: &[OpenFile], id: FileId) -> Option<&UnixSocket> {
    match &files.get(id as usize)?.kind {
        FileKind::Unix(socket) => Some(socket),
        _ => None,
    }
}

fn sockets(files: &[OpenFile]) -> impl Iterator<Item = (FileId, &UnixSocket)> {
    (0..files.len() as FileId).filter_map(|id| Some((id, unix(files, id)?)))
}

fn kind_of(socket: &UnixSocket) -> Kind {
    (AF_UNIX, socket.kind, 0)
}

/// A peer that is not a socket, or not one of the same kind: only in a damaged image.
fn not_a_peer(socket: &UnixSocket) -> RestoreFileError {
    RestoreFileError::at("connecting", text(socket))(Errno::INVAL)
}

/// The peer of `socket`, if it is connected to one (and does not just wait to be accepted).
fn peer<'a>(
    files: &'a [OpenFile],
    id: FileId,
    socket: &UnixSocket,
) -> Result<Option<(FileId, &'a UnixSocket)>, RestoreFileError> {
    let UnixState::Connected { peer } = socket.state else { return Ok(None) };
    let other = unix(files, peer).filter(|other| other.kind == socket.kind).ok_or_else(|| not_a_peer(socket))?;
    match &other.state {
        UnixState::Listening { waiting, .. } if waiting.contains(&id) => Ok(None),
        UnixState::Connected { peer: back } if socket.kind == SOCK_DGRAM || *back == id => Ok(Some((peer, other))),
        _ if socket.kind == SOCK_DGRAM => Ok(Some((peer, other))),
        _ => Err(not_a_peer(socket)),
    }
}

/// Makes the tree's unix sockets, still without what waits in them.
pub(crate) fn restore(files: &[OpenFile], made: &mut Files, root: Root<'_>) -> Result<Making, RestoreFileError> {
    let kept = sockets(files).map(|(id, _)| id).filter(|id| made[*id as usize].is_some()).collect();
    let scratch = Scratch::new(root).map_err(RestoreFileError::at("keeping", "the root directory"))?;
    let own_ids = matches!(root, Root::Own);
    let mut making = Making { scratch, kept, own_ids, ..Making::default() };
    for (id, socket) in sockets(files) {
        if matches!(socket.state, UnixState::Listening { .. }) && made[id as usize].is_none() {
            made[id as usize] = Some(making.listener(socket)?);
        }
    }
    for (id, socket) in sockets(files) {
        if made[id as usize].is_some() {
            continue;
        }
        match peer(files, id, socket)? {
            Some((other, theirs))
                if socket.kind != SOCK_DGRAM || (theirs.name.is_empty() && made[other as usize].is_none()) =>
            {
                // A kept socket has its peer already.
                if other == id || made[other as usize].is_some() {
                    return Err(not_a_peer(socket));
                }
                let (one, two) = making.pair(files, made, socket, theirs)?;
                (made[id as usize], made[other as usize]) = (Some(one), Some(two));
                making.pairs.extend([(id, other), (other, id)]);
            }
            None if matches!(socket.state, UnixState::Lost { .. }) => {
                let partner = UnixSocket { name: Vec::new(), path: None, options: Vec::new(), ..socket.clone() };
                let (one, two) = making.pair(files, made, socket, &partner)?;
                made[id as usize] = Some(one);
                making.partners.insert(id, two);
            }
            _ => made[id as usize] = Some(making.single(socket)?),
        }
    }
    Ok(making)
}

impl Making {
    /// Does something as whom a peer is to see.
    fn as_peer<T: Send>(
        &self,
        who: Option<(i32, u32, u32)>,
        work: impl FnMut() -> io::Result<T> + Send,
    ) -> io::Result<T> {
        if self.own_ids { as_peer(who, work) } else { as_user(who, work) }
    }

    /// A socket that is connected to nobody yet.
    fn single(&mut self, socket: &UnixSocket) -> Result<OwnedFd, RestoreFileError> {
        let fd = fresh(kind_of(socket)).map_err(RestoreFileError::at("making", text(socket)))?;
        options::set_early(&fd, &socket.options, &text(socket))?;
        self.scratch.bind_named(&fd, socket)?;
        Ok(fd)
    }

    fn listener(&mut self, socket: &UnixSocket) -> Result<OwnedFd, RestoreFileError> {
        let UnixState::Listening { backlog, .. } = socket.state else { return Err(not_a_peer(socket)) };
        let fd = self.single(socket)?;
        let listening = self.as_peer(socket.peer_credentials, || Ok(listen(&fd, backlog.min(i32::MAX as u32) as i32)?));
        listening.map_err(RestoreFileError::at("listening on", text(socket)))?;
        Ok(fd)
    }

    /// Two sockets that are connected to each other.
    fn pair(
        &mut self,
        files: &[OpenFile],
        made: &Files,
        one: &UnixSocket,
        two: &UnixSocket,
    ) -> Result<(OwnedFd, OwnedFd), RestoreFileError> {
        let name = text(one);
        if one.kind == SOCK_DGRAM || (one.name.is_empty() && two.name.is_empty()) {
            let kind = SocketType::from_raw(one.kind as _);
            let family = rustix::net::AddressFamily::UNIX;
            let pair = self.as_peer(one.peer_credentials, || Ok(socketpair(family, kind, SocketFlags::CLOEXEC, None)?));
            let (a, b) = pair.map_err(RestoreFileError::at("making", &*name))?;
            for (fd, socket) in [(&a, one), (&b, two)] {
                options::set_early(fd, &socket.options, &name)?;
                self.scratch.bind_named(fd, socket)?;
            }
            return Ok((a, b));
        }
        let listener = |socket: &UnixSocket| listener_named(files, made, socket);
        // The one that has a listener's name was accepted.
        let first_accepted = listener(one).is_some() || (two.name.is_empty() && listener(two).is_none());
        let (client, server) = if first_accepted { (two, one) } else { (one, two) };
        let own;
        let through = match listener(server) {
            Some(listener) => listener,
            None => {
                own = fresh(kind_of(server)).map_err(RestoreFileError::at("making", &*name))?;
                self.scratch.bind(&own, &server.name).map_err(RestoreFileError::at("binding", text(server)))?;
                let listening = self.as_peer(client.peer_credentials, || Ok(listen(&own, 1)?));
                listening.map_err(RestoreFileError::at("listening on", text(server)))?;
                own.as_fd()
            }
        };
        let fd = self.single(client)?;
        let connected = reach(through, &server.name)
            .and_then(|(to, _kept)| self.as_peer(server.peer_credentials, || socket::connect(&fd, &to)));
        connected.map_err(RestoreFileError::at("connecting to", text(server)))?;
        let accepted =
            accept_with(through, SocketFlags::CLOEXEC).map_err(RestoreFileError::at("accepting on", text(server)))?;
        options::set_early(&accepted, &server.options, &text(server))?;
        Ok(if first_accepted { (accepted, fd) } else { (fd, accepted) })
    }
}

/// The tree's listener with the name that `socket` has.
fn listener_named<'a>(files: &[OpenFile], made: &'a Files, socket: &UnixSocket) -> Option<BorrowedFd<'a>> {
    if socket.name.is_empty() {
        return None;
    }
    let mut all = sockets(files);
    let (id, _) = all.find(|(_, other)| {
        let listens = matches!(other.state, UnixState::Listening { .. });
        listens && other.kind == socket.kind && other.name == socket.name && other.path == socket.path
    })?;
    made.get(id as usize)?.as_ref().map(AsFd::as_fd)
}

/// Fills queues and sets what remains.
pub(crate) fn fill(mut making: Making, files: &[OpenFile], made: &Files) -> Result<(), RestoreFileError> {
    making.connect_pairs_anew(files, made)?;
    let kept = std::mem::take(&mut making.kept);
    let sockets = |files| sockets(files).filter(|(id, _)| !kept.contains(id));
    for (id, socket) in sockets(files) {
        if !socket.queue.is_empty() {
            making.queue(files, made, id, socket).map_err(RestoreFileError::at("filling", text(socket)))?;
        }
    }
    for (id, socket) in sockets(files) {
        if let (UnixState::Lost { reset: true }, Some(fd)) = (&socket.state, &made[id as usize]) {
            // What its partner has not read when it is closed makes the error.
            send(fd, &Sent { bytes: &[0], ..Sent::default() })
                .map_err(RestoreFileError::at("resetting", text(socket)))?;
        }
    }
    making.partners.clear();
    for (id, socket) in sockets(files) {
        let Some(fd) = made[id as usize].as_ref() else { continue };
        let how = match socket.shut & 3 {
            1 => Some(Shutdown::Read),
            2 => Some(Shutdown::Write),
            3 => Some(Shutdown::Both),
            _ => None,
        };
        if let Some(how) = how.filter(|_| matches!(socket.state, UnixState::Connected { .. })) {
            shutdown(fd, how).map_err(RestoreFileError::at("shutting", text(socket)))?;
        }
    }
    for (id, socket) in sockets(files) {
        making.connect_late(files, made, id, socket)?;
    }
    for (id, socket) in sockets(files) {
        let Some(fd) = made[id as usize].as_ref() else { continue };
        options::set_late(fd, &socket.options, &text(socket))?;
        locks::set_flags(fd, &files[id as usize], &text(socket))?;
    }
    Ok(())
}

impl Making {
    /// Datagram sockets that were a pair once, and are connected otherwise since: before anything waits in them, because
    /// disconnecting empties a queue.
    fn connect_pairs_anew(&self, files: &[OpenFile], made: &Files) -> Result<(), RestoreFileError> {
        for (id, other) in &self.pairs {
            let (Some(socket), Some(fd)) = (unix(files, *id), &made[*id as usize]) else { continue };
            let failed = || RestoreFileError::at("connecting", text(socket));
            match socket.state {
                UnixState::Connected { peer } if peer == *other => {}
                UnixState::Connected { peer } => {
                    let target =
                        unix(files, peer).zip(made[peer as usize].as_ref()).ok_or_else(|| not_a_peer(socket))?;
                    let (to, _kept) = reach(target.1, &target.0.name).map_err(failed())?;
                    socket::connect(fd, &to).map_err(failed())?;
                }
                UnixState::Lost { .. } => {
                    let lost = fresh(kind_of(socket)).map_err(io::Error::from).map_err(failed())?;
                    // Named by the kernel.
                    address(&[]).map_err(io::Error::from).and_then(|any| socket::bind(&lost, &any)).map_err(failed())?;
                    let to = socket::local_address(&lost).map_err(failed())?;
                    socket::connect(fd, &to).map_err(failed())?;
                }
                UnixState::Idle | UnixState::Listening { .. } => socket::connect(fd, &[0, 0]).map_err(failed())?,
            }
        }
        Ok(())
    }

    /// Clients that wait to be accepted are connected by their listener, in their order; datagram sockets each by itself.
    fn connect_late(
        &self,
        files: &[OpenFile],
        made: &Files,
        id: FileId,
        socket: &UnixSocket,
    ) -> Result<(), RestoreFileError> {
        let failed = || RestoreFileError::at("connecting", text(socket));
        let fd = |id: FileId| made.get(id as usize).and_then(Option::as_ref).ok_or_else(|| not_a_peer(socket));
        match &socket.state {
            UnixState::Listening { waiting, .. } => {
                for client in waiting {
                    let (to, _kept) = reach(fd(id)?, &socket.name).map_err(failed())?;
                    let client = fd(*client)?;
                    // A full queue makes a blocking connect wait for ever.
                    rustix::io::ioctl_fionbio(client, true).map_err(io::Error::from).map_err(failed())?;
                    socket::connect(client, &to).map_err(failed())?;
                }
                Ok(())
            }
            UnixState::Connected { peer } if socket.kind == SOCK_DGRAM && !self.pairs.contains_key(&id) => {
                let target = unix(files, *peer).ok_or_else(|| not_a_peer(socket))?;
                let (to, _kept) = reach(fd(*peer)?, &target.name).map_err(failed())?;
                socket::connect(fd(id)?, &to).map_err(failed())
            }
            _ => Ok(()),
        }
    }

    fn queue(&mut self, files: &[OpenFile], made: &Files, id: FileId, socket: &UnixSocket) -> io::Result<()> {
        let at = |id: FileId| made.get(id as usize).and_then(Option::as_ref).ok_or(Errno::BADF);
        let connected = match (self.partners.get(&id), self.pairs.get(&id)) {
            (Some(partner), _) => Some(partner.as_fd()),
            (None, Some(other)) => Some(at(*other)?.as_fd()),
            (None, None) => None,
        };
        if let (true, Some(sender)) = (socket.kind != SOCK_DGRAM, connected) {
            let before = options::widen(sender)?;
            for message in &socket.queue {
                deliver(sender, &[], message, made)?;
            }
            return options::narrow(sender, &before);
        }
        for message in &socket.queue {
            let name = message.from.get(super::FAMILY_BYTES..).unwrap_or(&[]);
            let name = if name.first().is_some_and(|byte| *byte != 0) {
                name.strip_suffix(&[0]).unwrap_or(name)
            } else {
                name
            };
            let named =
                sockets(files).find(|(_, other)| !name.is_empty() && other.kind == SOCK_DGRAM && other.name == name);
            let (own, _kept);
            let mut to = Vec::new();
            let sender = match (named, connected) {
                (Some((other, _)), _) if self.pairs.get(&id) == Some(&other) => at(other)?.as_fd(),
                (None, Some(partner)) if name.is_empty() => partner,
                (named, _) => {
                    let (address, file) = reach(at(id)?, &socket.name)?;
                    (to, _kept) = (address, file);
                    match named {
                        Some((other, _)) => at(other)?.as_fd(),
                        None => {
                            own = fresh(kind_of(socket))?;
                            if !name.is_empty() {
                                self.scratch.bind(&own, name)?;
                            }
                            own.as_fd()
                        }
                    }
                }
            };
            let before = options::widen(sender)?;
            let sent = || deliver(sender, &to, message, made);
            match message.credentials.filter(|_| self.own_ids).map(|(pid, ..)| as_process(pid, sent)) {
                Some(Err(error)) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                Some(Ok(done)) => done?,
                _ => sent()?,
            }
            options::narrow(sender, &before)?;
        }
        Ok(())
    }
}

/// Sends a message whole.
fn deliver(sender: BorrowedFd<'_>, to: &[u8], message: &Message, made: &Files) -> io::Result<()> {
    let files = message.files.iter().map(|file| made.get(*file as usize).and_then(Option::as_ref).map(AsFd::as_fd));
    let files = files.collect::<Option<Vec<_>>>().ok_or(Errno::OPNOTSUPP)?;
    let credentials =
        message.credentials.map(|(_, user, group)| (rustix::process::getpid().as_raw_nonzero().get(), user, group));
    let first = Sent { bytes: &message.bytes, to, files: &files, credentials };
    let mut sent = send(sender, &first)?;
    while sent < message.bytes.len() {
        sent += send(sender, &Sent { bytes: &message.bytes[sent..], to, files: &[], credentials })?;
    }
    Ok(())
}
