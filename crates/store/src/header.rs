//! Opening an image: its header, read and checked. Whoever reads images begins here.
//!
//! A file holds one generation, or several of one app, each behind the one before; a later one refers to pages of earlier ones
//! ([`Image::begin_behind`](crate::Image::begin_behind)).
//!
//! ```text
//! 0        1024    2048    4096
//! │ header │ slot │ slot │ pages │ state │ plan │ pages │ state │ plan │ header │ …
//! └─────────── the first generation ────────────┘└───── a later generation ─────┘
//! ```
//! The header of the first generation is at the beginning of the file. That of a later one is behind its plan, and a *slot* in the first page
//! says where. There are two slots: while a generation is written, the one that it is made from keeps its own. Everything else in the file may be
//! contents of the app's memory, so no header is ever searched for.
//!
//! | slot    | type | field                          |
//! |---------|------|--------------------------------|
//! | 0       | u64  | generation                     |
//! | 8       | u64  | where its header is            |
//! | 16      | u64  | checksum of bytes 0 to 15      |
//!
//! A file without slots may hold a complete image behind a dozing one, with its header at the end: earlier versions wrote it so.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use torpor_image::{FormatError, HEADER_BYTES, Header, Kind, checksum};

/// More than any state with its plan: what is read into memory at once.
pub const MOST_STATE_BYTES: u64 = 1 << 30;

/// Why an image could not be opened.
#[derive(Debug)]
pub enum Unopened {
    /// The file cannot be read.
    Read(io::Error),
    /// It is damaged, or no image.
    Format(FormatError),
}

impl Unopened {
    /// As the error of an operation.
    pub fn either<E>(self, read: impl FnOnce(io::Error) -> E, format: impl FnOnce(FormatError) -> E) -> E {
        match self {
            Self::Read(error) => read(error),
            Self::Format(error) => format(error),
        }
    }
}

impl From<Unopened> for io::Error {
    fn from(error: Unopened) -> Self {
        error.either(|error| error, |error| Self::new(io::ErrorKind::InvalidData, error))
    }
}

/// Where the slots are in the first page: in sectors of their own, and the header is in a third.
const SLOTS: [u64; 2] = [1024, 2048];
const SLOT_BYTES: usize = 24;

/// Where the header of a later generation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Slot {
    generation: u64,
    header_at: u64,
}

impl Slot {
    fn encode(self) -> [u8; SLOT_BYTES] {
        let mut bytes = [0; SLOT_BYTES];
        bytes[..8].copy_from_slice(&self.generation.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.header_at.to_le_bytes());
        let sum = checksum(&bytes[..16]);
        bytes[16..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// None where there is none, or it was cut off by a crash.
    fn decode(first: &[u8], at: u64) -> Option<Self> {
        let bytes = first.get(at as usize..at as usize + SLOT_BYTES)?;
        let word = |at: usize| bytes[at..].first_chunk::<8>().map_or(0, |word| u64::from_le_bytes(*word));
        let slot = Self { generation: word(0), header_at: word(8) };
        (slot.encode()[..] == *bytes).then_some(slot)
    }

    /// Reads the header that it tells of, which must be that of a generation of the same app, behind the first one.
    fn header(self, file: &File, bytes: u64, first: &Header) -> Option<Header> {
        let whole = bytes.checked_sub(HEADER_BYTES).is_some_and(|last| (HEADER_BYTES..=last).contains(&self.header_at));
        let encoded = if whole { read(file, self.header_at, bytes).ok()? } else { return None };
        let header = Header::decode(&encoded, self.header_at).ok()?;
        let same = (header.app, header.epoch) == (first.app, first.epoch);
        (same && header.generation == self.generation && header.generation > first.generation).then_some(header)
    }
}

/// A generation in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) header: Header,
    /// Behind its last byte.
    pub(crate) end: u64,
    place: Place,
}

/// What tells where a header is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    First,
    Slot(usize),
    /// The end of the file: an earlier version has written it.
    Last,
}

/// Opens the image at `path`: the newest generation in the file.
///
/// # Errors
/// Where it cannot be read, or is no image.
pub fn open(path: &Path) -> Result<(File, Header), Unopened> {
    let file = torpor_linux::regular::open(path).map_err(Unopened::Read)?;
    let found = find(&file, None)?;
    Ok((file, found.header))
}

/// As [`open`], but this generation, even if others are behind it; where the file does not hold it, the newest.
///
/// # Errors
/// As of [`open`].
pub fn open_generation(path: &Path, generation: u64) -> Result<(File, Header), Unopened> {
    let file = torpor_linux::regular::open(path).map_err(Unopened::Read)?;
    let found = find(&file, Some(generation))?;
    Ok((file, found.header))
}

