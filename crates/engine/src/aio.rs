//! Waiting for disk I/O that the kernel does by itself (`io_submit(2)`) into an app's memory.
//!
//! Such I/O goes on while the app is frozen, into pages that the kernel holds: dropped and refilled, the program would see
//! other pages than the kernel fills. It is over when, the app being frozen, every block device has been without requests
//! at one moment (`/proc/diskstats`, field 12): nothing new can have been submitted. A file system that is not on a block
//! device does such I/O before `io_submit` returns, or (over a network) in a way that cannot be seen; programs use it on
//! local disks.

use std::io;
use std::time::{Duration, Instant};

use crate::memory::layout::Area;
use crate::proc;

/// How long the app is held frozen for it; a busy disk is tried again at the next sleep.
const PATIENCE: Duration = Duration::from_millis(100);
/// Between two looks; the kernel offers no event.
const PAUSE: Duration = Duration::from_micros(200);

/// A process with these areas can have such I/O under way: one is the ring that its completions go to.
pub(crate) fn used(areas: &[Area]) -> bool {
    areas.iter().any(|area| area.name.starts_with("/[aio]"))
}

/// Waits until nothing is under way; `false` if something still is.
pub(crate) fn drained() -> io::Result<bool> {
    let begun = Instant::now();
    loop {
        if in_flight(&proc::read("/proc/diskstats")?) == 0 {
            return Ok(true);
        }
        if begun.elapsed() > PATIENCE {
            return Ok(false);
        }
        std::thread::sleep(PAUSE);
    }
}

/// Requests under way on all block devices.
fn in_flight(diskstats: &str) -> u64 {
    let requests = diskstats.lines().filter_map(|line| line.split_ascii_whitespace().nth(11)?.parse::<u64>().ok());
    requests.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_of_all_devices_count() {
        let text = " 254 0 vda 10 1 2 3 4 5 6 7 2 9 10 0 0\n 254 1 vda1 1 1 1 1 1 1 1 1 0 1 1\n7 0 loop0 0 0 0 0 0 0 0 0 1 0 0\n";
        assert_eq!(in_flight(text), 3);
        assert_eq!(in_flight(""), 0);
    }
}
