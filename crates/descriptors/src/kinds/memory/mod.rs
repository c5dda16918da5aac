//! Files that live by being open or mapped: memfds, shared anonymous memory, deleted files. Segments of System V shared
//! memory are found and filled here too; the rest of them is in [`segment`].
//!
//! All of them are files of the kernel's, known by device and inode; several descriptors and mappings may lead to one. Its
//! contents go into the image as pages, holes left out, and come back into a file of the same kind.

mod dump;
pub(crate) mod executable;
mod restore;
pub(crate) mod segment;

use rustix::fs::{MemfdFlags, fstat, memfd_create};

pub(crate) use self::dump::Memories;
pub(crate) use self::restore::{MadeMemory, deleted, open, restore, seal, set_times};

const SECOND_NS: i64 = 1_000_000_000;

/// Device of the kernel's own tmpfs, on which memfds and shared memory are.
pub(crate) fn kernel_tmpfs() -> std::io::Result<u64> {
    Ok(fstat(memfd_create("torpor", MemfdFlags::CLOEXEC)?)?.st_dev)
}
