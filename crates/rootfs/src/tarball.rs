//! Apps that come as a tarball, alone or over a base image of the store.

use std::fs::File;
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, openat};

use crate::error::Error;
use crate::image::{Image, tarball_config};
use crate::progress::ProgressFn;
use crate::store::{LayerSource, Store};

impl Store {
    /// Unpacks a tarball (plain, gzip or zstd) on top of the image named `base`, where one is given. The image says of
    /// its program what the base says.
    pub fn add_tarball(&self, path: &Path, base: Option<&str>, progress: &ProgressFn) -> Result<Image, Error> {
        let mut pins = self.pin();
        let base = base.map(|name| self.resolve(name)).transpose()?;
        let mut layers = base.as_ref().map(|base| base.layers.clone()).unwrap_or_default();
        self.pin_layers(&layers, &mut pins)?;
        let (file, length_bytes) = open_input(path)?;
        let what = path.display().to_string();
        let source = LayerSource { what, file, length_bytes, stored: None, diff_id: None };
        let (layer, diff_id) = self.add_layer(source, &layers, true, progress, &mut pins)?;
        layers.push(layer);
        self.save_image(tarball_config(base.as_ref(), diff_id), layers)
    }
}

/// Opens a file that a user names; not a FIFO or device, which might never end.
pub(crate) fn open_input(path: &Path) -> Result<(File, u64), Error> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    let file = openat(CWD, path, flags, Mode::empty()).map(File::from).map_err(Error::errno("open", path))?;
    let metadata = file.metadata().map_err(Error::io("look at", path))?;
    if !metadata.is_file() {
        let source = std::io::Error::new(std::io::ErrorKind::InvalidInput, "it is not a regular file");
        return Err(Error::io("read", path)(source));
    }
    Ok((file, metadata.len()))
}
