//! Address spaces and shared memory.
//!
//! Pages that forked processes share copy-on-write have the same place in the file: the regions of both name it, and
//! restoring shares them again.

use serde::{Deserialize, Serialize};

use super::frugal;
use super::{Bytes, PathState};
use crate::Region;

/// Place in [`super::Tree::memories`].
pub type MemoryId = u32;

/// A process's memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddressSpace {
    /// Its areas, by ascending address, without overlap.
    #[serde(deserialize_with = "frugal::list")]
    pub areas: Vec<Area>,
    /// Files that `areas` map.
    #[serde(deserialize_with = "frugal::list")]
    pub files: Vec<PathState>,
    /// Where its parts are, for `PR_SET_MM_MAP`.
    pub layout: Layout,
    /// The executable (`/proc/PID/exe`).
    pub executable: Executable,
}

/// What a process executes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Executable {
    /// A file with a name: place in [`AddressSpace::files`].
    File(u32),
    /// A file that has been deleted, or a memfd.
    Memory(MemoryId),
}

impl Default for Executable {
    fn default() -> Self {
        Self::File(0)
    }
}

/// The kernel's `struct prctl_mm_map`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    /// Code: start, end.
    pub code: (u64, u64),
    /// Data: start, end.
    pub data: (u64, u64),
    /// Heap: start, current end.
    pub heap: (u64, u64),
    /// Where the stack began.
    pub stack: u64,
    /// Arguments: start, end.
    pub arguments: (u64, u64),
    /// Environment: start, end.
    pub environment: (u64, u64),
    /// Auxiliary vector, as `/proc/PID/auxv` has it.
    #[serde(deserialize_with = "frugal::list")]
    pub auxiliary: Vec<u64>,
}

/// One mapping.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Area {
    /// First byte, page-aligned.
    pub start: u64,
    /// Behind the last byte, page-aligned.
    pub end: u64,
    /// `PROT_READ`, `PROT_WRITE`, `PROT_EXEC`.
    pub protection: u32,
    /// What it maps.
    pub backing: Backing,
    /// What the program said about it.
    pub advice: Advice,
    /// Memory protection key; 0 is everybody's.
    pub key: u32,
    /// Private pages in it, by ascending address.
    #[serde(deserialize_with = "frugal::list")]
    pub pages: Vec<Region>,
}

/// What an area maps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Backing {
    /// Zeros, private.
    Anonymous {
        /// A stack that grows down.
        grows_down: bool,
        /// `MAP_DROPPABLE`: its contents are never stored.
        droppable: bool,
        /// `MAP_NORESERVE`.
        no_reserve: bool,
    },
    /// A file.
    File {
        /// Place in [`AddressSpace::files`].
        file: u32,
        /// Byte in the file, page-aligned.
        offset: u64,
        /// `MAP_SHARED`.
        shared: bool,
        /// Of a shared mapping: the file is open for writing, so that `mprotect` may make it writable.
        may_write: bool,
    },
    /// Shared memory.
    Shared {
        /// Which.
        memory: MemoryId,
        /// Byte in it, page-aligned.
        offset: u64,
        /// `MAP_SHARED`; otherwise a private mapping of a memfd.
        shared: bool,
        /// See [`Backing::File`].
        may_write: bool,
    },
    /// The kernel's own, by its name in `/proc/PID/maps`: `[vdso]`, `[vvar]`, `[vvar_vclock]`.
    Kernel {
        /// Name.
        name: String,
    },
    /// The ring of an AIO context (`io_setup(2)`), whole; its address is the context's id. Nothing is under way.
    Aio {
        /// Place of the next answer that the program takes.
        head: u32,
        /// Answers that it has not taken yet, `struct io_event`s of [`IO_EVENT_BYTES`], the oldest first.
        #[serde(deserialize_with = "frugal::list")]
        waiting: Bytes,
    },
    /// Zeros in huge pages of a pool (`MAP_HUGETLB`), private.
    Huge {
        /// Size of a page, bytes.
        page_bytes: u64,
        /// `MAP_NORESERVE`.
        no_reserve: bool,
    },
}

impl Backing {
    /// Where nothing is written it is zero.
    pub const fn is_zeros(&self) -> bool {
        matches!(self, Self::Anonymous { .. } | Self::Huge { .. })
    }
}

/// Bytes of the kernel's `struct io_event`, and of the header of a ring of them.
pub const IO_EVENT_BYTES: u64 = 32;

