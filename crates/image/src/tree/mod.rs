//! A complete image's state: everything that a process tree is made of, as data.
//!
//! What several processes share is stored once and named by its place in a list of the [`Tree`]: open files
//! ([`FileId`]), pipes ([`PipeId`]), shared memory ([`MemoryId`]), unix sockets that know each other. A file that is open
//! behind several descriptors of several processes is one [`OpenFile`].
//!
//! [`Tree::decode`] checks every place, order and length, so that whoever reads a tree may index its lists without a
//! second thought. It cannot check what only the kernel knows: restoring still meets errors.

mod check;
mod credentials;
mod details;
mod file;
mod frugal;
mod ipc;
mod memory;
mod path_state;
mod paths;
mod process;
mod signal;
mod socket;
mod tmpfs;
mod used_pages;

use serde::{Deserialize, Serialize};

pub use self::credentials::{Credentials, SeccompFilter};
pub use self::details::{Control, Details, Login, NetlinkPeer, Times};
pub use self::file::{
    Descriptor, EpollMember, FanotifyMark, FileKind, FileLock, InotifyWatch, LockKind, MarkExtent, OpenFile, Owner,
    Pipe, PipeEnd, Terminal,
};
pub use self::ipc::{IpcObject, MessageQueue, SemaphoreSet};
pub use self::memory::{
    AddressSpace, Advice, Area, Backing, Executable, IO_EVENT_BYTES, Layout, MemoryId, MemoryPolicy, SharedMemory,
    SharedMemoryKind, io_event_address, io_event_runs, io_events,
};
pub use self::path_state::PathState;
pub use self::process::{End, Limit, LiveProcess, Process, Scheduling, Shares, Switches, Thread};
pub use self::signal::{Action, IntervalTimer, PendingSignal, PosixTimer, SignalStack, Wait, WaitPlace};
pub use self::socket::{
    Connection, InetSocket, InetState, Message, PacketMembership, PacketSocket, SocketOption, UnixSocket, UnixState,
};
pub use self::tmpfs::{DIRECTORY, KIND_BITS, MOST_DEPTH, Node, NodeContent, Tmpfs};
pub use self::used_pages::{MOST_USED_PAGES, UsedPages};

use crate::loading_set::{self, LoadingPart};
use crate::{FormatError, Header, VERSION, checksum};

/// A path or a name, as the kernel has it: any bytes but zero.
pub type Bytes = Vec<u8>;
/// Place in [`Tree::files`].
pub type FileId = u32;
/// Place in [`Tree::pipes`].
pub type PipeId = u32;

/// What decoding a state of unknown origin may take for each of its bytes.
pub const FOREIGN_BYTES_PER_BYTE: usize = 4;
/// And beside that, so that short states may hold many small things: sockets, empty lists.
pub const FOREIGN_BYTES: usize = 8 << 20;

/// A process tree.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tree {
    /// The machine that it ran on.
    pub machine: Machine,
    /// Its processes: the root first, parents before their children.
    #[serde(deserialize_with = "frugal::list")]
    pub processes: Vec<Process>,
    /// Open file descriptions.
    #[serde(deserialize_with = "frugal::list")]
    pub files: Vec<OpenFile>,
    /// Pipes and FIFOs behind `files`.
    #[serde(deserialize_with = "frugal::list")]
    pub pipes: Vec<Pipe>,
    /// Memory that is shared, or that a descriptor names.
    #[serde(deserialize_with = "frugal::list")]
    pub memories: Vec<SharedMemory>,
    /// Namespaces that it is restored into.
    pub namespaces: Namespaces,
    /// What it finds around itself.
    pub surroundings: NamespaceState,
    /// Behind all else in the bytes; none in those of version 2.
    #[serde(skip)]
    pub details: Details,
    /// What was in files that it maps and that others may change. An appendix of the state, absent where it is empty.
    #[serde(skip)]
    pub contents: Vec<FileContents>,
    /// Its loading set. Behind those, absent where it is empty.
    #[serde(skip)]
    pub loading: Vec<LoadingPart>,
    /// What it has used of the files that it maps. Behind that, absent where it is empty.
    #[serde(skip)]
    pub used: Vec<UsedPages>,
}

/// What was in a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileContents {
    /// As in its [`PathState`].
    pub path: Bytes,
    /// [`Checksums`] of all of it.
    pub checksum: u64,
}

/// What an app has in its namespaces beside its processes: there as long as its home is, and put into a new one. Empty for a
/// tree of plain processes, whose namespaces are the machine's.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamespaceState {
    /// Its memory file systems.
    #[serde(deserialize_with = "frugal::list")]
    pub tmpfs: Vec<Tmpfs>,
    /// System V semaphores.
    #[serde(deserialize_with = "frugal::list")]
    pub semaphores: Vec<SemaphoreSet>,
    /// System V message queues.
    #[serde(deserialize_with = "frugal::list")]
    pub queues: Vec<MessageQueue>,
    /// `gethostname(2)`; empty if it could not be changed.
    #[serde(deserialize_with = "frugal::list")]
    pub host_name: Bytes,
    /// `getdomainname(2)`, likewise.
    #[serde(deserialize_with = "frugal::list")]
    pub domain_name: Bytes,
    /// What would not be put into a new home, in words, for people.
    #[serde(deserialize_with = "frugal::list")]
    pub lost: Vec<String>,
}

/// Namespaces of the home that a tree is restored into, beside those that are entered for it: each root enters these
/// itself, before anything else. A tree of plain processes has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Namespaces {
    /// A user namespace. Ids in the tree are those inside.
    pub user: bool,
    /// A time namespace.
    pub time: bool,
}