/// Finds a generation, or the newest one.
pub(crate) fn find(file: &File, generation: Option<u64>) -> Result<Found, Unopened> {
    let bytes = file.metadata().map_err(Unopened::Read)?.len();
    let page = read(file, 0, bytes).map_err(Unopened::Read)?;
    let first = Header::decode_first(&page, bytes);
    let of_first = |header: Header| {
        let end = header.end().unwrap_or(bytes);
        Found { header, end, place: Place::First }
    };
    let mut later = Vec::new();
    if let Ok(first) = &first {
        if generation == Some(first.generation) {
            return Ok(of_first(first.clone()));
        }
        for (n, at) in SLOTS.into_iter().enumerate() {
            let Some(slot) = Slot::decode(&page, at) else { continue };
            if let Some(header) = slot.header(file, bytes, first) {
                later.push(Found { header, end: slot.header_at + HEADER_BYTES, place: Place::Slot(n) });
            }
        }
        if later.is_empty() && page.get(SLOTS[0] as usize..).is_none_or(|rest| rest.iter().all(|byte| *byte == 0)) {
            later.extend(last(file, bytes, first).map_err(Unopened::Read)?);
        }
    }
    if let Some(found) = later.iter().find(|found| Some(found.header.generation) == generation) {
        return Ok(found.clone());
    }
    match later.into_iter().max_by_key(|found| found.header.generation) {
        Some(newest) => Ok(newest),
        None => Header::decode(&page, bytes).map(of_first).map_err(Unopened::Format),
    }
}

/// The complete image at the end of a file that an earlier version has written.
fn last(file: &File, bytes: u64, first: &Header) -> io::Result<Option<Found>> {
    let Some(at) = bytes.checked_sub(HEADER_BYTES).filter(|at| *at >= HEADER_BYTES) else { return Ok(None) };
    // What is no header, or does not follow the image in front, is the end of an image of one generation.
    let header = Header::decode(&read(file, at, bytes)?, at).ok().filter(|header| follows(header, first));
    Ok(header.map(|header| Found { header, end: bytes, place: Place::Last }))
}

/// Writes the header of a generation whose other bytes are written: of the first one, or of one behind `base`.
pub(crate) fn write(file: &File, header: &Header, base: Option<&Found>) -> io::Result<u64> {
    let end = header.end().ok_or(io::ErrorKind::InvalidInput)?;
    let Some(base) = base else {
        file.write_all_at(&header.encode(), 0)?;
        return Ok(end);
    };
    file.write_all_at(&header.encode(), end)?;
    let slot = Slot { generation: header.generation, header_at: end };
    file.write_all_at(&slot.encode(), SLOTS[base.free_slot()])?;
    Ok(end + HEADER_BYTES)
}

/// Nothing is behind `base` any more.
pub(crate) fn clear_behind(file: &File, base: &Found) -> io::Result<()> {
    let (mut slot, at) = ([0; SLOT_BYTES], SLOTS[base.free_slot()]);
    file.read_exact_at(&mut slot, at)?;
    if slot == [0; SLOT_BYTES] { Ok(()) } else { file.write_all_at(&[0; SLOT_BYTES], at) }
}

impl Found {
    /// Whether nothing is in front of it.
    pub(crate) fn is_first(&self) -> bool {
        self.place == Place::First
    }

    /// Whether it is found when there is more in the file.
    pub(crate) fn stays_found(&self) -> bool {
        self.place != Place::Last
    }

    /// The slot that tells of another generation, or of none.
    const fn free_slot(&self) -> usize {
        match self.place {
            Place::Slot(own) => 1 - own,
            Place::First | Place::Last => 0,
        }
    }
}

/// Whether a complete image was made from the dozing image in front of it.
fn follows(complete: &Header, dozing: &Header) -> bool {
    let is_made_from = complete.kind == Kind::Complete && dozing.kind == Kind::Dozing;
    let same = (complete.app, complete.epoch) == (dozing.app, dozing.epoch);
    let behind = dozing.end().is_some_and(|end| end <= complete.state_offset());
    is_made_from && same && behind && dozing.generation < complete.generation
}

/// Reads where a header may be, of a file of this length.
fn read(file: &File, offset: u64, bytes: u64) -> io::Result<Vec<u8>> {
    let mut header = vec![0; (bytes - offset).min(HEADER_BYTES) as usize];
    file.read_exact_at(&mut header, offset)?;
    Ok(header)
}
