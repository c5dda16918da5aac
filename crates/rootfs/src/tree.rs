//! A directory tree being built, and the only calls that write into it. None of them can reach outside.
//!
//! Every directory is opened from the tree's root by `openat2` with `RESOLVE_BENEATH`, `RESOLVE_NO_SYMLINKS` and
//! `RESOLVE_NO_MAGICLINKS`; the last name of a path is created with an exclusive call relative to that descriptor, and is
//! never followed. The tree lies in a directory that only root may enter, so nobody else changes it meanwhile.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, Stat, Timespec, Timestamps, XattrFlags, chmodat, chownat, fchmod, fchown,
    fsetxattr, futimens, linkat, mkdirat, mknodat, openat2, statat, symlinkat, unlinkat, utimensat,
};
use rustix::io::Errno;
use rustix::process::{Gid, Uid};

use crate::error::{ArchiveError, shown};
use crate::limits::{MAX_DEPTH, MAX_NAME_BYTES, MAX_PATH_BYTES};
use crate::resolve::RESOLVE;

/// A path below the root of a tree: names joined by single slashes, none of them `.` or `..`; empty for the root.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct TreePath(Vec<u8>);

impl TreePath {
    /// Checks a path of an archive. `./` in front and doubled slashes are fine; `/` alone is the root.
    pub(crate) fn parse(raw: &[u8]) -> Result<Self, ArchiveError> {
        let bad = |why| ArchiveError::BadPath { name: shown(raw), why };
        if raw.is_empty() {
            return Err(bad("is empty"));
        }
        if raw.contains(&0) {
            return Err(bad("holds a zero byte"));
        }
        if raw.len() > MAX_PATH_BYTES {
            return Err(bad("is longer than 4095 bytes"));
        }
        let mut path = Self::default();
        let mut depth = 0;
        for name in raw.split(|byte| *byte == b'/').filter(|name| !name.is_empty() && *name != b".") {
            if name == b".." {
                return Err(ArchiveError::ParentPath { name: shown(raw) });
            }
            if name.len() > MAX_NAME_BYTES {
                return Err(bad("has a name of more than 255 bytes"));
            }
            depth += 1;
            if depth > MAX_DEPTH {
                return Err(bad("is more than 256 directories deep"));
            }
            path = path.join(name);
        }
        if raw[0] == b'/' && !path.is_root() {
            return Err(ArchiveError::AbsolutePath { name: shown(raw) });
        }
        Ok(path)
    }

    pub(crate) fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// For `openat2`, which does not take the empty path.
    pub(crate) fn openable(&self) -> &[u8] {
        if self.is_root() { b"." } else { &self.0 }
    }

    pub(crate) fn join(&self, name: &[u8]) -> Self {
        let mut path = self.0.clone();
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(name);
        Self(path)
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &[u8]> {
        self.0.split(|byte| *byte == b'/').filter(|name| !name.is_empty())
    }

    /// The directory that holds it, and its name there; `None` for the root.
    pub(crate) fn split(&self) -> Option<(Self, &[u8])> {
        if self.is_root() {
            return None;
        }
        let slash = self.0.iter().rposition(|byte| *byte == b'/');
        Some(slash.map_or((Self::default(), &self.0[..]), |at| (Self(self.0[..at].to_vec()), &self.0[at + 1..])))
    }

    /// Where the paths below it lie in the order of all paths: from the first to before the second.
    pub(crate) fn below(&self) -> (Self, Self) {
        let end = |last: u8| [&self.0[..], &[last]].concat();
        (Self(end(b'/')), Self(end(b'/' + 1)))
    }

    pub(crate) fn shown(&self) -> String {
        shown(self.openable())
    }
}

/// Owner, mode and time of something in a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Attributes {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Permission bits, setuid, setgid and sticky included.
    pub(crate) mode: u32,
    /// Seconds and nanoseconds.
    pub(crate) mtime: (i64, u32),
}

impl Attributes {
    /// Of a directory of which nothing is known.
    pub(crate) const IMPLIED: Self = Self { uid: 0, gid: 0, mode: 0o755, mtime: (0, 0) };

    pub(crate) fn of(stat: &Stat) -> Self {
        let mtime = (stat.st_mtime, u32::try_from(stat.st_mtime_nsec).unwrap_or(0));
        Self { uid: stat.st_uid, gid: stat.st_gid, mode: stat.st_mode & 0o7777, mtime }
    }

    fn times(&self) -> Timestamps {
        let time = Timespec { tv_sec: self.mtime.0, tv_nsec: self.mtime.1.into() };
        Timestamps { last_access: time, last_modification: time }
    }
}

/// A tree and its root.
pub(crate) struct Tree {
    root: OwnedFd,
    /// The directory opened last: members come directory by directory.
    last: Option<(TreePath, OwnedFd)>,
}

type Result<T, E = Errno> = std::result::Result<T, E>;