/// What a machine must have for its programs to go on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// `uname -r`; to tell people, not to compare.
    pub kernel: String,
    /// Boot of the machine, as in the header.
    pub boot: [u64; 2],
    /// `CLOCK_REALTIME` at the capture, nanoseconds since 1970.
    pub realtime_ns: u64,
    /// `CLOCK_MONOTONIC` at the capture, nanoseconds.
    pub monotonic_ns: u64,
    /// `CLOCK_BOOTTIME` at the capture, nanoseconds.
    pub boottime_ns: u64,
    /// What `CLOCK_MONOTONIC` and `CLOCK_BOOTTIME` of the programs show beyond these, nanoseconds.
    pub clock_offsets_ns: [i64; 2],
    /// After how long a timer of an app's own must wake it, nanoseconds.
    pub wake_after_ns: Option<u64>,
}

impl NamespaceState {
    /// All System V objects in it.
    pub fn ipc_objects(&mut self) -> impl Iterator<Item = &mut IpcObject> {
        let sets = self.semaphores.iter_mut().map(|set| &mut set.object);
        sets.chain(self.queues.iter_mut().map(|queue| &mut queue.object))
    }
}

impl Tree {
    /// The tree as bytes.
    pub fn encode(&self) -> Vec<u8> {
        const WRITABLE: &str = "a tree in memory can always be written to memory";
        let bytes = postcard::to_stdvec(self).expect(WRITABLE);
        let mut bytes = postcard::to_extend(&self.details, bytes).expect(WRITABLE);
        // What is empty is left out at the end.
        let lists = [!self.contents.is_empty(), !self.loading.is_empty(), !self.used.is_empty()];
        let lists = lists.iter().rposition(|is_there| *is_there).map_or(0, |last| last + 1);
        if lists > 0 {
            bytes = postcard::to_extend(&self.contents, bytes).expect(WRITABLE);
        }
        if lists > 1 {
            bytes = postcard::to_extend(&self.loading, bytes).expect(WRITABLE);
        }
        if lists > 2 {
            bytes = postcard::to_extend(&self.used, bytes).expect(WRITABLE);
        }
        bytes
    }

    /// Reads and checks the tree of an image with this header.
    pub fn read(bytes: &[u8], header: &Header) -> Result<Self, FormatError> {
        if checksum(bytes) != header.state_checksum {
            return Err(FormatError::Checksum("the state"));
        }
        Self::of_version(bytes, &header.pages(), header.version)
    }

    /// As [`Tree::read`], of bytes that anybody may have written: decoding takes at most [`FOREIGN_BYTES_PER_BYTE`] bytes of memory
    /// for each of them, and [`FOREIGN_BYTES`] beside.
    ///
    /// # Errors
    /// Where it is damaged, or takes more than that. No program that was seen comes near it.
    pub fn read_foreign(bytes: &[u8], header: &Header) -> Result<Self, FormatError> {
        let most = bytes.len().saturating_mul(FOREIGN_BYTES_PER_BYTE).saturating_add(FOREIGN_BYTES);
        let (read, enough) = frugal::within(most, || Self::read(bytes, header));
        if enough { read } else { Err(FormatError::Invalid("it takes far more memory than its state has bytes")) }
    }

    /// All threads of its living processes.
    pub fn threads(&self) -> impl Iterator<Item = &Thread> {
        self.processes.iter().filter_map(|process| process.alive()).flat_map(|life| &life.threads)
    }

    /// Reads and checks a tree of today's version; `pages` says which part of the file its pages may lie in.
    pub fn decode(bytes: &[u8], pages: std::ops::Range<u64>) -> Result<Self, FormatError> {
        Self::of_version(bytes, &pages, VERSION)
    }

    fn of_version(bytes: &[u8], pages: &std::ops::Range<u64>, version: u32) -> Result<Self, FormatError> {
        const FIRST_WITH_DETAILS: u32 = 3;
        let wrong = |_| FormatError::Invalid("state of the tree");
        let (mut tree, mut rest): (Self, _) = postcard::take_from_bytes(bytes).map_err(wrong)?;
        let mut is_last_empty = false;
        if version >= FIRST_WITH_DETAILS {
            (tree.details, rest) = postcard::take_from_bytes(rest).map_err(wrong)?;
            if !rest.is_empty() {
                (tree.contents, rest) = postcard::take_from_bytes(rest).map_err(wrong)?;
                is_last_empty = tree.contents.is_empty();
            }
            if !rest.is_empty() {
                (tree.loading, rest) = postcard::take_from_bytes(rest).map_err(wrong)?;
                is_last_empty = tree.loading.is_empty();
            }
            if !rest.is_empty() {
                (tree.used, rest) = postcard::take_from_bytes(rest).map_err(wrong)?;
                is_last_empty = tree.used.is_empty();
            }
        }
        if !rest.is_empty() || is_last_empty {
            return Err(FormatError::Invalid("bytes after the end of the state"));
        }
        loading_set::check(&tree.loading, pages)?;
        tree.check(pages)?;
        Ok(tree)
    }

    /// Bytes of memory that the image holds or knows to be zero.
    pub fn memory_bytes(&self) -> u64 {
        let spaces = self.processes.iter().filter_map(|process| process.alive()).map(|life| &life.space);
        let private = spaces.flat_map(|space| &space.areas).flat_map(|area| &area.pages);
        let shared = self.memories.iter().flat_map(|memory| &memory.pages);
        let files = self.surroundings.tmpfs.iter().flat_map(Tmpfs::regions);
        private.chain(shared).chain(files).map(crate::Region::bytes).fold(0, u64::saturating_add)
    }
}
