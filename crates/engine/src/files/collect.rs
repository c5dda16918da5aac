//! Taking: the flow, and what kind each open file is.

use std::collections::{HashMap, HashSet};
use std::io;

use rustix::fs::{FileType, major};
use torpor_image::tree::{Details, FileId, FileKind, LockKind, NetlinkPeer, OpenFile, Owner};
use torpor_linux::fcntl;

use super::list::{CLOSE_ON_EXEC, Descriptors, Holder, Item, List, PATH_ONLY, raise_limit};
use super::memory::Memories;
use super::options::Defaults;
use super::pipe::Pipes;
use super::shut::Shuts;
use super::tcp::{self, Connections};
use super::terminal::{self, Terminals};
use super::unix::{self, Sockets};
use super::{CollectError, Collected, Request, keep};
use super::{epoll, event, fanotify, inet, inotify, multicast, netlink, packet, path};
use crate::memory::sink::PageSink;
use crate::{Obstacle, Place};

/// Why an open file cannot be described.
#[derive(Debug)]
pub(super) enum Why {
    /// It cannot go into an image.
    Refused {
        /// What it is, and what is wrong with it.
        what: String,
        /// What could be done; may be empty.
        remedy: String,
    },
    /// It cannot be described, but the open file itself can be kept: an app's is, a plain tree's is refused.
    Kept {
        /// As above.
        what: String,
        /// As above.
        remedy: String,
    },
    /// It leads out of the tree, so that only whoever restores can give it.
    Outside {
        /// As above.
        what: String,
        /// As above.
        remedy: String,
    },
    /// The kernel would not tell.
    Failed(io::Error),
    /// The image could not be written.
    Write(io::Error),
    /// It was given up.
    Stopped,
}

impl From<io::Error> for Why {
    fn from(error: io::Error) -> Self {
        Self::Failed(error)
    }
}

impl From<rustix::io::Errno> for Why {
    fn from(error: rustix::io::Errno) -> Self {
        Self::Failed(error.into())
    }
}

impl Why {
    pub(super) fn refused(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::Refused { what: what.into(), remedy: remedy.into() }
    }

    pub(super) fn kept(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::Kept { what: what.into(), remedy: remedy.into() }
    }

    pub(super) fn outside(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::Outside { what: what.into(), remedy: remedy.into() }
    }
}

/// A description, or why there is none.
pub(super) type Described<T> = Result<T, Why>;

/// What describing one file may ask about all of them.
pub(super) struct Context<'a, 'b> {
    pub(super) list: &'a List,
    pub(super) descriptors: &'a Descriptors,
    pub(super) request: &'a Request<'a>,
    pub(super) pipes: Pipes,
    pub(super) memories: Memories<'a, 'b>,
    pub(super) sockets: Sockets,
    pub(super) connections: Connections,
    pub(super) terminals: Terminals,
    pub(super) defaults: Defaults,
    pub(super) shuts: Shuts,
    pub(super) groups: multicast::Groups,
    pub(super) visited: epoll::Visited,
    /// Of connected netlink sockets.
    pub(super) netlink_peers: Vec<NetlinkPeer>,
    /// See [`Collected::warnings`].
    pub(super) warnings: Vec<String>,
}

/// Takes the open files and shared memory of a stopped tree; the pages go to `sink`, which the caller flushes.
pub(crate) fn collect(request: &Request<'_>, sink: &mut PageSink<'_>) -> Result<Collected, CollectError> {
    raise_limit();
    let mut list = List::default();
    let mut descriptors = Descriptors::new();
    for (n, pid) in request.processes.iter().enumerate() {
        let inside = request.ids.get(pid).copied().unwrap_or(*pid);
        descriptors.insert(*pid, list.descriptors(*pid, inside, n == 0, request.go_on)?);
    }
    describe_all(request, list, descriptors, sink)
}

