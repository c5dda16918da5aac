//! Records to a tree.

use std::fs::File;
use std::io::{self, Read, Seek as _, SeekFrom, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{
    AtFlags, FileType, Mode, Timespec, Timestamps, XattrFlags, chmodat, chownat, fchmod, fchown, fsetxattr, futimens,
    mknodat, symlinkat, utimensat,
};
use rustix::process::{Gid, Uid};

use super::attributes::to_outside;
use super::failed;
use super::{Copied, CopyError, Ids, MOST_DATA_BYTES, MOST_RECORD_BYTES, Meta, NodeKind, Record};
use crate::limits::{ENTRY_BYTES, Limits, MAX_PATH_BYTES, MAX_XATTR_LIST_BYTES};
use crate::tree::{Tree, TreePath};

/// Makes the tree that `input` holds in the empty directory `root`, which gets the attributes of the tree's root.
///
/// # Errors
/// Where the records are not those of a tree, or cannot be made; part of it is there then.
pub fn read_tree(input: &mut dyn Read, root: &Path, ids: Ids) -> Result<Copied, CopyError> {
    read_tree_within(input, root, ids, Limits::default())
}

/// As [`read_tree`], within these bounds: of members, and of bytes of all files (holes do not count).
///
/// # Errors
/// See [`read_tree`].
pub fn read_tree_within(input: &mut dyn Read, root: &Path, ids: Ids, limits: Limits) -> Result<Copied, CopyError> {
    let tree = Tree::open(root).map_err(failed("open", b""))?;
    let buffer = vec![0; MOST_DATA_BYTES as usize];
    let (open, done) = (Vec::new(), Copied::default());
    let mut reading = Reading { input, tree, ids, open, kept_bytes: 0, file: None, limits, done, buffer };
    while reading.next()? {}
    Ok(reading.done)
}

/// A directory whose contents are being made: its attributes are set when it is left, since filling it changes its time.
///
/// Its extended attributes wait, too: what is made in it would inherit its default access list.
struct OpenDirectory {
    path: TreePath,
    meta: Meta,
}

impl OpenDirectory {
    /// Bytes of memory, at most.
    fn kept_bytes(&self) -> u64 {
        let pairs = self.meta.xattrs.iter().map(|(name, value)| (name.len() + value.len()) as u64 + ENTRY_BYTES);
        self.path.bytes().len() as u64 + ENTRY_BYTES + pairs.sum::<u64>()
    }
}

/// A file whose data is being written.
struct OpenFile {
    file: File,
    path: TreePath,
    meta: Meta,
    bytes: u64,
    /// Behind the last data.
    written: u64,
}

struct Reading<'i> {
    input: &'i mut dyn Read,
    tree: Tree,
    ids: Ids,
    /// From the root on.
    open: Vec<OpenDirectory>,
    /// Of the directories in `open`.
    kept_bytes: u64,
    file: Option<OpenFile>,
    limits: Limits,
    done: Copied,
    buffer: Vec<u8>,
}

