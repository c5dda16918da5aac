//! Directories that had been removed while processes stood in them or had them open: each is made once, whoever has it.
//!
//! They are told apart by what their inodes were. One that a kept descriptor leads to is still there.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{FileType, Mode, OFlags, mkdirat, mknodat, openat};
use rustix::io::Errno;
use torpor_image::tree::{FileId, FileKind, PathState, Tree};

use super::open::reopen;
use super::private;
use super::root::{Root, path_of};
use super::state::set_times;
use crate::contract::Given;

/// A path, and the device and inode that were there.
type Key = (Vec<u8>, u64, u64);

/// The directories.
#[derive(Debug, Default)]
pub struct Removed(HashMap<Key, OwnedFd>);

impl Removed {
    /// Finds or makes those of a tree.
    ///
    /// # Errors
    /// The path, and why it cannot be made.
    pub fn of(tree: &Tree, given: &Given, root: Root<'_>) -> Result<Self, (Vec<u8>, Errno)> {
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
    pub fn open(&self, state: &PathState, flags: OFlags) -> Option<rustix::io::Result<OwnedFd>> {
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

/// Makes a directory or FIFO that had been removed: by its name if that is free, in its directory or the nearest above it that
/// is there; opens and removes it.
pub(crate) fn made_and_removed(
    state: &PathState,
    owner: (u32, u32),
    flags: OFlags,
    root: Root<'_>,
) -> rustix::io::Result<OwnedFd> {
    let whole = path_of(&state.path);
    let kind = FileType::from_raw_mode(state.mode);
    for above in whole.ancestors().skip(1) {
        let above = match root.open(above.as_os_str().as_bytes(), OFlags::PATH | OFlags::DIRECTORY) {
            Err(Errno::NOENT | Errno::NOTDIR) => continue,
            other => other?,
        };
        let make = |name: &OsStr| match kind {
            FileType::Directory => mkdirat(&above, name, Mode::RWXU),
            _ => mknodat(&above, name, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0),
        };
        let own = whole.file_name().unwrap_or_default();
        let name = match make(own) {
            Err(Errno::EXIST) => private::with_fresh_name(private::PREFIX, |name| make(OsStr::new(name)))?.0.into(),
            made => made.map(|()| own.to_owned())?,
        };
        let made = private::just_made(&above, &name, kind)?;
        let opened = match kind {
            FileType::Directory => openat(&made, ".", flags | OFlags::CLOEXEC, Mode::empty()),
            _ => reopen(made.as_fd(), flags.bits()),
        };
        // Only when nobody reaches it by a name is it given to somebody.
        private::remove_name(&above, &name, &made)?;
        private::set_owner_and_mode(&made, Some(owner), state.mode)?;
        return opened;
    }
    Err(Errno::NOENT)
}
