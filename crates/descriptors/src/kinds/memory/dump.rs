//! Dumping memory that lives by being open or mapped.

use std::collections::HashMap;
use std::fs::{self, File};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{FileType, Stat, fcntl_get_seals, fstat, fstatfs};
use torpor_image::Region;
use torpor_image::tree::{FileId, MemoryId, SharedMemory, SharedMemoryKind, Times};
use torpor_linux::hugepages;
use torpor_linux::shm::Attached;
use torpor_pages::sink::PageSink;
use torpor_process::blocker::{Blocker, Place};

use super::{SECOND_NS, segment};
use crate::contract::error::DumpError;
use crate::contract::reason::{Described, Reason};
use crate::contract::{Request, SharedArea};
use crate::filesystem;
use crate::filesystem::contents::store;
use crate::kinds::memory::segment::Segments;
use crate::list::{Item, List};
use crate::namespaces::ipc;

/// Bytes of `memfd:` in the name, and what is behind a file without a name.
const MEMFD: &[u8] = b"/memfd:";
const ANONYMOUS_HUGE: &[u8] = b"/anon_hugepage";
const GONE: &[u8] = b" (deleted)";
/// `O_WRONLY | O_RDWR`.
const WRITING: u32 = 0o3;

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
        if self.request.view.in_sandbox() && !self.request.look_only {
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
