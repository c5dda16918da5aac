//! Dumping a unix socket.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStringExt;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::fstat;
use rustix::net::sockopt;
use torpor_image::tree::{FileId, FileKind, Message, PathState, UnixSocket, UnixState};
use torpor_linux::socket;
use torpor_linux::uapi::socket::{AF_UNIX, SOCK_DGRAM, SOCK_STREAM};
use torpor_process::blocker::Blocker;
use torpor_process::view::View;

use super::{FAMILY_BYTES, list};
use crate::context::DumpContext;
use crate::contract::Request;
use crate::contract::error::DumpError;
use crate::contract::flags::PATH_ONLY;
use crate::contract::reason::{Described, Reason};
use crate::filesystem;
use crate::kinds::socket::options::{self, Defaults};
use crate::kinds::socket::{Kind, queue};
use crate::kinds::unix::list::Entry;
use crate::list::{Holder, Item, List};

/// What is known of all unix sockets.
#[derive(Debug, Default)]
pub(crate) struct Sockets {
    list: HashMap<u32, Entry>,
    queues: HashMap<FileId, Vec<Message>>,
    /// Of sockets whose connection waits to be accepted: inode, and the listener's.
    waiting: HashMap<u32, u32>,
}

/// The kernel says that no descriptors are in flight there.
fn nothing_flies(item: &Item) -> bool {
    item.info.field("scm_fds").is_ok_and(|count| count == "0")
}

fn is_socket(item: &Item) -> bool {
    item.stat.st_mode & 0o170_000 == 0o140_000 && item.info.flags & PATH_ONLY == 0
}

/// Looks into every unix socket of the list; descriptors in flight join it.
pub(crate) fn queues(
    list: &mut List,
    request: &Request<'_>,
    obstacles: &mut Vec<Blocker>,
) -> Result<Sockets, DumpError> {
    let view = request.view;
    let mut sockets = Sockets::default();
    let mut n = 0;
    while let Some(item) = list.items.get(n) {
        if !(request.go_on)() {
            return Err(DumpError::Stopped);
        }
        let id = n as FileId;
        n += 1;
        let failed = {
            let (pid, fd) = (item.holder.pid, item.holder.fd);
            move |source| DumpError::Look { pid, what: format!("the socket behind descriptor {fd}"), source }
        };
        if !is_socket(item) {
            continue;
        }
        let kind = options::kind(&item.fd).map_err(|error| failed(error.into()))?;
        if kind.0 != AF_UNIX {
            continue;
        }
        if sockets.list.is_empty() {
            sockets = Sockets::read().map_err(failed)?;
        }
        if sockopt::socket_acceptconn(&item.fd).map_err(|error| failed(error.into()))? {
            continue;
        }
        let ended = sockets.list.get(&(item.stat.st_ino as u32)).is_some_and(|entry| entry.shut & 1 != 0);
        let found = match kind.1 {
            SOCK_STREAM => queue::stream(&item.fd),
            // Looked at once only: see there.
            _ if request.look_only && nothing_flies(item) => continue,
            _ => queue::messages(&item.fd, ended),
        };
        let found = found.map_err(failed)?;
        let holder = Holder { in_flight: true, ..item.holder };
        if !request.parks() && found.iter().any(|message| message.credentials.is_some_and(|who| who.0 == 0)) {
            obstacles.push(item.obstacle("a message waits there whose sender is outside of the pid namespace", ""));
        }
        let mut messages = Vec::with_capacity(found.len());
        for message in found {
            let mut files = Vec::with_capacity(message.files.len());
            for fd in message.files {
                files.push(list.add(fd, holder, None).map_err(failed)?);
            }
            let inside = |(pid, user, group)| (view.id(pid).unwrap_or(0), view.user(user), view.group(group));
            let (bytes, credentials) = (message.bytes, message.credentials.map(inside));
            let from = if message.from.len() > FAMILY_BYTES { message.from } else { Vec::new() };
            messages.push(Message { bytes, files, from, credentials });
        }
        sockets.queues.insert(id, messages);
    }
    Ok(sockets)
}

impl Sockets {
    /// Files that wait in sockets.
    pub(crate) fn flying(&self) -> HashSet<FileId> {
        self.queues.values().flatten().flat_map(|message| &message.files).copied().collect()
    }

    fn read() -> std::io::Result<Self> {
        let list = list::list()?;
        let pairs = list.iter().flat_map(|(inode, entry)| entry.waiting.iter().map(move |client| (*client, *inode)));
        let waiting = pairs.collect();
        Ok(Self { list, queues: HashMap::new(), waiting })
    }
}

