//! Removing trees that a program has made, however deep they are.
//!
//! A program can nest directories without bound, deeper than any path that can be written and than there are descriptors. So
//! neither stack nor descriptors grow with the depth: below [`LEVELS`] directories within each other, a directory is renamed to
//! the top of the tree and emptied from there. Names are read in batches of [`BATCH`]. A removal that is broken off leaves a
//! tree like any other, and the next one goes on with it.
//!
//! For trees that nobody else changes meanwhile. No link is followed, and nothing that is mounted in the tree is entered.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags, RenameFlags, openat, openat2, renameat_with, unlinkat};
use rustix::io::Errno;

use crate::resolve::RESOLVE;

/// Directories within each other that are entered before one is renamed to the top; each holds two descriptors.
const LEVELS: usize = 32;
/// Names that are read before they are removed.
const BATCH: usize = 4096;

/// Removes the directory at `path` and all that is in it.
///
/// # Errors
/// The first call that failed; `NotFound` if nothing is there. The rest of the tree stays.
pub fn remove_tree(path: &Path) -> io::Result<()> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let parent = openat(CWD, parent, flags, Mode::empty())?;
    Ok(remove_below(parent.as_fd(), name.as_encoded_bytes())?)
}

/// Removes a directory below `parent` and all that is in it.
pub(crate) fn remove_below(parent: BorrowedFd<'_>, name: &[u8]) -> rustix::io::Result<()> {
    let top = open(parent, name)?;
    let mut raised = Raised { top: top.as_fd(), waiting: VecDeque::new(), count: 0 };
    empty(top.as_fd(), 0, &mut raised)?;
    while let Some(name) = raised.waiting.pop_front() {
        empty(open(top.as_fd(), name.as_bytes())?.as_fd(), 1, &mut raised)?;
        unlinkat(&top, name, AtFlags::REMOVEDIR)?;
    }
    unlinkat(parent, name, AtFlags::REMOVEDIR)
}

/// Directories that were renamed to the top of the tree.
struct Raised<'a> {
    top: BorrowedFd<'a>,
    waiting: VecDeque<String>,
    count: u64,
}

impl Raised<'_> {
    fn add(&mut self, parent: BorrowedFd<'_>, name: &[u8]) -> rustix::io::Result<()> {
        loop {
            let raised = format!(".torpor-deep-{}", self.count);
            self.count += 1;
            match renameat_with(parent, name, self.top, &raised, RenameFlags::NOREPLACE) {
                Ok(()) => {
                    self.waiting.push_back(raised);
                    return Ok(());
                }
                // Of a removal that was broken off.
                Err(Errno::EXIST) => {}
                Err(error) => return Err(error),
            }
        }
    }
}

fn open(parent: BorrowedFd<'_>, name: &[u8]) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat2(parent, name, flags, Mode::empty(), RESOLVE)
}

/// Removes what is in a directory that lies so many `levels` below the top.
fn empty(directory: BorrowedFd<'_>, levels: usize, raised: &mut Raised<'_>) -> rustix::io::Result<()> {
    loop {
        let names =
            some_names(directory, |name| levels == 0 && raised.waiting.iter().any(|known| known.as_bytes() == name))?;
        if names.is_empty() {
            return Ok(());
        }
        for name in &names {
            match unlinkat(directory, name.as_slice(), AtFlags::empty()) {
                Err(Errno::ISDIR) => {}
                removed => {
                    removed?;
                    continue;
                }
            }
            if levels >= LEVELS {
                raised.add(directory, name)?;
                continue;
            }
            empty(open(directory, name)?.as_fd(), levels + 1, raised)?;
            unlinkat(directory, name.as_slice(), AtFlags::REMOVEDIR)?;
        }
    }
}

/// At most [`BATCH`] names in a directory, but those that are left out.
fn some_names(directory: BorrowedFd<'_>, is_out: impl Fn(&[u8]) -> bool) -> rustix::io::Result<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    // A directory must not be read while its entries go away.
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if !matches!(name, b"." | b"..") && !is_out(name) {
            names.push(name.to_vec());
            if names.len() == BATCH {
                break;
            }
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rustix::fs::mkdirat;

    use super::*;
    use crate::{Ids, write_tree};

    const DEPTH: usize = 100_000;

    /// Nests directories below one, each with a file.
    fn nest(root: &Path, depth: usize) {
        fs::create_dir(root).unwrap();
        let mut at = openat(CWD, root, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
        for _ in 0..depth {
            mkdirat(&at, "d", Mode::RWXU).unwrap();
            openat(&at, "f", OFlags::CREATE | OFlags::WRONLY, Mode::RUSR).unwrap();
            at = open(at.as_fd(), b"d").unwrap();
        }
    }

    #[test]
    fn no_depth_is_too_much() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("root");
        nest(&root, DEPTH);
        // Walking stops at a limit.
        let error = write_tree(&root, Ids::Same, &mut io::sink()).unwrap_err();
        assert!(error.to_string().contains("256 directories"), "{error}");
        remove_tree(&root).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn wide_trees_links_and_leftovers_go_and_what_links_lead_to_stays() {
        let folder = tempfile::tempdir().unwrap();
        let (root, outside) = (folder.path().join("root"), folder.path().join("outside"));
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("file"), "x").unwrap();
        nest(&root, 3 * LEVELS);
        for name in [".torpor-deep-0", ".torpor-deep-2"] {
            fs::create_dir_all(root.join(name).join("sub")).unwrap();
        }
        for n in 0..=BATCH {
            fs::write(root.join(format!("d/d/{n}")), "").unwrap();
        }
        std::os::unix::fs::symlink(&outside, root.join("d/link")).unwrap();
        remove_tree(&root).unwrap();
        assert_eq!(remove_tree(&root).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(outside.join("file").exists());
        std::os::unix::fs::symlink(&outside, &root).unwrap();
        assert!(remove_tree(&root).is_err() && outside.join("file").exists());
    }
}
