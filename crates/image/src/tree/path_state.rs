//! A file that is found again by its name, and how to tell that it is the same one.

use serde::{Deserialize, Serialize};

use super::{Bytes, frugal};

/// A path, and what was there: the same must be there when it is opened again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathState {
    /// Absolute, within the mount namespace's root.
    #[serde(deserialize_with = "frugal::list")]
    pub path: Bytes,
    /// Device number.
    pub device: u64,
    /// Inode number; 0: it was copied from elsewhere, and any will do.
    pub inode: u64,
    /// Type and permission bits.
    pub mode: u32,
    /// Bytes.
    pub bytes: u64,
    /// Last change of its contents, nanoseconds since 1970.
    pub modified_ns: i64,
    /// It has been removed, and nothing is in it (a directory or a FIFO): it is made again and removed, with these owners.
    pub gone: Option<(u32, u32)>,
}

impl PathState {
    /// The inode is the one that was there, or it cannot be.
    pub fn is_inode(&self, inode: u64) -> bool {
        self.inode == 0 || self.inode == inode
    }
}
