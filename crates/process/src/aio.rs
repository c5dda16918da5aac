//! Waiting for disk I/O that the kernel does by itself (`io_submit(2)`) into an app's memory.
//!
//! Such I/O goes on while the app is frozen, into pages that the kernel holds: dropped and refilled, the program would see
//! other pages than the kernel fills. It is over when, the app being frozen, every block device has been without requests
//! at one moment (`/proc/diskstats`, field 12): nothing new can have been submitted. A file system that is not on a block
//! device does such I/O before `io_submit` returns, or (over a network) in a way that cannot be seen; programs use it on
//! local disks.

use std::io;
use std::time::{Duration, Instant};

use torpor_image::tree::{Backing, IO_EVENT_BYTES, io_event_address, io_event_runs, io_events};

use crate::wait::restart::Memory;
use torpor_proc as proc;
use torpor_proc::maps::Area;

/// How long the app is held frozen for it; a busy disk is tried again at the next sleep.
const PATIENCE: Duration = Duration::from_millis(100);
/// Between two looks; the kernel offers no event.
const PAUSE: Duration = Duration::from_micros(200);

/// A process with these areas can have such I/O under way: one is the ring that its completions go to.
pub fn used(areas: &[Area]) -> bool {
    areas.iter().any(is_ring)
}

/// It is the ring of a context, or a part of one, or one that was inherited by a fork and is dead.
pub fn is_ring(area: &Area) -> bool {
    area.name.starts_with("/[aio]")
}

/// The ring as an image has it; `None` if it is not what the kernel makes.
pub fn ring(area: &Area, memory: &dyn Memory) -> io::Result<Option<Backing>> {
    const MAGIC: u32 = 0xa10a_10a1;
    let mut header = [0; IO_EVENT_BYTES as usize];
    memory.read(area.start, &mut header)?;
    // id, places, head, tail, magic, two words of features, bytes of the header.
    let mut words = header.chunks_exact(4).map(|word| u32::from_ne_bytes(std::array::from_fn(|n| word[n])));
    let [_, places, head, tail, magic, _, _, header_bytes] = std::array::from_fn(|_| words.next().unwrap_or(0));
    let whole = u64::from(places) == io_events(area.end - area.start);
    let usual = magic == MAGIC && u64::from(header_bytes) == IO_EVENT_BYTES && area.access.shared;
    if !whole || !usual || head >= places || tail >= places {
        return Ok(None);
    }
    let mut waiting = Vec::new();
    for (first, end) in io_event_runs(head, tail, places) {
        let from = waiting.len();
        waiting.resize(from + ((end - first) as usize) * IO_EVENT_BYTES as usize, 0);
        memory.read(io_event_address(area.start, first), &mut waiting[from..])?;
    }
    Ok(Some(Backing::Aio { head, waiting }))
}

/// Whether the ring at `context` (what `io_setup(2)` gave) holds answers that nobody has taken. A thread that waits in
/// `io_getevents(2)` for answers that came while it was frozen would never be woken: it is not the descriptors that tell.
pub fn answered(memory: &dyn Memory, context: u64) -> io::Result<bool> {
    // The kernel's struct aio_ring: id, length, head, tail.
    let mut ring = [0; 16];
    memory.read(context, &mut ring)?;
    Ok(ring[8..12] != ring[12..16])
}

/// Waits until nothing is under way; `false` if something still is.
pub fn drained() -> io::Result<bool> {
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
pub fn in_flight(diskstats: &str) -> u64 {
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

    fn area(access: torpor_proc::maps::Access) -> Area {
        Area { start: 0, end: 4096, access, name: "/[aio] (deleted)".to_owned() }
    }

    #[test]
    fn what_waits_in_a_ring_is_read_in_its_order() {
        let access = torpor_proc::maps::Access { read: true, write: true, shared: true };
        let ring_of = |header: [u32; 8]| {
            let mut bytes: Vec<u8> = header.iter().flat_map(|word| word.to_ne_bytes()).collect();
            (0..127_u8).for_each(|n| bytes.extend([n; 32]));
            Bytes(bytes)
        };
        let header = [0, 127, 125, 2, 0xa10a_10a1, 1, 0, 32];
        let found = ring(&area(access), &ring_of(header)).unwrap();
        let waiting = [125, 126, 0, 1].map(|n| [n; 32]).concat();
        assert_eq!(found, Some(Backing::Aio { head: 125, waiting }));
        for (word, value) in [(1, 126), (2, 127), (3, 127), (4, 1), (7, 64)] {
            let mut header = header;
            header[word] = value;
            assert_eq!(ring(&area(access), &ring_of(header)).unwrap(), None);
        }
        assert_eq!(ring(&area(torpor_proc::maps::Access { shared: false, ..access }), &ring_of(header)).unwrap(), None);
    }

    struct Bytes(Vec<u8>);

    impl Memory for Bytes {
        fn read(&self, address: u64, buffer: &mut [u8]) -> io::Result<()> {
            buffer.copy_from_slice(&self.0[address as usize..][..buffer.len()]);
            Ok(())
        }
    }

    #[test]
    fn requests_of_all_devices_count() {
        let text = " 254 0 vda 10 1 2 3 4 5 6 7 2 9 10 0 0\n 254 1 vda1 1 1 1 1 1 1 1 1 0 1 1\n7 0 loop0 0 0 0 0 0 0 0 0 1 0 0\n";
        assert_eq!(in_flight(text), 3);
        assert_eq!(in_flight(""), 0);
    }
}