impl Reading<'_> {
    fn record(&mut self) -> Result<Record, CopyError> {
        let mut length = [0; 4];
        self.exactly(&mut length)?;
        let length = u32::from_le_bytes(length) as usize;
        if length > MOST_RECORD_BYTES {
            return Err(CopyError::Invalid("a record is too long"));
        }
        let mut bytes = vec![0; length];
        self.exactly(&mut bytes)?;
        match postcard::take_from_bytes(&bytes) {
            Ok((record, [])) => Ok(record),
            _ => Err(CopyError::Invalid("a record cannot be understood")),
        }
    }

    fn exactly(&mut self, bytes: &mut [u8]) -> Result<(), CopyError> {
        self.input.read_exact(bytes).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => CopyError::Invalid("they are cut off"),
            _ => CopyError::Stream(error),
        })
    }

    /// Makes what the next record says; `false`: that was all.
    fn next(&mut self) -> Result<bool, CopyError> {
        let record = self.record()?;
        if let Record::Data { offset, bytes } = record {
            return self.data(offset, bytes).map(|()| true);
        }
        self.close_file()?;
        match record {
            Record::Directory { path, meta } => self.directory(&path, meta)?,
            Record::File { path, meta, bytes } => self.begin_file(&path, meta, bytes)?,
            Record::Data { .. } => {}
            Record::Link { path, target } => self.link(&path, &target)?,
            Record::Symlink { path, target, meta } => self.symlink(&path, &target, meta)?,
            Record::Node { path, kind, meta } => self.node(&path, kind, meta)?,
            Record::Whiteout { path } => {
                let path = self.enter(&path)?;
                self.tree.make_whiteout(&path).map_err(failed("mark as deleted", path.bytes()))?;
            }
            Record::End => {
                if self.done.members == 0 {
                    return Err(CopyError::Invalid("there is no root"));
                }
                self.leave(0)?;
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Checks a path and that its directory is the one being filled, leaving those that are full.
    fn enter(&mut self, raw: &[u8]) -> Result<TreePath, CopyError> {
        self.done.members += 1;
        if self.done.members > self.limits.max_members {
            return Err(CopyError::Limit { limit: self.limits.max_members, what: "files" });
        }
        let path = TreePath::parse(raw).map_err(CopyError::Path)?;
        let Some((parent, _)) = path.split() else { return Err(CopyError::Invalid("two roots")) };
        let place = self.open.iter().rposition(|directory| directory.path == parent);
        self.leave(place.ok_or(CopyError::Invalid("a file comes before its directory"))? + 1)?;
        Ok(path)
    }

    /// Sets the attributes of open directories from the `keep`th on.
    fn leave(&mut self, keep: usize) -> Result<(), CopyError> {
        while self.open.len() > keep {
            let Some(directory) = self.open.pop() else { break };
            self.kept_bytes -= directory.kept_bytes();
            let OpenDirectory { path, meta } = directory;
            let opened = self.tree.readable_directory(&path).map_err(failed("open", path.bytes()))?;
            furnish(&opened, &meta, path.bytes())?;
        }
        Ok(())
    }

    fn checked(&self, mut meta: Meta, name: &[u8]) -> Result<Meta, CopyError> {
        if meta.mode > 0o7777 || meta.modified.1 >= 1_000_000_000 {
            return Err(CopyError::Invalid("a mode or time is none"));
        }
        if meta.xattrs.iter().map(|(name, _)| name.len() + 1).sum::<usize>() > MAX_XATTR_LIST_BYTES {
            return Err(CopyError::Invalid("a file has more extended attributes than one can have"));
        }
        to_outside(&mut meta, name, self.ids)?;
        Ok(meta)
    }

    fn directory(&mut self, raw: &[u8], meta: Meta) -> Result<(), CopyError> {
        let meta = self.checked(meta, raw)?;
        if raw.is_empty() && self.done.members == 0 {
            self.done.members = 1;
            return self.keep_open(OpenDirectory { path: TreePath::default(), meta });
        }
        let path = self.enter(raw)?;
        self.tree.make_directory(&path).map_err(failed("make the directory", raw))?;
        self.keep_open(OpenDirectory { path, meta })
    }

    fn keep_open(&mut self, directory: OpenDirectory) -> Result<(), CopyError> {
        self.kept_bytes += directory.kept_bytes();
        let limit = self.limits.max_kept_bytes;
        if self.kept_bytes > limit {
            return Err(CopyError::Limit { limit, what: "bytes of attributes of directories in each other" });
        }
        self.open.push(directory);
        Ok(())
    }

    fn begin_file(&mut self, raw: &[u8], meta: Meta, bytes: u64) -> Result<(), CopyError> {
        if i64::try_from(bytes).is_err() {
            return Err(CopyError::Invalid("a file is too long"));
        }
        let meta = self.checked(meta, raw)?;
        let path = self.enter(raw)?;
        let file = self.tree.make_file(&path).map_err(failed("make", raw))?;
        self.file = Some(OpenFile { file, path, meta, bytes, written: 0 });
        Ok(())
    }

    fn data(&mut self, offset: u64, bytes: u32) -> Result<(), CopyError> {
        let mut buffer = std::mem::take(&mut self.buffer);
        let length = bytes as usize;
        let end = offset.checked_add(u64::from(bytes));
        let Some(file) =
            self.file.as_ref().filter(|file| offset >= file.written && end.is_some_and(|end| end <= file.bytes))
        else {
            return Err(CopyError::Invalid("data of no file"));
        };
        if bytes == 0 || bytes > MOST_DATA_BYTES {
            return Err(CopyError::Invalid("a piece of data is too long, or empty"));
        }
        let name = file.path.clone();
        self.exactly(&mut buffer[..length])?;
        if let Some(file) = &mut self.file {
            let sought = file.file.seek(SeekFrom::Start(offset));
            sought.and_then(|_| file.file.write_all(&buffer[..length])).map_err(failed("write", name.bytes()))?;
            file.written = offset + u64::from(bytes);
        }
        self.done.bytes += u64::from(bytes);
        if self.done.bytes > self.limits.max_unpacked_bytes {
            return Err(CopyError::Bytes { limit: self.limits.max_unpacked_bytes });
        }
        self.buffer = buffer;
        Ok(())
    }

    fn close_file(&mut self) -> Result<(), CopyError> {
        let Some(OpenFile { file, path, meta, bytes, written }) = self.file.take() else { return Ok(()) };
        if written < bytes {
            file.set_len(bytes).map_err(failed("write", path.bytes()))?;
        }
        furnish(&OwnedFd::from(file), &meta, path.bytes())
    }

    fn link(&mut self, raw: &[u8], target: &[u8]) -> Result<(), CopyError> {
        let path = self.enter(raw)?;
        let target = TreePath::parse(target).map_err(CopyError::Path)?;
        let there = self.tree.stat(&target).map_err(failed("look at", target.bytes()))?;
        if there.is_none_or(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory) {
            return Err(CopyError::Invalid("a second name of nothing"));
        }
        self.tree.make_hard_link(&path, &target).map_err(failed("link", raw))
    }

    fn symlink(&mut self, raw: &[u8], target: &[u8], meta: Meta) -> Result<(), CopyError> {
        if target.is_empty() || target.len() > MAX_PATH_BYTES || target.contains(&0) {
            return Err(CopyError::Invalid("a symbolic link to nowhere"));
        }
        let meta = self.checked(meta, raw)?;
        let path = self.enter(raw)?;
        let (parent, name) = self.tree.parent(&path).map_err(failed("open the directory of", raw))?;
        symlinkat(target, parent, name)
            .and_then(|()| own(parent, name, &meta))
            .and_then(|()| utimensat(parent, name, &times(&meta), AtFlags::SYMLINK_NOFOLLOW))
            .map_err(failed("make the symbolic link", raw))
    }

    fn node(&mut self, raw: &[u8], kind: NodeKind, meta: Meta) -> Result<(), CopyError> {
        let kind = match kind {
            NodeKind::Fifo => FileType::Fifo,
            NodeKind::Socket => FileType::Socket,
            NodeKind::Character(0, 0) => {
                return Err(CopyError::Invalid("a device that is a mark of overlayfs in disguise"));
            }
            // Layers are unpacked without any, and a sandbox has those that it may have.
            NodeKind::Character(..) | NodeKind::Block(..) => {
                return Err(CopyError::Invalid("a device, which no archive may bring"));
            }
        };
        let meta = self.checked(meta, raw)?;
        let path = self.enter(raw)?;
        let (parent, name) = self.tree.parent(&path).map_err(failed("open the directory of", raw))?;
        // `chmodat` follows links in general, but a node has just been made there, and nobody else has access to the tree.
        mknodat(parent, name, kind, Mode::RUSR, 0)
            .and_then(|()| own(parent, name, &meta))
            .and_then(|()| chmodat(parent, name, Mode::from_raw_mode(meta.mode), AtFlags::empty()))
            .and_then(|()| utimensat(parent, name, &times(&meta), AtFlags::SYMLINK_NOFOLLOW))
            .map_err(failed("make the node", raw))
    }
}

/// Gives what has no descriptor its owner, a link itself.
fn own(parent: BorrowedFd<'_>, name: &[u8], meta: &Meta) -> rustix::io::Result<()> {
    chownat(parent, name, Some(Uid::from_raw(meta.uid)), Some(Gid::from_raw(meta.gid)), AtFlags::SYMLINK_NOFOLLOW)
}

/// Gives an open file or directory its attributes: the owner first, since a change of it clears others; times last.
fn furnish(file: &OwnedFd, meta: &Meta, name: &[u8]) -> Result<(), CopyError> {
    fchown(file, Some(Uid::from_raw(meta.uid)), Some(Gid::from_raw(meta.gid)))
        .map_err(failed("give an owner to", name))?;
    fchmod(file, Mode::from_raw_mode(meta.mode)).map_err(failed("set the mode of", name))?;
    for (attribute, value) in &meta.xattrs {
        let set = fsetxattr(file.as_fd(), attribute.as_slice(), value, XattrFlags::empty());
        set.map_err(failed("set an extended attribute of", name))?;
    }
    futimens(file, &times(meta)).map_err(failed("set the times of", name))
}

fn times(meta: &Meta) -> Timestamps {
    let time = Timespec { tv_sec: meta.modified.0, tv_nsec: meta.modified.1.into() };
    Timestamps { last_access: time, last_modification: time }
}
