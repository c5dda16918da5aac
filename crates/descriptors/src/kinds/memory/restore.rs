//! Restoring memory that lives by being open or mapped.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{
    Gid, MemfdFlags, Mode, OFlags, SealFlags, SeekFrom, Uid, fchmod, fchown, fcntl_add_seals, ftruncate, memfd_create,
    openat, seek,
};
use rustix::io::Errno;
use torpor_image::tree::{MemoryId, OpenFile, PathState, SharedMemory, SharedMemoryKind, Tree};
use torpor_linux::{hugepages, vm};
use torpor_pages::source::PageSource;

use super::{executable, segment};
use crate::context::RestoreContext;
use crate::contract::error::RestoreFileError;
use crate::filesystem;
use crate::filesystem::contents::fill;
use crate::filesystem::{Root, private, reopen};
use crate::kinds::memory::segment::Segment;

/// Memory that was made.
#[derive(Debug)]
pub(crate) struct MadeMemory {
    /// Open for reading and writing; what is executed from a disk, for reading.
    pub(crate) fd: OwnedFd,
    /// The same for writing, where it is to be sealed.
    pub(crate) sealed: Option<OwnedFd>,
    /// The segment that it is.
    pub(crate) segment: Option<Segment>,
}

/// Opens one of those that were made, as `file` was open.
pub(crate) fn open(made: &[MadeMemory], memory: MemoryId, file: &OpenFile) -> Result<OwnedFd, RestoreFileError> {
    const NAME: &str = "a file without a name";
    let made = made.get(memory as usize).ok_or_else(|| RestoreFileError::Missing(NAME.to_owned()))?;
    let fd =
        reopen(made.fd.as_fd(), filesystem::reopened(file.flags)).map_err(RestoreFileError::at("opening", NAME))?;
    seek(&fd, SeekFrom::Start(file.position)).map_err(RestoreFileError::at("finding the position in", NAME))?;
    Ok(fd)
}

/// The file that has lost this name, among those that were made from `memories`.
pub(crate) fn deleted<'a>(
    memories: &[SharedMemory],
    made: &'a [MadeMemory],
    wanted: &PathState,
) -> Option<BorrowedFd<'a>> {
    let object = |state: &PathState| (state.device, state.inode);
    let is_it = |memory: &SharedMemory| match &memory.kind {
        SharedMemoryKind::Deleted { state, .. } => {
            wanted.inode != 0 && object(state) == object(wanted) && state.path == wanted.path
        }
        _ => false,
    };
    memories.iter().zip(made).find(|(memory, _)| is_it(memory)).map(|(_, made)| made.fd.as_fd())
}

/// Makes a file of this kind with its contents; seals are for [`seal`], times for [`set_times`]. `around`: where the tree lives.
/// `executed`: a process executes it, and shows its name. What is not `written` to by anybody can be executed, and must not be open
/// for writing where it is mapped.
pub(crate) fn restore(
    memory: &SharedMemory,
    pages: &dyn PageSource,
    around: RestoreContext<'_>,
    (executed, written): (bool, bool),
) -> Result<MadeMemory, RestoreFileError> {
    let (fd, name) = match &memory.kind {
        SharedMemoryKind::Anonymous => {
            const NAME: &str = "shared memory";
            let fd = vm::shared_anonymous(memory.bytes).map_err(RestoreFileError::at("making", NAME))?;
            (fd, NAME.to_owned())
        }
        SharedMemoryKind::Huge { page_bytes } => {
            const NAME: &str = "shared memory in huge pages";
            let fd =
                hugepages::shared_anonymous(memory.bytes, *page_bytes).map_err(RestoreFileError::at("making", NAME))?;
            (fd, NAME.to_owned())
        }
        SharedMemoryKind::Memfd { name, mode, owner, flags, .. } => {
            let shown = format!("memfd {}", String::from_utf8_lossy(name));
            let fd = match flags & hugepages::MFD_HUGETLB {
                0 => memfd_create(&name[..], MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).map_err(Into::into),
                _ => hugepages::memfd(name, memory.page_bytes()),
            };
            let fd = fd.map_err(RestoreFileError::at("making", &*shown))?;
            owned(&fd, *owner, *mode, &shown)?;
            ftruncate(&fd, memory.bytes).map_err(RestoreFileError::at("setting the length of", &*shown))?;
            (fd, shown)
        }
        SharedMemoryKind::SystemV { id, .. } => {
            let name = segment::name(*id);
            let (segment, attached) = Segment::restore(memory, around.same_boot)?;
            let file = File::from(attached.open().map_err(RestoreFileError::at("opening", &*name))?);
            segment.clear(&file, memory).map_err(RestoreFileError::at("emptying", &*name))?;
            let behind = |at, tail: &[u8]| attached.write(at, tail);
            fill(&file, (memory.bytes, &memory.pages), pages, (around.charge, around.piece), &name, behind)?;
            return Ok(MadeMemory { fd: file.into(), sealed: None, segment: Some(segment) });
        }
        SharedMemoryKind::Deleted { state, owner } => {
            let shown = filesystem::text(state);
            let fd = match executed {
                true => executable::restore(state, around.root),
                false => without_name(state, around.root).map_err(std::io::Error::from),
            };
            let fd = fd.map_err(RestoreFileError::at("making", &*shown))?;
            owned(&fd, *owner, state.mode & 0o7777, &shown)?;
            ftruncate(&fd, memory.bytes).map_err(RestoreFileError::at("setting the length of", &*shown))?;
            (fd, shown)
        }
    };
    let file = File::from(fd);
    fill(&file, (memory.bytes, &memory.pages), pages, (around.charge, around.piece), &name, |_, _| Ok(()))?;
    let mut fd = OwnedFd::from(file);
    let mut sealed = None;
    let is_file = matches!(memory.kind, SharedMemoryKind::Memfd { .. } | SharedMemoryKind::Deleted { .. });
    if is_file && !written {
        // What is open for writing cannot be executed.
        let readable = reopen(fd.as_fd(), OFlags::RDONLY.bits()).map_err(RestoreFileError::at("opening", &*name))?;
        sealed = Some(std::mem::replace(&mut fd, readable)).filter(|_| is_sealed(memory));
        if executed && sealed.is_none() {
            executable::until_nobody_writes(&fd);
        }
    } else if is_sealed(memory) {
        sealed = Some(fd.try_clone().map_err(RestoreFileError::at("duplicating", name))?);
    }
    Ok(MadeMemory { fd, sealed, segment: None })
}

