//! A tree to records.

use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, SeekFrom, Stat, fgetxattr, flistxattr, fstat, openat, openat2,
    readlinkat, seek, statat,
};
use rustix::io::Errno;

use super::attributes::{Fate, fate, to_inside};
use super::{Bytes, Copied, CopyError, Ids, MOST_DATA_BYTES, MOST_RECORD_BYTES, Meta, NodeKind, Record};
use super::{failed, shown};
use crate::limits::{MAX_DEPTH, MAX_PATH_BYTES, MAX_XATTR_BYTES};
use crate::resolve::RESOLVE;

/// Writes the tree in the directory `root`.
///
/// # Errors
/// Where `out` or the tree cannot be read or written, or something in it cannot be taken along.
pub fn write_tree(root: &Path, ids: Ids, out: &mut dyn Write) -> Result<Copied, CopyError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = openat(CWD, root, flags, Mode::empty()).map_err(failed("open", b""))?;
    let mut writer =
        Writing { out, ids, links: HashMap::new(), done: Copied::default(), buffer: vec![0; MOST_DATA_BYTES as usize] };
    writer.tree(directory)?;
    writer.record(&Record::End)?;
    Ok(writer.done)
}

struct Writing<'o> {
    out: &'o mut dyn Write,
    ids: Ids,
    /// First names of what has several, by device and inode.
    links: HashMap<(u64, u64), Vec<u8>>,
    done: Copied,
    buffer: Vec<u8>,
}

/// A directory that is being read.
struct Reading {
    directory: OwnedFd,
    path: Vec<u8>,
    /// What of it is still to come.
    names: std::vec::IntoIter<Vec<u8>>,
}

