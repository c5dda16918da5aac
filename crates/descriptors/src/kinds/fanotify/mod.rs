//! `fanotify(7)`: groups that are only told of events, and what they watch.
//!
//! Refused are groups that are asked for permission, for their questions wait for an answer; events that have not been read;
//! and groups of programs without CAP_SYS_ADMIN, which are told less, and which the kernel does not show. An app's groups
//! are kept by their descriptors alone: after a reboot who makes them anew would have another right to them.
//!
//! A group that was made again is compared with what it is to be, as the kernel shows it.

mod dump;
mod restore;

use crate::kinds::watched::{Inode, device, hexadecimal};

pub(crate) use self::dump::describe;
pub(crate) use self::restore::restore;

/// `FAN_CLASS_CONTENT`, `FAN_CLASS_PRE_CONTENT`.
const ASKED: u32 = 0x4 | 0x8;
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
