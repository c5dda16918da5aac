//! Space on the disk that is reserved, so that the daemon can open its database where others have filled the disk.
//!
//! It is a file of zeros, written when the database has been opened and removed when that fails on a full disk. It is written again by
//! the next start that finds room.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

/// The file that takes the room.
const FILE: &str = "torpor.room";
/// The file that is written to see whether there is any.
const PROBE: &str = "torpor.room.probe";
/// What is set aside, bytes: SQLite's index of its log and some changes.
const BYTES: usize = 1 << 20;
/// A database is opened with less.
const NEEDED_BYTES: usize = 128 << 10;

fn write(path: &Path, bytes: usize) -> io::Result<()> {
    // A FIFO in its place would be waited for. Nobody else can put one there meanwhile: the directory is ours.
    super::check_regular(path)?;
    let mut file = File::create(path)?;
    let written = file.write_all(&vec![0; bytes]).and_then(|()| file.sync_all());
    if written.is_err() {
        fs::remove_file(path)?;
    }
    written
}

/// Sets room aside, if none is.
pub(super) fn set_aside(folder: &Path) {
    let path = folder.join(FILE);
    if fs::metadata(&path).is_ok_and(|file| file.len() == BYTES as u64) {
        return;
    }
    if let Err(error) = write(&path, BYTES) {
        tracing::warn!(path = %path.display(), %error, "no room can be set aside for a start on a full disk");
    }
}

/// Whether the disk has no room.
pub(super) fn is_full(folder: &Path) -> bool {
    let path = folder.join(PROBE);
    let full = |error: io::Error| matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
    write(&path, NEEDED_BYTES).and_then(|()| fs::remove_file(&path)).is_err_and(full)
}

/// Gives free what was set aside; whether there was any.
pub(super) fn use_up(folder: &Path) -> bool {
    fs::remove_file(folder.join(FILE)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_set_aside_once_and_used_once() {
        let folder = tempfile::tempdir().unwrap();
        set_aside(folder.path());
        set_aside(folder.path());
        assert!(!is_full(folder.path()));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        assert!(use_up(folder.path()) && !use_up(folder.path()));
    }

    #[test]
    fn a_fifo_in_its_place_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        for file in [FILE, PROBE] {
            let path = folder.path().join(file);
            rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0).unwrap();
            assert_eq!(write(&path, 1).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        }
        set_aside(folder.path());
        assert!(!is_full(folder.path()));
    }
}