impl Writing<'_> {
    fn record(&mut self, record: &Record) -> Result<(), CopyError> {
        let bytes = record.to_bytes();
        if bytes.len() > MOST_RECORD_BYTES {
            return Err(CopyError::Limit { limit: MOST_RECORD_BYTES as u64, what: "bytes of attributes of one file" });
        }
        self.out.write_all(&bytes).map_err(CopyError::Stream)
    }

    /// Writes a directory and all that is in it. Directories that are being read are on a list, not on the stack: a program nests
    /// as many as it likes.
    fn tree(&mut self, root: OwnedFd) -> Result<(), CopyError> {
        let mut reading = vec![self.directory(root, Vec::new(), 0)?];
        while let Some(top) = reading.last_mut() {
            let Some(name) = top.names.next() else {
                reading.pop();
                continue;
            };
            let path = if top.path.is_empty() { name.clone() } else { [&top.path, &b"/"[..], &name].concat() };
            if let Some(directory) = self.entry(top.directory.as_fd(), &name, &path)? {
                let depth = reading.len();
                reading.push(self.directory(directory, path, depth)?);
            }
        }
        Ok(())
    }

    /// Writes a directory itself; what is in it follows.
    fn directory(&mut self, directory: OwnedFd, path: Vec<u8>, depth: usize) -> Result<Reading, CopyError> {
        if depth > MAX_DEPTH || path.len() > MAX_PATH_BYTES {
            return Err(CopyError::Limit { limit: MAX_DEPTH as u64, what: "directories, or 4095 bytes, in a path" });
        }
        let stat = fstat(&directory).map_err(failed("look at", &path))?;
        let meta = self.meta(&stat, Some(directory.as_fd()), &path)?;
        self.done.members += 1;
        self.record(&Record::Directory { path: path.clone(), meta })?;
        let names = names(&directory).map_err(failed("read", &path))?.into_iter();
        Ok(Reading { directory, path, names })
    }

    /// Writes what has this name; gives a directory back, open.
    fn entry(&mut self, parent: BorrowedFd<'_>, name: &[u8], path: &[u8]) -> Result<Option<OwnedFd>, CopyError> {
        let stat = match statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => return Err(CopyError::Changed { name: shown(path) }),
            stat => stat.map_err(failed("look at", path))?,
        };
        if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
            return open(parent, name, OFlags::DIRECTORY, path).map(Some);
        }
        self.other(parent, name, path.to_vec(), &stat).map(|()| None)
    }

    /// Writes what is no directory.
    fn other(&mut self, parent: BorrowedFd<'_>, name: &[u8], path: Vec<u8>, stat: &Stat) -> Result<(), CopyError> {
        let kind = FileType::from_raw_mode(stat.st_mode);
        self.done.members += 1;
        if kind == FileType::CharacterDevice && stat.st_rdev == 0 {
            return self.record(&Record::Whiteout { path });
        }
        if stat.st_nlink > 1 {
            if let Some(target) = self.links.get(&(stat.st_dev, stat.st_ino)) {
                let target = target.clone();
                return self.record(&Record::Link { path, target });
            }
            self.links.insert((stat.st_dev, stat.st_ino), path.clone());
        }
        let node = match kind {
            FileType::RegularFile => return self.file(open(parent, name, OFlags::NOATIME, &path)?, &path),
            FileType::Symlink => {
                let target = readlinkat(parent, name, Vec::new()).map_err(failed("read", &path))?.into_bytes();
                let meta = self.meta(stat, None, &path)?;
                return self.record(&Record::Symlink { path, target, meta });
            }
            FileType::Fifo => NodeKind::Fifo,
            FileType::Socket => NodeKind::Socket,
            FileType::CharacterDevice | FileType::BlockDevice => {
                return Err(CopyError::Device { name: shown(&path) });
            }
            _ => return Err(CopyError::Kind { name: shown(&path) }),
        };
        let meta = self.meta(stat, None, &path)?;
        self.record(&Record::Node { path, kind: node, meta })
    }

    fn file(&mut self, file: OwnedFd, path: &[u8]) -> Result<(), CopyError> {
        let stat = fstat(&file).map_err(failed("look at", path))?;
        let meta = self.meta(&stat, Some(file.as_fd()), path)?;
        let bytes = stat.st_size.unsigned_abs();
        self.record(&Record::File { path: path.to_vec(), meta, bytes })?;
        let file = File::from(file);
        let changed = || CopyError::Changed { name: shown(path) };
        let mut offset = 0;
        while offset < bytes {
            let begin = match seek(&file, SeekFrom::Data(offset)) {
                Err(Errno::NXIO) => break,
                begin => begin.map_err(failed("read", path))?,
            };
            let end = seek(&file, SeekFrom::Hole(begin)).map_err(failed("read", path))?.min(bytes);
            offset = begin;
            while offset < end {
                let wanted = (end - offset).min(u64::from(MOST_DATA_BYTES)) as usize;
                let mut buffer = std::mem::take(&mut self.buffer);
                let read = file.read_at(&mut buffer[..wanted], offset);
                let sent = match read {
                    Ok(0) => Err(changed()),
                    Ok(count) => self.data(offset, &buffer[..count]).map(|()| count),
                    Err(error) => Err(failed("read", path)(error)),
                };
                self.buffer = buffer;
                offset += sent? as u64;
            }
        }
        let after = fstat(&file).map_err(failed("look at", path))?;
        let same = |stat: &Stat| (stat.st_size, stat.st_mtime, stat.st_mtime_nsec, stat.st_ctime, stat.st_ctime_nsec);
        if same(&after) == same(&stat) { Ok(()) } else { Err(changed()) }
    }

    fn data(&mut self, offset: u64, bytes: &[u8]) -> Result<(), CopyError> {
        self.record(&Record::Data { offset, bytes: bytes.len() as u32 })?;
        self.done.bytes += bytes.len() as u64;
        self.out.write_all(bytes).map_err(CopyError::Stream)
    }

    /// What is known of a file; extended attributes only of those that are open.
    fn meta(&self, stat: &Stat, open: Option<BorrowedFd<'_>>, path: &[u8]) -> Result<Meta, CopyError> {
        let nanoseconds = |ns| u32::try_from(ns).unwrap_or(0);
        let mut meta = Meta {
            uid: stat.st_uid,
            gid: stat.st_gid,
            mode: stat.st_mode & 0o7777,
            modified: (stat.st_mtime, nanoseconds(stat.st_mtime_nsec)),
            xattrs: open.map_or_else(|| Ok(Vec::new()), |file| xattrs(file, path))?,
        };
        to_inside(&mut meta, path, self.ids)?;
        Ok(meta)
    }
}

fn open(parent: BorrowedFd<'_>, name: &[u8], how: OFlags, path: &[u8]) -> Result<OwnedFd, CopyError> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK | how;
    match openat2(parent, name, flags, Mode::empty(), RESOLVE) {
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Err(CopyError::Changed { name: shown(path) }),
        opened => opened.map_err(failed("open", path)),
    }
}

/// Names in a directory, in order.
fn names(directory: &OwnedFd) -> rustix::io::Result<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let name = entry?.file_name().to_bytes().to_vec();
        if !matches!(name.as_slice(), b"." | b"..") {
            names.push(name);
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// Extended attributes that are taken along, by name.
fn xattrs(file: BorrowedFd<'_>, path: &[u8]) -> Result<Vec<(Bytes, Bytes)>, CopyError> {
    let mut list = vec![0; MAX_XATTR_BYTES];
    let length = match flistxattr(file, &mut list[..]) {
        Err(Errno::OPNOTSUPP) => 0,
        length => length.map_err(failed("list the extended attributes of", path))?,
    };
    let mut found = Vec::new();
    for name in list[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        match fate(name) {
            Fate::Taken => {}
            Fate::LeftOut => continue,
            Fate::Refused => {
                return Err(CopyError::Attribute { name: shown(path), attribute: shown(name) });
            }
        }
        let mut value = vec![0; MAX_XATTR_BYTES];
        let read = fgetxattr(file, name, &mut value[..]);
        value.truncate(read.map_err(failed("read an extended attribute of", path))?);
        found.push((name.to_vec(), value));
    }
    found.sort_unstable();
    Ok(found)
}
