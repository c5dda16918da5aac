//! Filling the memory file systems of a home that was made anew.
//!
//! Whatever lies in one by then is taken away first (an attempt before may have ended half-way), but for devices and for what
//! others are mounted on. Devices are never made: a home has those that it may have.

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{
    AtFlags, Dev, FileType, Gid, Mode, OFlags, Stat, StatxAttributes, StatxFlags, Timespec, Timestamps, Uid,
    XattrFlags, chmod, chownat, fstat, fstatfs, ftruncate, linkat, mkdirat, mknodat, openat, setxattr, statx,
    symlinkat, unlinkat, utimensat,
};
use rustix::io::Errno;
use torpor_image::tree::{Node, NodeContent, Tmpfs};

use crate::context::RestoreContext;
use crate::contract::EachRestored;
use crate::contract::error::RestoreFileError;
use crate::filesystem::contents::fill;
use crate::filesystem::{Charge, Root, TMPFS_MAGIC, below, names, place};
use crate::namespaces::tmpfs::{Moved, is_whiteout, text};
use torpor_pages::source::PageSource;
use torpor_proc::mounts;

const NANOSECONDS: i64 = 1_000_000_000;
const PLACE: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW);
/// Its content is the place that it is open as, and nothing that its name leads to.
const ITSELF: AtFlags = AtFlags::EMPTY_PATH.union(AtFlags::SYMLINK_NOFOLLOW);

/// Fills these file systems where the tree lives, with contents from `pages`; gives which files they are now. Their owners are the
/// machine's. `made` is told of each file.
pub fn restore(
    found: &[Tmpfs],
    around: RestoreContext<'_>,
    pages: &dyn PageSource,
    made: EachRestored<'_>,
) -> Result<Moved, RestoreFileError> {
    let mut moved = Moved::default();
    if found.is_empty() {
        return Ok(moved);
    }
    let machine = mounts::read("/proc/self").map_err(RestoreFileError::at("looking at", "the machine's mounts"))?;
    let machine: HashSet<Dev> = machine.into_iter().map(|mount| mount.device).collect();
    // Those that are mounted in others behind these.
    let mut found: Vec<&Tmpfs> = found.iter().collect();
    found.sort_by_key(|tmpfs| tmpfs.path.len());
    for tmpfs in found {
        let shown = text(&tmpfs.path);
        let directory =
            open(tmpfs, around.root, &machine).map_err(RestoreFileError::at("opening memory file system", &*shown))?;
        let making = Making { tmpfs, root: directory, pages, manner: (around.charge, around.piece), made, shown };
        making.clear()?;
        making.fill(&mut moved)?;
    }
    Ok(moved)
}

/// The root directory, if a memory file system of the app's own is there.
fn open(tmpfs: &Tmpfs, root: Root<'_>, machine: &HashSet<Dev>) -> io::Result<OwnedFd> {
    let directory = root.open(&tmpfs.path, OFlags::RDONLY | OFlags::DIRECTORY)?;
    let about = statx(&directory, "", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS)?;
    let is_mounted = about.stx_attributes.contains(StatxAttributes::MOUNT_ROOT);
    if !is_mounted || fstatfs(&directory)?.f_type != TMPFS_MAGIC || machine.contains(&fstat(&directory)?.st_dev) {
        return Err(io::Error::other("none is mounted there"));
    }
    Ok(directory)
}

struct Making<'a> {
    tmpfs: &'a Tmpfs,
    root: OwnedFd,
    pages: &'a dyn PageSource,
    /// Whose memory it is, and who is told of each piece.
    manner: (Option<&'a Charge<'a>>, Option<EachRestored<'a>>),
    made: EachRestored<'a>,
    shown: String,
}

