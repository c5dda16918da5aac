//! Opening what the new processes inherit.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{FileType, MemfdFlags, Mode, OFlags, fstat, ftruncate, memfd_create, open};
use torpor_image::tree::{PathState, Tree};
use torpor_linux::restorer::{CODE_BYTES, SPARE_NUMBERS, interpreter, seed};

use super::RestoreError;
use super::compile::HOLE_OFFSET;
use super::plan::Plan;
use super::staged::{Access, Staged};
use crate::files::Made;

/// Everything that is inherited, in the order of [`Staged`].
pub(super) struct Opened {
    /// Open files and shared memory.
    pub(super) made: Made,
    paths: Vec<OwnedFd>,
    image: OwnedFd,
    blob: OwnedFd,
    /// The seed's executable.
    pub(super) seed: OwnedFd,
}

/// Opens the paths that the tree maps or stands in; says of each that has changed what has.
pub(super) fn paths(staged: &Staged<'_>) -> Result<Vec<OwnedFd>, Vec<String>> {
    let mut opened = Vec::with_capacity(staged.paths.len());
    let mut wrong = Vec::new();
    for (path, access) in &staged.paths {
        match open_path(path, *access) {
            Ok(fd) => opened.push(fd),
            Err(what) => wrong.push(format!("{}: {what}", String::from_utf8_lossy(&path.path))),
        }
    }
    if wrong.is_empty() { Ok(opened) } else { Err(wrong) }
}

fn open_path(path: &PathState, access: Access) -> Result<OwnedFd, String> {
    let flags = match access {
        Access::Read => OFlags::RDONLY,
        Access::ReadWrite => OFlags::RDWR,
        Access::Place => OFlags::PATH | OFlags::DIRECTORY,
    };
    let flags = flags | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
    let name = Path::new(OsStr::from_bytes(&path.path));
    let fd = open(name, flags, Mode::empty()).map_err(|error| io::Error::from(error).to_string())?;
    let stat = fstat(&fd).map_err(|error| io::Error::from(error).to_string())?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::from_raw_mode(path.mode) {
        return Err("it is of another kind than at the capture".to_owned());
    }
    if stat.st_dev != path.device || stat.st_ino != path.inode {
        return Err("it is another file than at the capture".to_owned());
    }
    if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile {
        if stat.st_size as u64 != path.bytes {
            return Err(format!("it has {} bytes, and had {} at the capture", stat.st_size, path.bytes));
        }
        let modified = stat.st_mtime.wrapping_mul(1_000_000_000).wrapping_add(stat.st_mtime_nsec as i64);
        if modified != path.modified_ns {
            return Err("it has been changed since the capture".to_owned());
        }
    }
    Ok(fd)
}

/// A memory file with these bytes. `run`: it will be executed.
fn memory(name: &str, parts: &[&[u8]], run: bool) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | if run { MemfdFlags::EXEC } else { MemfdFlags::empty() };
    let fd = match memfd_create(name, flags) {
        // Before Linux 6.3 every memory file can be executed.
        Err(rustix::io::Errno::INVAL) => memfd_create(name, MemfdFlags::CLOEXEC)?,
        other => other?,
    };
    let mut file = File::from(fd);
    for part in parts {
        file.write_all(part)?;
    }
    Ok(file.into())
}

impl Opened {
    /// Makes the blob and the seed and puts everything together.
    pub(super) fn new(
        tree: &Tree,
        staged: &Staged<'_>,
        plan: &Plan,
        made: Made,
        paths: Vec<OwnedFd>,
        image: &File,
    ) -> Result<Self, RestoreError> {
        debug_assert_eq!((made.files.len(), made.memories.len()), (tree.files.len(), tree.memories.len()));
        let mut code = [0; CODE_BYTES];
        code[..interpreter().len()].copy_from_slice(interpreter());
        let blob = memory("torpor-restore", &[&code, &plan.data], false);
        let blob = blob.map_err(|error| RestoreError::Own("making the blob", error))?;
        ftruncate(&blob, 2 * HOLE_OFFSET).map_err(|error| RestoreError::Own("making the blob", error.into()))?;
        let first = plan.tasks.first().map_or(0, |task| task.first);
        let bytes = seed(plan.address, staged.blob(), plan.data.len() as u64, first);
        let seed = memory("torpor-seed", &[&bytes], true);
        let image =
            image.try_clone().map_err(|error| RestoreError::Own("duplicating the image's descriptor", error))?;
        let mut opened = Self {
            made,
            paths,
            image: image.into(),
            blob,
            seed: seed.map_err(|error| RestoreError::Own("making the seed", error))?,
        };
        let taken = staged.first..staged.first + staged.count() as i32 + SPARE_NUMBERS;
        for fd in opened.own() {
            if taken.contains(&fd.as_raw_fd()) {
                let moved = rustix::io::fcntl_dupfd_cloexec(&*fd, taken.end);
                *fd = moved.map_err(|error| RestoreError::Own("moving a descriptor", error.into()))?;
            }
        }
        Ok(opened)
    }

    fn own(&mut self) -> impl Iterator<Item = &mut OwnedFd> {
        let made = self.made.files.iter_mut().flatten().chain(&mut self.made.memories);
        made.chain(&mut self.paths).chain([&mut self.image, &mut self.blob, &mut self.seed])
    }

    /// What is inherited. In the place of a file that the processes open themselves is the image.
    pub(super) fn inherited(&self) -> Vec<BorrowedFd<'_>> {
        let image = self.image.as_fd();
        let files = self.made.files.iter().map(|file| file.as_ref().map_or(image, AsFd::as_fd));
        let rest = self.made.memories.iter().chain(&self.paths).map(AsFd::as_fd);
        files.chain(rest).chain([image, self.blob.as_fd()]).collect()
    }
}
