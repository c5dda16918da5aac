//! `inotify(7)`: what is watched, under the same numbers.
//!
//! The kernel shows the watched inode's handle, from which its path is found. Numbers are given out in order, so a watch gets
//! its number back by making and removing watches until it is its turn.

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::io::{Errno, ioctl_fionread};
use torpor_image::tree::{FileKind, InotifyWatch, OpenFile, PathState};

use crate::context::{DumpContext, RestoreContext};
use crate::contract::error::RestoreFileError;
use crate::contract::flags::ASYNC;
use crate::contract::reason::{Described, Reason};
use crate::filesystem;
use crate::kinds::watched;
use crate::kinds::watched::{Inode, hexadecimal, value, watched};
use crate::list::Item;

/// Highest number of a watch: below it, so many calls are made in a second.
const MAX_WATCH: i32 = 1 << 20;
/// `IN_CLOSE_WRITE | IN_CLOSE_NOWRITE`: of a file without a name, the restorer's own would be told, too.
const CLOSED: u32 = 0x8 | 0x10;
/// The first number that the kernel gives.
const FIRST: i32 = 1;

/// A line of fdinfo.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    watch: i32,
    mask: u32,
    inode: Inode,
}

/// `inotify wd:3 ino:9e7e sdev:800013 mask:800afce ignored_mask:0 fhandle-bytes:8 fhandle-type:1 f_handle:7e9e0000640d1b6d`
pub(crate) fn line(text: &str) -> Option<Line> {
    Some(Line {
        watch: value(text, "wd")?.parse().ok()?,
        mask: hexadecimal(text, "mask")? as u32,
        inode: Inode::of(text)?,
    })
}

pub(crate) fn describe(context: &DumpContext<'_>, item: &Item) -> Described<FileKind> {
    let unread = ioctl_fionread(&item.fd)?;
    if unread > 0 {
        let what = format!("inotify with {unread} bytes of events that the program has not read");
        return Err(Reason::parkable(what, "try again when it has"));
    }
    let (mut watches, mut named) = (Vec::new(), Vec::new());
    for text in item.info.text.lines().filter(|line| line.starts_with("inotify ")) {
        let Some(line) = line(text) else {
            let what = "inotify on a file system that cannot open files by their handles";
            return Err(Reason::parkable(what, ""));
        };
        // A parked one keeps what it watches.
        match line.inode.deleted(context).filter(|_| !context.request.parks() && line.mask & CLOSED == 0) {
            Some(path) => watches.push(InotifyWatch { watch: line.watch, mask: line.mask, path }),
            None => named.push(line),
        }
    }
    let inodes: Vec<(&Inode, u32)> = named.iter().map(|line| (&line.inode, line.mask)).collect();
    let paths = watched::paths(context, item, &inodes, "inotify")?;
    let named = named.iter().zip(paths);
    watches.extend(named.map(|(line, path)| InotifyWatch { watch: line.watch, mask: line.mask, path }));
    watches.sort_unstable_by_key(|watch| watch.watch);
    Ok(FileKind::Inotify { watches })
}

/// `deleted` gives files without a name.
pub(crate) fn restore<'a>(
    watches: &[InotifyWatch],
    file: &OpenFile,
    around: RestoreContext<'_>,
    deleted: impl Fn(&PathState) -> Option<BorrowedFd<'a>>,
) -> Result<OwnedFd, RestoreFileError> {
    const NAME: &str = "an inotify descriptor";
    let fd = inotify::init(CreateFlags::CLOEXEC).map_err(RestoreFileError::at("making", NAME))?;
    for watch in watches {
        let name = filesystem::text(&watch.path);
        if !(FIRST..=MAX_WATCH).contains(&watch.watch) {
            return Err(RestoreFileError::at("watching", name)(Errno::RANGE));
        }
        let found = match deleted(&watch.path) {
            Some(file) => file.try_clone_to_owned().map_err(RestoreFileError::at("watching", &*name))?,
            None => watched(&watch.path, around)?,
        };
        // By its descriptor: no other file can take its place in between.
        let path = format!("/proc/self/fd/{}", found.as_raw_fd());
        loop {
            let flags = WatchFlags::from_bits_retain(watch.mask);
            let number = inotify::add_watch(&fd, &*path, flags).map_err(RestoreFileError::at("watching", &*name))?;
            if number == watch.watch {
                break;
            }
            if number > watch.watch {
                return Err(RestoreFileError::at("numbering the watch of", name)(Errno::EXIST));
            }
            inotify::remove_watch(&fd, number).map_err(RestoreFileError::at("watching", &*name))?;
        }
    }
    // Each watch that was removed on the way has left an event.
    drain(&fd).map_err(RestoreFileError::at("emptying", NAME))?;
    fcntl_setfl(&fd, OFlags::from_bits_retain(file.flags & !ASYNC))
        .map_err(RestoreFileError::at("setting flags of", NAME))?;
    Ok(fd)
}

fn drain(fd: &OwnedFd) -> rustix::io::Result<()> {
    let mut buffer = vec![0; 64 << 10];
    while ioctl_fionread(fd)? > 0 {
        rustix::io::read(fd, &mut buffer)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read() {
        let text = "inotify wd:3 ino:9e7e sdev:800013 mask:800afce ignored_mask:0 fhandle-bytes:8 fhandle-type:1 f_handle:7e9e0000640d1b6d";
        let found = line(text).unwrap();
        assert_eq!((found.watch, found.mask), (3, 0x0800_afce));
        assert!(line("inotify wd:3 ino:9e7e sdev:800013 mask:800afce ignored_mask:0").is_none());
    }
}
