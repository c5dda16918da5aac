//! Address spaces and shared memory.

use torpor_image::tree::{
    AddressSpace, Advice, Area, Backing, Executable, MemoryPolicy, SharedMemory, SharedMemoryKind,
};

use torpor_linux::hugepages::{MFD_HUGETLB, SHM_HUGETLB};

use super::Vetting;

const MEMORY_LOCK: usize = 8;
/// `SHM_LOCKED`.
const LOCKED: u32 = 0o2000;
/// `F_SEAL_SEAL` to `F_SEAL_EXEC`.
const SEALS: u32 = 0x3f;
/// `MFD_CLOEXEC`, `MFD_ALLOW_SEALING`, `MFD_NOEXEC_SEAL`, `MFD_EXEC`.
const MEMORY_FILE_FLAGS: u32 = 1 | 2 | 8 | 0x10;
/// Where flags of a memfd have the size of huge pages.
const HUGE_SIZE: u32 = 0x3f << 26;
/// `CAP_IPC_LOCK`.
const IPC_LOCK: u64 = 1 << 14;
/// Bytes of a memfd's name (`MFD_NAME_MAX_LEN`).
const NAME_BYTES: usize = 249;
/// `madvise(2)` for what stays with an area: `MADV_RANDOM`, `_SEQUENTIAL`, `_DONTFORK`, `_MERGEABLE`, `_HUGEPAGE`, `_NOHUGEPAGE`,
/// `_DONTDUMP`, `_WIPEONFORK`, `_GUARD_INSTALL`.
const ADVICE: [i32; 9] = [1, 2, 10, 12, 14, 15, 16, 18, 102];
/// `MLOCK_ONFAULT`.
const LOCK_FLAGS: u32 = 1;
const KEYS: u32 = 16;

impl Vetting<'_> {
    pub(super) fn space(&mut self, pid: i32, space: &mut AddressSpace) {
        let AddressSpace { areas, files, layout: _, executable } = space;
        match executable {
            Executable::File(_) | Executable::Memory(_) => {}
        }
        for file in files {
            self.path(file);
        }
        let most = self.bounds.hard_limits[MEMORY_LOCK];
        let mut locked = 0_u64;
        for area in areas {
            let Area { start, end, protection, backing, advice, key, pages: _ } = area;
            match backing {
                // The kernel lets a process map these for itself.
                Backing::Anonymous { grows_down: _, droppable: _, no_reserve: _ }
                | Backing::File { file: _, offset: _, shared: _, may_write: _ }
                | Backing::Shared { memory: _, offset: _, shared: _, may_write: _ }
                | Backing::Kernel { name: _ }
                | Backing::Aio { head: _, waiting: _ }
                | Backing::Huge { page_bytes: _, no_reserve: _ } => {}
            }
            let Advice { madvise, locked: lock, name: _, policy } = advice;
            let MemoryPolicy { mode: _, nodes: _ } = policy;
            // Others poison pages of the machine, or do something once.
            self.sure(madvise.iter().all(|advice| ADVICE.contains(advice)), || {
                format!("process {pid} advises {madvise:?}")
            });
            self.sure(lock.is_none_or(|flags| flags & !LOCK_FLAGS == 0), || format!("a lock of process {pid}"));
            if lock.is_some() {
                locked = locked.saturating_add(*end - *start);
                if locked > most {
                    *lock = None;
                    self.lowered(format!("at most {most} bytes of a process are locked"));
                }
            }
            self.sure(*protection <= 7 && *key < KEYS, || format!("protection of an area of process {pid}"));
        }
    }

    pub(super) fn memories(&mut self, memories: &mut [SharedMemory]) {
        let most = self.bounds.hard_limits[MEMORY_LOCK];
        let mut locked = 0_u64;
        for memory in memories {
            let SharedMemory { kind, bytes, pages: _ } = memory;
            match kind {
                SharedMemoryKind::Anonymous | SharedMemoryKind::Huge { page_bytes: _ } => {}
                SharedMemoryKind::Memfd { name, seals, flags, mode, owner } => {
                    // The size of huge pages, which the image's check has seen to.
                    let huge = if *flags & MFD_HUGETLB != 0 { MFD_HUGETLB | HUGE_SIZE } else { 0 };
                    let known = MEMORY_FILE_FLAGS | huge;
                    let sane = name.len() <= NAME_BYTES && *seals & !SEALS == 0 && *flags & !known == 0;
                    self.sure(sane && *mode & !0o7777 == 0, || "a memory file that cannot be".to_owned());
                    self.users(&[owner.0, owner.1], "a memory file");
                }
                SharedMemoryKind::SystemV { key: _, id: _, mode, owners } => {
                    self.users(owners, "a System V segment");
                    // The kernel asks for the machine's CAP_IPC_LOCK, which no user namespace gives.
                    let may = !self.bounds.user_namespace && self.bounds.capabilities & IPC_LOCK != 0;
                    self.sure(*mode & SHM_HUGETLB == 0 || may, || "a System V segment of huge pages".to_owned());
                    locked = locked.saturating_add(if *mode & LOCKED == 0 { 0 } else { *bytes });
                    if *mode & LOCKED != 0 && locked > most {
                        *mode &= !LOCKED;
                        self.lowered(format!("at most {most} bytes of System V segments are locked"));
                    }
                }
                SharedMemoryKind::Deleted { state, owner } => {
                    self.path(state);
                    self.users(&[owner.0, owner.1], "a file without a name");
                }
            }
        }
    }
}
