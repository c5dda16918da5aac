//! A state at rest, or what has changed of it, as bytes.
//!
//! | bytes | |
//! |---|---|
//! | 16 | `torpor lua image` |
//! | 32 | the [build](BUILD), in ASCII |
//! | 4, 4 | window; number of runs |
//! | 8 each | runs of pages: first, count, ascending |
//! | 4096 each | the pages |
//!
//! Numbers are little-endian. An image is memory with a program's stack in it: whoever can forge one can do anything that the process can. It
//! must be authenticated before it is restored, which is not done here.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crate::arena::taken_by;
use crate::windows::{MOST_WINDOWS, PAGE, WINDOW_BYTES};

/// Names what images depend on: Lua's source with our changes, and our C. Two builds with the same name understand each other's images.
pub const BUILD: &str = env!("TORPOR_LUA_BUILD");

const MAGIC: &[u8; 16] = b"torpor lua image";
const HEADER: usize = 16 + 32 + 8;

/// Why an image cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImageError {
    /// It is none, or cut short, or its pages are where none can be.
    #[error("it is not the image of a Lua state")]
    Malformed,
    /// Another build made it.
    #[error("it was made by build {0} of the Lua runtime; this is build {BUILD}")]
    Build(String),
    /// What it says of its memory cannot be.
    #[error("its memory contradicts itself")]
    Unsound,
}

/// The newest version of each page that is taken, of a whole image and the images of changes that followed it.
pub(crate) struct Newest<'a> {
    /// The window of all of them.
    pub(crate) window: u32,
    /// By number, ascending; all that are taken.
    pub(crate) pages: Vec<(usize, &'a [u8; PAGE])>,
}

impl<'a> Newest<'a> {
    pub(crate) fn of(images: &'a [Image]) -> Result<Self, ImageError> {
        let window = images.first().ok_or(ImageError::Malformed)?.window();
        images.iter().try_for_each(|image| image.check(window))?;
        let end = images.iter().flat_map(Image::runs).map(|(first, count)| first + count).max().unwrap_or(0);
        let mut pages: Vec<Option<&[u8; PAGE]>> = vec![None; end];
        images.iter().flat_map(Image::pages).for_each(|(page, bytes)| pages[page] = Some(bytes));
        // The first page says which pages are taken.
        let header = pages.first().copied().flatten().ok_or(ImageError::Unsound)?;
        let one = |page: usize| Some((page, pages.get(page).copied().flatten()?));
        let pages: Option<Vec<_>> = taken_by(header).map(one).collect();
        Ok(Self { window, pages: pages.ok_or(ImageError::Unsound)? })
    }
}

/// A whole image in a file, whose pages begin at a page of the file. The file must not get shorter or change as long as a state is there that was
/// restored from it.
#[derive(Debug)]
pub struct FileImage<'a> {
    file: &'a File,
    /// Of the first page.
    offset: u64,
    /// Without pages.
    head: Image,
}

impl<'a> FileImage<'a> {
    /// The image of `bytes` bytes at `offset` of a file.
    ///
    /// # Errors
    /// [`FileImageError::File`] where it cannot be read, [`FileImageError::Image`] where it is none.
    pub fn open(file: &'a File, offset: u64, bytes: u64) -> Result<Self, FileImageError> {
        let mut head = vec![0; HEADER];
        file.read_exact_at(&mut head, offset)?;
        let runs = Image(head).number(52).unwrap_or(0) as usize;
        if (HEADER + runs * 8) as u64 > bytes {
            return Err(ImageError::Malformed.into());
        }
        let mut head = vec![0; HEADER + runs * 8];
        file.read_exact_at(&mut head, offset)?;
        let image = Self { file, offset: offset + head.len() as u64, head: Image(head) };
        image.head.check_head(image.head.window(), bytes)?;
        if !image.offset.is_multiple_of(PAGE as u64) {
            return Err(ImageError::Malformed.into());
        }
        Ok(image)
    }

    /// The window that it belongs in.
    pub fn window(&self) -> u32 {
        self.head.window()
    }

    /// Where its pages are: runs of pages of the window, and where in the file each begins.
    pub(crate) fn runs(&self) -> impl Iterator<Item = ((usize, usize), u64)> {
        let mut at = self.offset;
        self.head.runs().map(move |run| {
            let begin = at;
            at += (run.1 * PAGE) as u64;
            (run, begin)
        })
    }

    pub(crate) fn file(&self) -> &'a File {
        self.file
    }
}

