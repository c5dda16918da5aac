//! Memory file systems of an app's home: what lies in them is nowhere else, so it goes with the image.
//!
//! As long as the home is there, so are they: what was taken is put back only into a home that was made anew, after a reboot.
//! Which ones: those that are mounted in the app's mount namespace and not in the machine's (volumes are the machine's), whole;
//! and `/dev`, which is a directory of one that is. Files of `/etc` that Torpor makes lie in that one too, and are made for the
//! new home.
//!
//! Nobody changes anything while they are looked at, for the app is stopped; but names, links and lengths are the app's own
//! doing and mean nothing good. Nothing leads out: every name is opened below its directory, no link is followed, no mount
//! crossed.
//!
//! Files in them have other inode numbers afterwards. What the image says of open and mapped ones ([`PathState`]) is put right by
//! [`Moved`]; length and times are those that they had.
//!
//! Not kept: times of the last change of state (`st_ctime`) and of birth, which nobody can set.

mod make;
mod take;

use std::collections::HashMap;

use rustix::fs::{Dev, major, minor};
use torpor_image::tree::{FileKind, PathState, SharedMemoryKind, Tree};

pub(crate) use self::make::make;
pub(crate) use self::take::{below, names, take};

/// `TMPFS_MAGIC`.
pub(super) const MAGIC: i64 = 0x0102_1994;

/// Which device and number a file has now, by those that it had.
#[derive(Debug, Default)]
pub(crate) struct Moved(HashMap<(u64, u64), (Dev, u64)>);

impl Moved {
    fn add(&mut self, before: (u64, u64), now: (Dev, u64)) {
        self.0.insert(before, now);
    }

    /// Puts the whole tree right.
    pub(crate) fn apply(&self, tree: &mut Tree) {
        let one = |state: &mut PathState| {
            if let Some((device, inode)) = self.0.get(&(state.device, state.inode)) {
                (state.device, state.inode) = (*device, *inode);
            }
        };
        if !self.0.is_empty() {
            each_path(tree, one);
        }
    }
}

/// Every path of a tree that something must be at.
fn each_path(tree: &mut Tree, mut work: impl FnMut(&mut PathState)) {
    for process in &mut tree.processes {
        let torpor_image::tree::End::Alive(life) = &mut process.end else { continue };
        life.space.files.iter_mut().for_each(&mut work);
        work(&mut life.cwd);
        life.root.iter_mut().for_each(&mut work);
    }
    for file in &mut tree.files {
        match &mut file.kind {
            FileKind::Path(state) | FileKind::Fifo { path: state, .. } => work(state),
            FileKind::Inotify { watches } => watches.iter_mut().for_each(|watch| work(&mut watch.path)),
            FileKind::Unix(socket) => socket.path.iter_mut().for_each(&mut work),
            _ => {}
        }
    }
    for memory in &mut tree.memories {
        if let SharedMemoryKind::Deleted { state, .. } = &mut memory.kind {
            work(state);
        }
    }
}

/// For people.
fn text(path: &[u8]) -> String {
    String::from_utf8_lossy(path).into_owned()
}

/// A device number that is no device: what overlay file systems mark deleted files with.
fn is_whiteout(device: Dev) -> bool {
    (major(device), minor(device)) == (0, 0)
}
