//! Opening regular files in places where somebody may have put something else: open(2).
//!
//! Without `O_NONBLOCK` opening a FIFO waits for its other end, and opening a device may do anything. With it a regular file is
//! read as without.

use std::fs::File;
use std::io;
use std::path::Path;

use rustix::fs::{Mode, OFlags};

/// Opens a regular file for reading; symbolic links are followed.
///
/// # Errors
/// `InvalidInput` where it is something else.
pub fn open(path: &Path) -> io::Result<File> {
    open_for(path, OFlags::RDONLY)
}

/// As [`open`], for reading and writing.
///
/// # Errors
/// As there.
pub fn open_for_writing(path: &Path) -> io::Result<File> {
    open_for(path, OFlags::RDWR)
}

fn open_for(path: &Path, access: OFlags) -> io::Result<File> {
    let flags = access | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    if file.metadata()?.is_file() {
        return Ok(file);
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"))
}

#[cfg(test)]
mod tests {
    use rustix::fs::{CWD, FileType, mknodat};

    use super::*;

    #[test]
    fn a_fifo_is_refused_at_once() {
        let path = std::env::temp_dir().join(format!("torpor-linux-regular-{}", std::process::id()));
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let opened = open(&path);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(opened.unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert_eq!(open(Path::new("/dev/null")).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        open(&std::env::current_exe().unwrap()).unwrap();
    }
}
