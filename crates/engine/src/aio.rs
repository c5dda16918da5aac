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
use crate::wait::restart::Memory;

/// How long the app is held frozen for it; a busy disk is tried again at the next sleep.
const PATIENCE: Duration = Duration::from_millis(100);
/// Between two looks; the kernel offers no event.
const PAUSE: Duration = Duration::from_micros(200);

/// A process with these areas can have such I/O under way: one is the ring that its completions go to.
pub(crate) fn used(areas: &[Area]) -> bool {
    areas.iter().any(|area| area.name.starts_with("/[aio]"))
}

/// Whether the ring at `context` (what `io_setup(2)` gave) holds answers that nobody has taken. A thread that waits in
/// `io_getevents(2)` for answers that came while it was frozen would never be woken: it is not the descriptors that tell.
pub(crate) fn answered(memory: &dyn Memory, context: u64) -> io::Result<bool> {
    // The kernel's struct aio_ring: id, length, head, tail.
    let mut ring = [0; 16];
    memory.read(context, &mut ring)?;
    Ok(ring[8..12] != ring[12..16])
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

    struct Ring([u32; 4]);

    impl Memory for Ring {
        fn read(&self, address: u64, buffer: &mut [u8]) -> io::Result<()> {
            let bytes: Vec<u8> = self.0.iter().flat_map(|word| word.to_ne_bytes()).collect();
            buffer.copy_from_slice(&bytes[address as usize..][..buffer.len()]);
            Ok(())
        }
    }

    #[test]
    fn a_ring_holds_answers_from_its_head_to_its_tail() {
        assert!(!answered(&Ring([9, 128, 5, 5]), 0).unwrap());
        assert!(answered(&Ring([9, 128, 5, 7]), 0).unwrap());
    }

    #[test]
    fn requests_of_all_devices_count() {
        let text = " 254 0 vda 10 1 2 3 4 5 6 7 2 9 10 0 0\n 254 1 vda1 1 1 1 1 1 1 1 1 0 1 1\n7 0 loop0 0 0 0 0 0 0 0 0 1 0 0\n";
        assert_eq!(in_flight(text), 3);
        assert_eq!(in_flight(""), 0);
    }
}
