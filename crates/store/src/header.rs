//! Opening an image: its header, read and checked. Whoever reads images begins here.
//!
//! A file holds one generation, or two: the image of a dozing app, and behind it the complete image that was made from it, which refers to
//! its pages ([`Image::begin_behind`](crate::Image::begin_behind)). The first has its header at the beginning of the file, the second at the end.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use torpor_image::{FormatError, HEADER_BYTES, Header, Kind};

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

/// Opens the image at `path`: the newest generation in the file.
///
/// # Errors
/// Where it cannot be read, or is no image.
pub fn open(path: &Path) -> Result<(File, Header), Unopened> {
    let file = torpor_linux::regular::open(path).map_err(Unopened::Read)?;
    let header = newest(&file)?;
    Ok((file, header))
}

/// As [`open`], but a generation that the file begins with, even if another one is behind it; where it does not, the newest.
///
/// # Errors
/// As of [`open`].
pub fn open_generation(path: &Path, generation: u64) -> Result<(File, Header), Unopened> {
    let file = torpor_linux::regular::open(path).map_err(Unopened::Read)?;
    let bytes = file.metadata().map_err(Unopened::Read)?.len();
    match Header::decode_first(&read(&file, 0, bytes).map_err(Unopened::Read)?, bytes) {
        Ok(header) if header.generation == generation => Ok((file, header)),
        _ => {
            let header = newest(&file)?;
            Ok((file, header))
        }
    }
}

fn newest(file: &File) -> Result<Header, Unopened> {
    let bytes = file.metadata().map_err(Unopened::Read)?.len();
    let first = read(file, 0, bytes).map_err(Unopened::Read)?;
    if let Some(end) = bytes.checked_sub(HEADER_BYTES).filter(|end| *end >= HEADER_BYTES) {
        let last = read(file, end, bytes).map_err(Unopened::Read)?;
        // What is no header, or does not follow the image in front, is the end of an image of one generation.
        if let Ok(header) = Header::decode(&last, end)
            && Header::decode_first(&first, bytes).is_ok_and(|first| follows(&header, &first))
        {
            return Ok(header);
        }
    }
    Header::decode(&first, bytes).map_err(Unopened::Format)
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
