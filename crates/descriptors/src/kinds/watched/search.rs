//! Finding names of inodes by looking for them, where a handle does not lead to one.
//!
//! The kernel tells a watched inode by its handle only. Overlay file systems do not open files by handle, and of a file that
//! nobody has open, the kernel forgets by which name it was found. Then directories are read, breadth first, until the numbers
//! of their entries and then the handles agree: what is below others first, for programs watch what lies together. As the
//! program is stopped meanwhile, there is an end to it.
//!
//! Whoever watches a directory for being opened would be told of us; such directories of the program's own are not read.

use std::collections::{HashMap, HashSet, VecDeque};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::fs::{Dev, Dir, FileType, OFlags};
use torpor_linux::handle;

use crate::filesystem::below;
use crate::kinds::watched::Inode;
use torpor_proc::mounts::Mount;
use torpor_process::view::View;

/// Entries of directories that are looked at below those that are near.
const MOST_NEAR: usize = 10_000;
/// How long is looked for all of them.
const LONGEST: Duration = Duration::from_secs(2);

/// Inodes without a name yet.
pub(crate) struct Search<'a> {
    view: &'a View,
    wanted: HashSet<&'a Inode>,
    /// Theirs; several file systems may have the same.
    numbers: HashSet<u64>,
    found: HashMap<&'a Inode, Vec<u8>>,
    unread: &'a HashSet<&'a Inode>,
    begun: Instant,
    go_on: &'a dyn Fn() -> bool,
}

impl<'a> Search<'a> {
    /// For `wanted`, without reading directories of `unread`; it ends early when `go_on` says so.
    pub(crate) fn new(
        view: &'a View,
        wanted: &[&'a Inode],
        unread: &'a HashSet<&'a Inode>,
        go_on: &'a dyn Fn() -> bool,
    ) -> Self {
        let numbers = wanted.iter().map(|inode| inode.number).collect();
        let wanted = wanted.iter().copied().collect();
        Self { view, wanted, numbers, found: HashMap::new(), unread, begun: Instant::now(), go_on }
    }

    /// Looks below `near`, then in all of these mounts; the names of those that were found.
    pub(crate) fn among(mut self, mounts: &[Mount], near: &HashSet<Vec<u8>>) -> HashMap<&'a Inode, Vec<u8>> {
        // Each file system by itself, for a handle says nothing without it.
        let mut devices: HashMap<Dev, Vec<Vec<u8>>> = HashMap::new();
        for path in near {
            if let Ok(stat) = self.view.stat(path) {
                devices.entry(stat.st_dev).or_default().push(path.clone());
            }
        }
        for (device, paths) in devices {
            self.walk(paths, device, MOST_NEAR);
        }
        for mount in mounts {
            self.walk(vec![mount.path.clone()], mount.device, usize::MAX);
        }
        self.found
    }

    /// Looks below these directories of a file system, at so many entries.
    fn walk(&mut self, paths: Vec<Vec<u8>>, device: Dev, most: usize) {
        if self.is_over() || !self.wanted.iter().any(|inode| inode.is_on(device)) {
            return;
        }
        let (mut queue, mut entries) = (VecDeque::new(), 0);
        for path in paths {
            if self.view.open(&path).is_ok_and(|top| self.look(&top, &path, device)) {
                queue.push_back(path);
            }
        }
        while let Some(path) = queue.pop_front() {
            if self.is_over() || entries > most {
                return;
            }
            // What cannot be read is left out: it may go while we look.
            if let Ok(directory) = self.open(&path) {
                entries += self.read(&directory, &path, device, &mut queue);
            }
        }
    }

    fn is_over(&self) -> bool {
        self.found.len() == self.wanted.len() || self.begun.elapsed() > LONGEST || !(self.go_on)()
    }

    fn open(&self, path: &[u8]) -> rustix::io::Result<OwnedFd> {
        self.view.open_as(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::NOATIME)
    }

    /// Looks at the entries of a directory; directories among them are put into `queue`. How many there are.
    fn read(&mut self, directory: &OwnedFd, path: &[u8], device: Dev, queue: &mut VecDeque<Vec<u8>>) -> usize {
        let Ok(entries) = Dir::read_from(directory) else { return 0 };
        let mut count = 0;
        for entry in entries.flatten() {
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            count += 1;
            if self.is_over() {
                break;
            }
            let is_directory = matches!(entry.file_type(), FileType::Directory | FileType::Unknown);
            let may_be_wanted = self.numbers.contains(&entry.ino());
            if !is_directory && !may_be_wanted {
                continue;
            }
            // Where something is mounted, another mount begins, which is looked at by itself if it matters.
            let Ok(opened) = below(directory, name, OFlags::PATH | OFlags::NOFOLLOW) else { continue };
            let separator: &[u8] = if path.ends_with(b"/") { b"" } else { b"/" };
            let whole = [path, separator, name].concat();
            let readable = !may_be_wanted || self.look(&opened, &whole, device);
            if is_directory && readable {
                queue.push_back(whole);
            }
        }
        count
    }

    /// Notes the name if it is one of them. Whether it may be read, if it is a directory.
    fn look(&mut self, opened: &OwnedFd, path: &[u8], device: Dev) -> bool {
        let Ok(Some((kind, bytes))) = handle::identity(opened) else { return true };
        if let Some(inode) = self.wanted.iter().find(|inode| inode.is(device, kind, &bytes)) {
            self.found.insert(inode, path.to_vec());
        }
        !self.unread.iter().any(|inode| inode.is(device, kind, &bytes))
    }
}