impl Making<'_> {
    fn clear(&self) -> Result<(), RestoreFileError> {
        let devices = self.tmpfs.nodes.iter().filter(|node| matches!(node.content, NodeContent::Device(_)));
        let devices: HashSet<&[u8]> = devices.filter(|node| node.parent == 0).map(|node| &node.name[..]).collect();
        clear(&self.root, &|name| devices.contains(name)).map_err(RestoreFileError::at("emptying", &*self.shown))
    }

    fn fill(&self, moved: &mut Moved) -> Result<(), RestoreFileError> {
        let mut current: (u32, OwnedFd) = (0, self.directory(0)?);
        for node in self.tmpfs.nodes.iter().skip(1) {
            if current.0 != node.parent {
                current = (node.parent, self.directory(node.parent)?);
            }
            let wrong = RestoreFileError::at("making", self.name(node));
            match self.one(&current.1, node)? {
                Some(file) if node.is_directory() => self.note(moved, node, &file).map_err(wrong)?,
                Some(file) => {
                    set_times(&file, node).and_then(|()| self.note(moved, node, &file)).map_err(wrong)?;
                }
                None => {}
            }
            (self.made)()?;
        }
        // Behind everything that is made in them.
        for (place, node) in self.tmpfs.nodes.iter().enumerate().rev().filter(|(_, node)| node.is_directory()) {
            let directory = self.directory(place as u32)?;
            let wrong = RestoreFileError::at("setting the times of", self.name(node));
            set_times(&directory, node).and_then(|()| self.note(moved, node, &directory)).map_err(wrong)?;
            if place == 0 {
                attributes(&directory, node).map_err(RestoreFileError::at("setting the owner of", self.name(node)))?;
            }
        }
        Ok(())
    }

    fn note(&self, moved: &mut Moved, node: &Node, file: &OwnedFd) -> io::Result<()> {
        let now = fstat(file)?;
        moved.add((self.tmpfs.device, node.inode), (now.st_dev, now.st_ino));
        Ok(())
    }

    /// For people.
    fn name(&self, node: &Node) -> String {
        format!("{} in {}", text(&node.name), self.shown)
    }

    /// The directory at this place.
    fn directory(&self, place: u32) -> Result<OwnedFd, RestoreFileError> {
        let mut names = Vec::new();
        let mut at = place;
        while at != 0 {
            let node = &self.tmpfs.nodes[at as usize];
            names.push(&node.name);
            at = node.parent;
        }
        let mut directory = below(&self.root, b".", PLACE | OFlags::DIRECTORY)
            .map_err(RestoreFileError::at("opening", &*self.shown))?;
        for name in names.into_iter().rev() {
            let wrong = || RestoreFileError::at("opening", format!("{} in {}", text(name), self.shown));
            directory = below(&directory, name, PLACE | OFlags::DIRECTORY).map_err(|error| wrong()(error))?;
        }
        Ok(directory)
    }

    /// Makes a file with everything but its times; gives it, if it is there then.
    fn one(&self, directory: &OwnedFd, node: &Node) -> Result<Option<OwnedFd>, RestoreFileError> {
        let name = &node.name[..];
        let wrong = || RestoreFileError::at("making", self.name(node));
        let made = match &node.content {
            NodeContent::Covered => return Ok(None),
            NodeContent::File { bytes, pages } => {
                let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let file = openat(directory, name, flags, Mode::RUSR | Mode::WUSR).map_err(|error| wrong()(error))?;
                ftruncate(&file, *bytes).map_err(|error| wrong()(error))?;
                fill(&File::from(file), (*bytes, pages), self.pages, self.manner, &self.name(node), |_, _| Ok(()))?;
                Ok(())
            }
            NodeContent::Link(target) => symlinkat(&target[..], directory, name),
            NodeContent::Again(first) => {
                let first = &self.tmpfs.nodes[*first as usize];
                let from = self.directory(first.parent)?;
                linkat(&from, &first.name[..], directory, name, AtFlags::empty()).map_err(|error| wrong()(error))?;
                // The first one has said everything.
                return Ok(None);
            }
            NodeContent::Device(number) if is_whiteout(*number) => {
                mknodat(directory, name, FileType::CharacterDevice, Mode::empty(), *number)
            }
            NodeContent::Device(number) => match there(directory, name) {
                Ok(Some((_, stat))) if stat.st_rdev == *number => Ok(()),
                Ok(_) => return Ok(None),
                Err(error) => Err(error),
            },
            NodeContent::Nothing => match FileType::from_raw_mode(node.mode) {
                FileType::Directory => match mkdirat(directory, name, Mode::RWXU) {
                    // It holds what others are mounted on.
                    Err(Errno::EXIST) => Ok(()),
                    other => other,
                },
                kind => mknodat(directory, name, kind, Mode::empty(), 0),
            },
        };
        made.map_err(|error| wrong()(error))?;
        let file = below(directory, name, PLACE).map_err(|error| wrong()(error))?;
        attributes(&file, node).map_err(RestoreFileError::at("setting the owner of", self.name(node)))?;
        Ok(Some(file))
    }
}

fn there(directory: &OwnedFd, name: &[u8]) -> rustix::io::Result<Option<(OwnedFd, Stat)>> {
    match below(directory, name, PLACE) {
        Ok(file) => fstat(&file).map(|stat| Some((file, stat))),
        // The home may have mounted a device there.
        Err(Errno::NOENT | Errno::XDEV) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Owner, extended attributes, permissions: in this order, for the first takes of the others away.
fn attributes(file: &OwnedFd, node: &Node) -> io::Result<()> {
    let (user, group) = (Uid::from_raw(node.owner.0), Gid::from_raw(node.owner.1));
    chownat(file, "", Some(user), Some(group), ITSELF)?;
    let path = place(file.as_fd());
    for (name, value) in &node.attributes {
        setxattr(&*path, &name[..], value, XattrFlags::empty())?;
    }
    if FileType::from_raw_mode(node.mode) != FileType::Symlink {
        chmod(&*path, Mode::from_raw_mode(node.mode & 0o7777))?;
    }
    Ok(())
}

fn set_times(file: &OwnedFd, node: &Node) -> io::Result<()> {
    let time = |ns: i64| Timespec { tv_sec: ns.div_euclid(NANOSECONDS), tv_nsec: ns.rem_euclid(NANOSECONDS) };
    let [last_access, last_modification] = node.times_ns.map(time);
    Ok(utimensat(file, "", &Timestamps { last_access, last_modification }, ITSELF)?)
}

/// Takes away what is in a directory. What others are mounted on stays, with the directories above; so do the devices that `keep`
/// names.
fn clear(directory: &OwnedFd, keep: &dyn Fn(&[u8]) -> bool) -> io::Result<()> {
    for name in names(directory)? {
        let file = match below(directory, &name, PLACE) {
            Err(Errno::XDEV) => continue,
            other => other?,
        };
        let removed = match FileType::from_raw_mode(fstat(&file)?.st_mode) {
            FileType::Directory => {
                clear(&below(directory, &name, OFlags::RDONLY | OFlags::DIRECTORY)?, &|_| false)?;
                unlinkat(directory, &name[..], AtFlags::REMOVEDIR)
            }
            FileType::CharacterDevice if keep(&name) => Ok(()),
            _ => unlinkat(directory, &name[..], AtFlags::empty()),
        };
        match removed {
            Err(Errno::NOTEMPTY | Errno::BUSY) | Ok(()) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
