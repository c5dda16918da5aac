//! Disk space that images of sleeping apps take, and its limit.
//!
//! While they take as much as the limit or more, no further app falls asleep or goes warm; the last one may pass it by its own
//! image. Nothing is ever deleted for it: each image is the only copy of an app's memory.

use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use torpor_api::units::Amount;

use crate::config::WorkerConfig;

/// Where no limit is set: this part of the file system …
const DEFAULT_LIMIT: Amount = Amount::Percent(10);
/// … and at least so much.
const LEAST_DEFAULT_BYTES: u64 = 1 << 30;
/// The unit of `st_blocks`, stat(2).
const BLOCK_BYTES: u64 = 512;

/// What is said where the disk is full.
pub(crate) const NO_ROOM: &str = "the disk of the data directory is full (make room there)";

/// The space that all images of a worker take.
#[derive(Clone, Debug)]
pub(crate) struct ImageSpace {
    taken_bytes: Arc<AtomicU64>,
    limit_bytes: u64,
}

/// One app's images: they count until this is dropped.
#[derive(Debug)]
pub(crate) struct Held {
    space: ImageSpace,
    bytes: u64,
}

impl ImageSpace {
    pub(crate) fn new(limit_bytes: u64) -> Self {
        Self { taken_bytes: Arc::default(), limit_bytes }
    }

    /// With the limit of the configuration.
    pub(crate) fn of(config: &WorkerConfig) -> io::Result<Self> {
        let disk = rustix::fs::statvfs(&config.data_dir)?;
        let disk_bytes = disk.f_blocks.saturating_mul(disk.f_frsize);
        Ok(Self::new(limit(config.image_limit, disk_bytes)))
    }

    /// Counts an app's images.
    pub(crate) fn hold(&self, bytes: u64) -> Held {
        self.taken_bytes.fetch_add(bytes, Ordering::Relaxed);
        Held { space: self.clone(), bytes }
    }

    /// No further image is to be written.
    pub(crate) fn is_full(&self) -> bool {
        self.taken_bytes.load(Ordering::Relaxed) >= self.limit_bytes
    }

    /// Why not, in words.
    pub(crate) fn words(&self) -> String {
        let taken = self.taken_bytes.load(Ordering::Relaxed) >> 20;
        let limit = self.limit_bytes >> 20;
        format!(
            "images of sleeping apps take {taken} MiB on disk, and {limit} MiB is the limit (`max_bytes` of `[images]` in the \
             configuration); wake or remove other apps, or raise it"
        )
    }
}

impl Held {
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.space.taken_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

fn limit(configured: Option<Amount>, disk_bytes: u64) -> u64 {
    match configured {
        Some(amount) => amount.of(disk_bytes),
        None => DEFAULT_LIMIT.of(disk_bytes).max(LEAST_DEFAULT_BYTES),
    }
}

/// Whether a file of so many bytes can be written at `path`, which must be nobody's: tried with a file that is removed at once, since the
/// numbers of a file system say nothing of quotas and of blocks that are set aside for root.
pub(crate) fn has_room(path: &Path, bytes: u64) -> io::Result<()> {
    let file = std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    let tried = rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes);
    drop(file);
    std::fs::remove_file(path)?;
    match tried {
        // This file system cannot tell.
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
        tried => Ok(tried?),
    }
}

/// What the images in an app's directory take on disk, and when the newest was written, if there is one.
pub(crate) fn images_in(folder: &Path) -> io::Result<(u64, Option<SystemTime>)> {
    let (mut bytes, mut newest) = (0, None);
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        if Path::new(&entry.file_name()).extension().is_some_and(|extension| extension == "image") {
            let file = entry.metadata()?;
            bytes += file.blocks() * BLOCK_BYTES;
            newest = newest.max(file.modified().ok());
        }
    }
    Ok((bytes, newest))
}

#[cfg(test)]
mod tests {
    use torpor_api::units::Bytes;

    use super::*;

    #[test]
    fn what_is_held_counts_until_it_is_let_go() {
        let space = ImageSpace::new(100);
        let one = space.hold(60);
        assert!(!space.is_full() && one.bytes() == 60);
        let two = space.hold(60);
        assert!(space.is_full(), "the last may pass the limit, and then nobody");
        drop(one);
        assert!(!space.is_full());
        let _three = space.hold(40);
        assert!(space.is_full(), "the limit itself is full");
        drop(two);
        assert!(!space.is_full());
        assert!(ImageSpace::new(0).is_full() && ImageSpace::new(0).words().contains("max_bytes"));
    }

    #[test]
    fn room_is_tried_and_nothing_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("1.image.part");
        has_room(&path, 1 << 20).unwrap();
        assert!(has_room(&path, 1 << 62).is_err() && !path.exists());
    }

    #[test]
    fn the_limit_is_a_tenth_and_never_little() {
        assert_eq!(limit(None, 100 << 30), 10 << 30);
        assert_eq!(limit(None, 4 << 30), 1 << 30);
        assert_eq!(limit(Some(Amount::Percent(50)), 4 << 30), 2 << 30);
        assert_eq!(limit(Some(Amount::Size(Bytes(7))), 4 << 30), 7);
    }

    #[test]
    fn images_alone_are_counted() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(images_in(folder.path()).unwrap(), (0, None));
        for name in ["1.image", "2.image.part", "log", "3.image"] {
            std::fs::write(folder.path().join(name), vec![1; 10_000]).unwrap();
            std::fs::File::open(folder.path().join(name)).unwrap().sync_all().unwrap();
        }
        let (bytes, written) = images_in(folder.path()).unwrap();
        assert!((20_000..100_000).contains(&bytes) && written.is_some(), "{bytes}");
    }
}
