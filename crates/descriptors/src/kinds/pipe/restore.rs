//! Restoring a pipe or FIFO.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{FileType, OFlags, fcntl_getfl, fcntl_setfl, fstat};
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};
use torpor_image::tree::{FileId, FileKind, OpenFile, Pipe, PipeId};

use super::{ACCESS, LARGE_FILE, READ_WRITE};
use crate::contract::error::RestoreFileError;
use crate::contract::flags::ASYNC;
use crate::filesystem;
use crate::filesystem::{Root, reopen};

/// A pipe that was made, with the ends that nobody has taken yet.
#[derive(Debug)]
pub(crate) struct MadePipe {
    read: OwnedFd,
    write: OwnedFd,
    /// They are fresh ends of a pipe, to be given out as they are.
    fresh: (bool, bool),
}

/// Makes a pipe with its contents, behind `files`.
pub(crate) fn restore(pipe: &Pipe, files: &[&OpenFile], root: Root<'_>) -> Result<MadePipe, RestoreFileError> {
    let fifo = files.iter().find_map(|file| match &file.kind {
        FileKind::Fifo { path, .. } => Some(path),
        _ => None,
    });
    let name = fifo.map_or_else(|| "a pipe".to_owned(), filesystem::text);
    let mut modified_ns = None;
    let (read, write) = match fifo {
        None => pipe_with(PipeFlags::CLOEXEC).map_err(RestoreFileError::at("making", &*name))?,
        Some(state) => {
            // Opened for both, so that no opening waits.
            let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::NOFOLLOW;
            let both = match state.gone {
                Some(owner) => filesystem::made_and_removed(state, owner, flags, root),
                None => root.open(&state.path, flags),
            };
            let both = both.map_err(RestoreFileError::at("opening", &*name))?;
            let found = fstat(&both).map_err(RestoreFileError::at("looking at", &*name))?;
            let other = state.gone.is_none() && !state.is_inode(found.st_ino);
            if FileType::from_raw_mode(found.st_mode) != FileType::Fifo || other {
                return Err(RestoreFileError::Changed { path: name, how: "it is another file" });
            }
            let is = filesystem::state(&state.path, &found).modified_ns;
            modified_ns = Some(if state.gone.is_some() { state.modified_ns } else { is });
            (rustix::io::fcntl_dupfd_cloexec(&both, 0).map_err(RestoreFileError::at("duplicating", &*name))?, both)
        }
    };
    fcntl_setpipe_size(&write, pipe.capacity as usize).map_err(RestoreFileError::at("setting the size of", &*name))?;
    fill(&write, pipe, files, &name)?;
    if let Some(modified_ns) = modified_ns {
        // Filling is no change of the program's.
        filesystem::set_times(write.as_fd(), None, modified_ns)
            .map_err(RestoreFileError::at("setting the times of", &*name))?;
    }
    let fresh = fifo.is_none();
    Ok(MadePipe { read, write, fresh: (fresh, fresh) })
}

fn fill(write: &OwnedFd, pipe: &Pipe, files: &[&OpenFile], name: &str) -> Result<(), RestoreFileError> {
    let flags = fcntl_getfl(write).map_err(RestoreFileError::at("looking at", name))?;
    let packets = files.iter().any(|file| file.flags & OFlags::DIRECT.bits() != 0) || pipe.contents.len() > 1;
    let mode = if packets { OFlags::DIRECT } else { OFlags::empty() };
    fcntl_setfl(write, flags | OFlags::NONBLOCK | mode).map_err(RestoreFileError::at("preparing", name))?;
    for part in &pipe.contents {
        let mut rest = part.as_slice();
        while !rest.is_empty() {
            let written = rustix::io::write(write, rest).map_err(RestoreFileError::at("filling", name))?;
            rest = &rest[written..];
        }
    }
    fcntl_setfl(write, flags).map_err(RestoreFileError::at("preparing", name))
}

impl MadePipe {
    /// An end as `file` had it open.
    pub(crate) fn open(&mut self, file: &OpenFile) -> Result<OwnedFd, RestoreFileError> {
        const NAME: &str = "an end of a pipe";
        let reads = file.flags & ACCESS == 0;
        let (kept, fresh) = if reads { (&self.read, &mut self.fresh.0) } else { (&self.write, &mut self.fresh.1) };
        let born_with_it = file.flags & (READ_WRITE | LARGE_FILE) == 0;
        if std::mem::replace(fresh, *fresh && !born_with_it) && born_with_it {
            let end = rustix::io::fcntl_dupfd_cloexec(kept, 0).map_err(RestoreFileError::at("duplicating", NAME))?;
            let flags = OFlags::from_bits_retain(file.flags & !ASYNC);
            fcntl_setfl(&end, flags).map_err(RestoreFileError::at("setting flags of", NAME))?;
            return Ok(end);
        }
        reopen(kept.as_fd(), file.flags & !ASYNC).map_err(RestoreFileError::at("opening", NAME))
    }
}

/// Files of the tree behind each pipe.
pub(crate) fn by_pipe(files: &[OpenFile]) -> HashMap<PipeId, Vec<FileId>> {
    let mut found: HashMap<PipeId, Vec<FileId>> = HashMap::new();
    for (n, file) in files.iter().enumerate() {
        if let FileKind::Pipe { pipe, .. } | FileKind::Fifo { pipe, .. } = &file.kind {
            found.entry(*pipe).or_default().push(n as FileId);
        }
    }
    found
}
