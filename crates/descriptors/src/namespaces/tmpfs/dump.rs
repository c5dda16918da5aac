//! Walking through memory file systems.

use std::collections::HashMap;
use std::ffi::CStr;
use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, FileType, OFlags, Stat, StatxFlags, fstat, fstatfs, getxattr, listxattr, readlinkat, statx};
use rustix::io::Errno;
use torpor_image::tree::{Bytes, MOST_DEPTH, Node, NodeContent, Tmpfs};

use crate::contract::error::DumpError;
use crate::contract::reason::Reason;
use crate::filesystem::contents::store;
use crate::filesystem::{TMPFS_MAGIC, below, names, place, tmpfs_of_app};
use crate::namespaces::tmpfs::text;
use torpor_pages::sink::PageSink;
use torpor_proc::mounts::Mount;
use torpor_process::blocker::{Blocker, Place};
use torpor_process::view::View;

/// Files in all of an app's memory file systems.
const MOST_NODES: usize = 200_000;
/// Attributes that are taken: the program's own, and what its files may do. The rest the kernel makes by itself.
const ATTRIBUTES: [&[u8]; 2] = [b"user.", b"security.capability"];
/// Bytes of the names of one file's attributes, and of one's value, that the kernel gives at most.
const ATTRIBUTE_BYTES: usize = 64 << 10;

/// Takes what lies in the memory file systems of the app; `root` stands for it. Pages go to `sink`, which the caller flushes.
pub fn take(
    view: &View,
    root: i32,
    sink: &mut PageSink<'_>,
    go_on: &dyn Fn() -> bool,
) -> Result<Vec<Tmpfs>, DumpError> {
    if !view.in_sandbox() {
        return Ok(Vec::new());
    }
    let look = |what: String| move |source| DumpError::Look { pid: root, what, source };
    let mut walk = Walk { root, sink, go_on, nodes: 0 };
    let mut found = Vec::new();
    for mount in tmpfs_of_app(&view.reference()).map_err(look("its mounts".to_owned()))? {
        let shown = text(&mount.path);
        let Some(directory) = open(view, &mount).map_err(look(shown.clone()))? else { continue };
        let nodes = walk.all(directory, &shown)?;
        found.push(Tmpfs { path: mount.path, device: mount.device, nodes });
    }
    Ok(found)
}

/// Its root directory; `None` if something else is mounted over it.
fn open(view: &View, mount: &Mount) -> io::Result<Option<OwnedFd>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOATIME;
    let directory = match view.open_as(&mount.path, flags) {
        Ok(directory) => directory,
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let number = statx(&directory, "", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID)?.stx_mnt_id;
    let same = number == mount.id && fstatfs(&directory)?.f_type == TMPFS_MAGIC;
    Ok(same.then_some(directory))
}

struct Walk<'a, 'b> {
    root: i32,
    sink: &'a mut PageSink<'b>,
    go_on: &'a dyn Fn() -> bool,
    /// Of all file systems.
    nodes: usize,
}

/// A directory whose entries are still to be taken.
struct Pending {
    directory: OwnedFd,
    place: u32,
    depth: u32,
}

impl Walk<'_, '_> {
    fn refused(&self, what: String, remedy: &str) -> DumpError {
        DumpError::Refused(vec![Blocker::new(self.root, Place::Process, what, remedy)])
    }

    /// Everything below its root directory.
    fn all(&mut self, root: OwnedFd, shown: &str) -> Result<Vec<Node>, DumpError> {
        let pid = self.root;
        let look = |source: io::Error| DumpError::Look { pid, what: format!("a file in {shown}"), source };
        let stat = fstat(&root).map_err(|error| look(error.into()))?;
        let mut nodes = vec![node(0, Vec::new(), &stat, attributes(&root, &stat).map_err(look)?)];
        let mut linked = HashMap::new();
        let mut pending = vec![Pending { directory: root, place: 0, depth: 0 }];
        while let Some(Pending { directory, place, depth }) = pending.pop() {
            // By the directory's own descriptor, which was opened without noting that it is read.
            for name in names(&directory).map_err(look)? {
                self.nodes += 1;
                if self.nodes > MOST_NODES || depth >= MOST_DEPTH {
                    let what = format!(
                        "{shown} has more than {MOST_NODES} files, or {MOST_DEPTH} directories within each other"
                    );
                    return Err(self.refused(what, "keep them in a directory on disk"));
                }
                if !(self.go_on)() {
                    return Err(DumpError::Stopped);
                }
                let here = nodes.len() as u32;
                let (found, opened) =
                    self.one(&directory, place, name, &mut linked, here).map_err(|why| match why {
                        Reason::Write(source) => DumpError::Write(source),
                        Reason::Stopped => DumpError::Stopped,
                        Reason::Failed(source) => look(source),
                        Reason::Refused { what, remedy }
                        | Reason::Parkable { what, remedy }
                        | Reason::Outside { what, remedy } => self.refused(format!("{shown}: {what}"), &remedy),
                    })?;
                nodes.push(found);
                if let Some(directory) = opened {
                    pending.push(Pending { directory, place: here, depth: depth + 1 });
                }
            }
        }
        Ok(nodes)
    }