/// Why an image in a file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FileImageError {
    /// The file.
    #[error(transparent)]
    File(#[from] io::Error),
    /// The image.
    #[error(transparent)]
    Image(#[from] ImageError),
}

/// The image of a state, or of what has changed of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image(Vec<u8>);

impl Image {
    pub(crate) fn of<'a>(window: u32, runs: impl Iterator<Item = (usize, &'a [u8])> + Clone) -> Self {
        let (count, bytes) = runs.clone().fold((0, 0), |(count, bytes), (_, run)| (count + 1, bytes + run.len()));
        let mut image = Vec::with_capacity(HEADER + count * 8 + bytes);
        image.extend_from_slice(MAGIC);
        image.extend_from_slice(BUILD.as_bytes());
        image.extend_from_slice(&window.to_le_bytes());
        image.extend_from_slice(&(count as u32).to_le_bytes());
        for (first, run) in runs.clone() {
            image.extend_from_slice(&(first as u32).to_le_bytes());
            image.extend_from_slice(&((run.len() / PAGE) as u32).to_le_bytes());
        }
        runs.for_each(|(_, run)| image.extend_from_slice(run));
        Self(image)
    }

    /// Combines a whole image and the images of changes that followed it into one whole image.
    ///
    /// # Errors
    /// See [`ImageError`].
    pub fn folded(images: &[Self]) -> Result<Self, ImageError> {
        let Newest { window, pages } = Newest::of(images)?;
        let runs: Vec<(usize, Vec<u8>)> = pages
            .chunk_by(|(page, _), (next, _)| page + 1 == *next)
            .map(|run| (run[0].0, run.iter().flat_map(|(_, bytes)| **bytes).collect()))
            .collect();
        Ok(Self::of(window, runs.iter().map(|(first, bytes)| (*first, bytes.as_slice()))))
    }

    /// Bytes that were one.
    pub fn from_bytes(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    /// As they are stored.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The window that it belongs in.
    pub fn window(&self) -> u32 {
        Self::window_of(&self.0)
    }

    /// The window of an image with these first bytes, 64 of them.
    pub fn window_of(head: &[u8]) -> u32 {
        head.get(48..52).and_then(<[u8]>::first_chunk).map_or(u32::MAX, |bytes| u32::from_le_bytes(*bytes))
    }

    fn number(&self, at: usize) -> Option<u32> {
        Some(u32::from_le_bytes(*self.0.get(at..at + 4)?.first_chunk()?))
    }

    fn runs(&self) -> impl Iterator<Item = (usize, usize)> + Clone {
        let count = self.number(52).unwrap_or(0) as usize;
        (0..count)
            .map_while(|n| Some((self.number(HEADER + n * 8)? as usize, self.number(HEADER + n * 8 + 4)? as usize)))
    }

    /// Whether it is one of this build, for this window, all of whose pages are there and within it.
    pub(crate) fn check(&self, window: u32) -> Result<(), ImageError> {
        self.check_head(window, self.0.len() as u64)
    }

    /// Whether it would be one if it had so many bytes.
    fn check_head(&self, window: u32, bytes: u64) -> Result<(), ImageError> {
        if self.0.get(..16) != Some(MAGIC) || self.0.len() < HEADER {
            return Err(ImageError::Malformed);
        }
        if &self.0[16..48] != BUILD.as_bytes() {
            return Err(ImageError::Build(String::from_utf8_lossy(&self.0[16..48]).into_owned()));
        }
        let count = self.number(52).unwrap_or(0) as usize;
        let (mut end, mut pages) = (0, 0);
        for (first, some) in self.runs() {
            if first < end || some == 0 || first + some > WINDOW_BYTES / PAGE {
                return Err(ImageError::Malformed);
            }
            (end, pages) = (first + some, pages + some);
        }
        let len = count.checked_mul(8).and_then(|runs| runs.checked_add(HEADER + pages * PAGE));
        if self.window() != window || window >= MOST_WINDOWS || len.map(|len| len as u64) != Some(bytes) {
            return Err(ImageError::Malformed);
        }
        Ok(())
    }

    /// Where in its bytes the first page begins.
    pub fn pages_offset(&self) -> usize {
        HEADER + self.runs().count() * 8
    }

    /// Pages by number, ascending. It has been checked.
    pub(crate) fn pages(&self) -> impl Iterator<Item = (usize, &[u8; PAGE])> {
        let bytes = self.0[self.pages_offset()..].as_chunks().0;
        self.runs().flat_map(|(first, count)| first..first + count).zip(bytes)
    }

    /// Pages that are in it.
    pub fn page_count(&self) -> usize {
        self.runs().map(|(_, count)| count).sum()
    }
}
