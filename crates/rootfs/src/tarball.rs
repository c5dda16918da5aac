//! Apps that come as a tarball, alone or over a base image of the store.

use std::path::Path;

use crate::error::Error;
use crate::image::{Image, tarball_config};
use crate::progress::ProgressFn;
use crate::source::{self, NamedAs, open_input};
use crate::store::{LayerSource, Store};

impl Store {
    /// Unpacks a tarball (plain, gzip or zstd) on top of the image named `base`, where one is given. The image says of
    /// its program what the base says.
    pub fn add_tarball(&self, path: &Path, base: Option<&str>, progress: &ProgressFn) -> Result<Image, Error> {
        source::check(path, NamedAs::Tarball)?;
        let mut pins = self.pin();
        let base = base.map(|name| self.resolve(name)).transpose()?;
        let mut layers = base.as_ref().map(|base| base.layers.clone()).unwrap_or_default();
        self.pin_layers(&layers, &mut pins)?;
        let (file, length_bytes) = open_input(path)?;
        let what = path.display().to_string();
        let layer = LayerSource { what, file, length_bytes, stored: None, diff_id: None };
        let (layer, diff_id) = self.add_layer(layer, &layers, true, progress, &mut pins)?;
        layers.push(layer);
        self.save_image(tarball_config(base.as_ref(), diff_id), layers)
    }
}
