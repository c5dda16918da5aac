//! Making mounts by descriptor: file systems, clones of what is mounted, mount points inside a root that is not trusted.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Gid, Mode, OFlags, ResolveFlags, Uid};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, fsconfig_create, fsconfig_set_string,
    fsmount, fsopen, move_mount, open_tree,
};
use torpor_linux::mount::{MountChange, change_mount};

use crate::error::{Doing, SetupError};
use crate::owner::with_files_of;

/// Symbolic links that end in nothing are followed so often when a mount point is made.
const LINKS: u32 = 16;
/// Longest explanation taken from the kernel, in bytes.
const LOG_BYTES: usize = 512;

/// No set-user-id, no devices, no execution: for file systems that hold the kernel's files.
pub(crate) const PLAIN: MountAttrFlags =
    MountAttrFlags::MOUNT_ATTR_NOSUID.union(MountAttrFlags::MOUNT_ATTR_NODEV).union(MountAttrFlags::MOUNT_ATTR_NOEXEC);

/// A new file system, mounted nowhere yet.
pub(crate) fn new_file_system(
    kind: &str,
    options: &[(&str, &str)],
    attributes: MountAttrFlags,
) -> Result<OwnedFd, SetupError> {
    let context = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC).doing(|| format!("opening file system type {kind}"))?;
    for (key, value) in [("source", kind)].iter().chain(options) {
        let set = fsconfig_set_string(context.as_fd(), *key, *value);
        set.map_err(|error| explain(&context, error, format!("setting {key}={value} of {kind}")))?;
    }
    let made = fsconfig_create(context.as_fd());
    made.map_err(|error| explain(&context, error, format!("making a file system of type {kind}")))?;
    fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes).doing(|| format!("mounting {kind}"))
}

/// Adds what the kernel has logged in the file system's context.
fn explain(context: &OwnedFd, error: Errno, doing: String) -> SetupError {
    let mut buffer = [0; LOG_BYTES];
    let errno = error.raw_os_error();
    match rustix::io::read(context, &mut buffer) {
        Ok(length) if length > 0 => {
            let log = String::from_utf8_lossy(&buffer[..length]).trim().to_owned();
            SetupError::Kernel { doing, errno, log }
        }
        _ => SetupError::System { doing, errno },
    }
}

/// A second mount of what is at `path` below `base`, mounted nowhere yet, without propagation.
pub(crate) fn clone_mount(base: BorrowedFd<'_>, path: &Path, recursive: bool) -> Result<OwnedFd, SetupError> {
    let mut flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    flags.set(OpenTreeFlags::AT_RECURSIVE, recursive);
    flags.set(OpenTreeFlags::AT_EMPTY_PATH, path.as_os_str().is_empty());
    let clone = open_tree(base, path, flags).doing(|| format!("opening {}", path.display()))?;
    let private = MountChange { private: true, recursive, ..MountChange::default() };
    change_mount(&clone, private).doing(|| format!("making the mount of {} private", path.display()))?;
    Ok(clone)
}

/// The same of a path of the machine.
pub(crate) fn clone_host(path: &Path, recursive: bool) -> Result<OwnedFd, SetupError> {
    clone_mount(CWD, path, recursive)
}

/// Shows a clone's files with the owners that they have inside the user namespace `ids`.
pub(crate) fn map_ids(mount: &OwnedFd, ids: BorrowedFd<'_>, recursive: bool, path: &Path) -> Result<(), SetupError> {
    let change = MountChange { ids: Some(ids), recursive, ..MountChange::default() };
    change_mount(mount, change).map_err(|error| match error.raw_os_error() {
        Some(libc::EINVAL | libc::EPERM) => SetupError::NoIdMapping { path: path.display().to_string() },
        errno => SetupError::System {
            doing: format!("mapping the ids of {}", path.display()),
            errno: errno.unwrap_or(libc::EIO),
        },
    })
}

/// Puts a mount where `target`, a descriptor, is.
pub(crate) fn attach(mount: &OwnedFd, target: BorrowedFd<'_>, what: &str) -> Result<(), SetupError> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(mount, "", target, "", flags).doing(|| format!("mounting {what}"))
}

/// What a mount point must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A directory.
    Directory,
    /// A regular file, or anything else that is none.
    File,
}

/// A root directory whose content is not trusted: symbolic links in it are resolved inside it.
#[derive(Debug)]
pub(crate) struct Root {
    /// The root directory.
    directory: OwnedFd,
    /// Owner of what is made in it, as the machine numbers it.
    owner: (Uid, Gid),
}

impl Root {
    /// The root `directory`; what is made in it belongs to `owner_id`.
    pub(crate) fn new(directory: OwnedFd, owner_id: u32) -> Self {
        Self { directory, owner: (Uid::from_raw(owner_id), Gid::from_raw(owner_id)) }
    }

    /// The root itself.
    pub(crate) fn directory(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }

    fn open(&self, path: &Path) -> Result<OwnedFd, Errno> {
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        rustix::fs::openat2(&self.directory, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve)
    }

    /// What is at `path`, for mounting over it; none if nothing is there.
    pub(crate) fn existing(&self, path: &str) -> Result<Option<OwnedFd>, SetupError> {
        match self.open(Path::new(path)) {
            Ok(found) => Ok(Some(found)),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
            Err(error) => Err(error).doing(|| format!("opening `{path}` in the app's files")),
        }
    }

