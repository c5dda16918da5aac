//! What is in the store, and taking out what nobody needs.

use std::collections::HashSet;
use std::fs;
use std::time::{Duration, SystemTime};

use super::Store;
use super::records::warn_of;
use crate::digest::{Digest, LayerDigest};
use crate::error::Error;
use crate::image::Image;

/// An image as [`Store::list`] shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredImage {
    /// Digest of its configuration.
    pub digest: Digest,
    /// The image; `None` where its record, or that of one of its layers, cannot be read.
    pub image: Option<Image>,
    /// Its names, sorted; possibly none.
    pub names: Vec<String>,
    /// Bytes of its files, unpacked; layers that it shares count in full.
    pub bytes: u64,
    /// When it was stored, the last time.
    pub stored: SystemTime,
}

/// What [`Store::gc`] removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Collected {
    /// Images.
    pub images: usize,
    /// Layers.
    pub layers: usize,
    /// Bytes of the files of those layers.
    pub bytes: u64,
    /// Records of images that cannot be read or removed. While there is one, its layers are not known, and no layer is
    /// removed.
    pub unreadable: usize,
}

impl Store {
    /// All images, named ones first, by name. Those that cannot be read are among them, without their contents.
    ///
    /// # Errors
    /// Where the store's directories cannot be read.
    pub fn list(&self) -> Result<Vec<StoredImage>, Error> {
        let names = self.names()?.targets;
        let mut images = Vec::new();
        for digest in self.image_digests()? {
            let names = names.iter().filter(|(_, target)| **target == digest).map(|(name, _)| name.clone()).collect();
            let (image, bytes, stored) = match self.sized(&digest) {
                // It may have been collected since.
                Ok(None) => continue,
                Ok(Some((image, bytes, stored))) => (Some(image), bytes, stored),
                Err(error) => {
                    warn_of(&error);
                    (None, 0, self.record_time(&digest))
                }
            };
            images.push(StoredImage { digest, image, names, bytes, stored });
        }
        images.sort_by(|a, b| (a.names.is_empty(), &a.names, a.digest).cmp(&(b.names.is_empty(), &b.names, b.digest)));
        Ok(images)
    }

    fn sized(&self, digest: &Digest) -> Result<Option<(Image, u64, SystemTime)>, Error> {
        let Some((image, stored)) = self.image(digest)? else { return Ok(None) };
        let bytes = image.layers.iter().map(|layer| self.layer_bytes(layer)).sum::<Result<u64, _>>()?;
        Ok(Some((image, bytes, stored)))
    }

    /// When the record of an image was written, for those that cannot be read; now, where that is not known.
    fn record_time(&self, digest: &Digest) -> SystemTime {
        let modified = fs::symlink_metadata(self.image_path(digest)).and_then(|metadata| metadata.modified());
        modified.unwrap_or_else(|_| SystemTime::now())
    }

    /// Removes images without a name that were stored more than `unnamed_older_than` ago, and layers that belong to no
    /// remaining image, are not `in_use`, and that no work in progress counts on. The age protects an image between its
    /// making and its first use.
    ///
    /// Records that cannot be read do not end it, but limit it: while an image's cannot, no layer goes; while that of a
    /// name cannot, no image goes.
    ///
    /// # Errors
    /// Where the store's directories cannot be read or written.
    pub fn gc(&self, in_use: &HashSet<LayerDigest>, unnamed_older_than: Duration) -> Result<Collected, Error> {
        let trash = self.temporary()?;
        let mut collected = Collected::default();
        let pins = self.inner.pins();
        let names = self.names()?;
        let named: HashSet<Digest> = names.targets.into_values().collect();
        let mut kept: HashSet<LayerDigest> = in_use.iter().chain(pins.keys()).copied().collect();
        let mut doomed = Vec::new();
        for digest in self.image_digests()? {
            let (image, stored) = match self.image(&digest) {
                Ok(None) => continue,
                Ok(Some((image, stored))) => (Ok(image), stored),
                Err(error) => (Err(error), self.record_time(&digest)),
            };
            // An image from the future is young.
            let young = stored.elapsed().unwrap_or_default() < unnamed_older_than;
            match image {
                _ if !named.contains(&digest) && !young && names.unreadable == 0 => doomed.push(digest),
                Ok(image) => kept.extend(&image.layers),
                Err(error) => {
                    warn_of(&error);
                    collected.unreadable += 1;
                }
            }
        }
        for digest in doomed {
            let path = self.image_path(&digest);
            match fs::remove_file(&path).map_err(Error::io("remove", &path)) {
                Ok(()) => collected.images += 1,
                Err(error) => {
                    warn_of(&error);
                    collected.unreadable += 1;
                }
            }
        }
        self.sync_directory("images")?;
        if collected.unreadable > 0 {
            tracing::warn!(images = collected.unreadable, "no layer is removed while images cannot be read");
            return Ok(collected);
        }
        for name in self.entries("layers")? {
            let Some(layer) = LayerDigest::from_hex(&name) else { continue };
            if kept.contains(&layer) {
                continue;
            }
            // A damaged record goes with its layer.
            collected.bytes += self.layer_record(&layer).ok().flatten().map_or(0, |record| record.bytes);
            let path = self.inner.layer(&layer);
            fs::rename(&path, trash.join(&name)).map_err(Error::io("remove", &path))?;
            collected.layers += 1;
        }
        self.sync_directory("layers")?;
        drop(pins);
        Ok(collected)
    }
}
