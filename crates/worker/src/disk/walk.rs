//! Walking an app's own files, whatever the app does meanwhile.
//!
//! Every name is looked at below its directory, no link is followed, and no mount is crossed. Levels are bounded, since each
//! holds two descriptors; what lies deeper is not seen, and the walk says so.

use std::collections::HashSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, Stat, openat, openat2, statat};
use rustix::io::Errno;

/// Directories within each other that are entered.
const LEVELS: usize = 128;
/// The unit of `st_blocks`, stat(2).
const BLOCK_BYTES: u64 = 512;

/// What a walk has found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Measured {
    /// On disk, of each file once.
    pub(super) bytes: u64,
    /// Something lies deeper than was looked.
    pub(super) too_deep: bool,
}

struct Level {
    directory: OwnedFd,
    entries: Dir,
}

fn level(directory: OwnedFd) -> rustix::io::Result<Level> {
    Ok(Level { entries: Dir::read_from(&directory)?, directory })
}

fn below(directory: BorrowedFd<'_>, name: &[u8], flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    openat2(directory, name, flags | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty(), resolve)
}

/// Visits everything below a directory; gives whether something lies too deep. `NotFound` only for the directory itself.
fn walk(
    root: &Path,
    mut visit: impl FnMut(BorrowedFd<'_>, &[u8], &Stat) -> rustix::io::Result<()>,
) -> rustix::io::Result<bool> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut levels = vec![level(openat(CWD, root, flags, Mode::empty())?)?];
    let mut too_deep = false;
    loop {
        let depth = levels.len();
        let Some(top) = levels.last_mut() else { return Ok(too_deep) };
        let Some(entry) = top.entries.next() else {
            levels.pop();
            continue;
        };
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if matches!(name, b"." | b"..") {
            continue;
        }
        let stat = match statat(&top.directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            // It went meanwhile.
            Err(Errno::NOENT) => continue,
            stat => stat?,
        };
        visit(top.directory.as_fd(), name, &stat)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
            continue;
        }
        if depth >= LEVELS {
            too_deep = true;
            continue;
        }
        let inner = below(top.directory.as_fd(), name, OFlags::RDONLY | OFlags::DIRECTORY).and_then(level);
        match inner {
            Ok(inner) => levels.push(inner),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
            Err(error) => return Err(error),
        }
    }
}

/// What everything below a directory takes on disk.
pub(super) fn measure(root: &Path) -> io::Result<Measured> {
    let mut linked = HashSet::new();
    let mut bytes = 0_u64;
    let too_deep = walk(root, |_, _, stat| {
        let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        if is_directory || stat.st_nlink == 1 || linked.insert((stat.st_dev, stat.st_ino)) {
            bytes = bytes.saturating_add((stat.st_blocks as u64).saturating_mul(BLOCK_BYTES));
        }
        Ok(())
    })?;
    Ok(Measured { bytes, too_deep })
}

/// Makes everything below a directory, and itself, count to a project; for an app that does not run.
pub(super) fn set_project(root: &Path, project: u32) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let too_deep = walk(root, |directory, name, stat| {
        let kind = FileType::from_raw_mode(stat.st_mode);
        // Other kinds cannot be opened for it, and take nothing but their names.
        if matches!(kind, FileType::RegularFile | FileType::Directory) {
            let file = below(directory, name, OFlags::RDONLY | OFlags::NONBLOCK)?;
            let set = torpor_linux::quota::set_project(&file, project, kind == FileType::Directory);
            set.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        }
        Ok(())
    })?;
    if too_deep {
        return Err(io::Error::other(format!("more than {LEVELS} directories lie within each other")));
    }
    // The last: an attempt that was broken off begins anew.
    torpor_linux::quota::set_project(openat(CWD, root, flags, Mode::empty())?, project, true)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn each_file_counts_once_and_links_lead_nowhere() {
        let folder = tempfile::tempdir().unwrap();
        let (root, outside) = (folder.path().join("root"), folder.path().join("outside"));
        fs::create_dir_all(root.join("a/b")).unwrap();
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("large"), vec![1; 8 << 20]).unwrap();
        fs::write(root.join("a/b/file"), vec![1; 1 << 20]).unwrap();
        fs::hard_link(root.join("a/b/file"), root.join("again")).unwrap();
        std::os::unix::fs::symlink(&outside, root.join("link")).unwrap();
        rustix::fs::sync();
        let found = measure(&root).unwrap();
        assert!((1 << 20..2 << 20).contains(&found.bytes) && !found.too_deep, "{found:?}");
        assert_eq!(measure(&root.join("none")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn what_lies_too_deep_is_told() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join(vec!["d"; LEVELS - 1].join("/"))).unwrap();
        assert!(!measure(folder.path()).unwrap().too_deep);
        fs::create_dir_all(folder.path().join(vec!["d"; 10 * LEVELS].join("/"))).unwrap();
        assert!(measure(folder.path()).unwrap().too_deep);
    }
}
