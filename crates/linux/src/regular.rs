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

/// Opens a regular file for reading and writing; a symbolic link is not followed.
///
/// # Errors
/// As of [`open`], and ELOOP where it is a symbolic link.
pub fn open_for_writing(path: &Path) -> io::Result<File> {
    open_for(path, OFlags::RDWR | OFlags::NOFOLLOW)
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

    #[test]
    fn what_is_written_is_no_link() {
        let folder = std::env::temp_dir().join(format!("torpor-linux-link-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let (file, link) = (folder.join("file"), folder.join("link"));
        std::fs::write(&file, b"").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        let opened = (open(&link).is_ok(), open_for_writing(&file).is_ok(), open_for_writing(&link));
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(opened.0 && opened.1);
        assert_eq!(opened.2.unwrap_err().raw_os_error(), Some(rustix::io::Errno::LOOP.raw_os_error()));
    }
}
