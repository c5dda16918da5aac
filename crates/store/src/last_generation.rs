//! The highest generation that was ever begun in a store of an app.
//!
//! ```text
//! 0      8            16    24
//! │ magic │ generation │ sum │
//! ```
//! Images are removed, so their names do not tell which numbers are used up. The file is written before an image is begun, and not
//! synced: a power cut takes back at most what the disk has not seen, which are numbers of images that it has not seen either, or of
//! images that were removed. A file that is missing or damaged counts as 0; then the names alone decide, as in earlier versions.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;
use torpor_image::checksum;

/// Name of the file. No image has such a name.
pub(crate) const NAME: &str = "last-generation";
const MAGIC: [u8; 8] = *b"TPRLASTG";
const BYTES: usize = 24;

/// Records `generation`.
pub(crate) fn record(folder: &Path, generation: u64) -> io::Result<()> {
    let mut bytes = [0; BYTES];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..16].copy_from_slice(&generation.to_le_bytes());
    let sum = checksum(&bytes[..16]);
    bytes[16..].copy_from_slice(&sum.to_le_bytes());
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false).mode(0o600).custom_flags(flags);
    let path = folder.join(NAME);
    let file = match options.open(&path) {
        // A link or a FIFO, say, that somebody has put there.
        Err(error) if std::fs::symlink_metadata(&path).is_ok_and(|found| !found.is_file()) => {
            tracing::warn!(path = %path.display(), %error, "removing what is no regular file");
            std::fs::remove_file(&path)?;
            options.open(&path)?
        }
        opened => opened?,
    };
    // So few bytes are written as a whole, or not at all, for whoever reads after our death.
    file.write_all_at(&bytes, 0)
}

/// What was recorded; 0 where nothing was, or where it cannot be read.
pub(crate) fn read(folder: &Path) -> u64 {
    let path = folder.join(NAME);
    let mut bytes = [0; BYTES];
    match torpor_linux::regular::open(&path).and_then(|file| file.read_exact_at(&mut bytes, 0)) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => return 0,
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "the number of the last image cannot be read; names of images decide");
            return 0;
        }
    }
    let word = |at: usize| bytes[at..].first_chunk::<8>().map_or(0, |word| u64::from_le_bytes(*word));
    if bytes[..8] == MAGIC && word(16) == checksum(&bytes[..16]) {
        return word(8);
    }
    tracing::warn!(path = %path.display(), "the number of the last image is damaged; names of images decide");
    0
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn what_was_recorded_is_read_and_what_is_damaged_is_not() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(read(folder.path()), 0);
        for generation in [1, u64::MAX, 7] {
            record(folder.path(), generation).unwrap();
            assert_eq!(read(folder.path()), generation);
        }
        let path = folder.path().join(NAME);
        let sound = fs::read(&path).unwrap();
        for place in 0..BYTES {
            let mut damaged = sound.clone();
            damaged[place] ^= 1;
            fs::write(&path, damaged).unwrap();
            assert_eq!(read(folder.path()), 0, "byte {place}");
        }
        fs::write(&path, &sound[..BYTES - 1]).unwrap();
        assert_eq!(read(folder.path()), 0);
        record(folder.path(), 9).unwrap();
        assert_eq!(read(folder.path()), 9);
    }

    #[test]
    fn a_link_in_its_place_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let other = folder.path().join("other");
        fs::write(&other, "untouched").unwrap();
        std::os::unix::fs::symlink(&other, folder.path().join(NAME)).unwrap();
        record(folder.path(), 5).unwrap();
        assert_eq!((read(folder.path()), fs::read(&other).unwrap()), (5, b"untouched".to_vec()));
    }
}
