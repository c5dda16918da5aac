//! Bringing pages back into a frozen process: read, check, write.
//!
//! Idempotent: nothing of the process runs, so a refill that was cut off is simply done again.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;

use torpor_image::{Content, FormatError, Process, Region, checksum};
use torpor_linux::vm::{self, MAX_RANGES, Remote};

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
pub(crate) fn refill(image: &File, process: &Process, buffer: &mut Vec<u8>) -> Result<(), RefillError> {
    let mut forced = None;
    let mut rest = process.regions.as_slice();
    while let Some((offset, batch)) = next_batch(&mut rest) {
        let bytes: u64 = batch.iter().map(Region::bytes).sum();
        buffer.resize(bytes as usize, 0);
        image.read_exact_at(buffer, offset).map_err(RefillError::Read)?;
        verify(process.pid, batch, buffer)?;
        write(process.pid, batch, buffer, &mut forced).map_err(|error| RefillError::Write(process.pid, error))?;
    }
    Ok(())
}

/// Takes the next run of regions whose pages lie one behind the other in the file and that have the same access, and says
/// where in the file it begins.
fn next_batch<'a>(rest: &mut &'a [Region]) -> Option<(u64, &'a [Region])> {
    let first = rest.iter().position(|region| matches!(region.content, Content::Stored { .. }))?;
    *rest = &rest[first..];
    let Content::Stored { offset, .. } = rest[0].content else { return None };
    let mut end = offset;
    let fits = |region: &Region, end: u64| match region.content {
        Content::Stored { offset: next, .. } => {
            next == end && region.writable == rest[0].writable && end + region.bytes() - offset <= BATCH_BYTES
        }
        Content::Zero => false,
    };
    let mut count = 0;
    while count < MAX_RANGES && rest.get(count).is_some_and(|region| fits(region, end)) {
        end += rest[count].bytes();
        count += 1;
    }
    let (batch, tail) = rest.split_at(count);
    *rest = tail;
    Some((offset, batch))
}

fn verify(pid: i32, batch: &[Region], buffer: &[u8]) -> Result<(), RefillError> {
    let mut at = 0;
    for region in batch {
        let bytes = region.bytes() as usize;
        if let Content::Stored { checksum: wanted, .. } = region.content
            && checksum(&buffer[at..at + bytes]) != wanted
        {
            let error = FormatError::Checksum("a region");
            return Err(RefillError::Damaged { pid, start: region.start, error });
        }
        at += bytes;
    }
    Ok(())
}

fn write(pid: i32, batch: &[Region], buffer: &[u8], forced: &mut Option<File>) -> io::Result<()> {
    if batch[0].writable {
        let ranges: Vec<Remote> =
            batch.iter().map(|r| Remote { address: r.start, len: r.bytes() as usize }).collect();
        return vm::write(pid, &ranges, buffer);
    }
    // Dirty but read-only (RELRO, a heap under a guard): written past the access bits, as a debugger does.
    if forced.is_none() {
        *forced = Some(OpenOptions::new().write(true).open(format!("/proc/{pid}/mem"))?);
    }
    let mut at = 0;
    for region in batch {
        let bytes = region.bytes() as usize;
        if let Some(memory) = forced.as_ref() {
            memory.write_all_at(&buffer[at..at + bytes], region.start)?;
        }
        at += bytes;
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
    fn batches_are_runs_of_the_file_with_one_access() {
        let regions = [
            region(0, 1, true, None),
            region(PAGE, 2, true, Some(4096)),
            region(9 * PAGE, 1, true, Some(4096 * 3)),
            region(20 * PAGE, 1, false, Some(4096 * 4)),
            region(30 * PAGE, 1, false, None),
            region(31 * PAGE, 1, false, Some(4096 * 5)),
        ];
        let mut rest = regions.as_slice();
        let mut batches = Vec::new();
        while let Some((offset, batch)) = next_batch(&mut rest) {
            batches.push((offset, batch.len()));
        }
        assert_eq!(batches, [(4096, 2), (4096 * 4, 1), (4096 * 5, 1)]);
    }
}
