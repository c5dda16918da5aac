//! Making: the order, and what each kind of open file is made from.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{OFlags, SeekFrom, fcntl_getfl, fcntl_setfl, seek};
use torpor_image::tree::{
    AddressSpace, Backing, Connection, Executable, FileId, FileKind, InetSocket, InetState, MemoryId, OpenFile,
    PathState, PipeId, Tree,
};
use torpor_linux::closer;
use torpor_linux::fcntl;

use super::list::{PATH_ONLY, raise_limit};
use super::memory::{self, MadeMemory};
use super::path::{ASYNC, Around};
use super::pipe::{self, MadePipe, reopen};
use super::{
    Given, Made, MakeError, SETTLE, epoll, event, fanotify, inet, inotify, locks, netlink, packet, path, port, segment,
    tcp, terminal, unix,
};

/// Makes the open files and shared memory of `tree`, whose pages are in `image`. `given` are descriptors that came from
/// outside or were kept: they are taken as they are.
///
/// What is open behind a descriptor is made once; if anything fails, dropping what was made takes it away again (names of
/// unix sockets stay as files, as they did when the program ended).
pub(crate) fn make(tree: &Tree, image: &File, given: Given, around: Around<'_>) -> Result<Made, MakeError> {
    // An app's network.
    let anew = around.passed.is_some();
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
                let fd = kept.try_clone().map_err(MakeError::at("duplicating", "a file without a name"))?;
                MadeMemory { fd, sealed: None, segment: None }
            }
            None => {
                let id = id as MemoryId;
                memory::make(memory, image, around, (executables.contains(&id), written.contains(&id)))?
            }
        });
    }
    let kept: Vec<bool> = files.iter().map(Option::is_some).collect();
    if kept.contains(&false) {
        // An attempt before this one may have had the same addresses.
        closer::settle(SETTLE);
    }
    let mut pipes = pipes(tree, &kept, around)?;
    let mut ports = port::shared(&tree.files);
    if ports.keys().all(|id| kept[*id as usize]) {
        ports.clear();
    }
    for (id, sharing) in ports.iter().filter(|(id, _)| kept[**id as usize]) {
        if let Some(fd) = &files[*id as usize] {
            sharing.allow(fd).map_err(MakeError::at("preparing", "a socket"))?;
        }
    }
    let reset = if anew { without_address(tree, &kept) } else { HashSet::new() };
    // Addresses first: a listener keeps others from its port.
    for (id, file) in tree.files.iter().enumerate().filter(|(id, _)| !kept[*id]) {
        files[id] = match &file.kind {
            FileKind::Unix(_)
            | FileKind::Process { .. }
            | FileKind::OfProcess { .. }
            | FileKind::Inotify { .. }
            | FileKind::Fanotify { .. }
            | FileKind::Ended { .. } => None,
            FileKind::Inet(socket) if reset.contains(&id) => Some(inet::reset(socket)?),
            FileKind::Inet(socket) => Some(inet::make(socket, anew, ports.get(&(id as FileId)).copied())?),
            FileKind::Master(found) => Some(terminal::make(found, file, around)?),
            FileKind::Slave { .. } => None,
            _ => Some(one(tree, id as FileId, around, &memories, &mut pipes)?),
        };
    }
    for (id, file) in tree.files.iter().enumerate().filter(|(id, _)| !kept[*id]) {
        if let FileKind::Slave { master } = file.kind
            && let Some(master) = files.get(master as usize).and_then(Option::as_ref)
        {
            files[id] = Some(terminal::make_slave(master, file)?);
        }
    }
    for (id, file) in tree.files.iter().enumerate().filter(|(id, _)| !kept[*id]) {
        if let (FileKind::Master(found), Some(master)) = (&file.kind, &files[id]) {
            terminal::close_off(master, found)?;
        }
    }
    let making = unix::make(&tree.files, &mut files, around.root)?;
    // Behind all that opens and binds, of which the program must not be told; before descriptors go in flight.
    for (id, file) in tree.files.iter().enumerate().filter(|(id, _)| !kept[*id]) {
        match &file.kind {
            FileKind::Inotify { watches } => {
                let deleted = |state: &PathState| memory::deleted(&tree.memories, &memories, state);
                files[id] = Some(inotify::make(watches, file, around, deleted)?);
            }
            FileKind::Fanotify { flags, event_flags, marks } => {
                files[id] = Some(fanotify::make((*flags, *event_flags), marks, file, around)?);
            }
            _ => {}
        }
    }
    event::make_ended(&tree.files, &mut files)?;
    unix::fill(making, &tree.files, &files)?;
    for (id, file) in tree.files.iter().enumerate().filter(|(id, _)| !kept[*id]) {
        let Some(fd) = &files[id] else { continue };
        if let FileKind::Inet(socket) = &file.kind {
            inet::finish(fd, socket, file, anew)?;
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
    Ok(Made { memories: memories.collect(), files, segments, sealed, waiting })
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

/// A TCP connection that is made again.
fn connection(file: &OpenFile) -> Option<(&InetSocket, &Connection)> {
    match &file.kind {
        FileKind::Inet(socket) => match &socket.state {
            InetState::Established { repair: Some(connection) } => Some((socket, connection)),
            _ => None,
        },
        _ => None,
    }
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

/// What an open file is called in errors.
fn name(file: &OpenFile) -> String {
    match &file.kind {
        FileKind::Path(state) | FileKind::Fifo { path: state, .. } | FileKind::Handle { state, .. } => {
            path::text(state)
        }
        FileKind::Memory { .. } => "a file without a name".to_owned(),
        FileKind::Outside { name } => name.clone(),
        _ => "a descriptor".to_owned(),
    }
}

fn pipes(tree: &Tree, kept: &[bool], around: Around<'_>) -> Result<HashMap<PipeId, MadePipe>, MakeError> {
    let mut made = HashMap::new();
    for (id, behind) in pipe::by_pipe(&tree.files) {
        if behind.iter().all(|file| kept[*file as usize]) {
            continue;
        }
        let files: Vec<&OpenFile> = behind.iter().map(|file| &tree.files[*file as usize]).collect();
        if let Some(pipe) = tree.pipes.get(id as usize) {
            made.insert(id, pipe::make(pipe, &files, around.root)?);
        }
    }
    Ok(made)
}

fn one(
    tree: &Tree,
    id: FileId,
    around: Around<'_>,
    memories: &[MadeMemory],
    pipes: &mut HashMap<PipeId, MadePipe>,
) -> Result<OwnedFd, MakeError> {
    let file = &tree.files[id as usize];
    match &file.kind {
        FileKind::Path(state) => path::make(state, file, around),
        FileKind::Pipe { pipe, .. } | FileKind::Fifo { pipe, .. } => match pipes.get_mut(pipe) {
            Some(pipe) => pipe.open(file),
            None => Err(MakeError::Missing("a pipe".to_owned())),
        },
        FileKind::Event { count, semaphore } => event::make_counter(*count, *semaphore, file),
        FileKind::Epoll { .. } => epoll::make(file),
        FileKind::Signal { mask } => event::make_signals(*mask, file),
        FileKind::Timer { .. } => event::make_timer(file, &tree.machine, around),
        FileKind::Memory { memory } => {
            const NAME: &str = "a file without a name";
            let memory = memories.get(*memory as usize).ok_or_else(|| MakeError::Missing(NAME.to_owned()))?;
            let flags = path::reopened(file.flags);
            let fd = reopen(memory.fd.as_fd(), flags).map_err(MakeError::at("opening", NAME))?;
            seek(&fd, SeekFrom::Start(file.position)).map_err(MakeError::at("finding the position in", NAME))?;
            Ok(fd)
        }
        FileKind::Netlink { kind, port, groups, options } => {
            netlink::make((*kind, *port), groups, options, tree.details.netlink_peer(id), file)
        }
        FileKind::Packet(socket) => packet::make(socket, file, around.passed.is_some()),
        FileKind::Outside { name } => Err(MakeError::Missing(name.clone())),
        FileKind::Handle { state, handle } => path::make_by_handle(state, handle, file, around),
        FileKind::Process { .. }
        | FileKind::OfProcess { .. }
        | FileKind::Master(_)
        | FileKind::Slave { .. }
        | FileKind::Unix(_)
        | FileKind::Inet(_)
        | FileKind::Inotify { .. }
        | FileKind::Fanotify { .. }
        | FileKind::Ended { .. } => Err(MakeError::Missing("a descriptor".to_owned())),
    }
}

impl Made {
    /// What needs the processes: called when they are there and have mapped their memory, before they run. `machine` gives
    /// the id in the caller's pid namespace of who has an id in the tree.
    pub(crate) fn finish(&mut self, tree: &Tree, machine: impl Fn(i32) -> i32) -> Result<(), MakeError> {
        for segment in &mut self.segments {
            segment.attached()?;
        }
        for (id, fd) in std::mem::take(&mut self.sealed) {
            memory::seal(&tree.memories[id as usize], fd.as_fd())?;
        }
        for (id, fd) in (0..).zip(&self.memories) {
            memory::set_times(tree, id, fd.as_fd())?;
        }
        for (id, file) in tree.files.iter().enumerate() {
            let Some(fd) = self.files.get(id).and_then(Option::as_ref) else { continue };
            // What came from outside is left as it is; what was an app's own and was kept has its owner again.
            let outside = matches!(file.kind, FileKind::Outside { .. }) && file.owner.id == 0 && file.locks.is_empty();
            if file.flags & PATH_ONLY != 0 || outside {
                continue;
            }
            let name = name(file);
            finish_one(fd.as_fd(), file, &name, &machine)?;
            locks::take_leases(fd.as_fd(), file, &name)?;
        }
        Ok(())
    }

    /// The last thing before the processes run: TCP connections go on, and packet sockets take packets.
    pub(crate) fn reconnect(&self, tree: &Tree) -> Result<(), MakeError> {
        let connections: Vec<_> = self.connections(tree).collect();
        for (fd, socket, _) in &connections {
            tcp::make::release(fd, socket, &inet::shown(socket))?;
        }
        for (fd, socket, found) in &connections {
            tcp::make::go_on(fd, socket, found, &inet::shown(socket))?;
        }
        let deadline = tcp::make::settling();
        for (fd, socket, found) in &connections {
            tcp::make::settle(fd, found, deadline, &inet::shown(socket))?;
        }
        for id in &self.waiting {
            if let (FileKind::Packet(socket), Some(fd)) = (&tree.files[*id as usize].kind, &self.files[*id as usize]) {
                packet::listen(fd, socket)?;
            }
        }
        Ok(())
    }

    /// Packets of connections with ends outside come again.
    pub(crate) fn nudge(&self, tree: &Tree) -> Result<(), MakeError> {
        let mut outside = self.connections(tree).filter(|(_, _, found)| found.outside);
        outside.try_for_each(|(fd, socket, _)| tcp::make::nudge(fd, socket, &inet::shown(socket)))
    }

    /// TCP connections that are made again.
    pub(crate) fn connections<'a>(
        &'a self,
        tree: &'a Tree,
    ) -> impl Iterator<Item = (&'a OwnedFd, &'a InetSocket, &'a Connection)> {
        self.waiting.iter().filter_map(|id| {
            let (socket, found) = connection(&tree.files[*id as usize])?;
            Some((self.files[*id as usize].as_ref()?, socket, found))
        })
    }

    /// The processes run: what would be taken away again if this were dropped stays.
    pub(crate) fn keep(&mut self) {
        self.segments.iter_mut().for_each(segment::Segment::keep);
    }

    /// The descriptor of an open file.
    #[cfg(test)]
    pub(crate) fn file(&self, id: FileId) -> Option<BorrowedFd<'_>> {
        self.files.get(id as usize)?.as_ref().map(AsFd::as_fd)
    }
}

fn finish_one(fd: BorrowedFd<'_>, file: &OpenFile, name: &str, machine: &impl Fn(i32) -> i32) -> Result<(), MakeError> {
    let owner = file.owner;
    if owner.id != 0 {
        let wanted = fcntl::Owner { kind: owner.kind, id: machine(owner.id) };
        fcntl::set_owner(fd, wanted).map_err(MakeError::at("setting the owner of", name))?;
    }
    if owner.signal != 0 {
        fcntl::set_signal(fd, owner.signal).map_err(MakeError::at("setting the signal of", name))?;
    }
    if file.flags & ASYNC != 0 {
        let flags = fcntl_getfl(fd).map_err(MakeError::at("looking at", name))?;
        fcntl_setfl(fd, flags | OFlags::from_bits_retain(ASYNC)).map_err(MakeError::at("setting flags of", name))?;
    }
    Ok(())
}
