//! Pipes and FIFOs.
//!
//! Contents are copied with `tee(2)`, which leaves them where they are, into a pipe with as many places. Packets
//! (`O_DIRECT`) are kept apart: one read gives one packet, whatever the flags are by now.
//!
//! An end that is open nowhere in the tree is open outside, or nowhere any more; polling the other end tells which.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, OFlags, fcntl_getfl, fcntl_setfl, fstat};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_getpipe_size, fcntl_setpipe_size, pipe_with, tee};
use torpor_image::tree::{FileId, FileKind, OpenFile, Pipe, PipeEnd, PipeId};

use crate::contract::Request;
use crate::contract::error::RestoreFileError;
use crate::contract::flags::ASYNC;
use crate::contract::reason::{Described, Reason};
use crate::filesystem;
use crate::filesystem::{Root, reopen};
use crate::kinds::path;
use crate::list::{Item, List};

const ACCESS: u32 = 3;
const READ_WRITE: u32 = 2;
/// `O_EXCL` of a pipe: the kernel's notifications go to it.
const NOTIFICATIONS: u32 = 0o200;
const LARGE_FILE: u32 = 0o100_000;
/// A write of up to so many bytes is one packet.
const PACKET_BYTES: usize = 4096;

/// Pipes that were found.
#[derive(Debug, Default)]
pub(crate) struct Pipes {
    pipes: Vec<Pipe>,
    known: HashMap<(u64, u64), PipeId>,
}

fn end(flags: u32) -> PipeEnd {
    match flags & ACCESS {
        0 => PipeEnd::Read,
        1 => PipeEnd::Write,
        _ => PipeEnd::Both,
    }
}

impl Pipes {
    pub(crate) fn finish(self) -> Vec<Pipe> {
        self.pipes
    }

    /// A pipe's or FIFO's end.
    pub(crate) fn describe(&mut self, request: &Request<'_>, list: &List, item: &Item) -> Described<FileKind> {
        let fifo = item.link.starts_with(b"/");
        if item.info.flags & NOTIFICATIONS != 0 && !fifo {
            return Err(Reason::parkable("a pipe for notifications of the kernel", "close it before the checkpoint"));
        }
        let ends: Vec<&Item> = list.same_object(item.object()).iter().map(|file| list.item(*file)).collect();
        within(&ends, item)?;
        let path = if fifo { Some(path::describe(request, item)?) } else { None };
        let pipe = match self.known.get(&item.object()) {
            Some(known) => *known,
            None => {
                let pipe = take(&ends)?;
                self.pipes.push(pipe);
                let id = (self.pipes.len() - 1) as PipeId;
                self.known.insert(item.object(), id);
                id
            }
        };
        let end = end(item.info.flags);
        Ok(match path {
            Some(FileKind::Path(path)) => FileKind::Fifo { path, pipe, end },
            _ => FileKind::Pipe { pipe, end },
        })
    }
}

/// The other end is in the tree as well, or closed everywhere.
fn within(ends: &[&Item], item: &Item) -> Described<()> {
    let has =
        |wanted| ends.iter().any(|other| matches!(end(other.info.flags), end if end == wanted || end == PipeEnd::Both));
    let (other, closed, name) = match end(item.info.flags) {
        PipeEnd::Both => return Ok(()),
        PipeEnd::Read => (PipeEnd::Write, has_no_writer(&item.fd)?, "written to"),
        PipeEnd::Write => (PipeEnd::Read, polled(&item.fd)?.contains(PollFlags::ERR), "read"),
    };
    if has(other) || closed {
        return Ok(());
    }
    let what = format!("{} is {name} by a process outside of the tree", item.name());
    Err(Reason::outside(what, "redirect it to a file, or checkpoint a tree that contains both"))
}

fn polled(fd: &OwnedFd) -> rustix::io::Result<PollFlags> {
    let mut polled = [PollFd::new(fd, PollFlags::IN | PollFlags::OUT)];
    poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))?;
    Ok(polled[0].revents())
}

/// Of a FIFO that nobody has ever written to, polling says nothing; copying from it while it is empty does.
fn has_no_writer(fd: &OwnedFd) -> rustix::io::Result<bool> {
    if polled(fd)?.contains(PollFlags::HUP) {
        return Ok(true);
    }
    let (_read, write) = pipe_with(PipeFlags::CLOEXEC)?;
    Ok(tee(fd, &write, 1, SpliceFlags::NONBLOCK) == Ok(0))
}

/// The pipe behind these ends.
fn take(ends: &[&Item]) -> Described<Pipe> {
    let Some(any) = ends.first() else { return Err(Reason::Failed(Errno::BADF.into())) };
    let capacity = fcntl_getpipe_size(&any.fd)?;
    // Without a reader the contents are lost already.
    let reader = ends.iter().find(|item| end(item.info.flags) != PipeEnd::Write);
    let contents = match reader {
        Some(reader) => contents(&reader.fd, capacity)?,
        None => Vec::new(),
    };
    Ok(Pipe { capacity: u32::try_from(capacity).unwrap_or(u32::MAX), contents })
}

fn contents(pipe: &OwnedFd, capacity: usize) -> Described<Vec<Vec<u8>>> {
    let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    if let Err(error) = fcntl_setpipe_size(&write, capacity) {
        let what = format!("a pipe of {capacity} bytes cannot be copied ({error})");
        return Err(Reason::parkable(what, "raise fs.pipe-max-size, or run with CAP_SYS_RESOURCE"));
    }
    let mut left = match tee(pipe, &write, usize::MAX >> 1, SpliceFlags::NONBLOCK) {
        Err(Errno::AGAIN) => 0,
        copied => copied?,
    };
    let mut contents = Vec::new();
    let mut buffer = vec![0; capacity.max(PACKET_BYTES)];
    // Not to the end of the pipe: a process that another thread starts at this moment has a writing end, too.
    while left > 0 {
        let bytes = rustix::io::read(&read, &mut buffer)?;
        if bytes == 0 {
            return Err(Reason::Failed(Errno::IO.into()));
        }
        contents.push(buffer[..bytes].to_vec());
        left = left.saturating_sub(bytes);
    }
    Ok(contents)
}

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
