//! Making: the order, and what each kind of open file is made from.

mod made;

use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::OFlags;
use torpor_image::tree::{
    AddressSpace, Backing, Executable, FileId, FileKind, MemoryId, OpenFile, PathState, PipeId, Tree,
};
use torpor_linux::closer;
use torpor_pages::source::PageSource;

pub use self::made::RestoredFiles;
use self::made::connection;
use crate::context::{Network, RestoreContext};
use crate::contract::error::RestoreFileError;
use crate::contract::{Given, SETTLE};
use crate::kinds::inet::port::{self, Sharing};
use crate::kinds::memory::MadeMemory;
use crate::kinds::pipe::MadePipe;
use crate::kinds::{
    epoll, eventfd, fanotify, inet, inotify, memory, netlink, packet, path, pidfd, pipe, signalfd, terminal, timerfd,
    unix,
};
use crate::list::raise_limit;
use crate::locks;
use crate::registry::{Stage, name, needs};

/// Makes the open files and shared memory of `tree`, whose pages come from `pages`. `given` are descriptors that came from
/// outside or were kept: they are taken as they are.
///
/// What is open behind a descriptor is made once; if anything fails, dropping what was made takes it away again (names of
/// unix sockets stay as files, as they did when the program ended).
pub fn restore(
    tree: &Tree,
    pages: &dyn PageSource,
    given: Given,
    around: RestoreContext<'_>,
) -> Result<RestoredFiles, RestoreFileError> {
    raise_limit();
    let mut files: Vec<Option<OwnedFd>> = tree.files.iter().map(|_| None).collect();
    for (id, fd) in given {
        if let Some(place) = files.get_mut(id as usize) {
            *place = Some(fd.into());
        }
    }
    let executables = executables(tree);
    let written = written(tree);
    let mut memories = Vec::with_capacity(tree.memories.len());
    for (id, memory) in tree.memories.iter().enumerate() {
        memories.push(match kept_memory(tree, &files, id) {
            // A file without a name that was kept: its contents are in it.
            Some(kept) => {
                let fd = kept.try_clone().map_err(RestoreFileError::at("duplicating", "a file without a name"))?;
                MadeMemory { fd, sealed: None, segment: None }
            }
            None => {
                let id = id as MemoryId;
                memory::restore(memory, pages, around, (executables.contains(&id), written.contains(&id)))?
            }
        });
    }
    let kept: Vec<bool> = files.iter().map(Option::is_some).collect();
    if kept.contains(&false) {
        // An attempt before this one may have had the same addresses.
        closer::settle(SETTLE);
    }
    let mut ports = port::shared(&tree.files);
    if ports.keys().all(|id| kept[*id as usize]) {
        ports.clear();
    }
    for (id, sharing) in ports.iter().filter(|(id, _)| kept[**id as usize]) {
        if let Some(fd) = &files[*id as usize] {
            sharing.allow(fd).map_err(RestoreFileError::at("preparing", "a socket"))?;
        }
    }
    let reset = if around.network == Network::New { without_address(tree, &kept) } else { HashSet::new() };
    let pipes = pipes(tree, &kept, around)?;
    let mut restorer = Restorer { tree, around, memories: &memories, pipes, ports: &ports, reset: &reset };
    restorer.stage(Stage::Open, &kept, &mut files)?;
    restorer.stage(Stage::Peer, &kept, &mut files)?;
    for (id, file) in tree.files.iter().enumerate().filter(|(id, _)| !kept[*id]) {
        if let (FileKind::Master(found), Some(master)) = (&file.kind, &files[id]) {
            terminal::close_off(master, found)?;
        }
    }
    let making = unix::restore(&tree.files, &mut files, around.root)?;
    // Before descriptors go in flight.
    restorer.stage(Stage::Watch, &kept, &mut files)?;
    pidfd::restore_ended(&tree.files, &mut files)?;
    unix::fill(making, &tree.files, &files)?;
    for (id, file) in tree.files.iter().enumerate().filter(|(id, _)| !kept[*id]) {
        let Some(fd) = &files[id] else { continue };
        if let FileKind::Inet(socket) = &file.kind {
            inet::finish(fd, socket, file, around.network)?;
        }
        locks::take(fd.as_fd(), file, &name(file))?;
    }
    for (id, sharing) in &ports {
        if let (Some(fd), FileKind::Inet(socket)) = (&files[*id as usize], &tree.files[*id as usize].kind) {
            sharing.settle(fd, socket)?;
        }
    }
    let waits = |file: &OpenFile| connection(file).is_some() || matches!(file.kind, FileKind::Packet(_));
    let is_waiting = |id: &usize| !kept[*id] && !reset.contains(id) && waits(&tree.files[*id]);
    let waiting = (0..files.len()).filter(is_waiting).map(|id| id as FileId).collect();
    let (mut segments, mut sealed) = (Vec::new(), Vec::new());
    let memories = (0..).zip(memories).map(|(id, made)| {
        segments.extend(made.segment);
        sealed.extend(made.sealed.map(|fd| (id, fd)));
        made.fd
    });
    Ok(RestoredFiles { memories: memories.collect(), files, segments, sealed, waiting })
}

/// Files without a name that are executed.
fn executables(tree: &Tree) -> HashSet<MemoryId> {
    let spaces = tree.processes.iter().filter_map(|process| Some(&process.alive()?.space));
    let memory = |space: &AddressSpace| match space.executable {
        Executable::Memory(memory) => Some(memory),
        Executable::File(_) => None,
    };
    spaces.filter_map(memory).collect()
}

