//! A plain copy of the memory of a tree: every present private page is read from outside, written to a file, and synced.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::Instant;

use rustix::fs::OFlags;
use rustix::process::{Pid, Signal, kill_process_group};
use torpor_linux::pagemap::{self, Filter, PAGE, category};
use torpor_linux::vm::{self, Remote};
use torpor_proc as proc;
use torpor_proc::maps::Area;

use super::ms;
use crate::error::Error;

/// Bytes of one read and write.
const BATCH: u64 = 1 << 20;
/// Private pages.
const PRIVATE: Filter =
    Filter { all_of: category::FILE, any_of: category::PRESENT, inverted: category::FILE, report: 0 };

/// Milliseconds for the tree of process group `group`, which is stopped during the copy. `direct`: with direct I/O.
pub(super) fn copy(group: u32, path: &Path, direct: bool) -> Result<f64, Error> {
    let wrong = Error::file("copy memory to", path);
    let signal = |signal| -> io::Result<()> {
        let group = Pid::from_raw(group.cast_signed()).ok_or(io::ErrorKind::InvalidInput)?;
        Ok(kill_process_group(group, signal)?)
    };
    let timed = || -> io::Result<f64> {
        let processes = processes(group)?;
        signal(Signal::STOP)?;
        let begun = Instant::now();
        let copied = write(&processes, path, direct);
        let copied = copied.map(|()| ms(begun.elapsed()));
        signal(Signal::CONT)?;
        fs::remove_file(path)?;
        copied
    };
    timed().map_err(wrong)
}

/// The processes of a group.
fn processes(group: u32) -> io::Result<Vec<i32>> {
    let mut found = Vec::new();
    for pid in proc::processes::all()? {
        // The process may have ended.
        if proc::stat::read(&format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.group == group.cast_signed()) {
            found.push(pid);
        }
    }
    Ok(found)
}

fn write(processes: &[i32], path: &Path, direct: bool) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    if direct {
        options.custom_flags(OFlags::DIRECT.bits().cast_signed());
    }
    let file = options.open(path)?;
    let mut buffer = vec![0; (BATCH + PAGE) as usize];
    let start = buffer.as_ptr().align_offset(PAGE as usize);
    let buffer = &mut buffer[start..start + BATCH as usize];
    // Position of the buffer in the file, and bytes in the buffer.
    let (mut offset, mut used) = (0, 0);
    let mut regions = Vec::new();
    for pid in processes {
        let pagemap = File::open(format!("/proc/{pid}/pagemap"))?;
        for Area { start: from, end: to, .. } in proc::maps::areas(*pid)?.into_iter().filter(is_copied) {
            pagemap::scan(&pagemap, from, to, PRIVATE, &mut regions)?;
            for region in &regions {
                let mut from = region.start;
                while from < region.end {
                    if used == buffer.len() {
                        file.write_all_at(buffer, offset - BATCH)?;
                        used = 0;
                    }
                    let len = ((region.end - from) as usize).min(buffer.len() - used);
                    vm::read(*pid, &[Remote { address: from, len }], &mut buffer[used..used + len])?;
                    (from, offset, used) = (from + len as u64, offset + len as u64, used + len);
                }
            }
        }
    }
    file.write_all_at(&buffer[..used], offset - used as u64)?;
    file.sync_data()
}

/// Readable private areas, without those of the kernel.
fn is_copied(area: &Area) -> bool {
    area.access.read && !area.access.shared && !area.name.starts_with("[v")
}
