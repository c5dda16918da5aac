//! Finding and making mount points inside the root of an app, whose content is not trusted.
//!
//! A path is resolved one component at a time, from descriptor to descriptor. Two kinds of content lie on the way:
//! - The root file system belongs to the app alone, and no process of the app runs yet. Its symbolic links are followed, as
//!   images need it (`/var/run`), and lead nowhere outside of the root.
//! - What is mounted in it may be written by others at the same time: a volume by another app that has the same volume. A
//!   symbolic link there is refused, because it would let them place mounts in this app. The mount id of a component,
//!   which differs from that of the root, says on which side it lies.
//!
//! The result is a descriptor, and the mount is attached to this descriptor. Whoever renames directories of a volume
//! meanwhile can move the mount point within that volume, and nowhere else.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, ResolveFlags, StatxFlags, Uid};
use rustix::io::Errno;

use crate::error::{Doing, SetupError};
use crate::owner::with_files_of;

/// Limit of symbolic links in one path; the kernel has the same limit (path_resolution(7)).
const LINKS: usize = 40;
/// Limit of components in one path, including those of its symbolic links. A path of `PATH_MAX` bytes has at most half as many.
const COMPONENTS: usize = 4096;
/// Belongs to the kernel, with everything below it.
const KERNEL: [&str; 2] = ["/proc", "/sys"];
/// The directory of devices.
const DEVICES: &str = "/dev";

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
    /// The id of its mount: what has another one is mounted in it.
    mount: u64,
    /// Owner of what is made in it, as the machine numbers it.
    owner: (Uid, Gid),
}

/// What a path leads to.
struct Found {
    /// What is there.
    descriptor: OwnedFd,
    /// Its path from the root, without symbolic links.
    place: PathBuf,
}

impl Root {
    /// The root `directory`; what is made in it belongs to `owner_id`.
    pub(crate) fn new(directory: OwnedFd, owner_id: u32) -> Result<Self, SetupError> {
        let mount = mount_id(&directory).doing(|| "examining the root file system".to_owned())?;
        Ok(Self { directory, mount, owner: (Uid::from_raw(owner_id), Gid::from_raw(owner_id)) })
    }

    /// The root itself.
    pub(crate) fn directory(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }

