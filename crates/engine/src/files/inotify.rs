//! `inotify(7)`: what is watched, under the same numbers.
//!
//! The kernel shows the watched inode's handle; opened by it, the inode tells its path. Numbers are given out in order,
//! so a watch gets its number back by making and removing watches until it is its turn.

use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::fs::{OFlags, fcntl_setfl, fstat, makedev};
use rustix::io::{Errno, ioctl_fionread};
use torpor_image::tree::{FileKind, InotifyWatch, OpenFile};
use torpor_linux::handle;

use super::MakeError;
use super::collect::{Described, Why};
use super::list::Item;
use super::path::{self, ASYNC, Around};
use crate::view::View;

/// Highest number of a watch: below it, so many calls are made in a second.
const MAX_WATCH: i32 = 1 << 20;
/// The first number that the kernel gives.
const FIRST: i32 = 1;

/// A line of fdinfo.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Line {
    watch: i32,
    device: (u32, u32),
    inode: u64,
    mask: u32,
    handle_kind: i32,
    handle: Vec<u8>,
}

/// `inotify wd:3 ino:9e7e sdev:800013 mask:800afce ignored_mask:0 fhandle-bytes:8 fhandle-type:1 f_handle:7e9e0000640d1b6d`
fn line(text: &str) -> Option<Line> {
    let value = |key: &str| text.split_ascii_whitespace().find_map(|word| word.strip_prefix(key)?.strip_prefix(':'));
    let hex = |key: &str| u64::from_str_radix(value(key)?, 16).ok();
    let device = hex("sdev")?;
    let digits = value("f_handle")?;
    let handle = (0..digits.len() / 2).map(|n| u8::from_str_radix(digits.get(2 * n..2 * n + 2)?, 16).ok());
    Some(Line {
        watch: value("wd")?.parse().ok()?,
        device: ((device >> 20) as u32, (device & 0xf_ffff) as u32),
        inode: hex("ino")?,
        mask: hex("mask")? as u32,
        handle_kind: hex("fhandle-type")? as i32,
        handle: handle.collect::<Option<Vec<u8>>>()?,
    })
}

pub(super) fn describe(view: &View, item: &Item) -> Described<FileKind> {
    let unread = ioctl_fionread(&item.fd)?;
    if unread > 0 {
        let what = format!("inotify with {unread} bytes of events that the program has not read");
        return Err(Why::kept(what, "try again when it has"));
    }
    let mut watches = Vec::new();
    for text in item.info.text.lines().filter(|line| line.starts_with("inotify ")) {
        let Some(line) = line(text) else {
            let what = "inotify on a file system that cannot open files by their handles";
            return Err(Why::kept(what, ""));
        };
        watches.push(watch(view, &line)?);
    }
    watches.sort_unstable_by_key(|watch| watch.watch);
    Ok(FileKind::Inotify { watches })
}

fn watch(view: &View, line: &Line) -> Described<InotifyWatch> {
    let lost = |how: &str| {
        let (major, minor) = line.device;
        let what = format!("inotify watches inode {} of device {major}:{minor}, {how}", line.inode);
        Why::kept(what, "let the program remove that watch")
    };
    for mount in mounts(view, line.device)? {
        let Ok(mount) = view.open_as(&mount, OFlags::RDONLY | OFlags::DIRECTORY) else { continue };
        let Ok(file) = handle::open(&mount, line.handle_kind, &line.handle) else { continue };
        let stat = fstat(&file)?;
        let name = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))?.into_os_string().into_vec();
        let there = view.stat(&name);
        if there.is_ok_and(|there| (there.st_dev, there.st_ino) == (stat.st_dev, stat.st_ino)) {
            return Ok(InotifyWatch { watch: line.watch, mask: line.mask, path: path::state(&name, &stat) });
        }
    }
    Err(lost("whose name cannot be found"))
}

/// Where a device is mounted.
fn mounts(view: &View, (major, minor): (u32, u32)) -> std::io::Result<Vec<Vec<u8>>> {
    let device = makedev(major, minor);
    let all = crate::mounts::read(&view.reference())?.into_iter();
    Ok(all.filter(|mount| mount.device == device).map(|mount| mount.path).collect())
}

pub(super) fn make(watches: &[InotifyWatch], file: &OpenFile, around: Around<'_>) -> Result<OwnedFd, MakeError> {
    const NAME: &str = "an inotify descriptor";
    let fd = inotify::init(CreateFlags::CLOEXEC).map_err(MakeError::at("making", NAME))?;
    for watch in watches {
        let name = path::text(&watch.path);
        if !(FIRST..=MAX_WATCH).contains(&watch.watch) {
            return Err(MakeError::at("watching", name)(Errno::RANGE));
        }
        let found = around.root.look(&watch.path.path).map_err(MakeError::at("opening", &*name))?;
        let stat = fstat(&found).map_err(MakeError::at("looking at", &*name))?;
        // What changes in it is what the program watches for.
        let was = torpor_image::tree::PathState { bytes: stat.st_size as u64, ..watch.path.clone() };
        let was = torpor_image::tree::PathState { modified_ns: path::state(&[], &stat).modified_ns, ..was };
        let made_up = path::is_made_up(&found).map_err(MakeError::at("looking at", &*name))?;
        if let Some(how) = path::difference(&was, &stat, made_up, around.same_boot) {
            return Err(MakeError::Changed { path: name, how });
        }
        // By its descriptor: no other file can take its place in between.
        let path = format!("/proc/self/fd/{}", found.as_raw_fd());
        loop {
            let flags = WatchFlags::from_bits_retain(watch.mask);
            let number = inotify::add_watch(&fd, &*path, flags).map_err(MakeError::at("watching", &*name))?;
            if number == watch.watch {
                break;
            }
            if number > watch.watch {
                return Err(MakeError::at("numbering the watch of", name)(Errno::EXIST));
            }
            inotify::remove_watch(&fd, number).map_err(MakeError::at("watching", &*name))?;
        }
    }
    // Each watch that was removed on the way has left an event.
    drain(&fd).map_err(MakeError::at("emptying", NAME))?;
    fcntl_setfl(&fd, OFlags::from_bits_retain(file.flags & !ASYNC)).map_err(MakeError::at("setting flags of", NAME))?;
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
        assert_eq!((found.watch, found.inode, found.device, found.mask), (3, 0x9e7e, (8, 0x13), 0x0800_afce));
        assert_eq!((found.handle_kind, found.handle), (1, vec![0x7e, 0x9e, 0, 0, 0x64, 0x0d, 0x1b, 0x6d]));
        assert!(line("inotify wd:3 ino:9e7e sdev:800013 mask:800afce ignored_mask:0").is_none());
    }
}
