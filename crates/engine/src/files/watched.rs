//! What inotify and fanotify watch, as fdinfo tells it: by its handle. Opened by that, the inode tells its path.

use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;

use rustix::fs::{FileType, OFlags, fstat, makedev};
use torpor_image::tree::PathState;
use torpor_linux::handle;

use super::MakeError;
use super::collect::{Context, Described, Why};
use super::list::Item;
use super::path::{self, Around};
use crate::mounts::Mount;
use crate::view::View;

/// What is behind `key:` in a line.
pub(super) fn value<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    line.split_ascii_whitespace().find_map(|word| word.strip_prefix(key)?.strip_prefix(':'))
}

/// As [`value`], a number.
pub(super) fn hexadecimal(line: &str, key: &str) -> Option<u64> {
    u64::from_str_radix(value(line, key)?, 16).ok()
}

/// The device number behind `sdev:`, as the kernel has it.
pub(super) fn device(line: &str) -> Option<(u32, u32)> {
    let device = hexadecimal(line, "sdev")?;
    Some(((device >> 20) as u32, (device & 0xf_ffff) as u32))
}

/// An inode that is watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Inode {
    device: (u32, u32),
    number: u64,
    handle_kind: i32,
    handle: Vec<u8>,
}

impl Inode {
    /// `… ino:9e7e sdev:800013 … fhandle-bytes:8 fhandle-type:1 f_handle:7e9e0000640d1b6d`
    pub(super) fn of(line: &str) -> Option<Self> {
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
    pub(super) fn deleted(&self, context: &Context<'_, '_>) -> Option<PathState> {
        let object = (makedev(self.device.0, self.device.1), self.number);
        let files = context.list.same_object(object).iter().map(|file| context.list.item(*file));
        let is_file = |item: &&Item| FileType::from_raw_mode(item.stat.st_mode) == FileType::RegularFile;
        let item = files.filter(is_file).find(|item| context.memories.holds(item))?;
        Some(path::state(path::without_mark(&item.link), &item.stat))
    }

    /// Where it is; `who` watches it.
    pub(super) fn path(&self, view: &View, who: &str) -> Described<PathState> {
        for mount in mounts(view)?.filter(|mount| mount.device == makedev(self.device.0, self.device.1)) {
            let Ok(mount) = view.open_as(&mount.path, OFlags::RDONLY | OFlags::DIRECTORY) else { continue };
            let Ok(file) = handle::open(&mount, self.handle_kind, &self.handle) else { continue };
            let stat = fstat(&file)?;
            let name = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))?.into_os_string().into_vec();
            let there = view.stat(&name);
            if there.is_ok_and(|there| (there.st_dev, there.st_ino) == (stat.st_dev, stat.st_ino)) {
                return Ok(path::state(&name, &stat));
            }
        }
        let (major, minor) = self.device;
        let what = format!("{who} watches inode {} of device {major}:{minor}, whose name cannot be found", self.number);
        Err(Why::kept(what, "let the program remove that watch"))
    }
}

pub(super) fn mounts(view: &View) -> std::io::Result<impl Iterator<Item = Mount> + use<>> {
    Ok(crate::mounts::read(&view.reference())?.into_iter())
}

/// Opens what was watched, to watch it again. What changes in it is what the program watches for.
pub(super) fn watched(state: &PathState, around: Around<'_>) -> Result<OwnedFd, MakeError> {
    let name = path::text(state);
    let found = around.root.look(&state.path).map_err(MakeError::at("opening", &*name))?;
    let stat = fstat(&found).map_err(MakeError::at("looking at", &*name))?;
    let modified_ns = path::state(&[], &stat).modified_ns;
    let was = PathState { bytes: stat.st_size as u64, modified_ns, ..state.clone() };
    let made_up = path::is_made_up(&found).map_err(MakeError::at("looking at", &*name))?;
    match path::difference(&was, &stat, made_up, around.same_boot) {
        Some(how) => Err(MakeError::Changed { path: name, how }),
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