/// Everything behind the descriptors that were listed.
pub(super) fn describe_all(
    request: &Request<'_>,
    mut list: List,
    descriptors: Descriptors,
    sink: &mut PageSink<'_>,
) -> Result<Collected, CollectError> {
    let mut obstacles = Vec::new();
    let sockets = unix::queues(&mut list, request, &mut obstacles)?;
    let flying = sockets.flying();
    let connections = if request.look_only { Connections::default() } else { tcp::take(&list, request.lock)? };
    let connected = connections.files();
    let mut context = Context {
        list: &list,
        descriptors: &descriptors,
        request,
        pipes: Pipes::default(),
        memories: Memories::new(sink, request).map_err(|source| failed(&list, 0, source))?,
        sockets,
        connections,
        terminals: Terminals::of(&list),
        defaults: Defaults::default(),
        shuts: Shuts::default(),
        groups: multicast::Groups::default(),
        visited: epoll::Visited::default(),
        netlink_peers: Vec::new(),
        warnings: Vec::new(),
    };
    let mut files = Vec::with_capacity(list.items.len());
    for (n, item) in list.items.iter().enumerate() {
        if !(request.go_on)() {
            return Err(CollectError::Stopped);
        }
        match describe(&mut context, n as FileId, item) {
            Ok(file) => files.push(file),
            Err(Why::Refused { what, remedy } | Why::Kept { what, remedy } | Why::Outside { what, remedy }) => {
                obstacles.push(obstacle(item, &what, &remedy));
                files.push(nothing());
            }
            Err(Why::Failed(source)) => return Err(failed(&list, n, source)),
            Err(Why::Write(source)) => return Err(CollectError::Write(source)),
            Err(Why::Stopped) => return Err(CollectError::Stopped),
        }
    }
    // Each process counts once, however many descriptors of the file it has.
    let mut holders: HashMap<FileId, usize> = HashMap::new();
    for table in descriptors.values() {
        let own: HashSet<FileId> = table.iter().map(|one| one.file).collect();
        own.into_iter().for_each(|file| *holders.entry(file).or_default() += 1);
    }
    for (n, (file, item)) in files.iter().zip(&list.items).enumerate() {
        let id = n as FileId;
        let several = holders.get(&id).is_some_and(|holders| *holders > 1);
        if matches!(file.kind, FileKind::OfProcess { .. }) && (several || flying.contains(&id)) {
            let what = format!("{} is shared by several processes", item.name());
            obstacles.push(obstacle(item, &what, "close it before the checkpoint"));
        }
    }
    let areas = context.memories.areas(&list, request.areas, &mut obstacles)?;
    let Context { pipes, memories, terminals, warnings, netlink_peers, .. } = context;
    let terminals = terminals.controlling(&mut files);
    let (memories, times) = memories.finish();
    let pipes = pipes.finish();
    let details = Details { times, netlink_peers, ..Details::default() };
    own_locks(&mut files, request, &descriptors);
    let duplicate = |file: &FileId| list.item(*file).fd.try_clone();
    let connections: Result<Vec<_>, _> = connected.iter().map(duplicate).collect();
    let connections = connections.map_err(|source| failed(&list, 0, source))?;
    let mut kept = Vec::new();
    if request.view.keeps_files() {
        let lost = keep::lost(&files, &memories, &areas);
        obstacles.extend(keep::flying(&list, &flying, &lost));
        kept = keep::duplicates(list, &lost);
    }
    if !obstacles.is_empty() {
        return Err(CollectError::Refused(obstacles));
    }
    Ok(Collected { files, pipes, memories, details, descriptors, areas, kept, terminals, connections, warnings })
}

/// Names the takers of locks that belong to open files, which are the machine's ids until now, as the tree knows them. Who has ended
/// or has no descriptor of the file any more cannot take it again: somebody else will.
fn own_locks(files: &mut [OpenFile], request: &Request<'_>, descriptors: &Descriptors) {
    let locked = |file: FileId| files[file as usize].locks.iter().any(|lock| lock.kind != LockKind::Posix);
    let tables = descriptors.iter().flat_map(|(pid, table)| table.iter().map(|one| (*pid, one.file)));
    let holders: HashSet<(i32, FileId)> = tables.filter(|(_, file)| locked(*file)).collect();
    for (n, file) in files.iter_mut().enumerate() {
        for lock in file.locks.iter_mut().filter(|lock| lock.kind != LockKind::Posix) {
            let has_it = holders.contains(&(lock.pid, n as FileId));
            lock.pid = request.ids.get(&lock.pid).copied().filter(|_| has_it).unwrap_or(0);
        }
    }
}

