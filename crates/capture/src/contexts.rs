//! AIO contexts of a stopped process: whether their rings can be taken as they are.

use std::collections::HashSet;
use std::io;

use super::remote::Remote;
use super::requests::UnderWay;
use torpor_linux::uapi::syscall;
use torpor_proc::maps::Area;
use torpor_proc::smaps::Mapping;
use torpor_process::aio;
use torpor_process::blocker::{Blocker, Place};
use torpor_process::trace::TraceError;

/// Calls of one list.
const CALLS: usize = 64;

/// Rings among these areas that are no context's of the process: a forked process inherits the memory, but not the context.
pub(super) fn dead(remote: &Remote<'_>, areas: &[Area]) -> Result<Vec<(u64, u64)>, TraceError> {
    let mut dead = Vec::new();
    let rings: Vec<&Area> = areas.iter().filter(|area| aio::is_ring(area)).collect();
    for rings in rings.chunks(CALLS) {
        let mut list = remote.questions();
        // Of no requests at all.
        let asked: Vec<_> =
            rings.iter().map(|ring| list.ask("io_submit", syscall::IO_SUBMIT, &[ring.start, 0, 0])).collect();
        let answers = remote.ask(0, list)?;
        for (ring, asked) in rings.iter().zip(asked) {
            match answers.result(asked) {
                Ok(_) => {}
                Err(TraceError::Call { error, .. }) if error.kind() == io::ErrorKind::InvalidInput => {
                    dead.push((ring.start, ring.end));
                }
                Err(error) => return Err(error),
            }
        }
    }
    Ok(dead)
}

fn refuse(pid: i32, (start, end): (u64, u64)) -> Blocker {
    let what = "the ring of an AIO context that a process has inherited by fork (io_setup)";
    Blocker::new(pid, Place::Memory(start, end), what, "start it without native AIO")
}

/// Of a context whose requests are not all answered.
pub(super) fn busy(pid: i32, (start, end): (u64, u64), under_way: &UnderWay) -> Blocker {
    let what = match under_way {
        UnderWay::Some(count) => format!(
            "an AIO context with {count} requests under way: they wait for descriptors (IOCB_CMD_POLL), or for I/O (io_submit)"
        ),
        UnderWay::Unknown(why) => format!("an AIO context whose requests cannot be counted: {why}"),
    };
    Blocker::new(pid, Place::Memory(start, end), what, "try again when they are answered")
}

/// As far as it can be seen without asking: rings that are in `known`, which is those of other processes of the tree.
pub(super) fn inherited(pid: i32, mappings: &[Mapping], known: &mut HashSet<u64>) -> Vec<Blocker> {
    let rings = mappings.iter().filter(|mapping| aio::is_ring(&mapping.area));
    let twice = rings.filter(|ring| !known.insert(ring.inode));
    twice.map(|ring| refuse(pid, (ring.area.start, ring.area.end))).collect()
}

/// What is in the way of taking them. `quiet`: the process has been held since nothing was under way.
pub(super) fn obstacles(pid: i32, areas: &[Area], dead: &[(u64, u64)], quiet: bool) -> io::Result<Vec<Blocker>> {
    let mut found: Vec<Blocker> = dead.iter().map(|ring| refuse(pid, *ring)).collect();
    if !quiet && aio::used(areas) && !aio::drained()? {
        found.push(Blocker::new(pid, Place::Process, "disk I/O under way (io_submit)", "try again later"));
    }
    Ok(found)
}
