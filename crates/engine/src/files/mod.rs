//! Open files of a process tree: taken into its image, and made again from it.
//!
//! # Taking
//! Everything is asked of a duplicate of the descriptor (`pidfd_getfd`), in this process: the same open file, so that
//! `/proc/self/fdinfo`, `F_GETFL`, `getsockopt` and peeking tell what the program has. Nothing is taken out of anything:
//! pipes are copied with `tee`, sockets looked at with `MSG_PEEK` at an offset that is put back afterwards. The processes
//! are stopped while this goes on; what others do meanwhile to what they share with them is theirs.
//!
//! ```text
//! list       every descriptor of every process; the same open file is found once (kcmp)
//! queues     messages in unix sockets; descriptors in flight join the list, and their queues in turn
//! describe   each open file by its kind, now that it can name the others
//! ```
//!
//! What cannot be taken is refused, all of it at once and before anything is changed ([`CollectError::Refused`]).
//!
//! # Making
//! [`make`] opens each file once in the calling thread's namespaces, so that the restored processes only place
//! duplicates. Three things are left for later, because they need the processes: members of epoll descriptors, POSIX
//! locks and process descriptors are theirs to make; who is told by `SIGIO`, leases, and seals against new writable
//! mappings are set by [`Made::finish`] when the processes are there and have mapped their memory.
//!
//! Files with a name must be what they were: same device, inode and type, and for regular files same length and time of
//! change.

pub(crate) mod charge;
mod collect;
mod contents;
mod datagram;
mod diag;
mod epoll;
mod error;
mod event;
mod executable;
mod fanotify;
mod inet;
mod inotify;
pub(crate) mod ipc;
mod keep;
mod list;
mod locks;
mod make;
mod memory;
mod multicast;
mod netlink;
pub(crate) mod opener;
mod options;
mod packet;
mod path;
mod pipe;
mod port;
mod private;
mod queue;
mod raw;
mod removed;
mod same;
mod search;
mod segment;
mod shut;
mod tcp;
mod terminal;
#[cfg(test)]
mod tests;
pub(crate) mod texts;
pub(crate) mod tmpfs;
mod unix;
mod watched;

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::time::Duration;

use torpor_image::tree::{Descriptor, Details, FileId, MemoryId, OpenFile, Pipe, SharedMemory};
use torpor_linux::closer::{self, AppFile};

use crate::restore::RestoreStep;
use crate::step::Fault;
use crate::view::View;

pub(crate) use self::collect::collect;
pub use self::error::{CollectError, MakeError};
pub(crate) use self::inet::make_listeners;
pub(crate) use self::make::make;
pub(crate) use self::path::{Around, Root, difference, is_made_up, removed, state};
pub(crate) use self::pipe::reopen;
pub(crate) use self::removed::Removed;
pub(crate) use self::same::{contents, is_same};
pub(crate) use self::segment::{is_there as has_segment, to_make as segments_to_make};
pub use self::tcp::{ConnectionLock, Ends, PASS_MARK};
pub(crate) use self::tcp::{lock_name, outside, silence};
pub(crate) use self::unix::left_over;

/// Whose open files to take.
pub(crate) struct Request<'a> {
    /// Living processes of the tree, stopped; the root first. Machine's ids.
    pub(crate) processes: &'a [i32],
    /// Every process (those that have ended too) and thread of the tree: the machine's id, and the id in the tree's pid
    /// namespace.
    pub(crate) ids: &'a BTreeMap<i32, i32>,
    /// Mappings of shared memory and of files without a name, private ones too.
    pub(crate) areas: &'a [SharedArea],
    /// Where it is looked at from.
    pub(crate) view: &'a View,
    /// For TCP connections to the outside; without it they are refused.
    pub(crate) lock: Option<&'a dyn ConnectionLock>,
    /// The moment that the image is of, by `CLOCK_MONOTONIC`.
    pub(crate) since: Duration,
    /// What is in the way is looked for, and contents are left alone.
    pub(crate) look_only: bool,
    /// Asked for every [`crate::memory::sink::BATCH_BYTES`]; `false` ends it with [`CollectError::Stopped`].
    pub(crate) go_on: &'a (dyn Fn() -> bool + Sync),
}

/// A mapping of something that is not a file with a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SharedArea {
    /// Process that has it.
    pub(crate) pid: i32,
    /// First byte.
    pub(crate) start: u64,
    /// Behind the last byte.
    pub(crate) end: u64,
    /// Its name in `/proc/PID/maps`.
    pub(crate) name: String,
    /// The process executes it.
    pub(crate) executed: bool,
}

/// What was found.
#[derive(Debug, Default)]
pub(crate) struct Collected {
    /// For [`torpor_image::tree::Tree::files`].
    pub(crate) files: Vec<OpenFile>,
    /// For [`torpor_image::tree::Tree::pipes`].
    pub(crate) pipes: Vec<Pipe>,
    /// For [`torpor_image::tree::Tree::memories`]; the pages are in the sink.
    pub(crate) memories: Vec<SharedMemory>,
    /// For [`torpor_image::tree::Tree::details`], but for threads'.
    pub(crate) details: Details,
    /// By the machine's process id, ascending numbers.
    pub(crate) descriptors: BTreeMap<i32, Vec<Descriptor>>,
    /// What each of [`Request::areas`] maps.
    pub(crate) areas: Vec<MemoryId>,
    /// Duplicates of an app's open files that can be kept while it has no processes.
    pub(crate) kept: Vec<(FileId, AppFile)>,
    /// Controlling terminals of sessions.
    pub(crate) terminals: Vec<ControllingTerminal>,
    /// Duplicates of TCP connections that are in the image.
    pub(crate) connections: Vec<AppFile>,
    /// What only comes back if it is kept, in words.
    pub(crate) warnings: Vec<String>,
}

/// The terminal of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ControllingTerminal {
    /// The session, as the machine numbers it.
    pub(crate) session: i32,
    /// A slave.
    pub(crate) slave: FileId,
    /// Process group in the foreground, as the machine numbers it.
    pub(crate) foreground: i32,
}

/// How long it is waited for the close of what was open here before its addresses are taken again.
pub(crate) const SETTLE: Duration = Duration::from_millis(100);

/// Open files that were made.
#[derive(Debug)]
pub(crate) struct Made {
    /// By [`FileId`]; `None` for process descriptors, which the processes open themselves.
    pub(crate) files: Vec<Option<OwnedFd>>,
    /// By [`MemoryId`], open for reading and writing, for mapping.
    pub(crate) memories: Vec<OwnedFd>,
    /// System V segments among them.
    segments: Vec<segment::Segment>,
    /// Memfds that wait for their seals, open for writing.
    sealed: Vec<(MemoryId, OwnedFd)>,
    /// TCP connections and packet sockets that wait for [`Made::reconnect`].
    waiting: Vec<FileId>,
}

impl Drop for Made {
    /// The programs may have closed theirs meanwhile.
    fn drop(&mut self) {
        closer::close(self.files.drain(..).flatten());
    }
}

/// Told of each thing that is made, one by one; an error ends the making.
pub(crate) type EachMade<'a> = &'a (dyn Fn() -> Result<(), Fault<RestoreStep>> + Sync);

/// Descriptors from outside of the tree, for [`torpor_image::tree::FileKind::Outside`] and parked ones.
pub(crate) type Given = BTreeMap<FileId, AppFile>;
