//! Layers as one tree, as overlayfs would show them: for looking up a few files without mounting anything.
//!
//! Topmost wins; a whiteout or an opaque directory hides what is below; symbolic links are resolved by name, inside the
//! root only, so that no link of an image can lead to a file of the machine.

use std::collections::VecDeque;
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, OFlags, Stat, fgetxattr, fstat, openat, openat2, readlinkat};
use rustix::io::Errno;

use crate::limits::{MAX_DEPTH, MAX_NAME_BYTES, MAX_SYMLINKS};
use crate::resolve::RESOLVE;
use crate::tree::{OPAQUE, TreePath};

/// Stacked layers.
pub struct View {
    /// Roots, topmost first.
    roots: Vec<OwnedFd>,
}

/// Something in a view.
pub(crate) struct Found {
    root: usize,
    /// Where it is; no symbolic link lies on the way.
    pub(crate) path: TreePath,
    pub(crate) stat: Stat,
    /// Layers that contribute to it if it is a directory, topmost first.
    parts: Vec<usize>,
}

impl Found {
    pub(crate) fn file_type(&self) -> FileType {
        FileType::from_raw_mode(self.stat.st_mode)
    }
}

impl View {
    /// Opens the trees of layers, lowest first.
    pub fn open<P: AsRef<Path>>(trees: impl IntoIterator<Item = P>) -> std::io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let open = |tree: P| openat(CWD, tree.as_ref(), flags, Mode::empty());
        let mut roots = trees.into_iter().map(open).collect::<Result<Vec<_>, _>>()?;
        roots.reverse();
        Ok(Self { roots })
    }

    /// Reads a regular file, following links; `None` if there is none. Fails with `EFBIG` beyond `limit_bytes`.
    pub fn read_file(&self, path: &str, limit_bytes: u64) -> std::io::Result<Option<Vec<u8>>> {
        let Some(found) = self.find(path.as_bytes(), true)? else { return Ok(None) };
        if found.file_type() != FileType::RegularFile {
            return Ok(None);
        }
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = openat2(&self.roots[found.root], found.path.openable(), flags, Mode::empty(), RESOLVE)?;
        let mut content = Vec::new();
        std::fs::File::from(file).take(limit_bytes + 1).read_to_end(&mut content)?;
        if content.len() as u64 > limit_bytes {
            return Err(Errno::FBIG.into());
        }
        Ok(Some(content))
    }

    /// Finds what is at `path`. Links on the way are followed; one at its end only if `follow`.
    pub(crate) fn find(&self, path: &[u8], follow: bool) -> Result<Option<Found>, Errno> {
        let names = |path: &[u8]| -> VecDeque<Vec<u8>> {
            path.split(|byte| *byte == b'/').filter(|name| !matches!(name, [] | [b'.'])).map(<[u8]>::to_vec).collect()
        };
        let Some(root) = self.root()? else { return Ok(None) };
        let mut walked = vec![root];
        let mut ahead = names(path);
        let mut links = 0;
        while let Some(name) = ahead.pop_front() {
            if name == b".." {
                if walked.len() > 1 {
                    walked.pop();
                }
                continue;
            }
            let here = walked.last().expect("the root is never taken off");
            let Some(found) = self.step(here, &name)? else { return Ok(None) };
            if found.file_type() == FileType::Symlink && (follow || !ahead.is_empty()) {
                links += 1;
                if links > MAX_SYMLINKS {
                    return Err(Errno::LOOP);
                }
                let target = self.read_link(&found)?;
                if target.first() == Some(&b'/') {
                    walked.truncate(1);
                }
                let mut spliced = names(&target);
                spliced.append(&mut ahead);
                ahead = spliced;
                continue;
            }
            if found.file_type() != FileType::Directory && !ahead.is_empty() {
                return Ok(None);
            }
            walked.push(found);
            if walked.len() > MAX_DEPTH + 1 {
                return Err(Errno::NAMETOOLONG);
            }
        }
        Ok(walked.pop())
    }

    fn root(&self) -> Result<Option<Found>, Errno> {
        let Some(top) = self.roots.first() else { return Ok(None) };
        let parts = (0..self.roots.len()).collect();
        Ok(Some(Found { root: 0, path: TreePath::default(), stat: fstat(top)?, parts }))
    }

    fn read_link(&self, link: &Found) -> Result<Vec<u8>, Errno> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = openat2(&self.roots[link.root], link.path.openable(), flags, Mode::empty(), RESOLVE)?;
        Ok(readlinkat(opened, "", Vec::new())?.into_bytes())
    }

    /// Looks up one name in a directory, not following it.
    fn step(&self, directory: &Found, name: &[u8]) -> Result<Option<Found>, Errno> {
        if directory.file_type() != FileType::Directory || name.len() > MAX_NAME_BYTES || name.contains(&0) {
            return Ok(None);
        }
        let path = directory.path.join(name);
        let mut merged: Option<Found> = None;
        for root in &directory.parts {
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let opened = match openat2(&self.roots[*root], path.openable(), flags, Mode::empty(), RESOLVE) {
                Err(Errno::NOENT | Errno::NOTDIR) => continue,
                opened => opened?,
            };
            let stat = fstat(&opened)?;
            let kind = FileType::from_raw_mode(stat.st_mode);
            let is_directory = kind == FileType::Directory;
            if kind == FileType::CharacterDevice && stat.st_rdev == 0 {
                break;
            }
            match &mut merged {
                Some(found) if is_directory => found.parts.push(*root),
                Some(_) => break,
                None => merged = Some(Found { root: *root, path: path.clone(), stat, parts: vec![*root] }),
            }
            if !is_directory || self.is_opaque(*root, &path)? {
                break;
            }
        }
        Ok(merged)
    }

    fn is_opaque(&self, root: usize, path: &TreePath) -> Result<bool, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = openat2(&self.roots[root], path.openable(), flags, Mode::empty(), RESOLVE)?;
        let mut value = [0_u8; 8];
        match fgetxattr(directory, OPAQUE, &mut value) {
            Ok(length) => Ok(value.get(..length) == Some(b"y")),
            Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(false),
            Err(errno) => Err(errno),
        }
    }
}
