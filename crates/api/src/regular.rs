//! Opening files that a configuration names.

use std::fs::File;
use std::io;
use std::path::Path;

use rustix::fs::{Mode, OFlags};

/// Opens a regular file for reading and follows symbolic links. Does not wait for the other end of a FIFO that is in its place.
///
/// # Errors
/// `InvalidInput` where it is no regular file.
pub fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    check(&file.metadata()?)?;
    Ok(file)
}

/// Refuses what is no regular file.
///
/// # Errors
/// `InvalidInput`.
pub fn check(metadata: &std::fs::Metadata) -> io::Result<()> {
    if metadata.is_file() {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"))
}
