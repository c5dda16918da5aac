//! What inotify and fanotify watch, as fdinfo tells it: by its handle. Opened by that, the inode tells its path; if not, it is
//! looked for ([`super::search`]).

mod search;

use std::collections::HashSet;
use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;

use rustix::fs::{Dev, FileType, OFlags, fstat, makedev};
use torpor_image::tree::PathState;
use torpor_linux::handle;

use crate::context::{DumpContext, RestoreContext};
use crate::contract::error::RestoreFileError;
use crate::contract::reason::{Described, Reason};
use crate::filesystem;
use crate::kinds::watched::search::Search;
use crate::list::Item;
use torpor_proc::mounts::Mount;
use torpor_process::view::View;

/// `IN_ACCESS | IN_CLOSE_NOWRITE | IN_OPEN`, and the same of fanotify: what reading a directory is told as.
const READ: u32 = 0x1 | 0x10 | 0x20;

/// What is behind `key:` in a line.
pub(crate) fn value<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    line.split_ascii_whitespace().find_map(|word| word.strip_prefix(key)?.strip_prefix(':'))
}

/// As [`value`], a number.
pub(crate) fn hexadecimal(line: &str, key: &str) -> Option<u64> {
    u64::from_str_radix(value(line, key)?, 16).ok()
}

/// The device number behind `sdev:`, as the kernel has it.
pub(crate) fn device(line: &str) -> Option<(u32, u32)> {
    let device = hexadecimal(line, "sdev")?;
    Some(((device >> 20) as u32, (device & 0xf_ffff) as u32))
}

/// An inode that is watched.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Inode {
    device: (u32, u32),
    pub(crate) number: u64,
    handle_kind: i32,
    handle: Vec<u8>,
}

impl Inode {
    /// `… ino:9e7e sdev:800013 … fhandle-bytes:8 fhandle-type:1 f_handle:7e9e0000640d1b6d`
    pub(crate) fn of(line: &str) -> Option<Self> {
        let digits = value(line, "f_handle")?;
        let handle = (0..digits.len() / 2).map(|n| u8::from_str_radix(digits.get(2 * n..2 * n + 2)?, 16).ok());
        Some(Self {
            device: device(line)?,
            number: hexadecimal(line, "ino")?,
            handle_kind: hexadecimal(line, "fhandle-type")? as i32,
            handle: handle.collect::<Option<Vec<u8>>>()?,
        })
    }

    /// A file of the tree's that has been deleted, and is open.
    pub(crate) fn deleted(&self, context: &DumpContext<'_>) -> Option<PathState> {
        let object = (makedev(self.device.0, self.device.1), self.number);
        let files = context.list.same_object(object).iter().map(|file| context.list.item(*file));
        let is_file = |item: &&Item| FileType::from_raw_mode(item.stat.st_mode) == FileType::RegularFile;
        let item = files.filter(is_file).find(|item| context.has_no_name(item))?;
        Some(filesystem::state(filesystem::without_mark(&item.link), &item.stat))
    }

    /// Whether a file of this file system with this handle is it.
    pub(crate) fn is(&self, device: Dev, kind: i32, handle: &[u8]) -> bool {
        self.is_on(device) && (self.handle_kind, self.handle.as_slice()) == (kind, handle)
    }

    pub(crate) fn is_on(&self, device: Dev) -> bool {
        makedev(self.device.0, self.device.1) == device
    }

    /// What it is, opened by its handle, if the name by which the kernel knows it leads to it.
    fn by_handle(&self, view: &View, mounts: &[Mount]) -> Described<Option<PathState>> {
        for mount in mounts.iter().filter(|mount| self.is_on(mount.device)) {
            let Ok(mount) = view.open_as(&mount.path, OFlags::RDONLY | OFlags::DIRECTORY) else { continue };
            let Ok(file) = handle::open(&mount, self.handle_kind, &self.handle) else { continue };
            let stat = fstat(&file)?;
            let name = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))?.into_os_string().into_vec();
            let there = view.stat(&name);
            if there.is_ok_and(|there| (there.st_dev, there.st_ino) == (stat.st_dev, stat.st_ino)) {
                return Ok(Some(filesystem::state(&name, &stat)));
            }
        }
        Ok(None)
    }

    /// What it is, if it has this name.
    fn by_name(&self, view: &View, name: &[u8]) -> Option<PathState> {
        let file = view.open(name).ok()?;
        let (kind, handle) = handle::identity(&file).ok()??;
        let stat = fstat(&file).ok()?;
        (kind == self.handle_kind && handle == self.handle).then(|| filesystem::state(name, &stat))
    }
}

