//! Segments of System V shared memory.
//!
//! A segment belongs to the machine: it outlives its processes until somebody removes it, and its key and id are known to
//! programs that are not attached. So a checkpoint leaves it where it is, and making it looks first whether it still is
//! there: on the same boot, with the same key, length and maker, and with nobody attached, it is the same one, and gets the
//! contents, owner and mode of the image. Otherwise it is made with its key and id, which must be free. Segments that
//! were removed while they were attached have gone with the processes: they are made, and removed again when all processes
//! are attached.
//!
//! Whoever is attached from outside of the tree would see its memory go back in time: such segments are refused.
//!
//! A new segment is removed again if restoring fails; also if the restorer of a plain tree is killed, by a
//! [`CrashGuard`](torpor_linux::guard::Guard) that knows from [`to_make`] which ones are new.
//!
//! Not kept: who attached last, and when (`shm_lpid`, `shm_atime` and the like).

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use torpor_image::PAGE;
use torpor_image::tree::{MemoryId, SharedMemory, SharedMemoryKind};
use torpor_linux::hugepages::{Mapping, SHM_HUGETLB};
use torpor_linux::shm::{self, Attached, LOCKED, REMOVED};

use crate::contract::SharedArea;
use crate::contract::error::RestoreFileError;
use crate::contract::reason::{Described, Reason};
use torpor_process::blocker::{Blocker, Place};

/// The part of a segment's mode that says how large its pages are.
const HUGE: u32 = SHM_HUGETLB | 0x3f << 26;
/// Others may make segments between the choice of an id and the call that takes it.
const ATTEMPTS: u32 = 10;

pub(crate) fn name(id: i32) -> String {
    format!("System V shared memory {id}")
}

/// Segments that were found, by id.
#[derive(Debug, Default)]
pub(crate) struct Segments(BTreeMap<i32, Found>);

#[derive(Debug)]
struct Found {
    memory: MemoryId,
    /// The first of its areas.
    pid: i32,
    place: Place,
    /// All mappings of it, and those of the tree.
    attached: u64,
    own: u64,
}

impl Segments {
    /// One more mapping of a segment that is known.
    pub(crate) fn again(&mut self, id: i32) -> Option<MemoryId> {
        let found = self.0.get_mut(&id)?;
        found.own += 1;
        Some(found.memory)
    }

    pub(crate) fn knows(&self, id: i32) -> bool {
        self.0.contains_key(&id)
    }

    pub(crate) fn add(&mut self, id: i32, memory: MemoryId, area: &SharedArea, attached: u64) {
        let place = Place::Memory(area.start, area.end);
        self.0.insert(id, Found { memory, pid: area.pid, place, attached, own: 1 });
    }

    /// Segments that others are attached to as well.
    pub(crate) fn attached_elsewhere(&self) -> impl Iterator<Item = Blocker> {
        self.0.iter().filter(|(_, found)| found.attached != found.own).map(|(id, found)| {
            let what = format!(
                "{} has {} mappings, {} of them in the tree",
                name(*id),
                found.attached,
                found.own.min(found.attached)
            );
            let remedy = "end the others that are attached, or checkpoint a tree that contains them";
            Blocker::new(found.pid, found.place.clone(), what, remedy)
        })
    }
}

/// What a segment is, its bytes, and how many mappings of it there are.
pub(crate) fn describe(id: i32) -> Described<(SharedMemoryKind, u64, u64)> {
    let Some(about) = shm::look(id)? else {
        return Err(Reason::refused(format!("{} is not of this IPC namespace", name(id)), ""));
    };
    let ((user, group), (maker, makers)) = (about.owner, about.maker);
    let owners = [user, group, maker, makers];
    Ok((SharedMemoryKind::SystemV { key: about.key, id, mode: about.mode, owners }, about.bytes, about.attached))
}

/// What is in the last page behind the end of the segment: it may be used, and reading the file does not give it.
pub(crate) fn tail(area: &SharedArea, bytes: u64) -> io::Result<Vec<u8>> {
    let whole = bytes.next_multiple_of(PAGE);
    if area.end - area.start != whole {
        // In part: the plan refuses that.
        return Ok(Vec::new());
    }
    let mut tail = vec![0; (whole - bytes) as usize];
    File::open(format!("/proc/{}/mem", area.pid))?.read_exact_at(&mut tail, area.start + bytes)?;
    Ok(tail)
}

/// A segment that was made or found again.
#[derive(Debug)]
pub(crate) struct Segment {
    id: i32,
    /// It is removed when this is dropped.
    ours: bool,
    /// It is removed when the processes are attached.
    removed: bool,
}

