//! Bringing pages back into a frozen process: read, check, write.
//!
//! Idempotent: nothing of the process runs, so a refill that was cut off is simply done again.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;

use torpor_image::{Content, FormatError, Process, Region, checksum};
use torpor_linux::vm::{self, MAX_RANGES};

/// Bytes read from the image in one call.
const BATCH_BYTES: u64 = 1 << 20;

/// Why memory could not be brought back.
#[derive(Debug, thiserror::Error)]
pub enum RefillError {
    /// The image could not be read.
    #[error("reading the image")]
    Read(#[source] io::Error),
    /// The image is damaged.
    #[error("the pages of process {pid} at {start:#x}")]
    Damaged {
        /// Process.
        pid: i32,
        /// First byte in memory.
        start: u64,
        /// What is wrong.
        #[source]
        error: FormatError,
    },
    /// The process could not be written to.
    #[error("writing the memory of process {0}")]
    Write(i32, #[source] io::Error),
}

/// Writes all stored pages of `process` back from `image`, through `buffer`, which is kept by the caller between calls.
pub fn refill(image: &File, process: &Process, buffer: &mut Vec<u8>) -> Result<(), RefillError> {
    let mut forced = None;
    let mut rest = process.regions.as_slice();
    while let Some((offset, batch)) = next_batch(&mut rest) {
        let bytes: u64 = batch.iter().map(stored_bytes).sum();
        buffer.resize(bytes as usize, 0);
        image.read_exact_at(buffer, offset).map_err(RefillError::Read)?;
        verify(process.pid, batch, buffer)?;
        write(process.pid, batch, buffer, &mut forced).map_err(|error| RefillError::Write(process.pid, error))?;
    }
    Ok(())
}

/// Takes the next regions whose pages lie one behind the other in the file (zero pages between them have none there), and
/// says where in the file they begin.
fn next_batch<'a>(rest: &mut &'a [Region]) -> Option<(u64, &'a [Region])> {
    let first = rest.iter().position(|region| matches!(region.content, Content::Stored { .. }))?;
    *rest = &rest[first..];
    let Content::Stored { offset, .. } = rest[0].content else { return None };
    let mut end = offset;
    let mut count = 0;
    for region in rest.iter().take(MAX_RANGES) {
        if let Content::Stored { offset: next, .. } = region.content {
            if next != end || end + region.bytes() - offset > BATCH_BYTES {
                break;
            }
            end += region.bytes();
        }
        count += 1;
    }
    // A region longer than a batch is one of its own.
    let (batch, tail) = rest.split_at(count.max(1));
    *rest = tail;
    Some((offset, batch))
}

/// Bytes of `region` that are stored in the file.
fn stored_bytes(region: &Region) -> u64 {
    if matches!(region.content, Content::Stored { .. }) { region.bytes() } else { 0 }
}

/// The stored regions of a batch with their bytes.
fn contents<'a>(batch: &'a [Region], buffer: &'a [u8]) -> impl Iterator<Item = (&'a Region, u64, &'a [u8])> {
    let mut rest = buffer;
    batch.iter().filter_map(move |region| match region.content {
        Content::Zero => None,
        Content::Stored { checksum, .. } => {
            let (bytes, tail) = rest.split_at(region.bytes() as usize);
            rest = tail;
            Some((region, checksum, bytes))
        }
    })
}

fn verify(pid: i32, batch: &[Region], buffer: &[u8]) -> Result<(), RefillError> {
    match contents(batch, buffer).find(|(_, wanted, bytes)| checksum(bytes) != *wanted) {
        None => Ok(()),
        Some((region, ..)) => {
            let error = FormatError::Checksum("a region");
            Err(RefillError::Damaged { pid, start: region.start, error })
        }
    }
}

/// Writes what the process may write itself in one call, and the rest past the access bits.
fn write(pid: i32, batch: &[Region], buffer: &[u8], forced: &mut Option<File>) -> io::Result<()> {
    let writable = contents(batch, buffer).filter(|(region, ..)| region.writable);
    let parts: Vec<(u64, &[u8])> = writable.map(|(region, _, bytes)| (region.start, bytes)).collect();
    if !parts.is_empty() {
        vm::write(pid, &parts)?;
    }
    // Dirty but read-only (RELRO, a heap under a guard): written as a debugger does.
    for (region, _, bytes) in contents(batch, buffer).filter(|(region, ..)| !region.writable) {
        let memory = match forced.take() {
            Some(memory) => memory,
            None => OpenOptions::new().write(true).open(format!("/proc/{pid}/mem"))?,
        };
        memory.write_all_at(bytes, region.start)?;
        *forced = Some(memory);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use torpor_image::PAGE;

    fn region(start: u64, pages: u32, writable: bool, offset: Option<u64>) -> Region {
        let content = offset.map_or(Content::Zero, |offset| Content::Stored { offset, checksum: 0 });
        Region { start, pages, writable, content }
    }

    #[test]
    fn batches_are_runs_of_the_file_whatever_the_access() {
        let regions = [
            region(0, 1, true, None),
            region(PAGE, 2, true, Some(4096)),
            region(9 * PAGE, 1, true, Some(4096 * 3)),
            region(20 * PAGE, 1, false, Some(4096 * 4)),
            region(30 * PAGE, 7, false, None),
            region(40 * PAGE, 1, false, Some(4096 * 5)),
            region(50 * PAGE, 1, true, Some(4096 * 9)),
        ];
        let mut rest = regions.as_slice();
        let mut batches = Vec::new();
        while let Some((offset, batch)) = next_batch(&mut rest) {
            batches.push((offset, batch.iter().map(stored_bytes).sum::<u64>() / PAGE));
        }
        assert_eq!(batches, [(4096, 5), (4096 * 9, 1)]);
    }

    #[test]
    fn contents_pass_over_zero_pages_and_batches_end_at_their_limit() {
        let regions =
            [region(0, 1, true, Some(4096)), region(PAGE, 3, true, None), region(9 * PAGE, 1, true, Some(8192))];
        let buffer: Vec<u8> = [[1; 4096], [2; 4096]].concat();
        let found: Vec<(u64, u8)> =
            contents(&regions, &buffer).map(|(region, _, bytes)| (region.start, bytes[0])).collect();
        assert_eq!(found, [(0, 1), (9 * PAGE, 2)]);
        let pages = (BATCH_BYTES / PAGE) as u32;
        let long =
            [region(0, pages, true, Some(4096)), region(u64::from(pages) * PAGE, 1, true, Some(4096 + BATCH_BYTES))];
        let mut rest = long.as_slice();
        assert_eq!(next_batch(&mut rest).map(|(_, batch)| batch.len()), Some(1));
        assert_eq!(next_batch(&mut rest).map(|(offset, _)| offset), Some(4096 + BATCH_BYTES));
    }
}
