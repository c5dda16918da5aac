//! Open files of a process: names that can be opened again. Everything else is refused.

use std::fs;
use std::io;

use torpor_image::tree::{Descriptor, FileKind, OpenFile, Owner};

use super::space::linked;
use crate::obstacle::{Obstacle, Place};
use crate::proc;

/// `O_CLOEXEC` in `/proc/PID/fdinfo`.
const CLOSE_ON_EXEC: u32 = 0o2_000_000;

/// Open files of a tree, so far.
#[derive(Debug, Default)]
pub(super) struct Files {
    pub(super) list: Vec<OpenFile>,
}

impl Files {
    /// The descriptors of a process.
    pub(super) fn collect(&mut self, pid: i32, obstacles: &mut Vec<Obstacle>) -> io::Result<Vec<Descriptor>> {
        let mut found = Vec::new();
        for (fd, target) in proc::descriptors(pid)? {
            let link = format!("/proc/{pid}/fd/{fd}");
            let info = proc::read(&format!("/proc/{pid}/fdinfo/{fd}"))?;
            let flags = proc::field(&info, "flags").and_then(|flags| u32::from_str_radix(flags, 8).ok());
            let position = proc::field(&info, "pos").and_then(|position| position.parse().ok());
            let (Some(flags), Some(position)) = (flags, position) else { return Err(proc::unexpected(&link)) };
            let mode = fs::metadata(&link)?;
            let plain = mode.is_file() || mode.is_dir() || target == "/dev/null";
            let kind = if !plain && (0..=2).contains(&fd) {
                FileKind::Outside { name: target }
            } else if !target.starts_with('/') || !plain {
                obstacles.push(Obstacle::new(pid, Place::Descriptor(fd), target, ""));
                continue;
            } else {
                match linked(&link)? {
                    Ok(path) => FileKind::Path(path),
                    Err(why) => {
                        obstacles.push(Obstacle::new(pid, Place::Descriptor(fd), why, ""));
                        continue;
                    }
                }
            };
            found.push(Descriptor { fd, file: self.list.len() as u32, close_on_exec: flags & CLOSE_ON_EXEC != 0 });
            let flags = flags & !CLOSE_ON_EXEC;
            self.list.push(OpenFile { kind, flags, position, owner: Owner::default(), locks: Vec::new() });
        }
        Ok(found)
    }
}
