//! The dump: every descriptor is listed, each open file behind them described by its kind.

mod kinds;
mod parked;

use std::collections::{HashMap, HashSet};
use std::io;

use rustix::fs::FileType;
use torpor_image::tree::{Details, FileId, FileKind, LockKind, OpenFile, Owner};
use torpor_linux::fcntl;

use torpor_pages::sink::PageSink;

use self::kinds::Kinds;
use crate::context::DumpContext;
use crate::contract::error::DumpError;
use crate::contract::flags::{CLOSE_ON_EXEC, PATH_ONLY};
use crate::contract::reason::{Described, Reason};
use crate::contract::{Dumped, Request};
use crate::filesystem::Volumes;
use crate::kinds::inet::Tables;
use crate::kinds::inet::tcp::{self, Connections};
use crate::kinds::memory::{self, Memories};
use crate::kinds::pipe::Pipes;
use crate::kinds::socket::options::Defaults;
use crate::kinds::terminal::Terminals;
use crate::kinds::{epoll, unix};
use crate::list::{Descriptors, Holder, Item, List, raise_limit};

/// Takes the open files and shared memory of a stopped tree; the pages go to `sink`, which the caller flushes.
pub fn dump(request: &Request<'_>, sink: &mut PageSink<'_>) -> Result<Dumped, DumpError> {
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
pub(crate) fn describe_all(
    request: &Request<'_>,
    mut list: List,
    descriptors: Descriptors,
    sink: &mut PageSink<'_>,
) -> Result<Dumped, DumpError> {
    let mut obstacles = Vec::new();
    let sockets = unix::queues(&mut list, request, &mut obstacles)?;
    let flying = sockets.flying();
    let connections = if request.look_only { Connections::default() } else { tcp::take(&list, request.lock)? };
    let connected = connections.files();
    let kernel_tmpfs = memory::kernel_tmpfs().map_err(|source| failed(&list, 0, source))?;
    let context = DumpContext { request, list: &list, descriptors: &descriptors, kernel_tmpfs, warnings: Vec::new() };
    let kinds = Kinds {
        pipes: Pipes::default(),
        memories: Memories::new(sink, request, kernel_tmpfs),
        unix: sockets,
        inet: Tables::new(connections),
        terminals: Terminals::of(&list),
        socket_defaults: Defaults::default(),
        visited: epoll::Visited::default(),
        netlink_peers: Vec::new(),
    };
    let mut dumper = Dumper { context, kinds, volumes: None };
    let mut files = Vec::with_capacity(list.items.len());
    for (n, item) in list.items.iter().enumerate() {
        if !(request.go_on)() {
            return Err(DumpError::Stopped);
        }
        match dumper.describe(n as FileId, item) {
            Ok(file) => files.push(file),
            Err(
                Reason::Refused { what, remedy } | Reason::Parkable { what, remedy } | Reason::Outside { what, remedy },
            ) => {
                obstacles.push(item.obstacle(&what, &remedy));
                files.push(nothing());
            }
            Err(Reason::Failed(source)) => return Err(failed(&list, n, source)),
            Err(Reason::Write(source)) => return Err(DumpError::Write(source)),
            Err(Reason::Stopped) => return Err(DumpError::Stopped),
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
            obstacles.push(item.obstacle(&what, "close it before the checkpoint"));
        }
    }
    let Dumper { context: DumpContext { warnings, .. }, mut kinds, .. } = dumper;
    let areas = kinds.memories.areas(&list, request.areas, &mut obstacles)?;
    let Kinds { pipes, memories, terminals, netlink_peers, .. } = kinds;
    let terminals = terminals.controlling(&mut files);
    let (memories, times) = memories.finish();
    let pipes = pipes.finish();
    let details = Details { times, netlink_peers, ..Details::default() };
    own_locks(&mut files, request, &descriptors);
    let duplicate = |file: &FileId| list.item(*file).fd.try_clone();
    let connections: Result<Vec<_>, _> = connected.iter().map(duplicate).collect();
    let connections = connections.map_err(|source| failed(&list, 0, source))?;
    let mut kept = Vec::new();
    if request.parks() {
        let lost = parked::lost(&files, &memories, &areas);
        obstacles.extend(parked::flying(&list, &flying, &lost));
        kept = parked::duplicates(list, &lost);
    }
    if !obstacles.is_empty() {
        return Err(DumpError::Refused(obstacles));
    }
    Ok(Dumped { files, pipes, memories, details, descriptors, areas, kept, terminals, connections, warnings })
}

/// A dump under way.
struct Dumper<'a, 'b> {
    context: DumpContext<'a>,
    kinds: Kinds<'a, 'b>,
    /// Read when the first lock is found.
    volumes: Option<Volumes>,
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

fn failed(list: &List, n: usize, source: io::Error) -> DumpError {
    match list.items.get(n) {
        Some(item) => DumpError::Look { pid: item.holder.pid, what: place_text(item), source },
        None => DumpError::Look { pid: 0, what: "shared memory".to_owned(), source },
    }
}

fn place_text(item: &Item) -> String {
    format!("descriptor {} ({})", item.holder.fd, item.name())
}

impl Dumper<'_, '_> {
    fn describe(&mut self, id: FileId, item: &Item) -> Described<OpenFile> {
        let parks = self.context.request.parks();
        let kind = match self.kinds.dump(&mut self.context, id, item) {
            Err(Reason::Outside { .. }) if item.standard => FileKind::Outside { name: item.name() },
            Err(Reason::Outside { what, .. } | Reason::Parkable { what, .. }) if parks => {
                // Standard input and output are given by whoever starts it after a reboot.
                if !item.standard {
                    let Holder { pid, fd, .. } = item.holder;
                    let name = torpor_proc::name(pid);
                    self.context.warnings.push(format!("{what} (descriptor {fd} of process {pid}, {name})"));
                }
                self.kinds.without_peers(item)?.unwrap_or(FileKind::Outside { name: what })
            }
            other => other?,
        };
        let outside = matches!(kind, FileKind::Outside { .. }) && !parks;
        if item.unknown_lock {
            let what = format!("{} has a lease that is being broken, or a lock that is not known here", item.name());
            return Err(Reason::refused(what, "try again"));
        }
        if parks && item.locks.iter().any(|lock| lock.kind == LockKind::Posix) && self.is_of_volume(item)? {
            // It belongs to the process, and would be free until the process is there again.
            let what = format!("{} is locked (fcntl), and others can lock it too, for it is in a volume", item.name());
            return Err(Reason::refused(what, "keep the file outside of volumes, or let the program use flock"));
        }
        let path_only = item.info.flags & PATH_ONLY != 0;
        let owner = if outside || path_only { Owner::default() } else { owner(self.context.request, item)? };
        if owner.id != 0 && FileType::from_raw_mode(item.stat.st_mode) == FileType::Directory {
            // Nobody else sets the owner of a directory; what is to be told of cannot be read.
            return Err(Reason::refused(
                format!("{} is watched with F_NOTIFY", item.name()),
                "let the program use inotify",
            ));
        }
        let locks = if outside { Vec::new() } else { item.locks.clone() };
        Ok(OpenFile { kind, flags: item.info.flags & !CLOSE_ON_EXEC, position: item.info.position, owner, locks })
    }

    fn is_of_volume(&mut self, item: &Item) -> Described<bool> {
        let volumes = match self.volumes.take() {
            Some(volumes) => volumes,
            None => Volumes::of(&self.context.request.view.reference())?,
        };
        Ok(self.volumes.insert(volumes).have(&item.fd)?)
    }
}

fn owner(request: &Request<'_>, item: &Item) -> Described<Owner> {
    const GROUP: i32 = 2;
    let owner = fcntl::owner(&item.fd)?;
    let signal = fcntl::signal(&item.fd)?;
    let in_sandbox = request.view.in_sandbox();
    let group = in_sandbox.then(|| request.view.id(owner.id)).flatten();
    let id = match (owner.id, request.ids.get(&owner.id).copied().or(group)) {
        (0, _) => 0,
        (_, Some(inside)) => inside,
        // Whoever that is stays its owner as long as the file is parked.
        _ if request.parks() => return Ok(Owner::default()),
        // The group of a leader that has ended.
        (group, None) if owner.kind == GROUP && !in_sandbox => group,
        (other, None) => {
            let what = format!("its signals go to process {other}, outside of the tree");
            return Err(Reason::refused(what, "checkpoint a tree that contains that process"));
        }
    };
    Ok(Owner { kind: owner.kind, id, signal })
}
