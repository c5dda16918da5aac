//! Opening an image: its header, read and checked. Whoever reads images begins here.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use torpor_image::{FormatError, HEADER_BYTES, Header};

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

/// Opens the image at `path`.
pub fn open(path: &Path) -> Result<(File, Header), Unopened> {
    let file = torpor_linux::regular::open(path).map_err(Unopened::Read)?;
    let bytes = file.metadata().map_err(Unopened::Read)?.len();
    let mut header = [0; HEADER_BYTES as usize];
    let known = bytes.min(HEADER_BYTES) as usize;
    file.read_exact_at(&mut header[..known], 0).map_err(Unopened::Read)?;
    let header = Header::decode(&header[..known], bytes).map_err(Unopened::Format)?;
    Ok((file, header))
}