fn owned(fd: &OwnedFd, owner: (u32, u32), mode: u32, name: &str) -> Result<(), RestoreFileError> {
    let (user, group) = (Uid::from_raw(owner.0), Gid::from_raw(owner.1));
    fchown(fd, Some(user), Some(group)).map_err(RestoreFileError::at("giving its owner to", name))?;
    fchmod(fd, Mode::from_raw_mode(mode)).map_err(RestoreFileError::at("setting the mode of", name))
}

/// A new file without a name in the directory where the deleted one was, or in the nearest above it that is there.
fn without_name(state: &PathState, root: Root<'_>) -> rustix::io::Result<OwnedFd> {
    let whole = filesystem::path_of(&state.path);
    let mut last = Errno::NOENT;
    for directory in whole.ancestors().skip(1) {
        let place = OFlags::PATH | OFlags::DIRECTORY;
        let opened = root.open(directory.as_os_str().as_bytes(), place).and_then(|directory| {
            let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
            match openat(&directory, ".", flags, Mode::RUSR | Mode::WUSR) {
                Err(Errno::OPNOTSUPP | Errno::ISDIR) => made_and_deleted(&directory),
                other => other,
            }
        });
        match opened {
            Err(error @ (Errno::NOENT | Errno::NOTDIR)) => last = error,
            other => return other,
        }
    }
    Err(last)
}

/// For file systems that cannot make files without a name.
fn made_and_deleted(directory: &OwnedFd) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let make = |name: &str| openat(directory, name, flags, Mode::RUSR | Mode::WUSR);
    let (name, made) = private::with_fresh_name(private::PREFIX, make)?;
    private::remove_name(directory, name, &made)?;
    Ok(made)
}

const fn is_sealed(memory: &SharedMemory) -> bool {
    matches!(memory.kind, SharedMemoryKind::Memfd { seals, .. } if seals != 0)
}

/// Gives a file without a name its times, when nobody reads or writes it any more before the program runs.
pub(crate) fn set_times(tree: &Tree, id: MemoryId, fd: BorrowedFd<'_>) -> Result<(), RestoreFileError> {
    let name = match &tree.memories[id as usize].kind {
        SharedMemoryKind::Deleted { state, .. } => filesystem::text(state),
        SharedMemoryKind::Memfd { name, .. } => format!("memfd {}", String::from_utf8_lossy(name)),
        SharedMemoryKind::Anonymous | SharedMemoryKind::SystemV { .. } | SharedMemoryKind::Huge { .. } => return Ok(()),
    };
    let (accessed, modified) = match (tree.details.times(id), &tree.memories[id as usize].kind) {
        (Some(times), _) => (Some(times.accessed_ns), times.modified_ns),
        // Of an image of version 2.
        (None, SharedMemoryKind::Deleted { state, .. }) => (None, state.modified_ns),
        (None, _) => return Ok(()),
    };
    filesystem::set_times(fd, accessed, modified).map_err(RestoreFileError::at("setting the times of", name))
}

/// Sets a memfd's seals; called when everything that maps it is mapped.
pub(crate) fn seal(memory: &SharedMemory, fd: BorrowedFd<'_>) -> Result<(), RestoreFileError> {
    let SharedMemoryKind::Memfd { seals, name, .. } = &memory.kind else { return Ok(()) };
    let shown = || format!("memfd {}", String::from_utf8_lossy(name));
    fcntl_add_seals(fd, SealFlags::from_bits_retain(*seals))
        .map_err(|error| RestoreFileError::at("sealing", shown())(error))
}