    /// A directory in the root directory, made if missing, that must not be a symbolic link: `/proc` and its like.
    pub(crate) fn system_directory(&self, name: &str) -> Result<OwnedFd, SetupError> {
        self.make(self.directory.as_fd(), OsStr::new(name), Kind::Directory)
            .doing(|| format!("making `/{name}` in the app's files"))?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::openat(&self.directory, name, flags, Mode::empty())
            .map_err(|_| SetupError::Target { path: format!("/{name}"), found: "not a directory".to_owned() })
    }

    /// The mount point at `path`, made with its parents where missing. Refuses places inside `/proc` and `/sys`.
    pub(crate) fn mount_point(&self, path: &Path, kind: Kind) -> Result<OwnedFd, SetupError> {
        let target =
            self.make_path(path, kind, LINKS).doing(|| format!("making `{}` in the app's files", path.display()))?;
        let refuse =
            |found: &str| Err(SetupError::Target { path: path.display().to_string(), found: found.to_owned() });
        let file_system = rustix::fs::fstatfs(&target).doing(|| format!("examining `{}`", path.display()))?;
        if matches!(file_system.f_type as u64, PROC_MAGIC | SYSFS_MAGIC) {
            return refuse("inside /proc or /sys");
        }
        let stat = rustix::fs::fstat(&target).doing(|| format!("examining `{}`", path.display()))?;
        match (FileType::from_raw_mode(stat.st_mode), kind) {
            (FileType::Directory, Kind::File) => refuse("a directory, and what belongs there is a file"),
            (FileType::Directory, Kind::Directory) => Ok(target),
            (_, Kind::Directory) => refuse("a file, and what belongs there is a directory"),
            (_, Kind::File) => Ok(target),
        }
    }

    /// Makes `content` that of the regular file at `path`, which is made where missing. One that has it already is not
    /// touched: a sleeping program may have it open, and knows it by its times.
    ///
    /// Follows symbolic links inside the root, so only while nothing else is mounted there.
    pub(crate) fn write(&self, path: &Path, content: &str) -> Result<(), SetupError> {
        let writing = || format!("writing `{}` in the app's files", path.display());
        self.mount_point(path, Kind::File)?;
        let how = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
        // A FIFO of that name does not hold us up.
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = rustix::fs::openat2(&self.directory, path, flags, Mode::empty(), how).doing(writing)?;
        let stat = rustix::fs::fstat(&file).doing(writing)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(SetupError::Target { path: path.display().to_string(), found: "no regular file".to_owned() });
        }
        let mut file = File::from(file);
        let mut found = Vec::new();
        (&file).take(content.len() as u64 + 1).read_to_end(&mut found).doing(writing)?;
        if found != content.as_bytes() {
            file.set_len(0)
                .and_then(|()| file.rewind())
                .and_then(|()| file.write_all(content.as_bytes()))
                .doing(writing)?;
        }
        Ok(())
    }

    fn make_path(&self, path: &Path, kind: Kind, links: u32) -> Result<OwnedFd, Errno> {
        match self.open(path) {
            Err(Errno::NOENT) => {}
            other => return other,
        }
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Err(Errno::NOENT) };
        let directory = self.make_path(parent, Kind::Directory, links)?;
        match rustix::fs::readlinkat(&directory, name, Vec::new()) {
            // A symbolic link whose target is missing: make the target.
            Ok(link) if links > 0 => {
                let link = PathBuf::from(OsStr::from_bytes(link.to_bytes()));
                let target = if link.is_absolute() { link } else { parent.join(link) };
                return self.make_path(&target, kind, links - 1);
            }
            Ok(_) => return Err(Errno::LOOP),
            Err(Errno::NOENT | Errno::INVAL) => {}
            Err(error) => return Err(error),
        }
        self.make(directory.as_fd(), name, kind)?;
        self.open(path)
    }

    /// Makes a directory (0755) or an empty file (0644) unless something of the name is there.
    ///
    /// In a volume, others may put something else there in between: the owner is given through a descriptor, and only to
    /// what is still ours.
    fn make(&self, directory: BorrowedFd<'_>, name: &OsStr, kind: Kind) -> Result<(), Errno> {
        let make = || match kind {
            Kind::Directory => rustix::fs::mkdirat(directory, name, Mode::from_raw_mode(0o755)).and_then(|()| {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let how = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
                rustix::fs::openat2(directory, name, flags, Mode::empty(), how)
            }),
            Kind::File => {
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                rustix::fs::openat(directory, name, flags, Mode::from_raw_mode(0o644))
            }
        };
        let made = match make() {
            // An id-mapped mount, that of a volume, in which the machine's root is nobody.
            Err(Errno::OVERFLOW) => with_files_of(self.owner.0.as_raw(), make),
            made => made,
        };
        let made = match made {
            Err(Errno::EXIST) => return Ok(()),
            made => made?,
        };
        let is_empty = kind == Kind::File
            || rustix::fs::Dir::read_from(&made)?
                .all(|entry| entry.is_ok_and(|entry| matches!(entry.file_name().to_bytes(), b"." | b"..")));
        if !is_empty {
            return Err(Errno::STALE);
        }
        let (user, group) = self.owner;
        rustix::fs::fchown(&made, Some(user), Some(group))
    }
}

const PROC_MAGIC: u64 = 0x9fa0;
const SYSFS_MAGIC: u64 = 0x6265_6572;