/// Where these are, each with the events of it that `item` is told of; `who` watches them.
pub(crate) fn paths(
    context: &DumpContext<'_>,
    item: &Item,
    watched: &[(&Inode, u32)],
    who: &str,
) -> Described<Vec<PathState>> {
    let request = context.request;
    let (view, mounts) = (request.view, mounts(request.view)?.collect::<Vec<_>>());
    let inodes = || watched.iter().map(|(inode, _)| *inode);
    let mut paths = inodes().map(|inode| inode.by_handle(view, &mounts)).collect::<Described<Vec<_>>>()?;
    let nameless: Vec<&Inode> = inodes().zip(&paths).filter(|(_, path)| path.is_none()).map(|(i, _)| i).collect();
    if !nameless.is_empty() {
        let told: HashSet<&Inode> = watched.iter().filter(|(_, mask)| mask & READ != 0).map(|(i, _)| *i).collect();
        let others = paths.iter().flatten().map(|path| path.path.clone());
        let near = others.chain(near(&context.list.items, item.holder.pid)).collect();
        let found = Search::new(view, &nameless, &told, request.go_on).among(&mounts, &near);
        if !(request.go_on)() {
            return Err(Reason::Stopped);
        }
        for (inode, path) in inodes().zip(&mut paths).filter(|(_, path)| path.is_none()) {
            *path = found.get(inode).and_then(|name| inode.by_name(view, name));
        }
    }
    let named = inodes().zip(paths).map(|(inode, path)| {
        path.ok_or_else(|| {
            let (major, minor) = inode.device;
            let what =
                format!("{who} watches inode {} of device {major}:{minor}, whose name cannot be found", inode.number);
            Reason::parkable(what, "let the program remove that watch")
        })
    });
    named.collect()
}

/// Directories of what a tree has open, and the one that a process works in.
fn near(items: &[Item], pid: i32) -> impl Iterator<Item = Vec<u8>> {
    let working = fs::read_link(format!("/proc/{pid}/cwd")).map(|path| path.into_os_string().into_vec());
    let parent = |item: &Item| {
        let end = item.link.iter().rposition(|byte| *byte == b'/')?;
        (item.link[0] == b'/').then(|| item.link[..end.max(1)].to_vec())
    };
    // Whose directory cannot be told is looked for elsewhere.
    working.into_iter().chain(items.iter().filter_map(parent))
}

pub(crate) fn mounts(view: &View) -> std::io::Result<impl Iterator<Item = Mount> + use<>> {
    Ok(torpor_proc::mounts::read(&view.reference())?.into_iter())
}

/// Opens what was watched, to watch it again. What changes in it is what the program watches for.
pub(crate) fn watched(state: &PathState, around: RestoreContext<'_>) -> Result<OwnedFd, RestoreFileError> {
    let name = filesystem::text(state);
    let found = around.root.look(&state.path).map_err(RestoreFileError::at("opening", &*name))?;
    let stat = fstat(&found).map_err(RestoreFileError::at("looking at", &*name))?;
    let modified_ns = filesystem::state(&[], &stat).modified_ns;
    let was = PathState { bytes: stat.st_size as u64, modified_ns, ..state.clone() };
    let made_up = filesystem::is_made_up(&found).map_err(RestoreFileError::at("looking at", &*name))?;
    match filesystem::difference(&was, &stat, made_up, around.same_boot) {
        Some(how) => Err(RestoreFileError::Changed { path: name, how }),
        None => Ok(found),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read() {
        let text = "inotify wd:3 ino:9e7e sdev:800013 mask:800afce ignored_mask:0 fhandle-bytes:8 fhandle-type:1 f_handle:7e9e0000640d1b6d";
        let found = Inode::of(text).unwrap();
        assert_eq!((found.number, found.device, found.handle_kind), (0x9e7e, (8, 0x13), 1));
        assert_eq!(found.handle, [0x7e, 0x9e, 0, 0, 0x64, 0x0d, 0x1b, 0x6d]);
        assert_eq!(Inode::of("inotify wd:3 ino:9e7e sdev:800013 mask:800afce ignored_mask:0"), None);
    }
}
