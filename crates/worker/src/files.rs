//! Small files that must be whole or not there.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// The longest file that is read, bytes: far more than any has.
const MOST_BYTES: u64 = 1 << 20;

/// Reads a file whole.
///
/// # Errors
/// `InvalidInput` for one that is no regular file, which is not waited for; `InvalidData` for one of more than 1 MiB.
pub(crate) fn read(path: &Path) -> io::Result<Vec<u8>> {
    let file = torpor_linux::regular::open(path)?;
    let mut bytes = Vec::new();
    file.take(MOST_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MOST_BYTES {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "it is longer than 1 MiB"));
    }
    Ok(bytes)
}

/// Replaces a file's contents, all or nothing, mode 0600. Not synced: it is for files that a reboot makes useless.
pub(crate) fn replace(path: &Path, contents: &[u8]) -> io::Result<()> {
    let mut part = path.as_os_str().to_owned();
    part.push(".part");
    let mut file: File = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&part)?;
    file.write_all(contents)?;
    fs::rename(&part, path)
}
