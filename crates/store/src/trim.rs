//! Giving back the space of pages that an image, behind others in its file, does not refer to.
//!
//! What an image does not refer to is dead for every image that is written behind it as well: a later one refers only to pages of this one, and to
//! its own. So it may be woken from, consumed or removed meanwhile. The generations in front of it must not be needed any more.

use std::fs::File;
use std::io;
use std::ops::Range;

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use torpor_image::HEADER_BYTES;

use crate::header;
use crate::image::Image;

/// Less dead space in one place stays: each hole costs a call, and a file with very many is slow.
const LEAST_BYTES: u64 = if cfg!(test) { torpor_image::PAGE } else { 64 << 10 };

/// Dead space of a file.
#[derive(Debug)]
pub struct Trim {
    file: File,
    dead: Vec<Range<u64>>,
}

impl Image {
    /// What can be given back of its file, where `live` are its pages. None where it is the first in its file.
    ///
    /// # Errors
    /// Where it is not committed, or cannot be read.
    pub fn trim(&self, live: impl IntoIterator<Item = Range<u64>>) -> io::Result<Option<Trim>> {
        let file = torpor_linux::regular::open_for_writing(self.path())?;
        let found = header::find(&file, Some(self.generation()))?;
        if found.is_first() || found.header.generation != self.generation() {
            return Ok(None);
        }
        let mut dead = gaps(live.into_iter().collect(), HEADER_BYTES..found.header.state_offset());
        dead.retain(|range| range.end - range.start >= LEAST_BYTES);
        Ok(Some(Trim { file, dead }))
    }
}

impl Trim {
    /// Gives it back; returns how many bytes. Nothing where the file system cannot.
    ///
    /// # Errors
    /// Of fallocate(2).
    pub fn run(self) -> io::Result<u64> {
        let mut given = 0;
        for Range { start, end } in self.dead {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            match fallocate(&self.file, flags, start, end - start) {
                Ok(()) => given += end - start,
                Err(Errno::OPNOTSUPP | Errno::NOSYS) => return Ok(given),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(given)
    }
}

/// What of `all` is in none of `ranges`.
fn gaps(mut ranges: Vec<Range<u64>>, all: Range<u64>) -> Vec<Range<u64>> {
    ranges.sort_unstable_by_key(|range| range.start);
    let mut found = Vec::new();
    let mut at = all.start;
    for range in ranges.into_iter().chain(std::iter::once(all.end..all.end)) {
        if at < range.start.min(all.end) {
            found.push(at..range.start.min(all.end));
        }
        at = at.max(range.end);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_what_nothing_refers_to() {
        assert_eq!(gaps(vec![8..9, 2..4, 3..6, 3..4], 1..12), [1..2, 6..8, 9..12]);
        assert_eq!(gaps(Vec::new(), 1..3), vec![1..3]);
        assert_eq!(gaps(vec![0..9, 11..20], 1..12), vec![9..11]);
        assert_eq!(gaps(vec![0..3, 30..40], 1..12), vec![3..12]);
    }
}
