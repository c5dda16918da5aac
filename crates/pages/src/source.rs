//! Where stored pages come from.
//!
//! Regions name their pages by offset and checksum. A [`PageSource`] gives the bytes of an offset; [`fetch`] is how they are read, and
//! compares every region with its checksum, whatever the source. Today there is one source, an image on the local disk ([`ImageFile`]).

use std::borrow::Borrow;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;

use torpor_image::{Content, FormatError, PAGE, Region, checksum};
use torpor_linux::cache::cached_pages;

use super::buffer::Buffer;
use super::write_mode::unbuffered;

/// Gives stored pages by their offset in the image.
pub trait PageSource: Sync {
    /// Reads what is stored at `offset` until `buffer` is full. Both are page-aligned where whole pages are read.
    ///
    /// # Errors
    /// If it cannot be read, or ends before.
    fn read(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()>;

    /// What a process that is being built is handed, to read its pages from by `preadv(2)` at the same offsets. It does not compare
    /// them: whoever builds it does so by [`fetch`].
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// The same source, for a thread that may need it longer.
    ///
    /// # Errors
    /// Of dup(2).
    fn duplicate(&self) -> io::Result<Box<dyn PageSource + Send>>;
}

/// An image on the local disk.
#[derive(Debug)]
pub struct ImageFile<F> {
    file: F,
    /// The same past the page cache, where that is wanted and the file system can do it.
    direct: Option<File>,
}

impl<'a> ImageFile<&'a File> {
    /// Read through the page cache.
    pub const fn through_cache(file: &'a File) -> Self {
        Self { file, direct: None }
    }

    /// What is not in the page cache is read past it, in whole pages: it is needed once.
    pub fn past_cache(file: &'a File) -> Self {
        Self { file, direct: unbuffered(file, false).ok() }
    }
}

impl<F: Borrow<File> + Sync> PageSource for ImageFile<F> {
    fn read(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let (bytes, file) = (buffer.len() as u64, self.file.borrow());
        match self.direct.as_ref().filter(|_| bytes.is_multiple_of(PAGE)) {
            Some(direct) if cached_pages(file, offset, bytes).is_ok_and(|pages| pages < bytes / PAGE) => {
                direct.read_exact_at(buffer, offset)
            }
            _ => file.read_exact_at(buffer, offset),
        }
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.file.borrow().as_fd()
    }

    fn duplicate(&self) -> io::Result<Box<dyn PageSource + Send>> {
        let direct = self.direct.as_ref().map(File::try_clone).transpose()?;
        Ok(Box::new(ImageFile { file: self.file.borrow().try_clone()?, direct }))
    }
}

/// A region that is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Its offset in the image.
    pub offset: u64,
    /// Its length.
    pub bytes: u64,
    /// Its checksum.
    pub checksum: u64,
}

impl Stored {
    /// Of a region; `None` for one of zeros.
    pub const fn of(region: &Region) -> Option<Self> {
        match region.content {
            Content::Stored { offset, checksum } => Some(Self { offset, bytes: region.bytes(), checksum }),
            Content::Zero => None,
        }
    }

    /// Behind it in the image.
    pub(super) const fn end(&self) -> u64 {
        self.offset + self.bytes
    }
}

/// Why pages could not be had.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// The source did not give them.
    #[error("reading the image")]
    Read(#[source] io::Error),
    /// They are not what was stored.
    #[error("the pages at {offset:#x} of the image")]
    Damaged {
        /// Where they are.
        offset: u64,
        /// What is wrong.
        #[source]
        error: FormatError,
    },
}

/// Reads `regions` into `buffer` and compares them with their checksums. They are sorted by offset and have no gaps between them.
/// Gives which bytes of the image the buffer holds.
///
/// # Errors
/// See [`FetchError`]: nothing in the buffer may be used then.
pub fn fetch(source: &dyn PageSource, regions: &[Stored], buffer: &mut Buffer) -> Result<Range<u64>, FetchError> {
    let begin = regions.first().map_or(0, |first| first.offset);
    let end = regions.iter().map(Stored::end).max().unwrap_or(begin);
    let len = (end - begin) as usize;
    buffer.reserve(len);
    source.read(begin, buffer.part_mut(0..len)).map_err(FetchError::Read)?;
    for region in regions {
        let from = (region.offset - begin) as usize;
        if checksum(buffer.part(from..from + region.bytes as usize)) != region.checksum {
            return Err(FetchError::Damaged { offset: region.offset, error: FormatError::Checksum("a region") });
        }
    }
    Ok(begin..end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_region_is_compared() {
        let file = tempfile::tempfile().unwrap();
        let pages: Vec<u8> = (0..3).flat_map(|n| [n; PAGE as usize]).collect();
        file.write_all_at(&pages, PAGE).unwrap();
        let stored = |pages: Range<usize>, bytes: &[u8]| {
            let part = &bytes[pages.start * PAGE as usize..pages.end * PAGE as usize];
            Stored { offset: PAGE * (1 + pages.start as u64), bytes: part.len() as u64, checksum: checksum(part) }
        };
        // One region lies within another, as after a copy of pages that processes share.
        let regions = [stored(0..2, &pages), stored(1..2, &pages), stored(2..3, &pages)];
        for source in [ImageFile::through_cache(&file), ImageFile::past_cache(&file)] {
            let mut buffer = Buffer::default();
            assert_eq!(fetch(&source, &regions, &mut buffer).unwrap(), PAGE..4 * PAGE);
            assert_eq!(buffer.part(0..pages.len()), pages);
            let mut word = [9; 8];
            source.read(PAGE + 8, &mut word).unwrap();
            assert_eq!(word, [0; 8]);
            let end = Stored { offset: 3 * PAGE, bytes: 2 * PAGE, checksum: 0 };
            assert!(matches!(fetch(&source, &[end], &mut buffer), Err(FetchError::Read(_))));
        }
        file.write_all_at(b"x", 2 * PAGE).unwrap();
        let damaged = fetch(&ImageFile::through_cache(&file), &regions[1..], &mut Buffer::default()).unwrap_err();
        assert!(matches!(damaged, FetchError::Damaged { offset, .. } if offset == 2 * PAGE));
    }
}
