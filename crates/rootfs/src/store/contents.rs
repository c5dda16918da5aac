//! What is in the store, and taking out what nobody needs.

use std::collections::HashSet;
use std::fs;
use std::time::{Duration, SystemTime};

use super::Store;
use crate::digest::{Digest, LayerDigest};
use crate::error::Error;
use crate::image::Image;

/// An image as [`Store::list`] shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredImage {
    /// The image.
    pub image: Image,
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
}

impl Store {
    /// All images, named ones first, by name.
    pub fn list(&self) -> Result<Vec<StoredImage>, Error> {
        let names = self.names()?;
        let mut images = Vec::new();
        for digest in self.image_digests()? {
            // It may have been collected since.
            let Some((image, stored)) = self.image(&digest)? else { continue };
            let bytes = image.layers.iter().map(|layer| self.layer_bytes(layer)).sum::<Result<u64, _>>()?;
            let names = names.iter().filter(|(_, target)| **target == digest).map(|(name, _)| name.clone()).collect();
            images.push(StoredImage { image, names, bytes, stored });
        }
        images.sort_by(|a, b| {
            (a.names.is_empty(), &a.names, a.image.digest).cmp(&(b.names.is_empty(), &b.names, b.image.digest))
        });
        Ok(images)
    }

    /// Removes images without a name that were stored more than `unnamed_older_than` ago, and layers that belong to no
    /// remaining image, are not `in_use`, and that no work in progress counts on. The age protects an image between its
    /// making and its first use.
    pub fn gc(&self, in_use: &HashSet<LayerDigest>, unnamed_older_than: Duration) -> Result<Collected, Error> {
        let trash = self.temporary()?;
        let mut collected = Collected::default();
        let pins = self.inner.pins();
        let named: HashSet<Digest> = self.names()?.into_values().collect();
        let mut kept: HashSet<LayerDigest> = in_use.iter().chain(pins.keys()).copied().collect();
        let mut doomed = Vec::new();
        for digest in self.image_digests()? {
            let Some((image, stored)) = self.image(&digest)? else { continue };
            // An image from the future is young.
            let young = stored.elapsed().unwrap_or_default() < unnamed_older_than;
            if named.contains(&digest) || young {
                kept.extend(&image.layers);
            } else {
                doomed.push(digest);
            }
        }
        for digest in doomed {
            let path = self.image_path(&digest);
            fs::remove_file(&path).map_err(Error::io("remove", &path))?;
            collected.images += 1;
        }
        self.sync_directory("images")?;
        for name in self.entries("layers")? {
            let Some(layer) = LayerDigest::from_hex(&name) else { continue };
            if kept.contains(&layer) {
                continue;
            }
            collected.bytes += self.layer_record(&layer)?.map_or(0, |record| record.bytes);
            let path = self.inner.layer(&layer);
            fs::rename(&path, trash.join(&name)).map_err(Error::io("remove", &path))?;
            collected.layers += 1;
        }
        self.sync_directory("layers")?;
        drop(pins);
        Ok(collected)
    }
}
