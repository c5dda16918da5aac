//! Disk space: what images of sleeping apps take, and its limit; what an import leaves free.
//!
//! While they take as much as the limit or more, no further app falls asleep or goes warm; the last one may pass it by its own
//! image. Nothing is ever deleted for it: each image is the only copy of an app's memory.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use torpor_api::units::Amount;
use torpor_store::{ImageState, Store};

use crate::config::WorkerConfig;

/// Where no limit is set: this part of the file system …
const DEFAULT_LIMIT: Amount = Amount::Percent(10);
/// … and at least so much.
const LEAST_DEFAULT_BYTES: u64 = 1 << 30;

/// An import leaves free this part of the file system …
const KEPT_FREE: Amount = Amount::Percent(5);
/// … and no more than this.
const MOST_KEPT_FREE_BYTES: u64 = 1 << 30;

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

/// Room on the file system of the data directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DiskRoom {
    free_bytes: u64,
    kept_free_bytes: u64,
}

impl DiskRoom {
    pub(crate) fn of(directory: &Path) -> io::Result<Self> {
        let disk = rustix::fs::statvfs(directory)?;
        Ok(Self::new(disk.f_bavail.saturating_mul(disk.f_frsize), disk.f_blocks.saturating_mul(disk.f_frsize)))
    }

    fn new(free_bytes: u64, disk_bytes: u64) -> Self {
        Self { free_bytes, kept_free_bytes: KEPT_FREE.of(disk_bytes).min(MOST_KEPT_FREE_BYTES) }
    }

    /// What an import may take.
    pub(crate) fn import_bytes(&self) -> u64 {
        self.free_bytes.saturating_sub(self.kept_free_bytes)
    }
}

impl fmt::Display for DiskRoom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (free, kept) = (self.free_bytes >> 20, self.kept_free_bytes >> 20);
        write!(f, "{free} MiB free, of which an import leaves {kept} MiB")
    }
}

fn limit(configured: Option<Amount>, disk_bytes: u64) -> u64 {
    match configured {
        Some(amount) => amount.of(disk_bytes),
        None => DEFAULT_LIMIT.of(disk_bytes).max(LEAST_DEFAULT_BYTES),
    }
}

/// What an app's images take on disk, and when the newest was written, if there is one.
pub(crate) fn taken(images: &Store) -> io::Result<(u64, Option<SystemTime>)> {
    let (mut bytes, mut newest) = (0, None);
    for entry in images.list()?.into_iter().filter(|entry| entry.state == ImageState::Committed) {
        let info = entry.info()?;
        bytes += info.allocated_bytes;
        newest = newest.max(info.written);
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
    fn the_limit_is_a_tenth_and_never_little() {
        assert_eq!(limit(None, 100 << 30), 10 << 30);
        assert_eq!(limit(None, 4 << 30), 1 << 30);
        assert_eq!(limit(Some(Amount::Percent(50)), 4 << 30), 2 << 30);
        assert_eq!(limit(Some(Amount::Size(Bytes(7))), 4 << 30), 7);
    }

    #[test]
    fn an_import_leaves_a_twentieth_free_and_at_most_a_gibibyte() {
        assert_eq!(DiskRoom::new(10 << 30, 250 << 30).import_bytes(), 9 << 30);
        assert_eq!(DiskRoom::new(1 << 30, 2 << 30).import_bytes(), (1 << 30) - (2 << 30) / 20);
        let full = DiskRoom::new(10 << 20, 1 << 30);
        assert_eq!(full.import_bytes(), 0);
        assert_eq!(full.to_string(), "10 MiB free, of which an import leaves 51 MiB");
    }

    #[test]
    fn images_alone_are_counted() {
        let folder = tempfile::tempdir().unwrap();
        let images = Store::of_app(folder.path());
        assert_eq!(taken(&images).unwrap(), (0, None));
        for name in ["1.image", "2.image.part", "log", "3.image"] {
            std::fs::write(folder.path().join(name), vec![1; 10_000]).unwrap();
            std::fs::File::open(folder.path().join(name)).unwrap().sync_all().unwrap();
        }
        let (bytes, written) = taken(&images).unwrap();
        assert!((20_000..100_000).contains(&bytes) && written.is_some(), "{bytes}");
    }
}
