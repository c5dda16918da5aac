//! A state at rest, or what has changed of it, as bytes.
//!
//! | bytes | |
//! |---|---|
//! | 16 | `torpor lua image`: it has pages; `torpor lua lines`: it has lines of 64 bytes |
//! | 32 | the [build](BUILD), in ASCII |
//! | 4, 4 | window; number of runs |
//! | 8 each | runs of pages or lines: first in the window, count; ascending |
//! | 4096 or 64 each | the pages, or lines |
//!
//! A whole state has pages, so that they can be mapped from a file. Images of changes have lines: a message writes to some pages, but to little of
//! each. Lines that are not all of their page need the page in an earlier image.
//!
//! Numbers are little-endian. An image is memory with a program's stack in it: whoever can forge one can do anything that the process can. It
//! must be authenticated before it is restored, which is not done here.

use std::fs::File;
use std::io;
use std::iter;
use std::os::unix::fs::FileExt;

use crate::arena::taken_by;
use crate::windows::{MOST_WINDOWS, PAGE, WINDOW_BYTES};

/// Names what images depend on: Lua's source with our changes, and our C. Two builds with the same name understand each other's images.
pub const BUILD: &str = env!("TORPOR_LUA_BUILD");

const HEADER: usize = 16 + 32 + 8;
/// Bytes of a line, as those of processors' caches: finer ones would save little more.
pub(crate) const LINE: usize = 64;

/// What an image has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    Page,
    Line,
}

impl Unit {
    fn of_magic(magic: &[u8]) -> Option<Self> {
        [Self::Page, Self::Line].into_iter().find(|unit| unit.magic() == magic)
    }

    fn magic(self) -> &'static [u8; 16] {
        match self {
            Self::Page => b"torpor lua image",
            Self::Line => b"torpor lua lines",
        }
    }

    pub(crate) fn bytes(self) -> usize {
        match self {
            Self::Page => PAGE,
            Self::Line => LINE,
        }
    }
}

/// What an image has of a page: all of it, or some lines in a row.
pub(crate) struct Piece<'a> {
    pub(crate) page: usize,
    /// Where in the page it begins.
    pub(crate) offset: usize,
    pub(crate) bytes: &'a [u8],
}

impl<'a> Piece<'a> {
    /// If it is all of it.
    pub(crate) fn all_of_page(&self) -> Option<&'a [u8; PAGE]> {
        self.bytes.try_into().ok()
    }
}

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