/// In the place of a file that cannot be described.
fn nothing() -> OpenFile {
    let kind = FileKind::Outside { name: String::new() };
    OpenFile { kind, flags: 0, position: 0, owner: Owner::default(), locks: Vec::new() }
}

fn failed(list: &List, n: usize, source: io::Error) -> CollectError {
    match list.items.get(n) {
        Some(item) => CollectError::Look { pid: item.holder.pid, what: place_text(item), source },
        None => CollectError::Look { pid: 0, what: "shared memory".to_owned(), source },
    }
}

fn place_text(item: &Item) -> String {
    format!("descriptor {} ({})", item.holder.fd, item.name())
}

/// What is in the way, in the words of [`Obstacle`].
pub(super) fn obstacle(item: &Item, what: &str, remedy: &str) -> Obstacle {
    let holder = item.holder;
    let what = if holder.in_flight { format!("a descriptor in flight there: {what}") } else { what.to_owned() };
    Obstacle::new(holder.pid, Place::Descriptor(holder.fd), what, remedy)
}

fn describe(context: &mut Context<'_, '_>, id: FileId, item: &Item) -> Described<OpenFile> {
    let keeps = context.request.view.keeps_files();
    let kind = match kind(context, id, item) {
        Err(Why::Outside { .. }) if item.standard => FileKind::Outside { name: item.name() },
        Err(Why::Outside { what, .. } | Why::Kept { what, .. }) if keeps => {
            // Standard input and output are given by whoever starts it after a reboot.
            if !item.standard {
                let Holder { pid, fd, .. } = item.holder;
                let name = crate::proc::name(pid);
                context.warnings.push(format!("{what} (descriptor {fd} of process {pid}, {name})"));
            }
            inet::without_peers(context, item)?.unwrap_or(FileKind::Outside { name: what })
        }
        other => other?,
    };
    let outside = matches!(kind, FileKind::Outside { .. }) && !keeps;
    if item.unknown_lock {
        let what = format!("{} has a lease that is being broken, or a lock that is not known here", item.name());
        return Err(Why::refused(what, "try again"));
    }
    let path_only = item.info.flags & PATH_ONLY != 0;
    let owner = if outside || path_only { Owner::default() } else { owner(context, item)? };
    if owner.id != 0 && FileType::from_raw_mode(item.stat.st_mode) == FileType::Directory {
        // Nobody else sets the owner of a directory; what is to be told of cannot be read.
        return Err(Why::refused(format!("{} is watched with F_NOTIFY", item.name()), "let the program use inotify"));
    }
    let locks = if outside { Vec::new() } else { item.locks.clone() };
    Ok(OpenFile { kind, flags: item.info.flags & !CLOSE_ON_EXEC, position: item.info.position, owner, locks })
}

fn owner(context: &Context<'_, '_>, item: &Item) -> Described<Owner> {
    const GROUP: i32 = 2;
    let owner = fcntl::owner(&item.fd)?;
    let signal = fcntl::signal(&item.fd)?;
    let id = match (owner.id, context.request.ids.get(&owner.id)) {
        (0, _) => 0,
        (_, Some(inside)) => *inside,
        (machine, None) if context.request.view.keeps_files() => match context.request.view.id(machine) {
            Some(group) => group,
            // Whoever that is stays its owner as long as the file is kept.
            None => return Ok(Owner::default()),
        },
        // The group of a leader that has ended.
        (group, None) if owner.kind == GROUP => group,
        (other, None) => {
            let what = format!("its signals go to process {other}, outside of the tree");
            return Err(Why::refused(what, "checkpoint a tree that contains that process"));
        }
    };
    Ok(Owner { kind: owner.kind, id, signal })
}