/// A unix socket.
pub(crate) fn describe(
    context: &DumpContext<'_>,
    (sockets, defaults): (&mut Sockets, &mut Defaults),
    id: FileId,
    item: &Item,
    kind: Kind,
) -> Described<FileKind> {
    let inode = item.stat.st_ino as u32;
    let Some(entry) = sockets.list.get(&inode).cloned() else {
        return Err(Reason::refused("a unix socket of another network namespace", ""));
    };
    let state = state(context, sockets, item, kind, &entry)?;
    let name = socket::local_address(&item.fd)?;
    let mut name = name.get(FAMILY_BYTES..).unwrap_or(&[]).to_vec();
    if name.first().is_some_and(|byte| *byte != 0) && name.last() == Some(&0) {
        name.pop();
    }
    let queue = sockets.queues.remove(&id).unwrap_or_default();
    let mut flying = queue.iter().flat_map(|message| &message.files).map(|file| context.list.item(*file));
    if !context.request.parks() && flying.any(|file| file.link == b"anon_inode:[pidfd]") {
        let what = "a unix socket in which a descriptor of a process waits";
        return Err(Reason::refused(what, "try again when the program has taken it"));
    }
    let view = context.request.view;
    let peer_credentials = socket::peer_credentials(&item.fd)?.map(|(pid, user, group)| {
        let inside = context.request.ids.get(&pid).copied();
        (inside.or_else(|| view.id(pid)).unwrap_or(0), view.user(user), view.group(group))
    });
    Ok(FileKind::Unix(Box::new(UnixSocket {
        kind: kind.1,
        path: if name.first().is_some_and(|byte| *byte != 0) { file(view, item)? } else { None },
        name,
        state,
        options: defaults.options(&item.fd, kind)?,
        queue,
        shut: entry.shut & 3,
        peer_credentials,
    })))
}

/// The file of a socket that is bound to one, if its name still leads there.
fn file(view: &View, item: &Item) -> Described<Option<PathState>> {
    let Some(file) = socket::unix_file(&item.fd)? else { return Ok(None) };
    let stat = fstat(&file)?;
    let name = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))?.into_os_string().into_vec();
    let there = view.stat(&name);
    let same = there.is_ok_and(|there| (there.st_dev, there.st_ino) == (stat.st_dev, stat.st_ino));
    Ok(same.then(|| filesystem::state(&name, &stat)))
}

fn state(context: &DumpContext<'_>, sockets: &Sockets, item: &Item, kind: Kind, entry: &Entry) -> Described<UnixState> {
    let in_tree = |inode: u32| {
        let files = context.list.same_object((item.stat.st_dev, u64::from(inode)));
        files.first().copied()
    };
    if sockopt::socket_acceptconn(&item.fd)? {
        let mut waiting = Vec::with_capacity(entry.waiting.len());
        for client in &entry.waiting {
            let Some(file) = in_tree(*client) else {
                let what =
                    "a connection that waits to be accepted, from a process outside of the tree or closed already";
                return Err(Reason::refused(what, "try again when the program has accepted it"));
            };
            if socket::unsent(&context.list.item(file).fd)? > 0 {
                let what = "a connection that waits to be accepted, on which data has been sent";
                return Err(Reason::refused(what, "try again when the program has accepted it"));
            }
            waiting.push(file);
        }
        return Ok(UnixState::Listening { backlog: entry.backlog, waiting });
    }
    let inode = item.stat.st_ino as u32;
    let listener = sockets.waiting.get(&inode).copied();
    match (entry.peer, listener) {
        (None, _) => Ok(UnixState::Idle),
        (Some(0), None) if kind.1 == SOCK_DGRAM || entry.shut & 3 == 3 => {
            let reset = has_error(item)?;
            if reset && kind.1 == SOCK_DGRAM {
                let what = "a unix socket with an error that the program has not seen";
                return Err(Reason::parkable(what, "try again when it has"));
            }
            Ok(UnixState::Lost { reset })
        }
        (Some(0), None) => Err(outside("connected to a socket that is in flight")),
        // Waits to be accepted.
        (Some(0), Some(listener)) => match in_tree(listener) {
            Some(file) => Ok(UnixState::Connected { peer: file }),
            None => Err(outside("waits to be accepted by a process outside of the tree")),
        },
        (Some(peer), _) => match in_tree(peer) {
            Some(file) => Ok(UnixState::Connected { peer: file }),
            None => Err(outside("connected to a process outside of the tree")),
        },
    }
}

/// An error waits to be told; asking for it by `SO_ERROR` would take it.
fn has_error(item: &Item) -> Described<bool> {
    let mut polled = [PollFd::new(&item.fd, PollFlags::empty())];
    poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))?;
    Ok(polled[0].revents().contains(PollFlags::ERR))
}

fn outside(how: &str) -> Reason {
    Reason::outside(format!("a unix socket {how}"), "close it, or checkpoint a tree that contains both ends")
}