/// What a whole image and the images of changes that followed it lead to: the pages that are taken.
pub(crate) struct Newest<'a> {
    /// The window of all of them.
    pub(crate) window: u32,
    /// By number, ascending: as they are in the last image that has all of them.
    pub(crate) pages: Vec<(usize, &'a [u8; PAGE])>,
    /// What has changed of them since, the oldest first: each with its page's place among `pages`.
    pub(crate) later: Vec<(usize, Piece<'a>)>,
}

impl<'a> Newest<'a> {
    pub(crate) fn of(images: &'a [Image]) -> Result<Self, ImageError> {
        let window = images.first().ok_or(ImageError::Malformed)?.window();
        images.iter().try_for_each(|image| image.check(window))?;
        let end = images.iter().map(Image::end_page).max().unwrap_or(0);
        // With each page, how many pieces are older than it.
        let mut pages: Vec<Option<(&[u8; PAGE], usize)>> = vec![None; end];
        let mut pieces = Vec::new();
        for piece in images.iter().flat_map(Image::pieces) {
            let page = &mut pages[piece.page];
            match piece.all_of_page() {
                Some(bytes) => *page = Some((bytes, pieces.len())),
                None if page.is_some() => pieces.push(piece),
                None => return Err(ImageError::Unsound),
            }
        }
        let is_later =
            |(number, piece): &(usize, Piece<'_>)| pages[piece.page].is_some_and(|(_, older)| *number >= older);
        let later: Vec<_> = pieces.into_iter().enumerate().filter(is_later).map(|(_, piece)| piece).collect();
        // The first page says which pages are taken.
        let mut first = *pages.first().copied().flatten().ok_or(ImageError::Unsound)?.0;
        for Piece { offset, bytes, .. } in later.iter().filter(|piece| piece.page == 0) {
            first[*offset..offset + bytes.len()].copy_from_slice(bytes);
        }
        let one = |page: usize| Some((page, pages.get(page).copied().flatten()?.0));
        let pages: Option<Vec<_>> = taken_by(&first).map(one).collect();
        // It is one of them itself.
        let pages =
            pages.filter(|pages| pages.first().is_some_and(|(page, _)| *page == 0)).ok_or(ImageError::Unsound)?;
        let place = |piece: Piece<'a>| Some((pages.binary_search_by_key(&piece.page, |(page, _)| *page).ok()?, piece));
        let later = later.into_iter().filter_map(place).collect();
        Ok(Self { window, pages, later })
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
        if image.head.unit() != Unit::Page || !image.offset.is_multiple_of(PAGE as u64) {
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
    /// Of runs of pages or lines, and the bytes of each run, which may be given in pieces.
    pub(crate) fn of<'a>(
        window: u32,
        unit: Unit,
        runs: &[(usize, usize)],
        contents: impl Iterator<Item = &'a [u8]>,
    ) -> Self {
        let units: usize = runs.iter().map(|(_, count)| count).sum();
        let mut image = Vec::with_capacity(HEADER + runs.len() * 8 + units * unit.bytes());
        image.extend_from_slice(unit.magic());
        image.extend_from_slice(BUILD.as_bytes());
        image.extend_from_slice(&window.to_le_bytes());
        image.extend_from_slice(&(runs.len() as u32).to_le_bytes());
        for (first, count) in runs {
            image.extend_from_slice(&(*first as u32).to_le_bytes());
            image.extend_from_slice(&(*count as u32).to_le_bytes());
        }
        contents.for_each(|bytes| image.extend_from_slice(bytes));
        Self(image)
    }

    /// Combines a whole image and the images of changes that followed it into one whole image.
    ///
    /// # Errors
    /// See [`ImageError`].
    pub fn folded(images: &[Self]) -> Result<Self, ImageError> {
        let Newest { window, pages, later } = Newest::of(images)?;
        let runs: Vec<(usize, usize)> =
            pages.chunk_by(|(page, _), (next, _)| page + 1 == *next).map(|run| (run[0].0, run.len())).collect();
        let contents = pages.iter().map(|(_, bytes)| bytes.as_slice());
        let mut image = Self::of(window, Unit::Page, &runs, contents);
        let begin = image.pages_offset();
        for (place, Piece { offset, bytes, .. }) in later {
            image.0[begin + place * PAGE + offset..][..bytes.len()].copy_from_slice(bytes);
        }
        Ok(image)
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

    /// What its runs count.
    fn unit(&self) -> Unit {
        self.0.get(..16).and_then(Unit::of_magic).unwrap_or(Unit::Page)
    }

    /// Behind its last page.
    fn end_page(&self) -> usize {
        self.runs().last().map_or(0, |(first, count)| ((first + count) * self.unit().bytes()).div_ceil(PAGE))
    }

    /// Whether it is one of this build, for this window, all of whose pages or lines are there and within it.
    pub(crate) fn check(&self, window: u32) -> Result<(), ImageError> {
        self.check_head(window, self.0.len() as u64)
    }

    /// Whether it would be one if it had so many bytes.
    fn check_head(&self, window: u32, bytes: u64) -> Result<(), ImageError> {
        let unit = self.0.get(..16).and_then(Unit::of_magic).ok_or(ImageError::Malformed)?.bytes();
        if self.0.len() < HEADER {
            return Err(ImageError::Malformed);
        }
        if &self.0[16..48] != BUILD.as_bytes() {
            return Err(ImageError::Build(String::from_utf8_lossy(&self.0[16..48]).into_owned()));
        }
        let count = self.number(52).unwrap_or(0) as usize;
        let (mut end, mut units) = (0, 0);
        for (first, some) in self.runs() {
            if first < end || some == 0 || first + some > WINDOW_BYTES / unit {
                return Err(ImageError::Malformed);
            }
            (end, units) = (first + some, units + some);
        }
        let len = count.checked_mul(8).and_then(|runs| runs.checked_add(HEADER + units * unit));
        if self.window() != window || window >= MOST_WINDOWS || len.map(|len| len as u64) != Some(bytes) {
            return Err(ImageError::Malformed);
        }
        Ok(())
    }

    /// Where in its bytes the first page or line begins.
    pub fn pages_offset(&self) -> usize {
        HEADER + self.runs().count() * 8
    }

    /// What it has, ascending. It has been checked.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = Piece<'_>> {
        let unit = self.unit().bytes();
        let mut left = &self.0[self.pages_offset()..];
        self.runs().flat_map(move |(first, count)| {
            let (mut run, rest) = left.split_at(count * unit);
            left = rest;
            let mut at = first * unit;
            iter::from_fn(move || {
                let (page, offset) = (at / PAGE, at % PAGE);
                let bytes = run.split_off(..run.len().min(PAGE - offset)).filter(|bytes| !bytes.is_empty())?;
                at += bytes.len();
                Some(Piece { page, offset, bytes })
            })
        })
    }

    /// Pages that it has something of.
    pub fn page_count(&self) -> usize {
        let unit = self.unit().bytes();
        let (mut count, mut end) = (0, 0);
        for (first, some) in self.runs() {
            let pages = first * unit / PAGE..((first + some) * unit).div_ceil(PAGE);
            count += pages.end.saturating_sub(pages.start.max(end));
            end = pages.end;
        }
        count
    }
}