impl Tree {
    pub(crate) fn open(root: &Path) -> Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(Self { root: rustix::fs::openat(CWD, root, flags, Mode::empty())?, last: None })
    }

    /// Forgets what it has open, because directories were replaced.
    pub(crate) fn forget(&mut self) {
        self.last = None;
    }

    /// Opens a directory that exists. `ELOOP`: a symbolic link lies on the way.
    pub(crate) fn directory(&mut self, path: &TreePath) -> Result<BorrowedFd<'_>> {
        if self.last.as_ref().is_none_or(|(known, _)| known != path) {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let opened = openat2(&self.root, path.openable(), flags, Mode::empty(), RESOLVE)?;
            self.last = Some((path.clone(), opened));
        }
        let (_, opened) = self.last.as_ref().expect("it was set above");
        Ok(opened.as_fd())
    }

    pub(crate) fn parent<'p>(&mut self, path: &'p TreePath) -> Result<(BorrowedFd<'_>, &'p [u8])> {
        let (parent, name) = path.split().ok_or(Errno::ISDIR)?;
        Ok((self.directory(&parent)?, name))
    }

    /// What is at `path`, not followed; `None` if nothing is.
    pub(crate) fn stat(&mut self, path: &TreePath) -> Result<Option<Stat>> {
        if path.is_root() {
            return statat(&self.root, ".", AtFlags::SYMLINK_NOFOLLOW).map(Some);
        }
        let found = self.parent(path).and_then(|(parent, name)| statat(parent, name, AtFlags::SYMLINK_NOFOLLOW));
        match found {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    pub(crate) fn make_directory(&mut self, path: &TreePath) -> Result<()> {
        let (parent, name) = self.parent(path)?;
        mkdirat(parent, name, Mode::RWXU)
    }

    pub(crate) fn make_file(&mut self, path: &TreePath) -> Result<File> {
        let (parent, name) = self.parent(path)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        openat2(parent, name, flags, Mode::RUSR | Mode::WUSR, RESOLVE).map(File::from)
    }

    pub(crate) fn make_symlink(&mut self, path: &TreePath, target: &[u8], attributes: &Attributes) -> Result<()> {
        let (parent, name) = self.parent(path)?;
        symlinkat(target, parent, name)?;
        own(parent, name, attributes)?;
        utimensat(parent, name, &attributes.times(), AtFlags::SYMLINK_NOFOLLOW)
    }

    /// A second name for `target`, which is not followed if it is a symbolic link.
    pub(crate) fn make_hard_link(&mut self, path: &TreePath, target: &TreePath) -> Result<()> {
        let (to_parent, to_name) = target.split().ok_or(Errno::PERM)?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let to_parent = openat2(&self.root, to_parent.openable(), flags, Mode::empty(), RESOLVE)?;
        let (parent, name) = self.parent(path)?;
        linkat(to_parent, to_name, parent, name, AtFlags::empty())
    }

    pub(crate) fn make_fifo(&mut self, path: &TreePath, attributes: &Attributes) -> Result<()> {
        let (parent, name) = self.parent(path)?;
        mknodat(parent, name, FileType::Fifo, Mode::RUSR, 0)?;
        own(parent, name, attributes)?;
        // Follows links in general, but the line above made a FIFO there and nobody else has access to the tree.
        chmodat(parent, name, Mode::from_raw_mode(attributes.mode), AtFlags::empty())?;
        utimensat(parent, name, &attributes.times(), AtFlags::SYMLINK_NOFOLLOW)
    }

    /// Overlayfs's mark that a lower layer's file is deleted: a character device 0:0.
    pub(crate) fn make_whiteout(&mut self, path: &TreePath) -> Result<()> {
        let (parent, name) = self.parent(path)?;
        mknodat(parent, name, FileType::CharacterDevice, Mode::empty(), 0)
    }

    /// Overlayfs's mark that a directory hides those of lower layers.
    pub(crate) fn make_opaque(&mut self, path: &TreePath) -> Result<()> {
        let directory = self.readable_directory(path)?;
        fsetxattr(directory, OPAQUE, b"y", XattrFlags::empty())
    }

    /// Opens a directory for attributes.
    pub(crate) fn readable_directory(&mut self, path: &TreePath) -> Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        openat2(&self.root, path.openable(), flags, Mode::empty(), RESOLVE)
    }

    /// Removes whatever is at `path`, directories with all that is in them.
    pub(crate) fn remove(&mut self, path: &TreePath, is_directory: bool) -> io::Result<()> {
        let (parent, name) = self.parent(path)?;
        if is_directory {
            crate::remove::remove_below(parent, name)?;
            self.forget();
            return Ok(());
        }
        Ok(unlinkat(parent, name, AtFlags::empty())?)
    }
}

/// The extended attribute of [`Tree::make_opaque`].
pub(crate) const OPAQUE: &str = "trusted.overlay.opaque";

fn own(parent: BorrowedFd<'_>, name: &[u8], attributes: &Attributes) -> Result<()> {
    let (uid, gid) = (Uid::from_raw(attributes.uid), Gid::from_raw(attributes.gid));
    chownat(parent, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)
}

/// Gives an open file or directory its owner and mode (in this order: changing the owner clears setuid).
pub(crate) fn set_owner_and_mode(file: impl AsFd, attributes: &Attributes) -> Result<()> {
    fchown(&file, Some(Uid::from_raw(attributes.uid)), Some(Gid::from_raw(attributes.gid)))?;
    fchmod(&file, Mode::from_raw_mode(attributes.mode))
}

/// Gives an open file or directory its time; the last call on it.
pub(crate) fn set_time(file: impl AsFd, attributes: &Attributes) -> Result<()> {
    futimens(file, &attributes.times())
}
