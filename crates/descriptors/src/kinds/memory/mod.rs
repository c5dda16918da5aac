//! Files that live by being open or mapped: memfds, shared anonymous memory, deleted files. Segments of System V shared
//! memory are found and filled here too; the rest of them is in [`segment`].
//!
//! All of them are files of the kernel's, known by device and inode; several descriptors and mappings may lead to one. Its
//! contents go into the image as pages, holes left out, and come back into a file of the same kind.

pub(crate) mod executable;
pub(crate) mod segment;

use std::collections::HashMap;
use std::fs::{self, File};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{
    FileType, Gid, MemfdFlags, Mode, OFlags, SealFlags, SeekFrom, Stat, Uid, fchmod, fchown, fcntl_add_seals,
    fcntl_get_seals, fstat, fstatfs, ftruncate, memfd_create, openat, seek,
};
use rustix::io::Errno;
use torpor_image::Region;
use torpor_image::tree::{FileId, MemoryId, OpenFile, PathState, SharedMemory, SharedMemoryKind, Times, Tree};
use torpor_linux::shm::Attached;
use torpor_linux::{hugepages, vm};

use crate::context::RestoreContext;
use crate::contract::error::{DumpError, RestoreFileError};
use crate::contract::reason::{Described, Reason};
use crate::contract::{Request, SharedArea};
use crate::filesystem;
use crate::filesystem::contents::{fill, store};
use crate::filesystem::{Root, private, reopen};
use crate::kinds::memory::segment::{Segment, Segments};
use crate::list::{Item, List};
use crate::namespaces::ipc;
use torpor_pages::sink::PageSink;
use torpor_process::blocker::{Blocker, Place};

/// Bytes of `memfd:` in the name, and what is behind a file without a name.
const MEMFD: &[u8] = b"/memfd:";
const ANONYMOUS_HUGE: &[u8] = b"/anon_hugepage";
const GONE: &[u8] = b" (deleted)";
const SECOND_NS: i64 = 1_000_000_000;
/// `O_WRONLY | O_RDWR`.
const WRITING: u32 = 0o3;

/// Device of the kernel's own tmpfs, on which memfds and shared memory are.
pub(crate) fn kernel_tmpfs() -> std::io::Result<u64> {
    Ok(fstat(memfd_create("torpor", MemfdFlags::CLOEXEC)?)?.st_dev)
}

/// Files that were found, by device and inode.
pub(crate) struct Memories<'a, 'b> {
    sink: &'a mut PageSink<'b>,
    /// Device of the kernel's own tmpfs, on which memfds and shared memory are.
    kernels: u64,
    found: Vec<SharedMemory>,
    times: Vec<Times>,
    known: HashMap<(u64, u64), MemoryId>,
    /// Segments, whose numbers are not among those of other files.
    segments: Segments,
    request: &'a Request<'a>,
}

impl<'a, 'b> Memories<'a, 'b> {
    /// `kernels`: see [`kernel_tmpfs`].
    pub(crate) fn new(sink: &'a mut PageSink<'b>, request: &'a Request<'a>, kernels: u64) -> Self {
        let (found, times, known, segments) = (Vec::new(), Vec::new(), HashMap::new(), Segments::default());
        Self { sink, kernels, found, times, known, segments, request }
    }

    /// What was found, and the times of the files among it.
    pub(crate) fn finish(self) -> (Vec<SharedMemory>, Vec<Times>) {
        (self.found, self.times)
    }

    /// The memory behind an open file.
    pub(crate) fn take(&mut self, item: &Item) -> Described<MemoryId> {
        if let Some(known) = self.known.get(&item.object()) {
            return Ok(*known);
        }
        self.add(item.fd.as_fd(), &item.link, &item.stat)
    }

