//! Dumping a fanotify group.

use rustix::fs::makedev;
use rustix::io::ioctl_fionread;
use torpor_image::tree::{FanotifyMark, FileKind, MarkExtent};
use torpor_proc as proc;
use torpor_process::view::View;

use super::{ASKED, Line, MARK_EVICTABLE, MARK_IGNORE, MARK_IGNORED_SURVIVES, Target, line, marks};
use crate::context::DumpContext;
use crate::contract::reason::{Described, Reason};
use crate::filesystem;
use crate::kinds::watched;
use crate::kinds::watched::{Inode, hexadecimal, mounts};
use crate::list::Item;

const CLOSE: &str = "close it before the checkpoint";

pub(crate) fn describe(context: &DumpContext<'_>, item: &Item) -> Described<FileKind> {
    let view = context.request.view;
    if view.in_sandbox() {
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
