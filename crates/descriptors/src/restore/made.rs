//! Open files that were made, until the processes run.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use torpor_image::tree::{Connection, FileId, FileKind, InetSocket, InetState, MemoryId, OpenFile, Tree};
use torpor_linux::closer::{self, Queued};
use torpor_linux::fcntl;

use crate::contract::error::RestoreFileError;
use crate::contract::flags::{ASYNC, PATH_ONLY};
use crate::kinds::inet::tcp;
use crate::kinds::memory::segment::Segment;
use crate::kinds::{inet, memory, packet};
use crate::locks;
use crate::registry::{Stage, name, needs};

/// Open files that were made.
#[derive(Debug)]
pub struct RestoredFiles {
    /// By [`FileId`]; `None` for process descriptors, which the processes open themselves.
    pub files: Vec<Option<OwnedFd>>,
    /// By [`MemoryId`], open for reading and writing, for mapping.
    pub memories: Vec<OwnedFd>,
    /// System V segments among them.
    pub(super) segments: Vec<Segment>,
    /// Memfds that wait for their seals, open for writing.
    pub(super) sealed: Vec<(MemoryId, OwnedFd)>,
    /// TCP connections and packet sockets that wait for [`RestoredFiles::reconnect`].
    pub(super) waiting: Vec<FileId>,
}

impl Drop for RestoredFiles {
    /// The programs may have closed theirs meanwhile.
    fn drop(&mut self) {
        closer::close(self.files.drain(..).flatten());
    }
}

impl RestoredFiles {
    /// What needs the processes: called when they are there and have mapped their memory, before they run. `machine` gives
    /// the id in the caller's pid namespace of who has an id in the tree.
    pub fn finish(&mut self, tree: &Tree, machine: impl Fn(i32) -> i32) -> Result<(), RestoreFileError> {
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
            let outside = needs(&file.kind).stage == Stage::Given && file.owner.id == 0 && file.locks.is_empty();
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
    pub fn reconnect(&self, tree: &Tree) -> Result<(), RestoreFileError> {
        let connections: Vec<_> = self.connections(tree).collect();
        for (fd, socket, _) in &connections {
            tcp::restore::release(fd, socket, &inet::shown(socket))?;
        }
        for (fd, socket, found) in &connections {
            tcp::restore::go_on(fd, socket, found, &inet::shown(socket))?;
        }
        let deadline = tcp::restore::settling();
        for (fd, socket, found) in &connections {
            tcp::restore::settle(fd, found, deadline, &inet::shown(socket))?;
        }
        for id in &self.waiting {
            if let (FileKind::Packet(socket), Some(fd)) = (&tree.files[*id as usize].kind, &self.files[*id as usize]) {
                packet::listen(fd, socket)?;
            }
        }
        Ok(())
    }

    /// Packets of connections with ends outside come again.
    pub fn nudge(&self, tree: &Tree) -> Result<(), RestoreFileError> {
        let mut outside = self.connections(tree).filter(|(_, _, found)| found.outside);
        outside.try_for_each(|(fd, socket, _)| tcp::restore::nudge(fd, socket, &inet::shown(socket)))
    }

    /// TCP connections that are made again.
    pub fn connections<'a>(
        &'a self,
        tree: &'a Tree,
    ) -> impl Iterator<Item = (&'a OwnedFd, &'a InetSocket, &'a Connection)> {
        self.waiting.iter().filter_map(|id| {
            let (socket, found) = connection(&tree.files[*id as usize])?;
            Some((self.files[*id as usize].as_ref()?, socket, found))
        })
    }

    /// The processes run: what would be taken away again if this were dropped stays.
    pub fn keep(&mut self) {
        self.segments.iter_mut().for_each(Segment::keep);
    }

    /// Closes the descriptors that the processes have inherited, before they run: as long as they are open here, a lock or an address that the program
    /// gives up stays taken. Segments are still removed if this is dropped without [`RestoredFiles::keep`].
    pub fn hand_over(&mut self) -> Queued {
        self.memories.clear();
        closer::close_now(self.files.drain(..).flatten())
    }

    /// The descriptor of an open file.
    #[cfg(test)]
    pub(crate) fn file(&self, id: FileId) -> Option<BorrowedFd<'_>> {
        self.files.get(id as usize)?.as_ref().map(AsFd::as_fd)
    }
}

fn finish_one(
    fd: BorrowedFd<'_>,
    file: &OpenFile,
    name: &str,
    machine: &impl Fn(i32) -> i32,
) -> Result<(), RestoreFileError> {
    let owner = file.owner;
    if owner.id != 0 {
        let wanted = fcntl::Owner { kind: owner.kind, id: machine(owner.id) };
        fcntl::set_owner(fd, wanted).map_err(RestoreFileError::at("setting the owner of", name))?;
    }
    if owner.signal != 0 {
        fcntl::set_signal(fd, owner.signal).map_err(RestoreFileError::at("setting the signal of", name))?;
    }
    if file.flags & ASYNC != 0 {
        let flags = fcntl_getfl(fd).map_err(RestoreFileError::at("looking at", name))?;
        fcntl_setfl(fd, flags | OFlags::from_bits_retain(ASYNC))
            .map_err(RestoreFileError::at("setting flags of", name))?;
    }
    Ok(())
}

/// A TCP connection that is made again.
pub(super) fn connection(file: &OpenFile) -> Option<(&InetSocket, &Connection)> {
    match &file.kind {
        FileKind::Inet(socket) => match &socket.state {
            InetState::Established { repair: Some(connection) } => Some((socket, connection)),
            _ => None,
        },
        _ => None,
    }
}
