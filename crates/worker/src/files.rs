//! Small files that must be whole or not there.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Reads a file whole; one that is no regular file is an error and is not waited for.
pub(crate) fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    torpor_linux::regular::open(path)?.read_to_end(&mut bytes)?;
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
