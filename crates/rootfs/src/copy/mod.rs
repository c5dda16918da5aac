//! A directory tree as a stream of bytes and back, exactly: an app's own files, and layers, on their way to another machine.
//!
//! ```text
//! tree ─▶ write ─▶ records: directory, file + data …, link, symlink, node, whiteout, … end ─▶ read ─▶ tree
//! ```
//! What an archive's unpacking (`unpack`) may leave out or mend, this keeps: times to the nanosecond, holes, hard links, sockets,
//! device nodes, overlayfs's marks. A record is its length as 4 bytes and its fields in the postcard format; a directory comes
//! before what is in it, names in order, so that the same tree gives the same bytes.
//!
//! Owners are ids as the app sees them: those of its range of the machine's are mapped on both ways ([`Ids`]), also where they
//! are hidden in extended attributes.
//!
//! # Invariants
//! The reader trusts nothing: every path is checked and opened beneath the root by [`crate::tree`], nothing that is there is ever
//! written over, attributes are set only through descriptors or names that were just made, lengths are bounded.
//!
//! # What a crash leaves
//! Part of a tree, in a place that whoever reads takes away.

mod attributes;
mod read;
#[cfg(test)]
mod tests;
mod write;

use std::io;

use serde::{Deserialize, Serialize};

use crate::error::CopyError;

pub use self::read::{read_tree, read_tree_within};
pub use self::write::write_tree;

/// Most bytes of one record: a path, a target, and all extended attributes of a file.
const MOST_RECORD_BYTES: usize = 1 << 20;
/// Most bytes of one piece of a file.
const MOST_DATA_BYTES: u32 = 256 << 10;

/// User and group ids of a tree, on the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ids {
    /// They are what the app sees.
    Same,
    /// They are above this, by what the app sees: it has 65,536 of them.
    From(u32),
}

/// What was copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Copied {
    /// Files, directories and all else that has a name.
    pub members: u64,
    /// Bytes of files' contents, without holes.
    pub bytes: u64,
}

type Bytes = Vec<u8>;

/// Owner, mode, times and extended attributes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meta {
    /// User, as the app sees it.
    pub uid: u32,
    /// Group, as the app sees it.
    pub gid: u32,
    /// Permission bits, setuid, setgid and sticky included.
    pub mode: u32,
    /// Seconds since 1970 and nanoseconds. The time of access is not taken along: reading changes it.
    pub modified: (i64, u32),
    /// By name.
    pub xattrs: Vec<(Bytes, Bytes)>,
}

/// Kinds of nodes without contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeKind {
    /// `mkfifo(3)`.
    Fifo,
    /// A unix socket's name.
    Socket,
    /// A device: major and minor number.
    Character(u32, u32),
    /// A device: major and minor number.
    Block(u32, u32),
}

/// One record. Paths are those within the tree; the root's is empty, and it comes first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Record {
    /// A directory; what is in it follows.
    Directory {
        /// Its path.
        path: Bytes,
        /// Its attributes.
        meta: Meta,
    },
    /// A regular file; its data follows.
    File {
        /// Its path.
        path: Bytes,
        /// Its attributes.
        meta: Meta,
        /// Its length, holes included.
        bytes: u64,
    },
    /// Bytes of the file before; they follow the record as they are.
    Data {
        /// Where they belong in the file.
        offset: u64,
        /// How many.
        bytes: u32,
    },
    /// Another name of something that came before.
    Link {
        /// This name.
        path: Bytes,
        /// The name before.
        target: Bytes,
    },
    /// A symbolic link.
    Symlink {
        /// Its path.
        path: Bytes,
        /// What it says.
        target: Bytes,
        /// Its attributes.
        meta: Meta,
    },
    /// Something without contents.
    Node {
        /// Its path.
        path: Bytes,
        /// What it is.
        kind: NodeKind,
        /// Its attributes.
        meta: Meta,
    },
    /// Overlayfs's mark that the file of the layers below is deleted.
    Whiteout {
        /// Its path.
        path: Bytes,
    },
    /// All is said.
    End,
}

impl Record {
    /// As it stands in the stream, with its length.
    ///
    /// # Panics
    /// Never: a record in memory can be written to memory.
    pub fn to_bytes(&self) -> Vec<u8> {
        let bytes = postcard::to_stdvec(self).expect("a record in memory can always be written to memory");
        [&(bytes.len() as u32).to_le_bytes()[..], &bytes].concat()
    }
}

/// For what is done to the tree.
fn failed<E: Into<io::Error>>(action: &'static str, name: &[u8]) -> impl FnOnce(E) -> CopyError {
    let name = shown(name);
    move |source| CopyError::Tree { action, name, source: source.into() }
}

/// A path for people.
fn shown(path: &[u8]) -> String {
    crate::error::shown(if path.is_empty() { b"." } else { path })
}
