//! Contents of files as pages of the image.

use std::fs::File;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use rustix::fs::{OFlags, SeekFrom, fstatfs, seek};
use rustix::io::Errno;
use torpor_image::{Content, PAGE, Region};
use torpor_linux::hugepages::{self, Mapping};

use crate::contract::EachRestored;
use crate::contract::error::RestoreFileError;
use crate::contract::reason::{Described, Reason};
use crate::filesystem::Charge;
use torpor_pages::buffer::Buffer;
use torpor_pages::sink::{BATCH_BYTES, PageSink};
use torpor_pages::source::{FetchError, PageSource, Stored, fetch};

/// Copies a file's contents to the image, and `tail` behind its end.
pub(crate) fn store(
    fd: BorrowedFd<'_>,
    bytes: u64,
    tail: &[u8],
    sink: &mut PageSink<'_>,
    go_on: &dyn Fn() -> bool,
) -> Described<Vec<Region>> {
    // A descriptor of our own, readable and with its own position, that leaves no trace.
    let flags = OFlags::NOATIME.bits().cast_signed();
    let file = File::options().read(true).custom_flags(flags).open(format!("/proc/self/fd/{}", fd.as_raw_fd()))?;
    let mut regions = Vec::new();
    let mut at = 0;
    while at < bytes {
        let data = match seek(&file, SeekFrom::Data(at)) {
            Ok(data) => data / PAGE * PAGE,
            Err(Errno::NXIO) => break,
            Err(error) => return Err(error.into()),
        };
        let hole = seek(&file, SeekFrom::Hole(data))?;
        // It may have shrunk.
        let end = hole.min(bytes).max(data + 1).next_multiple_of(PAGE);
        let mut start = data;
        while start < end {
            if !go_on() {
                return Err(Reason::Stopped);
            }
            let len = (end - start).min(BATCH_BYTES as u64) as usize;
            let part = sink.room(len).map_err(Reason::Write)?;
            let read = read_all(&file, part, start)?;
            part[read..].fill(0);
            if let Some(place) = bytes.checked_sub(start).and_then(|from| part.get_mut(from as usize..)) {
                let len = place.len().min(tail.len());
                place[..len].copy_from_slice(&tail[..len]);
            }
            sink.keep_all(len / PAGE as usize, |pages, content| {
                if matches!(content, Content::Stored { .. }) {
                    let (start, pages) = (start + pages.start as u64 * PAGE, pages.len() as u32);
                    regions.push(Region { start, pages, writable: true, content });
                }
            });
            start += len as u64;
        }
        at = end;
    }
    Ok(regions)
}

/// Reads until `buffer` is full or the file ends; gives how much.
fn read_all(file: &File, buffer: &mut [u8], start: u64) -> std::io::Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        match file.read_at(&mut buffer[done..], start + done as u64)? {
            0 => break,
            read => done += read,
        }
    }
    Ok(done)
}

/// Writes the stored pages into `file`, which is so many bytes long, after checking them. `behind` writes what is behind the end
/// of the file in its last page.
pub(crate) fn fill(
    file: &File,
    (bytes, pages): (u64, &[Region]),
    source: &dyn PageSource,
    (charge, piece): (Option<&Charge<'_>>, Option<EachRestored<'_>>),
    name: &str,
    mut behind: impl FnMut(u64, &[u8]) -> std::io::Result<()>,
) -> Result<(), RestoreFileError> {
    if let Some(charge) = charge {
        runs(pages).into_iter().for_each(|run| charge.pages(file.as_fd(), run.start, run.end - run.start));
    }
    let huge = mapping(file, pages).map_err(RestoreFileError::at("mapping", name))?;
    let mut buffer = Buffer::default();
    for region in pages {
        let Some(stored) = Stored::of(region) else { continue };
        fetch(source, &[stored], &mut buffer).map_err(|error| match error {
            FetchError::Read(error) => RestoreFileError::Read(error),
            FetchError::Damaged { error, .. } => RestoreFileError::Damaged { what: name.to_owned(), source: error },
        })?;
        let buffer = buffer.part(0..region.bytes() as usize);
        if let Some(huge) = &huge {
            huge.write(region.start, buffer).map_err(RestoreFileError::at("filling", name))?;
            piece.map_or(Ok(()), |piece| piece())?;
            continue;
        }
        // The last page may be longer than the file.
        let len = region.bytes().min(bytes.saturating_sub(region.start)) as usize;
        file.write_all_at(&buffer[..len], region.start).map_err(RestoreFileError::at("filling", name))?;
        if buffer[len..].iter().any(|byte| *byte != 0) {
            behind(region.start + len as u64, &buffer[len..]).map_err(RestoreFileError::at("filling", name))?;
        }
        piece.map_or(Ok(()), |piece| piece())?;
    }
    Ok(())
}

/// A file of huge pages of a pool, which cannot be written to in any other way, up to its last stored page.
fn mapping(file: &File, pages: &[Region]) -> std::io::Result<Option<Mapping>> {
    let about = fstatfs(file)?;
    let end = pages.last().map_or(0, |last| last.start + last.bytes());
    let is_huge = about.f_type == hugepages::MAGIC && end > 0;
    is_huge.then(|| Mapping::new(file, end.next_multiple_of(about.f_bsize.unsigned_abs()))).transpose()
}

/// Stored pages that lie together.
fn runs(pages: &[Region]) -> Vec<Range<u64>> {
    let mut runs: Vec<Range<u64>> = Vec::new();
    for region in pages.iter().filter(|region| matches!(region.content, Content::Stored { .. })) {
        let end = region.start + region.bytes();
        match runs.last_mut().filter(|last| last.end == region.start) {
            Some(last) => last.end = end,
            None => runs.push(region.start..end),
        }
    }
    runs
}
