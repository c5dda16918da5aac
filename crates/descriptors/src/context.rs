//! What a kind is lent while one of its files is dumped or restored.

use std::time::Duration;

use crate::contract::{EachRestored, Request};
use crate::filesystem::Charge;
use crate::filesystem::{Removed, Root, without_mark};
use crate::list::{Descriptors, Item, List};

/// For the dump: all open files of the tree.
pub(crate) struct DumpContext<'a> {
    pub(crate) request: &'a Request<'a>,
    pub(crate) list: &'a List,
    pub(crate) descriptors: &'a Descriptors,
    /// Device of the kernel's own tmpfs, on which memfds and shared memory are.
    pub(crate) kernel_tmpfs: u64,
    /// See [`crate::contract::Dumped::warnings`].
    pub(crate) warnings: Vec<String>,
}

impl DumpContext<'_> {
    /// The file lives by being open: it is the kernel's own, or has been deleted.
    pub(crate) fn has_no_name(&self, item: &Item) -> bool {
        item.stat.st_dev == self.kernel_tmpfs || (item.stat.st_nlink == 0 && without_mark(&item.link) != item.link)
    }
}

/// The network that a tree finds when it is restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    /// The one that it had when it was dumped.
    Same,
    /// One that was made since, with the same addresses: interfaces that the program had made are gone, and so are connections.
    New,
}

/// Where and when a tree's files are opened again.
#[derive(Clone, Copy)]
pub struct RestoreContext<'a> {
    /// Where its paths begin.
    pub root: Root<'a>,
    /// The machine has not been started anew since the image was made.
    pub same_boot: bool,
    /// The network that the tree finds.
    pub network: Network,
    /// How much time has passed since then, where timers are to count it: an app's after a reboot.
    pub passed: Option<Duration>,
    /// Directories that had been removed, made already.
    pub removed: Option<&'a Removed>,
    /// Whose memory the contents of memory files are; `None`: the restorer's.
    pub charge: Option<&'a Charge<'a>>,
    /// Told of each piece of the contents of files that is there.
    pub piece: Option<EachRestored<'a>>,
}
