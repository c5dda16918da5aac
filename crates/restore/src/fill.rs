//! Checking the stored pages, and putting them into those processes that have many.
//!
//! A process with few pages reads them from the image by itself, while they are read here to compare their checksums. One
//! with many ([`MANY`](torpor_planner::compile::MANY)) waits when its memory is mapped: what is read here is compared and then
//! written to its place, by several threads. So each page is read once, and the work is not that of one processor. What
//! is not in the page cache is read past it: it is needed once.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use torpor_image::tree::Tree;
use torpor_image::{Content, FormatError, PAGE, checksum};
use torpor_linux::cache::cached_pages;
use torpor_linux::vm;

use super::RestoreError;
use super::run::{Building, Missing};
use torpor_descriptors::EachRestored;
use torpor_pages::buffer::Buffer;
use torpor_pages::write_mode::unbuffered;

/// Bytes of the image that are read in one go, unless regions overlap.
const BATCH_BYTES: u64 = 1 << 20;
/// Threads: the disk has something to do while others copy.
const MOST_THREADS: usize = 4;
/// Batches for each of them at least.
const BATCHES: usize = 2;

/// A region that is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stored {
    offset: u64,
    bytes: u64,
    checksum: u64,
}

impl Stored {
    const fn end(&self) -> u64 {
        self.offset + self.bytes
    }
}

/// Checks every stored page of the processes of a tree whose processes are all there, and fills those that wait for it.
/// Pages of shared memory are checked by whoever makes it. `piece` is told of each batch. Gives the bytes.
pub(crate) fn pages(
    building: &mut Building<'_>,
    path: &Path,
    image: &File,
    piece: Option<EachRestored<'_>>,
) -> Result<u64, RestoreError> {
    let (waiting, mut missing) = building.mapped()?;
    missing.sort_unstable_by_key(|missing| (missing.offset, missing.pid, missing.address));
    let stored = stored(building.tree());
    // Those that read by themselves have the other processors meanwhile.
    let threads = if waiting.is_empty() { 1 } else { MOST_THREADS };
    let longest = missing.iter().map(|missing| missing.bytes).max().unwrap_or(0);
    let source = Source { path, image, direct: unbuffered(image, false).ok(), missing, longest, piece };
    source.work(&stored, &batches(&stored), threads)?;
    building.filled(&waiting)?;
    Ok(stored.iter().map(|region| region.bytes).sum())
}

/// All stored regions, by their places in the image. What processes share copy-on-write is there once.
fn stored(tree: &Tree) -> Vec<Stored> {
    let lives = tree.processes.iter().filter_map(|process| process.alive());
    let regions = lives.flat_map(|life| &life.space.areas).flat_map(|area| &area.pages);
    let mut found: Vec<Stored> = regions
        .filter_map(|region| match region.content {
            Content::Stored { offset, checksum } => Some(Stored { offset, bytes: region.bytes(), checksum }),
            Content::Zero => None,
        })
        .collect();
    found.sort_unstable_by_key(|region| (region.offset, region.bytes));
    found.dedup();
    found
}

/// Runs of regions that lie together in the image.
fn batches(stored: &[Stored]) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let mut first = 0;
    while let Some(begin) = stored.get(first) {
        let (mut end, mut next) = (begin.end(), first + 1);
        while let Some(region) = stored.get(next).filter(|region| region.offset <= end) {
            if region.end().max(end) - begin.offset > BATCH_BYTES {
                break;
            }
            end = end.max(region.end());
            next += 1;
        }
        found.push(first..next);
        first = next;
    }
    found
}

/// Where pages come from.
struct Source<'a> {
    path: &'a Path,
    image: &'a File,
    /// The same past the page cache, where the file system can do that.
    direct: Option<File>,
    /// Where they go, by their places in the image.
    missing: Vec<Missing>,
    /// Bytes of the longest of these.
    longest: u64,
    /// Told of each batch that is there.
    piece: Option<EachRestored<'a>>,
}

