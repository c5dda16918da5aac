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

mod dump;
mod restore;

use std::collections::HashMap;

use rustix::fs::{Dev, major, minor};
use torpor_image::tree::{PathState, Tree};

pub use self::dump::take;
pub use self::restore::restore;

/// Which device and number a file has now, by those that it had.
#[derive(Debug, Default)]
pub struct Moved(HashMap<(u64, u64), (Dev, u64)>);

impl Moved {
    fn add(&mut self, before: (u64, u64), now: (Dev, u64)) {
        self.0.insert(before, now);
    }

    /// Puts the whole tree right.
    pub fn apply(&self, tree: &mut Tree) {
        let one = |state: &mut PathState| {
            if let Some((device, inode)) = self.0.get(&(state.device, state.inode)) {
                (state.device, state.inode) = (*device, *inode);
            }
        };
        if !self.0.is_empty() {
            tree.for_each_path(one);
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