/// Files without a name that somebody writes to: through a descriptor, or a mapping.
fn written(tree: &Tree) -> HashSet<MemoryId> {
    let open = tree.files.iter().filter_map(|file| match file.kind {
        FileKind::Memory { memory } if file.flags & OFlags::ACCMODE.bits() != 0 => Some(memory),
        _ => None,
    });
    let areas = tree.processes.iter().filter_map(|process| process.alive()).flat_map(|life| &life.space.areas);
    let mapped = areas.filter_map(|area| match area.backing {
        Backing::Shared { memory, shared: true, may_write: true, .. } => Some(memory),
        _ => None,
    });
    open.chain(mapped).collect()
}

/// TCP connections over addresses of the program's own that are gone with the network that it had them in: as any to the outside
/// they are reset.
fn without_address(tree: &Tree, kept: &[bool]) -> HashSet<usize> {
    let lost = |file| connection(file).is_some_and(|(socket, _)| inet::has_lost_address(socket));
    (0..tree.files.len()).filter(|id| !kept[*id] && lost(&tree.files[*id])).collect()
}

/// The open file behind a memory, if it was kept.
fn kept_memory<'a>(tree: &Tree, files: &'a [Option<OwnedFd>], wanted: usize) -> Option<&'a OwnedFd> {
    let is_it = |kind: &FileKind| matches!(kind, FileKind::Memory { memory } if *memory as usize == wanted);
    tree.files.iter().zip(files).find_map(|(file, kept)| kept.as_ref().filter(|_| is_it(&file.kind)))
}

fn pipes(
    tree: &Tree,
    kept: &[bool],
    around: RestoreContext<'_>,
) -> Result<HashMap<PipeId, MadePipe>, RestoreFileError> {
    let mut made = HashMap::new();
    for (id, behind) in pipe::by_pipe(&tree.files) {
        if behind.iter().all(|file| kept[*file as usize]) {
            continue;
        }
        let files: Vec<&OpenFile> = behind.iter().map(|file| &tree.files[*file as usize]).collect();
        if let Some(pipe) = tree.pipes.get(id as usize) {
            made.insert(id, pipe::restore(pipe, &files, around.root)?);
        }
    }
    Ok(made)
}

/// What the kinds need while they are restored one by one.
struct Restorer<'a> {
    tree: &'a Tree,
    around: RestoreContext<'a>,
    memories: &'a [MadeMemory],
    pipes: HashMap<PipeId, MadePipe>,
    ports: &'a HashMap<FileId, Sharing>,
    /// TCP connections that come back reset.
    reset: &'a HashSet<usize>,
}

impl Restorer<'_> {
    /// Restores the files of a stage, except parked ones.
    fn stage(&mut self, stage: Stage, kept: &[bool], files: &mut [Option<OwnedFd>]) -> Result<(), RestoreFileError> {
        for (id, file) in self.tree.files.iter().enumerate() {
            let needed = needs(&file.kind).stage;
            if kept[id] {
                continue;
            }
            if needed == Stage::Given {
                return Err(RestoreFileError::Missing(name(file)));
            }
            if needed == stage {
                files[id] = self.restore(id, file, files)?;
            }
        }
        Ok(())
    }

    /// Restores one file by its kind; `None`: it is not restored one by one, see [`Stage`].
    fn restore(
        &mut self,
        id: usize,
        file: &OpenFile,
        files: &[Option<OwnedFd>],
    ) -> Result<Option<OwnedFd>, RestoreFileError> {
        let around = self.around;
        let made = match &file.kind {
            FileKind::Path(state) => path::restore(state, file, around)?,
            FileKind::Handle { state, handle } => path::restore_by_handle(state, handle, file, around)?,
            FileKind::Pipe { pipe, .. } | FileKind::Fifo { pipe, .. } => match self.pipes.get_mut(pipe) {
                Some(pipe) => pipe.open(file)?,
                None => return Err(RestoreFileError::Missing(name(file))),
            },
            FileKind::Event { count, semaphore } => eventfd::restore(*count, *semaphore, file)?,
            FileKind::Epoll { .. } => epoll::restore(file)?,
            FileKind::Signal { mask } => signalfd::restore(*mask, file)?,
            FileKind::Timer { .. } => timerfd::restore(file, &self.tree.machine, around)?,
            FileKind::Memory { memory } => memory::open(self.memories, *memory, file)?,
            FileKind::Netlink { kind, port, groups, options } => {
                let peer = self.tree.details.netlink_peer(id as FileId);
                netlink::restore((*kind, *port), groups, options, peer, file)?
            }
            FileKind::Packet(socket) => packet::restore(socket, file, self.around.network)?,
            FileKind::Inet(socket) if self.reset.contains(&id) => inet::reset(socket)?,
            FileKind::Inet(socket) => {
                inet::restore(socket, self.around.network, self.ports.get(&(id as FileId)).copied())?
            }
            FileKind::Master(found) => terminal::restore(found, file, around)?,
            FileKind::Slave { master } => match files.get(*master as usize).and_then(Option::as_ref) {
                Some(master) => terminal::restore_slave(master, file)?,
                None => return Ok(None),
            },
            FileKind::Inotify { watches } => {
                let deleted = |state: &PathState| memory::deleted(&self.tree.memories, self.memories, state);
                inotify::restore(watches, file, around, deleted)?
            }
            FileKind::Fanotify { flags, event_flags, marks } => {
                fanotify::restore((*flags, *event_flags), marks, file, around)?
            }
            FileKind::Unix(_)
            | FileKind::Ended { .. }
            | FileKind::Process { .. }
            | FileKind::OfProcess { .. }
            | FileKind::Outside { .. } => return Ok(None),
        };
        Ok(Some(made))
    }
}
