//! Directories that had been removed while processes stood in them or had them open: each is made once, whoever has it.
//!
//! They are told apart by what their inodes were. One that a kept descriptor leads to is still there.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{FileType, OFlags};
use torpor_image::tree::{FileId, FileKind, PathState, Tree};

use super::Given;
use super::path::{Root, made_and_removed, set_times};
use super::pipe::reopen;

/// A path, and the device and inode that were there.
type Key = (Vec<u8>, u64, u64);

/// The directories.
#[derive(Debug, Default)]
pub(crate) struct Removed(HashMap<Key, OwnedFd>);

impl Removed {
    /// Finds or makes those of a tree.
    ///
    /// # Errors
    /// The path, and why it cannot be made.
    pub(crate) fn of(tree: &Tree, given: &Given, root: Root<'_>) -> Result<Self, (Vec<u8>, rustix::io::Errno)> {
        let mut found = HashMap::new();
        for (id, fd) in given {
            if let Some(state) = opened(tree, *id).filter(|state| is_one(state)) {
                found
                    .insert(key(state), reopen(fd.as_fd(), PLACE.bits()).map_err(|error| (state.path.clone(), error))?);
            }
        }
        let lives = tree.processes.iter().filter_map(|process| process.alive());
        let stood_in = lives.flat_map(|life| std::iter::once(&life.cwd).chain(&life.root));
        let open = (0..).zip(&tree.files).filter_map(|(id, _)| opened(tree, id));
        for state in stood_in.chain(open).filter(|state| is_one(state)) {
            if let (Some(owner), false) = (state.gone, found.contains_key(&key(state))) {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
                let made = made_and_removed(state, owner, flags, root)
                    .and_then(|made| set_times(made.as_fd(), None, state.modified_ns).map(|()| made));
                found.insert(key(state), made.map_err(|error| (state.path.clone(), error))?);
            }
        }
        Ok(Self(found))
    }

    /// Opens one; `None` if it is none of them.
    pub(crate) fn open(&self, state: &PathState, flags: OFlags) -> Option<rustix::io::Result<OwnedFd>> {
        self.0.get(&key(state)).map(|made| reopen(made.as_fd(), flags.bits()))
    }
}

const PLACE: OFlags = OFlags::PATH.union(OFlags::DIRECTORY);

fn key(state: &PathState) -> Key {
    (state.path.clone(), state.device, state.inode)
}

fn is_one(state: &PathState) -> bool {
    state.gone.is_some() && FileType::from_raw_mode(state.mode) == FileType::Directory
}

fn opened(tree: &Tree, id: FileId) -> Option<&PathState> {
    match &tree.files.get(id as usize)?.kind {
        FileKind::Path(state) => Some(state),
        _ => None,
    }
}