fn kind(context: &mut Context<'_, '_>, id: FileId, item: &Item) -> Described<FileKind> {
    if item.info.flags & PATH_ONLY != 0 {
        return path::describe(context.request, item);
    }
    if let Some(anonymous) = item.link.strip_prefix(b"anon_inode:") {
        return match anonymous {
            b"[eventfd]" => event::counter(&item.info),
            b"[signalfd]" => event::signals(&item.info),
            b"[timerfd]" => event::timer(item, context.request.since),
            b"[pidfd]" => event::process(context, item),
            b"[eventpoll]" => epoll::describe(context, item),
            b"inotify" => inotify::describe(context, item),
            b"[fanotify]" => fanotify::describe(context, item),
            other => Err(anonymous_object(&String::from_utf8_lossy(other))),
        };
    }
    match FileType::from_raw_mode(item.stat.st_mode) {
        FileType::RegularFile if context.memories.holds(item) => {
            path::is_file(item)?;
            Ok(FileKind::Memory { memory: context.memories.take(item)? })
        }
        FileType::RegularFile | FileType::Directory | FileType::Symlink => path::describe(context.request, item),
        FileType::CharacterDevice if path::is_master(item) => terminal::master(context, id, item),
        FileType::CharacterDevice if terminal::is_slave(major(item.stat.st_rdev)) => {
            match terminal::slave(context, item)? {
                Some(slave) => Ok(slave),
                None => path::device(context.request, item),
            }
        }
        FileType::CharacterDevice | FileType::BlockDevice => path::device(context.request, item),
        FileType::Fifo => context.pipes.describe(context.request, context.list, item),
        FileType::Socket => socket(context, id, item),
        _ => Err(Why::refused(format!("{} is of a kind that is not known here", item.name()), "")),
    }
}

fn socket(context: &mut Context<'_, '_>, id: FileId, item: &Item) -> Described<FileKind> {
    const UNIX: i32 = 1;
    const INET: i32 = 2;
    const INET6: i32 = 10;
    const NETLINK: i32 = 16;
    let kind = super::options::kind(&item.fd)?;
    match kind.0 {
        UNIX => unix::describe(context, id, item, kind),
        INET | INET6 => inet::describe(context, id, item, kind),
        NETLINK => netlink::describe(context, id, item, kind),
        packet::FAMILY => packet::describe(context, item, kind),
        family => {
            let (name, can_be_kept) = match family {
                38 => ("a socket of the kernel's cryptography (AF_ALG)", true),
                40 => ("a vsock socket", true),
                44 => ("an XDP socket", false),
                _ => ("a socket", false),
            };
            let (what, remedy) =
                (format!("{name} (family {family}) is not taken yet"), "close it before the checkpoint");
            Err(if can_be_kept { Why::kept(what, remedy) } else { Why::refused(what, remedy) })
        }
    }
}

/// Names what other people know under the name of its inode.
fn anonymous_object(name: &str) -> Why {
    let (what, remedy, can_be_kept) = match name.trim_matches(['[', ']']) {
        "io_uring" => ("io_uring", "start the program with io_uring off", false),
        "perf_event" => ("a performance counter", "stop profiling", false),
        "userfaultfd" => ("userfaultfd: the program serves page faults itself", "", false),
        "seccomp notify" => ("a seccomp supervisor's descriptor", "", false),
        "landlock-ruleset" => ("a landlock ruleset", "close it before the checkpoint", true),
        "kvm-vm" | "kvm-vcpu:0" => ("a virtual machine", "", false),
        other if other.starts_with("bpf") => ("a BPF object", "close it before the checkpoint", true),
        _ => ("a kernel object that is not known here", "", false),
    };
    let what = format!("{what} (anon_inode:{name})");
    if can_be_kept { Why::kept(what, remedy) } else { Why::refused(what, remedy) }
}
