//! Open files of a process tree: dumped into its image, and restored from it.
//!
//! # Dump
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
//! What cannot be dumped is refused, all of it at once and before anything is changed ([`DumpError::Refused`]).
//!
//! # Restore
//! [`restore`] opens each file once in the calling thread's namespaces, so that the restored processes only place
//! duplicates. Three things are left for later, because they need the processes: members of epoll descriptors, POSIX
//! locks and process descriptors are theirs to make; who is told by `SIGIO`, leases, and seals against new writable
//! mappings are set by [`RestoredFiles::finish`] when the processes are there and have mapped their memory.
//!
//! Files with a name must be what they were: same device, inode and type, and for regular files same length and time of
//! change.
#![forbid(unsafe_code)]

mod context;
mod contract;
mod dump;
mod filesystem;
mod kinds;
mod list;
mod locks;
mod namespaces;
pub mod registry;
mod restore;
#[cfg(test)]
mod tests;
pub mod texts;

pub use self::context::{Network, RestoreContext};
pub use self::contract::connections::{ConnectionLock, Ends, PASS_MARK};
pub use self::contract::error::{DumpError, RestoreFileError};
pub use self::contract::{ControllingTerminal, Dumped, EachRestored, Given, OpenFiles, Request, SETTLE, SharedArea};
pub use self::dump::dump;
pub use self::filesystem::Charge;
pub use self::filesystem::{
    Removed, Root, Volumes, contents, difference, is_made_up, is_same, names, opener, removed, reopen, state,
};
pub use self::kinds::inet::restore_listeners;
pub use self::kinds::inet::tcp::{lock_name, outside, silence};
pub use self::kinds::memory::segment::{is_there as has_segment, to_make as segments_to_make};
pub use self::kinds::unix::left_over;
pub use self::namespaces::{ipc, tmpfs};
pub use self::restore::{RestoredFiles, restore};
