//! Restoring a fanotify group.

use std::collections::BTreeSet;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::{OFlags, fcntl_setfl};
use torpor_image::tree::{FanotifyMark, MarkExtent, OpenFile};
use torpor_linux::fanotify;

use super::{ASKED, MARK_EVICTABLE, MARK_IGNORE, MARK_IGNORED_SURVIVES, line, marks};
use crate::context::RestoreContext;
use crate::contract::error::RestoreFileError;
use crate::contract::flags::ASYNC;
use crate::filesystem;
use crate::kinds::watched::watched;
use crate::list::Info;

const NAME: &str = "a fanotify group";
const MARK_ADD: u32 = 0x1;
const MARK_MOUNT: u32 = 0x10;
const MARK_FILE_SYSTEM: u32 = 0x100;
const MARK_IGNORED_MASK: u32 = 0x20;

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
