//! What complete images have since version 3: lists beside the tree, so that images of version 2 are read without them.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

use super::check::{Checked, sure};
use super::frugal;
use super::{FileId, FileKind, MemoryId, Tree};

/// Details of threads, memory and files that most of them do not have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Details {
    /// Login ids (`/proc/PID/loginuid`) of threads that have one, by ascending thread id.
    #[serde(deserialize_with = "frugal::list")]
    pub logins: Vec<Login>,
    /// Times of files without a name, by ascending place.
    #[serde(deserialize_with = "frugal::list")]
    pub times: Vec<Times>,
    /// What threads have set by `prctl(2)` that is not as every thread begins, by ascending thread id.
    #[serde(deserialize_with = "frugal::list")]
    pub controls: Vec<Control>,
    /// Where connected netlink sockets send to, by ascending place.
    #[serde(deserialize_with = "frugal::list")]
    pub netlink_peers: Vec<NetlinkPeer>,
}

/// The login id of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Login {
    /// Its id in the tree's pid namespace.
    pub tid: i32,
    /// The user, as the tree's user namespace numbers it.
    pub user: u32,
}

/// A call of `prctl(2)` that gives a thread back what it had set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Control {
    /// The thread's id in the tree's pid namespace.
    pub tid: i32,
    /// `PR_SET_SPECULATION_CTRL` or `PR_SET_IO_FLUSHER`.
    pub option: u32,
    /// Its arguments.
    pub arguments: [u32; 2],
}

impl Control {
    /// Options that a control can have, as `linux/prctl.h` numbers them.
    pub const SPECULATION: u32 = 53;
    /// As above.
    pub const IO_FLUSHER: u32 = 57;
}

/// Times of a file in [`Tree::memories`], nanoseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Times {
    /// Which.
    pub memory: MemoryId,
    /// Last access.
    pub accessed_ns: i64,
    /// Last change of its contents.
    pub modified_ns: i64,
}

/// What a netlink socket is connected to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetlinkPeer {
    /// The socket.
    pub file: FileId,
    /// Port id; 0: the kernel.
    pub port: u32,
    /// Multicast groups of the address, a bit for each.
    pub groups: u32,
}

impl Details {
    /// Login id of a thread.
    pub fn login(&self, tid: i32) -> Option<u32> {
        let at = self.logins.binary_search_by_key(&tid, |login| login.tid).ok()?;
        Some(self.logins[at].user)
    }

    /// What a thread has set.
    pub fn controls(&self, tid: i32) -> impl Iterator<Item = &Control> {
        let first = self.controls.partition_point(|control| control.tid < tid);
        self.controls[first..].iter().take_while(move |control| control.tid == tid)
    }

    /// Times of a file without a name.
    pub fn times(&self, memory: MemoryId) -> Option<&Times> {
        let at = self.times.binary_search_by_key(&memory, |times| times.memory).ok()?;
        Some(&self.times[at])
    }

    /// Where a netlink socket sends to.
    pub fn netlink_peer(&self, file: FileId) -> Option<&NetlinkPeer> {
        let at = self.netlink_peers.binary_search_by_key(&file, |peer| peer.file).ok()?;
        Some(&self.netlink_peers[at])
    }

    pub(super) fn check(&self, tree: &Tree) -> Checked {
        sure(self.logins.is_sorted_by(|a, b| a.tid < b.tid), "order of login ids")?;
        sure(self.times.is_sorted_by(|a, b| a.memory < b.memory), "order of times")?;
        sure(self.netlink_peers.is_sorted_by(|a, b| a.file < b.file), "order of netlink sockets")?;
        let threads: HashSet<i32> = tree.threads().map(|thread| thread.tid).collect();
        sure(self.logins.iter().all(|login| threads.contains(&login.tid)), "thread of a login id")?;
        sure(self.controls.is_sorted_by_key(|control| control.tid), "order of controls")?;
        let is_known = |control: &Control| {
            threads.contains(&control.tid) && [Control::SPECULATION, Control::IO_FLUSHER].contains(&control.option)
        };
        sure(self.controls.iter().all(is_known), "a control of a thread")?;
        sure(self.times.iter().all(|times| (times.memory as usize) < tree.memories.len()), "file of some times")?;
        let is_netlink = |peer: &NetlinkPeer| {
            let file = tree.files.get(peer.file as usize);
            file.is_some_and(|file| matches!(file.kind, FileKind::Netlink { .. }))
        };
        sure(self.netlink_peers.iter().all(is_netlink), "a netlink socket")
    }
}
