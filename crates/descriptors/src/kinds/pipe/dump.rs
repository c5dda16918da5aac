//! Dumping a pipe or FIFO.

use std::collections::HashMap;
use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_getpipe_size, fcntl_setpipe_size, pipe_with, tee};
use torpor_image::tree::{FileKind, Pipe, PipeEnd, PipeId};

use super::{ACCESS, PACKET_BYTES};
use crate::contract::Request;
use crate::contract::reason::{Described, Reason};
use crate::kinds::path;
use crate::list::{Item, List};

/// `O_EXCL` of a pipe: the kernel's notifications go to it.
const NOTIFICATIONS: u32 = 0o200;

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