    /// One entry of a directory; with its descriptor, if it is a directory.
    fn one(
        &mut self,
        directory: &OwnedFd,
        parent: u32,
        name: Bytes,
        linked: &mut HashMap<u64, u32>,
        here: u32,
    ) -> Result<(Node, Option<OwnedFd>), Reason> {
        let opened = match below(directory, &name, OFlags::PATH | OFlags::NOFOLLOW) {
            Err(Errno::XDEV) => {
                let content = NodeContent::Covered;
                let attributes = Vec::new();
                let (mode, owner, times_ns) = (0, (0, 0), [0; 2]);
                return Ok((Node { parent, name, inode: 0, mode, owner, times_ns, attributes, content }, None));
            }
            other => other?,
        };
        let stat = fstat(&opened)?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        let mut found = node(parent, name, &stat, Vec::new());
        if kind != FileType::Directory && stat.st_nlink > 1 {
            if let Some(first) = linked.get(&stat.st_ino) {
                found.content = NodeContent::Again(*first);
                return Ok((found, None));
            }
            linked.insert(stat.st_ino, here);
        }
        found.attributes = attributes(&opened, &stat)?;
        let mut within = None;
        match kind {
            FileType::Directory => {
                within = Some(below(directory, &found.name, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOATIME)?);
            }
            FileType::RegularFile => {
                let bytes = stat.st_size as u64;
                let pages = store(std::os::fd::AsFd::as_fd(&opened), bytes, &[], self.sink, self.go_on)?;
                found.content = NodeContent::File { bytes, pages };
            }
            FileType::Symlink => {
                found.content = NodeContent::Link(readlinkat(&opened, "", Vec::new())?.into_bytes());
            }
            FileType::CharacterDevice | FileType::BlockDevice => found.content = NodeContent::Device(stat.st_rdev),
            FileType::Fifo | FileType::Socket => {}
            FileType::Unknown => return Err(Reason::refused("a file of a kind that is not known here", "")),
        }
        Ok((found, within))
    }
}

fn node(parent: u32, name: Bytes, stat: &Stat, attributes: Vec<(Bytes, Bytes)>) -> Node {
    let time = |seconds: i64, ns: u64| seconds.saturating_mul(1_000_000_000).saturating_add_unsigned(ns);
    let times_ns = [time(stat.st_atime, stat.st_atime_nsec), time(stat.st_mtime, stat.st_mtime_nsec)];
    let (inode, mode, owner) = (stat.st_ino, stat.st_mode, (stat.st_uid, stat.st_gid));
    Node { parent, name, inode, mode, owner, times_ns, attributes, content: NodeContent::Nothing }
}

/// Extended attributes of a file or a directory; others cannot have the program's own.
fn attributes(file: &OwnedFd, stat: &Stat) -> io::Result<Vec<(Bytes, Bytes)>> {
    if !matches!(FileType::from_raw_mode(stat.st_mode), FileType::RegularFile | FileType::Directory) {
        return Ok(Vec::new());
    }
    // It may be open as a place only.
    let path = place(std::os::fd::AsFd::as_fd(file));
    let mut names = Vec::with_capacity(ATTRIBUTE_BYTES);
    match listxattr(&*path, rustix::buffer::spare_capacity(&mut names)) {
        Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
        other => other?,
    };
    let mut found = Vec::new();
    for name in names.split_inclusive(|byte| *byte == 0) {
        let Ok(name) = CStr::from_bytes_with_nul(name) else { continue };
        if !ATTRIBUTES.iter().any(|known| name.to_bytes().starts_with(known)) {
            continue;
        }
        let mut value = Vec::with_capacity(ATTRIBUTE_BYTES);
        getxattr(&*path, name, rustix::buffer::spare_capacity(&mut value))?;
        found.push((name.to_bytes().to_vec(), value));
    }
    Ok(found)
}
