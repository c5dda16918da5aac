//! How a large image gets to the disk: through the page cache, or past it.
//!
//! From the page cache it is restored twice as fast as from the disk, so that way is preferred where the machine has memory to
//! spare. But memory may be slow to come by: a virtual machine may have given what was free back to its host, which then
//! takes three seconds for each gigabyte of cache, four times as long as to write it past the cache. Nothing tells that
//! beforehand, so the time is measured while it is written ([`WriteMode`]).

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::time::{Duration, Instant};

use rustix::fs::{FallocateFlags, OFlags, fallocate};
use torpor_linux::meminfo::Memory;

/// Bytes of the page cache that the disk is told of at once.
const STARTED: u64 = 16 << 20;
/// Of the memory that is available, an image gets this part at most as cache.
const CACHE_SHARE: u64 = 2;
/// Bytes that are written in one way before the other one is considered.
const STRETCH: u64 = 16 << 20;
/// After so many stretches past the page cache, it is tried again.
const AGAIN: u32 = 32;
/// Seconds for a byte. A page cache that takes no longer is as fast as most disks.
const SLOW: f64 = 1e-9;
/// So many times faster it must be to go past the page cache, because reading it back is slower then.
const WORTH: f64 = 2.0;

/// Those that there are for a file.
#[derive(Debug)]
pub(super) struct ImageWriter {
    /// Into the page cache, and the disk is told at once: it works while more comes.
    cached: File,
    /// The machine has memory for that.
    spare: bool,
    /// Past the page cache, which costs no memory; reading it back needs the disk.
    direct: Option<File>,
    race: WriteMode,
}

impl ImageWriter {
    /// The ways for pages at `offset` of `file`, of which `expected` bytes are still to come.
    pub(super) fn open(file: &File, offset: u64, expected: u64) -> io::Result<Self> {
        let spare = Memory::now().is_ok_and(|memory| memory.available / CACHE_SHARE >= expected);
        if spare {
            // Only so that the file system finds a place for all of it at once. Not every one can, and what is too much is
            // cut off when the image is finished.
            let _ = fallocate(file, FallocateFlags::empty(), offset, expected.max(1));
        }
        // Not every file system has it.
        let direct = unbuffered(file, true).ok();
        Ok(Self { cached: file.try_clone()?, spare, direct, race: WriteMode::default() })
    }

    /// `bytes` and `offset` in whole pages.
    pub(super) fn write(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let begun = Instant::now();
        let direct = self.direct.as_ref().filter(|_| self.race.past || !self.spare);
        if direct.is_none_or(|file| file.write_all_at(bytes, offset).is_err()) {
            if direct.is_some() {
                // A file system may open files like that, and then not write to them. What else is wrong is found here, too.
                self.direct = None;
            }
            write_cached(&self.cached, bytes, offset)?;
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

/// Which way is taken: that through the page cache, unless it is slow and the one past it much faster.
#[derive(Debug, Default)]
struct WriteMode {
    /// It is that past the page cache.
    past: bool,
    /// Bytes of this stretch so far, and the time for them.
    bytes: u64,
    spent: Duration,
    /// Seconds for a byte of the last stretch of each, once it has been tried.
    cached: Option<f64>,
    direct: Option<f64>,
    /// Stretches since the way changed.
    stretches: u32,
}

impl WriteMode {
    /// So many bytes were written.
    fn add(&mut self, bytes: u64, spent: Duration) {
        self.bytes += bytes;
        self.spent += spent;
        if self.bytes < STRETCH {
            return;
        }
        let pace = self.spent.as_secs_f64() / self.bytes as f64;
        (self.bytes, self.spent) = (0, Duration::ZERO);
        self.stretches += 1;
        let changes = if self.past {
            self.direct = Some(pace);
            self.stretches >= AGAIN || self.cached.is_none_or(|cached| cached < WORTH * pace)
        } else {
            self.cached = Some(pace);
            pace > SLOW && self.direct.is_none_or(|direct| WORTH * direct < pace)
        };
        if changes {
            (self.past, self.stretches) = (!self.past, 0);
        }
    }
}

/// The same file, past the page cache.
pub fn unbuffered(file: &File, write: bool) -> io::Result<File> {
    let flags = OFlags::DIRECT.bits().cast_signed();
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    OpenOptions::new().read(!write).write(write).custom_flags(flags).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Which stretches go past the page cache, if a stretch takes so many milliseconds through it and past it from the one of this
    /// number on.
    fn turns(paces: &[(usize, [u64; 2])], stretches: usize) -> Vec<bool> {
        let mut race = WriteMode::default();
        let mut turns = Vec::new();
        for n in 0..stretches {
            let now = paces.iter().rev().find(|(from, _)| *from <= n).unwrap().1;
            turns.push(race.past);
            for _ in 0..8 {
                race.add(STRETCH / 8, Duration::from_millis(now[usize::from(race.past)]) / 8);
            }
        }
        turns
    }

    #[test]
    fn the_page_cache_is_left_only_for_what_is_much_faster() {
        assert_eq!(turns(&[(0, [10, 1])], 4), [false; 4], "it is not slow");
        assert_eq!(turns(&[(0, [40, 30])], 5), [false, true, false, false, false]);
        assert_eq!(turns(&[(0, [60, 20])], 5), [false, true, true, true, true]);
    }

    #[test]
    fn a_page_cache_that_becomes_slow_is_left() {
        assert_eq!(turns(&[(0, [10, 20]), (3, [50, 20])], 7), [false, false, false, false, true, true, true]);
    }

    #[test]
    fn a_page_cache_that_becomes_fast_is_found_again() {
        let turns = turns(&[(0, [50, 20]), (3, [10, 20])], 2 * AGAIN as usize);
        let found = turns.iter().rposition(|past| *past).unwrap();
        assert_eq!(found, AGAIN as usize);
        assert!(turns[1..=found].iter().all(|past| *past));
    }
}