impl Source<'_> {
    fn work(&self, stored: &[Stored], batches: &[Range<usize>], threads: usize) -> Result<(), RestoreError> {
        let next = AtomicUsize::new(0);
        let failed: Mutex<Option<RestoreError>> = Mutex::new(None);
        let work = || {
            let mut buffer = Buffer::new(BATCH_BYTES as usize);
            while let Some(batch) = batches.get(next.fetch_add(1, Ordering::Relaxed)) {
                let done = self.batch(&stored[batch.clone()], &mut buffer);
                let told = || self.piece.map_or(Ok(()), |piece| Ok(piece()?));
                if let Err(error) = done.and_then(|()| told()) {
                    // Nobody begins another one.
                    next.store(batches.len(), Ordering::Relaxed);
                    failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                }
            }
        };
        let threads = (batches.len() / BATCHES).clamp(1, threads);
        std::thread::scope(|scope| {
            for _ in 1..threads {
                // A thread that makes children in another pid namespace can make no threads: it does all by itself.
                let _ = std::thread::Builder::new().spawn_scoped(scope, work);
            }
            work();
        });
        failed.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
    }

    /// Reads, compares, writes.
    fn batch(&self, regions: &[Stored], buffer: &mut Buffer) -> Result<(), RestoreError> {
        let Some(first) = regions.first() else { return Ok(()) };
        let bytes = regions.iter().map(Stored::end).max().unwrap_or(0) - first.offset;
        let place = |region: &Stored| {
            let from = (region.offset - first.offset) as usize;
            from..from + region.bytes as usize
        };
        let read = self.read(buffer.part_mut(0..bytes as usize), first.offset);
        read.map_err(|error| RestoreError::Read(self.path.to_owned(), error))?;
        for region in regions {
            if checksum(buffer.part(place(region))) != region.checksum {
                return Err(RestoreError::Format(self.path.to_owned(), FormatError::Checksum("a region")));
            }
        }
        self.write(first.offset..first.offset + bytes, buffer)
    }

    /// Writes what is in the buffer, these bytes of the image, to where it is missing.
    fn write(&self, held: Range<u64>, buffer: &Buffer) -> Result<(), RestoreError> {
        let first = self.missing.partition_point(|missing| missing.offset.saturating_add(self.longest) <= held.start);
        let some = self.missing[first..].iter().take_while(|missing| missing.offset < held.end);
        let parts = some.filter_map(|missing| {
            let (from, to) =
                (missing.offset.max(held.start), missing.offset.saturating_add(missing.bytes).min(held.end));
            let address = missing.address.wrapping_add(from - missing.offset);
            (from < to).then(|| {
                let bytes = buffer.part((from - held.start) as usize..(to - held.start) as usize);
                (missing.pid, (address, bytes))
            })
        });
        let parts: Vec<(i32, (u64, &[u8]))> = parts.collect();
        for of_process in parts.chunk_by(|a, b| a.0 == b.0) {
            let pid = of_process[0].0;
            let parts: Vec<(u64, &[u8])> = of_process.iter().map(|(_, part)| *part).collect();
            for parts in parts.chunks(vm::MAX_RANGES) {
                let set = |error| RestoreError::Set { pid, what: "writing the memory", error };
                vm::write(pid, parts).map_err(set)?;
            }
        }
        Ok(())
    }

    fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let bytes = buffer.len() as u64;
        match &self.direct {
            Some(direct) if cached_pages(self.image, offset, bytes).is_ok_and(|pages| pages < bytes / PAGE) => {
                direct.read_exact_at(buffer, offset)
            }
            _ => self.image.read_exact_at(buffer, offset),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(offset: u64, pages: u64) -> Stored {
        Stored { offset: offset * PAGE, bytes: pages * PAGE, checksum: 0 }
    }

    #[test]
    fn batches_are_whole_and_not_too_long() {
        // The same pages twice, a part of them, what follows, a gap, and more than one batch in a row.
        let mut stored = vec![region(1, 64), region(1, 64), region(2, 3), region(65, 1), region(100, 1)];
        stored.extend((0..8).map(|n| region(200 + 64 * n, 64)));
        assert_eq!(batches(&stored), [0..4, 4..5, 5..9, 9..13]);
        assert_eq!(batches(&[]), []);
    }
}
