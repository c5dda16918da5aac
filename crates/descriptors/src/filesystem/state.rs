//! What a path led to at the dump, compared with what it leads to now.

use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::fs::{FileType, PROC_SUPER_MAGIC, Stat, Timespec, Timestamps, UTIME_OMIT, fstatfs, futimens};
use torpor_image::tree::PathState;

/// Behind the link of a file whose name has been removed.
const GONE: &[u8] = b" (deleted)";

/// File systems whose files are made up when they are opened: numbers and times say nothing.
pub(crate) const MADE_UP: [i64; 8] = [
    PROC_SUPER_MAGIC,
    0x6265_6572, // sysfs
    0x0027_e0eb, // cgroup
    0x6367_7270, // cgroup2
    0x6462_6720, // debugfs
    0x7472_6163, // tracefs
    0x7363_6673, // securityfs
    0x6165_676c, // pstore
];

/// What is at a path, for the image.
pub fn state(path: &[u8], stat: &Stat) -> PathState {
    let device = matches!(FileType::from_raw_mode(stat.st_mode), FileType::CharacterDevice | FileType::BlockDevice);
    PathState {
        path: path.to_vec(),
        device: stat.st_dev,
        inode: stat.st_ino,
        mode: stat.st_mode,
        bytes: if device { stat.st_rdev } else { stat.st_size as u64 },
        modified_ns: stat.st_mtime.saturating_mul(1_000_000_000).saturating_add(stat.st_mtime_nsec as i64),
        gone: None,
    }
}

/// Sets the times of an open file; `None` leaves that of the last access.
pub(crate) fn set_times(fd: BorrowedFd<'_>, accessed_ns: Option<i64>, modified_ns: i64) -> rustix::io::Result<()> {
    const SECOND_NS: i64 = 1_000_000_000;
    const OMIT: Timespec = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT as _ };
    let time = |ns: i64| Timespec { tv_sec: ns.div_euclid(SECOND_NS), tv_nsec: ns.rem_euclid(SECOND_NS) };
    let times = Timestamps { last_access: accessed_ns.map_or(OMIT, time), last_modification: time(modified_ns) };
    futimens(fd, &times)
}

/// A link's path without the mark of those that have lost their name.
pub(crate) fn without_mark(link: &[u8]) -> &[u8] {
    link.strip_suffix(GONE).unwrap_or(link)
}

/// What is known of a directory or FIFO that has been removed: there is nothing in it, so that another will do.
pub fn removed(link: &[u8], stat: &Stat) -> Option<PathState> {
    let empty = matches!(FileType::from_raw_mode(stat.st_mode), FileType::Directory | FileType::Fifo);
    let path = link.strip_suffix(GONE).filter(|_| empty && stat.st_nlink == 0)?;
    Some(PathState { gone: Some((stat.st_uid, stat.st_gid)), ..state(path, stat) })
}

/// What differs between what was at a path and what is there.
pub fn difference(was: &PathState, is: &Stat, made_up: bool, same_boot: bool) -> Option<&'static str> {
    let kind = FileType::from_raw_mode(is.st_mode);
    let now = state(&was.path, is);
    if kind != FileType::from_raw_mode(was.mode) {
        return Some("it is of another kind");
    }
    if made_up {
        return None;
    }
    match kind {
        FileType::CharacterDevice | FileType::BlockDevice => (was.bytes != now.bytes).then_some("it is another device"),
        // Numbers of devices are given anew at every boot.
        _ if !was.is_inode(now.inode) || (same_boot && was.device != now.device) => Some("it is another file"),
        FileType::RegularFile if was.bytes != now.bytes => Some("its length has changed"),
        FileType::RegularFile if was.modified_ns != now.modified_ns => Some("it has been written to"),
        _ => None,
    }
}

/// The path, for people.
pub(crate) fn text(state: &PathState) -> String {
    String::from_utf8_lossy(&state.path).into_owned()
}

/// Whether a file lives on a file system that makes its files up.
pub fn is_made_up(fd: &OwnedFd) -> rustix::io::Result<bool> {
    Ok(MADE_UP.contains(&fstatfs(fd)?.f_type))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::fstat;

    #[test]
    fn differences_are_named() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let stat = fstat(&file).unwrap();
        let was = state(b"/x", &stat);
        assert_eq!(difference(&was, &stat, false, true), None);
        let other = |change: fn(&mut PathState)| {
            let mut was = was.clone();
            change(&mut was);
            was
        };
        assert!(difference(&other(|was| was.inode += 1), &stat, false, true).is_some());
        assert!(difference(&other(|was| was.inode = 0), &stat, false, true).is_none());
        assert!(difference(&other(|was| was.device += 1), &stat, false, true).is_some());
        assert!(difference(&other(|was| was.device += 1), &stat, false, false).is_none());
        assert!(difference(&other(|was| was.bytes += 1), &stat, false, true).is_some());
        assert!(difference(&other(|was| was.modified_ns += 1), &stat, false, true).is_some());
        assert!(difference(&other(|was| was.modified_ns += 1), &stat, true, true).is_none());
        assert!(difference(&other(|was| was.mode = 0o40_755), &stat, true, true).is_some());
    }
}