    /// The memory behind each mapping; those of the tree's descriptors are found again.
    pub(crate) fn areas(
        &mut self,
        list: &List,
        areas: &[SharedArea],
        obstacles: &mut Vec<Blocker>,
    ) -> Result<Vec<MemoryId>, DumpError> {
        let mut found = Vec::with_capacity(areas.len());
        for area in areas {
            let failed = |source| DumpError::Look {
                pid: area.pid,
                what: format!("memory {:#x}-{:#x} ({})", area.start, area.end, area.name),
                source,
            };
            match self.area(list, area) {
                Ok(memory) => found.push(memory),
                Err(
                    Reason::Refused { what, remedy }
                    | Reason::Parkable { what, remedy }
                    | Reason::Outside { what, remedy },
                ) => {
                    let place = Place::Memory(area.start, area.end);
                    obstacles.push(Blocker::new(area.pid, place, what, remedy));
                }
                Err(Reason::Failed(source)) => return Err(failed(source)),
                Err(Reason::Write(source)) => return Err(DumpError::Write(source)),
                Err(Reason::Stopped) => return Err(DumpError::Stopped),
            }
        }
        obstacles.extend(self.segments.attached_elsewhere());
        if self.request.view.keeps_files() && !self.request.look_only {
            self.unattached()?;
        }
        Ok(found)
    }

    fn area(&mut self, list: &List, area: &SharedArea) -> Described<MemoryId> {
        let link = format!("/proc/{}/map_files/{:x}-{:x}", area.pid, area.start, area.end);
        let stat = rustix::fs::stat(&*link)?;
        let object = (stat.st_dev, stat.st_ino);
        let name = fs::read_link(&link)?;
        let name = name.as_os_str().as_bytes();
        if name.starts_with(b"/SYSV") && (stat.st_dev == self.kernels || pool(File::open(&link)?, &stat)?.is_some()) {
            return self.segment(area, &link, stat.st_ino as i32);
        }
        let writes = |file: &FileId| list.item(*file).info.flags & WRITING != 0;
        if area.executed && list.same_object(object).iter().any(writes) {
            let what = format!("{} is executed and open for writing", area.name);
            return Err(Reason::refused(what, "let the program close it"));
        }
        if let Some(known) = self.known.get(&object) {
            return Ok(*known);
        }
        if let Some(file) = list.same_object(object).first() {
            let item = list.item(*file);
            return self.add(item.fd.as_fd(), &item.link, &item.stat);
        }
        if stat.st_dev != self.kernels && stat.st_nlink > 0 {
            let what = format!("{} is mapped, and cannot be found under its name", area.name);
            return Err(Reason::refused(what, "let the program map it again"));
        }
        let opened = File::open(&link)?;
        self.add(opened.as_fd(), name, &stat)
    }

    fn store(&mut self, fd: BorrowedFd<'_>, bytes: u64, tail: &[u8]) -> Described<Vec<Region>> {
        if self.request.look_only {
            return Ok(Vec::new());
        }
        store(fd, bytes, tail, self.sink, self.request.go_on)
    }

    fn segment(&mut self, area: &SharedArea, link: &str, id: i32) -> Described<MemoryId> {
        if let Some(known) = self.segments.again(id) {
            return Ok(known);
        }
        let (kind, bytes, attached) = segment::describe(id)?;
        let file = File::open(link)?;
        let memory = self.found.len() as MemoryId;
        let tail = || if self.request.look_only { Ok(Vec::new()) } else { segment::tail(area, bytes) };
        self.add_segment(kind, bytes, &file, tail)?;
        self.segments.add(id, memory, area, attached);
        Ok(memory)
    }

    /// Adds a segment with this file. What is behind its end in its last page `tail` gives, but for huge pages, whose files have
    /// whole ones.
    fn add_segment(
        &mut self,
        mut kind: SharedMemoryKind,
        bytes: u64,
        file: &File,
        tail: impl FnOnce() -> std::io::Result<Vec<u8>>,
    ) -> Described<()> {
        let huge = pool(file, &fstat(file)?)?;
        if let (Some(page_bytes), SharedMemoryKind::SystemV { mode, .. }) = (huge, &mut kind) {
            *mode |= hugepages::SHM_HUGETLB | hugepages::size_flags(page_bytes);
        }
        let pages = match huge {
            Some(page_bytes) => self.store(file.as_fd(), bytes.next_multiple_of(page_bytes), &[])?,
            None => self.store(file.as_fd(), bytes, &tail()?)?,
        };
        self.found.push(SharedMemory { kind, bytes, pages });
        Ok(())
    }