/// Places in the ring of an AIO context of this many bytes; one of them is always empty.
pub const fn io_events(bytes: u64) -> u64 {
    (bytes / IO_EVENT_BYTES).saturating_sub(1)
}

/// Address of event `n` in the ring that starts at `ring`.
pub const fn io_event_address(ring: u64, n: u32) -> u64 {
    ring + IO_EVENT_BYTES * (n as u64 + 1)
}

/// The events from `head` up to `tail` in a ring of `places`, as runs (first, end) that do not wrap around.
pub fn io_event_runs(head: u32, tail: u32, places: u32) -> impl Iterator<Item = (u32, u32)> {
    let wraps = tail < head;
    let runs = if wraps { [(head, places), (0, tail)] } else { [(head, tail), (0, 0)] };
    runs.into_iter().filter(|(first, end)| first < end)
}

/// Flags of an area that stay with it (`madvise(2)`, `mlock(2)`, `prctl(2)`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Advice {
    /// Values of `madvise` to call, ascending: `MADV_DONTFORK`, `MADV_HUGEPAGE` and the like.
    #[serde(deserialize_with = "frugal::list")]
    pub madvise: Vec<i32>,
    /// `mlock2(2)`: `None`, or its flags.
    pub locked: Option<u32>,
    /// `PR_SET_VMA_ANON_NAME`.
    #[serde(deserialize_with = "frugal::list")]
    pub name: Bytes,
    /// `mbind(2)`.
    pub policy: MemoryPolicy,
}

/// Which of the machine's memory is preferred.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryPolicy {
    /// `MPOL_*` with its flags; 0: none of its own.
    pub mode: u32,
    /// Nodes, as a bit set.
    #[serde(deserialize_with = "frugal::list")]
    pub nodes: Vec<u64>,
}

/// Memory that several mappings or descriptors share, and contents of files that only descriptors or mappings keep.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedMemory {
    /// What made it.
    pub kind: SharedMemoryKind,
    /// Bytes.
    pub bytes: u64,
    /// Its pages; `start` counts from its beginning. What is not there is zero.
    #[serde(deserialize_with = "frugal::list")]
    pub pages: Vec<Region>,
}

/// Kinds of shared memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SharedMemoryKind {
    /// `mmap` of shared anonymous memory.
    Anonymous,
    /// `memfd_create(2)`.
    Memfd {
        /// Name.
        #[serde(deserialize_with = "frugal::list")]
        name: Bytes,
        /// `F_GET_SEALS`.
        seals: u32,
        /// Flags that it was made with, as far as they can be seen: `MFD_HUGETLB` with the size of a page.
        flags: u32,
        /// Permission bits.
        mode: u32,
        /// Its user and group.
        owner: (u32, u32),
    },
    /// `shmget(2)`.
    SystemV {
        /// Key.
        key: i32,
        /// Id.
        id: i32,
        /// Permission bits, `SHM_DEST` (01000), `SHM_LOCKED` (02000), `SHM_HUGETLB` (04000) with the size of a page as
        /// `shmget` takes it.
        mode: u32,
        /// Owner's user and group, and its maker's.
        owners: [u32; 4],
    },
    /// A regular file without a name.
    Deleted {
        /// Where it was; its permission bits. It is made again on that file system.
        state: PathState,
        /// Its user and group.
        owner: (u32, u32),
    },
    /// `mmap` of shared anonymous memory in huge pages of a pool.
    Huge {
        /// Size of a page, bytes.
        page_bytes: u64,
    },
}

/// `SHM_HUGETLB` and `MFD_HUGETLB`, and where either has the binary logarithm of the size of a page.
pub(super) const SHM_HUGETLB: u32 = 0o4000;
pub(super) const MFD_HUGETLB: u32 = 4;
const HUGE_SHIFT: u32 = 26;
pub(super) const HUGE_SIZE: u32 = 0x3f << HUGE_SHIFT;

impl SharedMemory {
    /// The size of its pages, bytes: of huge pages of a pool, or [`crate::PAGE`].
    pub const fn page_bytes(&self) -> u64 {
        let flags = match self.kind {
            SharedMemoryKind::Huge { page_bytes } => return page_bytes,
            SharedMemoryKind::Memfd { flags, .. } if flags & MFD_HUGETLB != 0 => flags,
            SharedMemoryKind::SystemV { mode, .. } if mode & SHM_HUGETLB != 0 => mode,
            _ => return crate::PAGE,
        };
        1 << (flags >> HUGE_SHIFT & 0x3f)
    }
}
