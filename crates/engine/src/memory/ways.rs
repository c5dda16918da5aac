//! How a large image gets to the disk: through the page cache, or past it.
//!
//! From the page cache it is restored twice as fast as from the disk, so that way is preferred where the machine has memory to
//! spare. But memory may be slow to come by: a virtual machine may have given what was free back to its host, which then
//! takes three seconds for each gigabyte of cache, four times as long as to write it past the cache. Nothing tells that
//! beforehand, so both ways are measured while they are used ([`Race`]).

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::time::{Duration, Instant};

use rustix::fs::{FallocateFlags, OFlags, fallocate};

/// Bytes of the page cache that the disk is told of at once.
const STARTED: u64 = 16 << 20;
/// Of the memory that is available, an image gets this part at most as cache.
const CACHE_SHARE: u64 = 2;
/// Bytes that are written in one way before the other one is considered.
const STRETCH: u64 = 16 << 20;
/// After so many stretches in one way the other one is measured again: either can change.
const AGAIN: u32 = 32;

/// Those that there are for a file; at least one.
#[derive(Debug)]
pub(super) struct Ways {
    /// Into the page cache, and the disk is told at once: it works while more comes.
    cached: Option<File>,
    /// Past the page cache, which costs no memory; reading it back needs the disk.
    direct: Option<File>,
    race: Race,
}

impl Ways {
    /// The ways for pages at `offset` of `file`, of which `expected` bytes are still to come.
    pub(super) fn open(file: &File, offset: u64, expected: u64) -> Option<Self> {
        let spare = available().is_some_and(|available| available / CACHE_SHARE >= expected);
        let cached = if spare { file.try_clone().ok() } else { None };
        if cached.is_some() {
            // Only so that the file system finds a place for all of it at once. Not every one can, and what is too much is
            // cut off when the image is finished.
            let _ = fallocate(file, FallocateFlags::empty(), offset, expected.max(1));
        }
        let direct = unbuffered(file, true).ok();
        (cached.is_some() || direct.is_some()).then(|| Self { cached, direct, race: Race::default() })
    }

    /// `bytes` and `offset` in whole pages.
    pub(super) fn write(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let begun = Instant::now();
        let direct = self.direct.as_ref().filter(|_| self.race.second || self.cached.is_none());
        let past = direct.map(|file| file.write_all_at(bytes, offset));
        match (past, &self.cached) {
            (Some(Ok(())), _) => {}
            (None, Some(file)) => write_cached(file, bytes, offset)?,
            (Some(Err(_)), Some(file)) => {
                // A file system may open files like that, and then not write to them.
                write_cached(file, bytes, offset)?;
                self.direct = None;
            }
            (Some(Err(error)), None) => return Err(error),
            (None, None) => return Err(io::ErrorKind::Unsupported.into()),
        }
        self.race.add(bytes.len() as u64, begun.elapsed());
        Ok(())
    }
}

fn write_cached(file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    file.write_all_at(bytes, offset)?;
    let end = offset + bytes.len() as u64;
    let (before, now) = (offset / STARTED * STARTED, end / STARTED * STARTED);
    if now > before {
        // Whether all of it is on the disk is asked for in the end.
        let _ = torpor_linux::sync::start_writing(file, before, now - before);
    }
    Ok(())
}

/// Which of two ways is the faster one at the moment: the first is tried, then the second, then it is whichever took less time
/// for its last stretch.
#[derive(Debug, Default)]
struct Race {
    /// The second one's turn.
    second: bool,
    /// Bytes of this stretch so far, and the time for them.
    bytes: u64,
    spent: Duration,
    /// Seconds for a byte of its last stretch, of each that has been tried.
    paces: [Option<f64>; 2],
    /// Stretches since the turn changed.
    stretches: u32,
}

impl Race {
    /// So many bytes were written.
    fn add(&mut self, bytes: u64, spent: Duration) {
        self.bytes += bytes;
        self.spent += spent;
        if self.bytes < STRETCH {
            return;
        }
        let pace = self.spent.as_secs_f64() / self.bytes as f64;
        self.paces[usize::from(self.second)] = Some(pace);
        self.stretches += 1;
        let other = self.paces[usize::from(!self.second)];
        if self.stretches >= AGAIN || other.is_none_or(|other| other < pace) {
            (self.second, self.stretches) = (!self.second, 0);
        }
        (self.bytes, self.spent) = (0, Duration::ZERO);
    }
}

/// The same file, past the page cache.
pub(crate) fn unbuffered(file: &File, write: bool) -> io::Result<File> {
    let flags = OFlags::DIRECT.bits().cast_signed();
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    OpenOptions::new().read(!write).write(write).custom_flags(flags).open(path)
}

/// Bytes of memory that can be had without taking it from programs.
fn available() -> Option<u64> {
    let text = crate::proc::read("/proc/meminfo").ok()?;
    let kilobytes: u64 = crate::proc::field(&text, "MemAvailable")?.strip_suffix(" kB")?.parse().ok()?;
    Some(kilobytes << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Milliseconds that each way takes for a stretch, from the stretch of this number on; which ways the stretches go.
    fn turns(paces: &[(usize, [u64; 2])], stretches: usize) -> Vec<bool> {
        let mut race = Race::default();
        let mut turns = Vec::new();
        for n in 0..stretches {
            let now = paces.iter().rev().find(|(from, _)| *from <= n).unwrap().1;
            turns.push(race.second);
            for _ in 0..8 {
                race.add(STRETCH / 8, Duration::from_millis(now[usize::from(race.second)]) / 8);
            }
        }
        turns
    }

    #[test]
    fn the_faster_way_is_taken() {
        assert_eq!(turns(&[(0, [10, 20])], 5), [false, true, false, false, false]);
        assert_eq!(turns(&[(0, [40, 20])], 5), [false, true, true, true, true]);
    }

    #[test]
    fn a_way_that_becomes_slow_is_left() {
        assert_eq!(turns(&[(0, [10, 20]), (3, [50, 20])], 7), [false, true, false, false, true, true, true]);
    }

    #[test]
    fn a_way_that_becomes_fast_again_is_found() {
        let turns = turns(&[(0, [50, 20]), (3, [10, 20])], 2 * AGAIN as usize);
        let found = turns.iter().rposition(|second| *second).unwrap();
        assert_eq!(found, AGAIN as usize);
        assert!(turns[1..=found].iter().all(|second| *second));
    }
}