    /// What is at `path`; none if nothing is there. Follows links of volumes, too: for mounting over it only if `path` leads
    /// through none, as in `/proc`.
    pub(crate) fn existing(&self, path: impl AsRef<Path>) -> Result<Option<OwnedFd>, SetupError> {
        let path = path.as_ref();
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        match rustix::fs::openat2(&self.directory, path, flags, Mode::empty(), resolve) {
            Ok(found) => Ok(Some(found)),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
            Err(error) => Err(error).doing(|| format!("opening `{}` in the app's files", path.display())),
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

    /// The mount point at `path`, made with its parents where missing. Refuses the root directory, `/dev` and places inside
    /// `/proc` and `/sys`. Refuses places inside `/dev`, too, unless `path` itself names them.
    pub(crate) fn mount_point(&self, path: &Path, kind: Kind) -> Result<OwnedFd, SetupError> {
        let Found { descriptor, place } = self.resolve(path, kind)?;
        if place == Path::new("/") {
            return Err(refused(path, "the root directory"));
        }
        if place == Path::new(DEVICES) || (place.starts_with(DEVICES) && !path.starts_with(DEVICES)) {
            return Err(refused(path, "in /dev, where a symbolic link leads"));
        }
        fits(path, &descriptor, kind)?;
        Ok(descriptor)
    }

    /// Makes the working directory `path` where nothing is there. One that exists may be reached through links of volumes:
    /// entering it places nothing.
    pub(crate) fn working_directory(&self, path: &Path) -> Result<(), SetupError> {
        let found = match self.existing(path)? {
            Some(found) => found,
            None => self.resolve(path, Kind::Directory)?.descriptor,
        };
        fits(path, &found, Kind::Directory)
    }

    /// Makes `content` that of the regular file at `path`, which is made where missing. One that has it already is not
    /// touched: a sleeping program may have it open, and knows it by its times.
    ///
    /// Follows symbolic links inside the root, so only while nothing else is mounted there.
    pub(crate) fn write(&self, path: &Path, content: &str) -> Result<(), SetupError> {
        let writing = || format!("writing `{}` in the app's files", path.display());
        fits(path, &self.resolve(path, Kind::File)?.descriptor, Kind::File)?;
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

    /// Resolves `path` as the head of this file says; makes what is missing on the way.
    fn resolve(&self, path: &Path, kind: Kind) -> Result<Found, SetupError> {
        let making = || format!("making `{}` in the app's files", path.display());
        let root = || -> Result<Found, SetupError> {
            let descriptor = rustix::io::fcntl_dupfd_cloexec(&self.directory, 0).doing(making)?;
            Ok(Found { descriptor, place: PathBuf::from("/") })
        };
        let mut found = root()?;
        // The mount that `found` lies on, and where it begins.
        let (mut mount, mut begins) = (self.mount, found.place.clone());
        // The next component is the last one here.
        let mut left = Vec::new();
        let queue = |left: &mut Vec<OsString>, path: &Path| {
            left.extend(path.components().rev().map(|component| component.as_os_str().to_owned()));
        };
        queue(&mut left, path);
        let (mut components, mut links) = (0, 0);
        while let Some(name) = left.pop() {
            components += 1;
            if components > COMPONENTS {
                return Err(refused(path, &format!("behind symbolic links with more than {COMPONENTS} components")));
            }
            match name.as_bytes() {
                b"." => continue,
                b"/" => {
                    (found, mount) = (root()?, self.mount);
                    continue;
                }
                // By name and from the root again: the kernel's `..` depends on where others move the directory.
                b".." => {
                    found.place.pop();
                    queue(&mut left, &found.place);
                    continue;
                }
                _ => {}
            }
            let place = found.place.join(&name);
            let kind = if left.is_empty() { kind } else { Kind::Directory };
            let next = self.step(found.descriptor.as_fd(), &name, kind).doing(making)?;
            let lies_on = mount_id(&next).doing(making)?;
            if lies_on != mount {
                (mount, begins) = (lies_on, place.clone());
            }
            if mount != self.mount && KERNEL.iter().any(|kept| place.starts_with(kept)) {
                return Err(refused(path, "inside /proc or /sys"));
            }
            let stat = rustix::fs::fstat(&next).doing(making)?;
            if FileType::from_raw_mode(stat.st_mode) != FileType::Symlink {
                found = Found { descriptor: next, place };
                continue;
            }
            if mount != self.mount {
                let [path, link, mount] = [path, &place, &begins].map(|path| path.display().to_string());
                return Err(SetupError::LinkOnMount { path, link, mount });
            }
            links += 1;
            if links > LINKS {
                return Err(refused(path, &format!("behind more than {LINKS} symbolic links")));
            }
            let target = rustix::fs::readlinkat(&next, "", Vec::new()).doing(making)?;
            queue(&mut left, Path::new(OsStr::from_bytes(target.to_bytes())));
        }
        Ok(found)
    }

    /// What is at `name` in a directory, which may be a symbolic link; made if missing.
    fn step(&self, directory: BorrowedFd<'_>, name: &OsStr, kind: Kind) -> Result<OwnedFd, Errno> {
        let how = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let open = || rustix::fs::openat2(directory, name, flags, Mode::empty(), how);
        match open() {
            Err(Errno::NOENT) => self.make(directory, name, kind).and_then(|()| open()),
            opened => opened,
        }
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

fn refused(path: &Path, found: &str) -> SetupError {
    SetupError::Target { path: path.display().to_string(), found: found.to_owned() }
}

/// Refuses what is not of this kind, and what the kernel shows in any `/proc` or `/sys`, that of a volume included.
fn fits(path: &Path, target: &OwnedFd, kind: Kind) -> Result<(), SetupError> {
    let examining = || format!("examining `{}`", path.display());
    let file_system = rustix::fs::fstatfs(target).doing(examining)?;
    if matches!(file_system.f_type as u64, PROC_MAGIC | SYSFS_MAGIC) {
        return Err(refused(path, "inside /proc or /sys"));
    }
    let stat = rustix::fs::fstat(target).doing(examining)?;
    match (FileType::from_raw_mode(stat.st_mode), kind) {
        (FileType::Directory, Kind::File) => Err(refused(path, "a directory, and what belongs there is a file")),
        (FileType::Directory, Kind::Directory) => Ok(()),
        (_, Kind::Directory) => Err(refused(path, "a file, and what belongs there is a directory")),
        (_, Kind::File) => Ok(()),
    }
}

/// The id of the mount that this lies on, which no other mount has at the same time.
fn mount_id(file: &OwnedFd) -> Result<u64, Errno> {
    let stat = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID)?;
    if StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::MNT_ID) {
        Ok(stat.stx_mnt_id)
    } else {
        Err(Errno::NOTSUP)
    }
}

const PROC_MAGIC: u64 = 0x9fa0;
const SYSFS_MAGIC: u64 = 0x6265_6572;
