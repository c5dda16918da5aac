//! `fanotify(7)`: groups that are only told of events, and what they watch.
//!
//! Refused are groups that are asked for permission, for their questions wait for an answer; events that have not been read;
//! and groups of programs without CAP_SYS_ADMIN, which are told less, and which the kernel does not show. An app's groups
//! are kept by their descriptors alone: after a reboot who makes them anew would have another right to them.
//!
//! A group that was made again is compared with what it is to be, as the kernel shows it.

use std::collections::BTreeSet;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::{OFlags, fcntl_setfl, makedev};
use rustix::io::ioctl_fionread;
use torpor_image::tree::{FanotifyMark, FileKind, MarkExtent, OpenFile};
use torpor_linux::fanotify;

use crate::context::{DumpContext, RestoreContext};
use crate::contract::error::RestoreFileError;
use crate::contract::flags::ASYNC;
use crate::contract::reason::{Described, Reason};
use crate::filesystem;
use crate::kinds::watched;
use crate::kinds::watched::{Inode, device, hexadecimal, mounts, watched};
use crate::list::{Info, Item};
use torpor_proc as proc;
use torpor_process::view::View;

const CLOSE: &str = "close it before the checkpoint";
const NAME: &str = "a fanotify group";
/// `FAN_CLASS_CONTENT`, `FAN_CLASS_PRE_CONTENT`.
const ASKED: u32 = 0x4 | 0x8;
const MARK_ADD: u32 = 0x1;
const MARK_MOUNT: u32 = 0x10;
const MARK_FILE_SYSTEM: u32 = 0x100;
const MARK_IGNORED_MASK: u32 = 0x20;
const MARK_IGNORED_SURVIVES: u32 = 0x40;
const MARK_EVICTABLE: u32 = 0x200;
const MARK_IGNORE: u32 = 0x400;

/// What a mark is on, in a line of fdinfo.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Target {
    Inode(Inode),
    Mount(u64),
    FileSystem((u32, u32)),
}

impl Target {
    const fn inode(&self) -> Option<&Inode> {
        if let Self::Inode(inode) = self { Some(inode) } else { None }
    }
}

/// A line of fdinfo: `fanotify ino:4f969 sdev:800013 mflags:0 mask:3b ignored_mask:40000000 fhandle-bytes:8 …`,
/// `fanotify mnt_id:12 …`, or only `fanotify sdev:800013 …`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    target: Target,
    flags: u32,
    mask: u32,
    ignored: u32,
}

pub(crate) fn line(text: &str) -> Option<Line> {
    let number = |key| hexadecimal(text, key).and_then(|value| u32::try_from(value).ok());
    let target = if hexadecimal(text, "ino").is_some() {
        Target::Inode(Inode::of(text)?)
    } else if let Some(mount) = hexadecimal(text, "mnt_id") {
        Target::Mount(mount)
    } else {
        Target::FileSystem(device(text)?)
    };
    Some(Line { target, flags: number("mflags")?, mask: number("mask")?, ignored: number("ignored_mask")? })
}

/// The lines of a group's marks.
fn marks(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter_map(|line| line.strip_prefix("fanotify ")).filter(|line| !line.starts_with("flags:"))
}

pub(crate) fn describe(context: &DumpContext<'_>, item: &Item) -> Described<FileKind> {
    let view = context.request.view;
    if view.keeps_files() {
        return Err(Reason::parkable(format!("fanotify ({})", item.name()), CLOSE));
    }
    if !has_capability(item.holder.pid)? {
        return Err(Reason::parkable("fanotify of a program without CAP_SYS_ADMIN", CLOSE));
    }
    let group = item.info.text.lines().find(|line| line.starts_with("fanotify flags:")).unwrap_or_default();
    let number = |key| hexadecimal(group, key).and_then(|value| u32::try_from(value).ok());
    let (Some(flags), Some(event_flags)) = (number("flags"), number("event-flags")) else {
        return Err(Reason::parkable("fanotify, which this kernel tells nothing of", CLOSE));
    };
    if flags & ASKED != 0 {
        return Err(Reason::parkable("fanotify that asks for permission", CLOSE));
    }
    let unread = ioctl_fionread(&item.fd)?;
    if unread > 0 {
        let what = format!("fanotify with {unread} bytes of events that the program has not read");
        return Err(Reason::parkable(what, "try again when it has"));
    }
    let lines = marks(&item.info.text).map(known).collect::<Described<Vec<_>>>()?;
    let inodes: Vec<(&Inode, u32)> = lines.iter().filter_map(|line| Some((line.target.inode()?, line.mask))).collect();
    let mut paths = watched::paths(context, item, &inodes, "fanotify")?.into_iter();
    let marks = lines.iter().map(|Line { target, flags, mask, ignored }| {
        let (extent, path) = match target {
            Target::Inode(_) => (MarkExtent::Inode, paths.next().ok_or_else(|| Reason::parkable("fanotify", CLOSE))?),
            Target::Mount(id) => (MarkExtent::Mount, mounted(view, |mount| mount.id == *id)?),
            Target::FileSystem((major, minor)) => {
                (MarkExtent::FileSystem, mounted(view, |mount| mount.device == makedev(*major, *minor))?)
            }
        };
        Ok(FanotifyMark { extent, flags: *flags, mask: *mask, ignored: *ignored, path })
    });
    let marks = marks.collect::<Described<_>>()?;
    Ok(FileKind::Fanotify { flags, event_flags, marks })
}

