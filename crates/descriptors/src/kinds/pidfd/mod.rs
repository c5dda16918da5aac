//! `pidfd_open(2)`: a process of the tree, or one that has ended and been reaped.
//!
//! A living process's is opened by the process that has it, when all processes are there.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use torpor_image::tree::{FileKind, OpenFile};
use torpor_linux::exited;

use crate::contract::Request;
use crate::contract::error::RestoreFileError;
use crate::contract::flags::NONBLOCK;
use crate::contract::reason::{Described, Reason};
use crate::list::Item;
use crate::locks;

/// `PIDFD_THREAD`: `O_EXCL`.
const THREAD: u32 = 0o200;

pub(crate) fn describe(request: &Request<'_>, item: &Item) -> Described<FileKind> {
    let pid: i32 = item.info.number("Pid")?;
    match request.ids.get(&pid) {
        // Threads are made when descriptors are in their places; one that is kept is of the thread that has ended.
        Some(_) if item.info.flags & THREAD != 0 && !request.processes.contains(&pid) => {
            Err(Reason::refused("a descriptor of a thread", "let the program close it"))
        }
        Some(inside) => Ok(FileKind::Process { pid: *inside }),
        None if pid <= 0 && request.view.in_sandbox() => {
            // One made anew would be of another pid namespace, or take an id there that may be needed.
            let what = "a descriptor of a process that has ended and been waited for";
            Err(Reason::parkable(what, "let the program close it"))
        }
        None if pid <= 0 => ended_process(item),
        None => {
            let what = format!("a descriptor of process {pid}, outside of the tree");
            Err(Reason::parkable(what, "checkpoint a tree that contains that process"))
        }
    }
}

fn ended_process(item: &Item) -> Described<FileKind> {
    // Where the kernel does not keep how it ended, nobody can ask.
    let status = exited::status(&item.fd)?.unwrap_or(0);
    if !exited::can_be(status) {
        let what = "a descriptor of a process that has ended with a core file, and been waited for";
        return Err(Reason::parkable(what, "let the program close it"));
    }
    Ok(FileKind::Ended { process: item.stat.st_ino, status })
}

/// Descriptors of processes that have ended: those of one process are of one again.
pub(crate) fn restore_ended(files: &[OpenFile], made: &mut [Option<OwnedFd>]) -> Result<(), RestoreFileError> {
    let mut processes: BTreeMap<(u64, i32), Vec<usize>> = BTreeMap::new();
    for (id, file) in files.iter().enumerate().filter(|(id, _)| made[*id].is_none()) {
        if let FileKind::Ended { process, status } = file.kind {
            processes.entry((process, status)).or_default().push(id);
        }
    }
    for ((_, status), ids) in processes {
        const NAME: &str = "a descriptor of a process that has ended";
        let flags: Vec<u32> = ids.iter().map(|id| files[*id].flags & (NONBLOCK | THREAD)).collect();
        let opened = exited::descriptors(status, &flags).map_err(RestoreFileError::at("making", NAME))?;
        for (id, fd) in ids.into_iter().zip(opened) {
            locks::set_flags(&fd, &files[id], NAME)?;
            made[id] = Some(fd);
        }
    }
    Ok(())
}