    /// Segments of an app's that nobody is attached to: programs keep their ids.
    fn unattached(&mut self) -> Result<(), DumpError> {
        let failed = |what: String| move |source| DumpError::Look { pid: 0, what, source };
        for id in ipc::ids(ipc::SEGMENTS).map_err(failed(ipc::SEGMENTS.to_owned()))? {
            if self.segments.knows(id) {
                continue;
            }
            let stored = segment::describe(id).and_then(|(kind, bytes, _)| {
                let file = File::from(Attached::new(id)?.open()?);
                self.add_segment(kind, bytes, &file, || Ok(Vec::new()))
            });
            stored.map_err(|why| match why {
                Reason::Stopped => DumpError::Stopped,
                Reason::Write(source) => DumpError::Write(source),
                Reason::Failed(source) => failed(segment::name(id))(source),
                Reason::Refused { what, .. } | Reason::Parkable { what, .. } | Reason::Outside { what, .. } => {
                    failed(segment::name(id))(std::io::Error::other(what))
                }
            })?;
        }
        Ok(())
    }

    fn add(&mut self, fd: BorrowedFd<'_>, name: &[u8], stat: &Stat) -> Described<MemoryId> {
        let name = name.strip_suffix(GONE).unwrap_or(name);
        let shown = String::from_utf8_lossy(name).into_owned();
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(Reason::refused(format!("{shown} has been deleted"), "let the program close it"));
        }
        let owner = (stat.st_uid, stat.st_gid);
        let huge = pool(fd, stat)?;
        let kind = if stat.st_dev != self.kernels && huge.is_none() {
            SharedMemoryKind::Deleted { state: filesystem::state(name, stat), owner }
        } else if let Some(name) = name.strip_prefix(MEMFD) {
            let seals = fcntl_get_seals(fd)?.bits();
            let flags = huge.map_or(0, |size| hugepages::MFD_HUGETLB | hugepages::size_flags(size));
            SharedMemoryKind::Memfd { name: name.to_vec(), seals, flags, mode: stat.st_mode & 0o7777, owner }
        } else {
            match huge {
                None if name == b"/dev/zero" => SharedMemoryKind::Anonymous,
                Some(page_bytes) if name == ANONYMOUS_HUGE => SharedMemoryKind::Huge { page_bytes },
                _ => {
                    return Err(Reason::refused(format!("{shown}: memory of the kernel's that is not known here"), ""));
                }
            }
        };
        let bytes = stat.st_size as u64;
        let pages = self.store(fd, bytes, &[])?;
        let id = self.found.len() as MemoryId;
        if matches!(kind, SharedMemoryKind::Memfd { .. } | SharedMemoryKind::Deleted { .. }) {
            let ns = |seconds: i64, rest: i64| seconds.saturating_mul(SECOND_NS).saturating_add(rest);
            let accessed_ns = ns(stat.st_atime, stat.st_atime_nsec as i64);
            self.times.push(Times {
                memory: id,
                accessed_ns,
                modified_ns: ns(stat.st_mtime, stat.st_mtime_nsec as i64),
            });
        }
        self.found.push(SharedMemory { kind, bytes, pages });
        self.known.insert((stat.st_dev, stat.st_ino), id);
        Ok(id)
    }
}

/// The size of its pages, if a file is memory of the kernel's own in huge pages of a pool: without a name on any file system.
fn pool(file: impl AsFd, stat: &Stat) -> std::io::Result<Option<u64>> {
    let about = fstatfs(file)?;
    if about.f_type != hugepages::MAGIC {
        return Ok(None);
    }
    let page_bytes = about.f_bsize.unsigned_abs();
    // There is one such file system for each size, which nobody else can mount.
    let other = hugepages::memfd(b"torpor", page_bytes)?;
    Ok((fstat(other)?.st_dev == stat.st_dev).then_some(page_bytes))
}

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
    image: &File,
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
            fill(&file, (memory.bytes, &memory.pages), image, (around.charge, around.piece), &name, behind)?;
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
    fill(&file, (memory.bytes, &memory.pages), image, (around.charge, around.piece), &name, |_, _| Ok(()))?;
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