fn has_capability(pid: i32) -> std::io::Result<bool> {
    const SYS_ADMIN: u64 = 1 << 21;
    let path = format!("/proc/{pid}/status");
    let status = proc::read(&path)?;
    let effective = proc::field(&status, "CapEff").and_then(|set| u64::from_str_radix(set, 16).ok());
    effective.map(|set| set & SYS_ADMIN != 0).ok_or_else(|| proc::unexpected(&path))
}

fn known(text: &str) -> Described<Line> {
    let known = MARK_IGNORED_SURVIVES | MARK_EVICTABLE | MARK_IGNORE;
    let line = line(text).filter(|line| line.flags & !known == 0);
    line.ok_or_else(|| Reason::parkable(format!("fanotify with a mark that is not known here ({text})"), CLOSE))
}

/// The directory of the first mount that is meant and can be reached.
fn mounted(
    view: &View,
    mut is_it: impl FnMut(&torpor_proc::mounts::Mount) -> bool,
) -> Described<torpor_image::tree::PathState> {
    for mount in mounts(view)?.filter(|mount| is_it(mount)) {
        let stat = view.stat(&mount.path)?;
        // Nothing is mounted over it.
        if stat.st_dev == mount.device {
            return Ok(filesystem::state(&mount.path, &stat));
        }
    }
    Err(Reason::parkable("fanotify on a mount that cannot be reached", CLOSE))
}

pub(crate) fn restore(
    (flags, event_flags): (u32, u32),
    marks: &[FanotifyMark],
    file: &OpenFile,
    around: RestoreContext<'_>,
) -> Result<OwnedFd, RestoreFileError> {
    // An app has none that could be made again, and its marks would be made with the machine's rights.
    if flags & ASKED != 0 || matches!(around.root, filesystem::Root::At(_)) {
        return Err(RestoreFileError::at("making", NAME)(rustix::io::Errno::PERM));
    }
    let fd = fanotify::init(flags, event_flags).map_err(RestoreFileError::at("making", NAME))?;
    for mark in marks {
        let found = watched(&mark.path, around)?;
        let failed = || RestoreFileError::at("watching", filesystem::text(&mark.path));
        let extent = match mark.extent {
            MarkExtent::Inode => 0,
            MarkExtent::Mount => MARK_MOUNT,
            MarkExtent::FileSystem => MARK_FILE_SYSTEM,
        };
        let add = MARK_ADD | extent | mark.flags & MARK_EVICTABLE;
        if mark.mask != 0 {
            fanotify::mark(&fd, add, mark.mask.into(), &found).map_err(failed())?;
        }
        if mark.ignored != 0 {
            let how = if mark.flags & MARK_IGNORE != 0 { MARK_IGNORE } else { MARK_IGNORED_MASK };
            let add = add | how | mark.flags & MARK_IGNORED_SURVIVES;
            fanotify::mark(&fd, add, mark.ignored.into(), &found).map_err(failed())?;
        }
    }
    compare(&fd, marks)?;
    fcntl_setfl(&fd, OFlags::from_bits_retain(file.flags & !ASYNC))
        .map_err(RestoreFileError::at("setting flags of", NAME))?;
    Ok(fd)
}

/// It watches what it is to watch, and as it is to.
fn compare(fd: &OwnedFd, wanted: &[FanotifyMark]) -> Result<(), RestoreFileError> {
    let info =
        Info::read(std::process::id() as i32, fd.as_raw_fd()).map_err(RestoreFileError::at("looking at", NAME))?;
    let made: Option<BTreeSet<_>> =
        marks(&info.text).map(|text| line(text).map(|line| (line.flags, line.mask, line.ignored))).collect();
    let wanted_set: BTreeSet<_> = wanted.iter().map(|mark| (mark.flags, mark.mask, mark.ignored)).collect();
    if made == Some(wanted_set) && marks(&info.text).count() == wanted.len() {
        return Ok(());
    }
    Err(RestoreFileError::Changed { path: NAME.to_owned(), how: "the kernel keeps other marks than it was asked for" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read() {
        let text = "pos:\t0\nfanotify flags:3 event-flags:88002\nfanotify mnt_id:1a mflags:40 mask:38 ignored_mask:40000003\n\
                    fanotify sdev:800013 mflags:0 mask:20 ignored_mask:0\n\
                    fanotify ino:4f969 sdev:800013 mflags:0 mask:3b ignored_mask:0 fhandle-bytes:8 fhandle-type:1 f_handle:69f90400c275b5b4\n";
        let lines: Vec<Line> = marks(text).map(|text| line(text).unwrap()).collect();
        assert_eq!(lines.len(), 3);
        let mount = Line { target: Target::Mount(0x1a), flags: 0x40, mask: 0x38, ignored: 0x4000_0003 };
        assert_eq!(lines[0], mount);
        assert_eq!(lines[1].target, Target::FileSystem((8, 0x13)));
        assert!(matches!(lines[2].target, Target::Inode(_)));
        assert_eq!(line("mnt_ns:1 mflags:0 mask:1 ignored_mask:0"), None);
    }
}