impl Segment {
    /// Finds or makes the segment and attaches it here. Its contents are anything.
    pub(crate) fn restore(memory: &SharedMemory, same_boot: bool) -> Result<(Self, Attached), RestoreFileError> {
        let SharedMemoryKind::SystemV { key, id, mode, owners } = memory.kind else {
            return Err(RestoreFileError::Missing("a System V segment".to_owned()));
        };
        let shown = &*name(id);
        let (owner, maker) = ((owners[0], owners[1]), (owners[2], owners[3]));
        let mut segment = Self { id, ours: false, removed: mode & REMOVED != 0 };
        let looked = RestoreFileError::at("looking at", shown);
        match shm::look(id).map_err(looked)? {
            Some(there) => {
                let same = (there.key, there.bytes, there.maker) == (key, memory.bytes, maker);
                if !same_boot || !same || there.attached > 0 || segment.removed {
                    return Err(taken(id, &there));
                }
            }
            None => {
                create(key, id, memory.bytes, maker, mode & HUGE)?;
                segment.ours = true;
            }
        }
        let attached = Attached::new(id).map_err(RestoreFileError::at("attaching", shown))?;
        shm::set(id, owner, mode).map_err(RestoreFileError::at("setting the owner of", shown))?;
        if mode & LOCKED != 0 {
            shm::lock(id).map_err(RestoreFileError::at("locking", shown))?;
        }
        Ok((segment, attached))
    }

    /// Makes it all zeros, if it was there. Huge pages stay its own: what is given back to a pool may be somebody else's at once.
    pub(crate) fn clear(&self, file: &File, memory: &SharedMemory) -> io::Result<()> {
        let bytes = memory.bytes.next_multiple_of(memory.page_bytes());
        if self.ours {
            return Ok(());
        }
        if memory.page_bytes() == PAGE {
            return Ok(fallocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, bytes)?);
        }
        static ZEROS: [u8; 1 << 16] = [0; 1 << 16];
        let mapping = Mapping::new(file, bytes)?;
        (0..bytes).step_by(ZEROS.len()).try_for_each(|at| mapping.write(at, &ZEROS))
    }

    /// All processes are attached.
    pub(crate) fn attached(&mut self) -> Result<(), RestoreFileError> {
        if self.removed && self.ours {
            shm::remove(self.id).map_err(RestoreFileError::at("removing", name(self.id)))?;
            self.ours = false;
        }
        Ok(())
    }

    /// It is the program's from now on.
    pub(crate) const fn keep(&mut self) {
        self.ours = false;
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        if self.ours
            && let Err(error) = shm::remove(self.id)
            // Where a guard has done it already, there is none.
            && Errno::from_io_error(&error) != Some(Errno::INVAL)
        {
            tracing::error!(id = self.id, %error, "could not remove a System V segment that was made");
        }
    }
}

/// There is a segment with this id.
pub fn is_there(id: i32) -> bool {
    shm::look(id).is_ok_and(|found| found.is_some())
}

/// Ids of the segments that are not there and would be made.
pub fn to_make(memories: &[SharedMemory]) -> Result<Vec<i32>, RestoreFileError> {
    let mut missing = Vec::new();
    for memory in memories {
        if let SharedMemoryKind::SystemV { id, .. } = memory.kind
            && shm::look(id).map_err(RestoreFileError::at("looking at", name(id)))?.is_none()
        {
            missing.push(id);
        }
    }
    Ok(missing)
}

fn taken(id: i32, there: &shm::Segment) -> RestoreFileError {
    let what = format!("{} with key {:#x} and {} bytes", name(id), there.key, there.bytes);
    let how = match there.attached {
        0 => "is not the image's; if nobody needs it, ipcrm -m removes it".to_owned(),
        attached => format!("is attached {attached} times"),
    };
    RestoreFileError::Taken { what, how }
}

/// Makes a segment with this key and id, which are free as far as can be seen.
fn create(key: i32, id: i32, bytes: u64, maker: (u32, u32), huge: u32) -> Result<(), RestoreFileError> {
    let shown = &*name(id);
    let of_key = || shm::find(key).map_err(RestoreFileError::at("looking for the key of", shown));
    for _ in 0..ATTEMPTS {
        if let Some(other) = of_key()? {
            let what = format!("key {key:#x} of {shown}");
            return Err(RestoreFileError::Taken { what, how: format!("is that of segment {other} now") });
        }
        match shm::make(key, bytes, id, maker, huge) {
            Ok(made) if made == id => return Ok(()),
            // Somebody else's has taken the id meanwhile, or has its place.
            Ok(made) => shm::remove(made).map_err(RestoreFileError::at("removing", name(made)))?,
            Err(error) if error.raw_os_error() == Some(Errno::EXIST.raw_os_error()) => {}
            Err(error) => return Err(RestoreFileError::at("making", shown)(error)),
        }
    }
    let how = "cannot have its id again: another segment has its place".to_owned();
    Err(RestoreFileError::Taken { what: shown.to_owned(), how })
}
