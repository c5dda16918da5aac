//! The store's small files: images, names, what is known of a layer.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::{LayerRecord, Store};
use crate::digest::{Digest, LayerDigest};
use crate::error::Error;
use crate::image::Image;
use crate::limits::MAX_IMAGE_NAME_BYTES;
use crate::source::open_input;
use crate::temporary::open_directory;

/// What the directory of names says.
#[derive(Default)]
pub(super) struct Names {
    pub(super) targets: BTreeMap<String, Digest>,
    /// Names whose image is not known.
    pub(super) unreadable: usize,
}

/// Logs that a record is passed over, with the cause.
pub(super) fn warn_of(error: &Error) {
    let cause = std::error::Error::source(error).map(ToString::to_string).unwrap_or_default();
    tracing::warn!(%error, cause, "passing over a record of the store that cannot be read");
}

impl Store {
    pub(super) fn image_path(&self, digest: &Digest) -> PathBuf {
        self.inner.root.join("images").join(format!("{}.json", digest.hex()))
    }

    pub(super) fn image(&self, digest: &Digest) -> Result<Option<(Image, SystemTime)>, Error> {
        let path = self.image_path(digest);
        let Some((data, modified)) = self.read(&path)? else { return Ok(None) };
        let image: Image = serde_json::from_slice(&data).map_err(|source| Error::DamagedRecord { path, source })?;
        Ok(Some((image, modified)))
    }

    pub(super) fn image_digests(&self) -> Result<Vec<Digest>, Error> {
        let names = self.entries("images")?;
        Ok(names.iter().filter_map(|name| Digest::from_hex(name.strip_suffix(".json")?)).collect())
    }

    pub(super) fn layer_record(&self, layer: &LayerDigest) -> Result<Option<LayerRecord>, Error> {
        let path = self.inner.layer(layer).join("layer.json");
        let Some((data, _)) = self.read(&path)? else { return Ok(None) };
        serde_json::from_slice(&data).map(Some).map_err(|source| Error::DamagedRecord { path, source })
    }

    /// The same, `None` also where the record is damaged: then the layer has to be fetched again.
    pub(super) fn readable_record(&self, layer: &LayerDigest) -> Result<Option<LayerRecord>, Error> {
        match self.layer_record(layer) {
            Err(error @ (Error::DamagedRecord { .. } | Error::LargeRecord { .. })) => {
                warn_of(&error);
                Ok(None)
            }
            record => record,
        }
    }

    /// The file of a name: slashes become `%2F`, which no name holds.
    pub(super) fn name_path(&self, name: &str) -> Result<PathBuf, Error> {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"._:/@-".contains(&byte);
        let starts_well = name.as_bytes().first().is_some_and(u8::is_ascii_alphanumeric);
        let file = name.replace('/', "%2F");
        if !starts_well || !name.bytes().all(fits) || name.len() > MAX_IMAGE_NAME_BYTES || file.len() > 255 {
            return Err(Error::BadName { name: name.to_owned() });
        }
        Ok(self.inner.root.join("names").join(file))
    }

    pub(super) fn name_target(&self, path: &Path) -> Result<Option<Digest>, Error> {
        let Some((data, _)) = self.read(path)? else { return Ok(None) };
        let quoted = serde_json::Value::String(String::from_utf8_lossy(&data).into_owned());
        let digest = serde_json::from_value(quoted);
        digest.map(Some).map_err(|source| Error::DamagedRecord { path: path.to_owned(), source })
    }

    /// All names. What no name can be (an editor's file, a directory) is passed over.
    pub(super) fn names(&self) -> Result<Names, Error> {
        let mut names = Names::default();
        for file in self.entries("names")? {
            let name = file.replace("%2F", "/");
            let Ok(path) = self.name_path(&name) else { continue };
            // One that goes away meanwhile is none, either.
            if !fs::symlink_metadata(&path).is_ok_and(|metadata| metadata.is_file()) {
                continue;
            }
            match self.name_target(&path) {
                Ok(Some(digest)) => drop(names.targets.insert(name, digest)),
                Ok(None) => {}
                Err(error) => {
                    warn_of(&error);
                    names.unreadable += 1;
                }
            }
        }
        Ok(names)
    }

    /// The names in a directory of the store; those that are not UTF-8 are not ours.
    pub(super) fn entries(&self, directory: &str) -> Result<Vec<String>, Error> {
        let path = self.inner.root.join(directory);
        let mut names = Vec::new();
        for entry in fs::read_dir(&path).map_err(Error::io("read", &path))? {
            let entry = entry.map_err(Error::io("read", &path))?;
            names.extend(entry.file_name().into_string());
        }
        Ok(names)
    }

    pub(super) fn read(&self, path: &Path) -> Result<Option<(Vec<u8>, SystemTime)>, Error> {
        let (file, _) = match open_input(path) {
            Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            opened => opened?,
        };
        let modified = file.metadata().and_then(|metadata| metadata.modified()).map_err(Error::io("look at", path))?;
        let limit_bytes = self.limits().max_json_bytes;
        let mut data = Vec::new();
        file.take(limit_bytes + 1).read_to_end(&mut data).map_err(Error::io("read", path))?;
        if data.len() as u64 > limit_bytes {
            return Err(Error::LargeRecord { path: path.to_owned(), limit_bytes });
        }
        Ok(Some((data, modified)))
    }

    /// Writes a small file so that a crash leaves the old one or the new one. Refuses what [`Store::read`] would refuse.
    pub(super) fn write(&self, path: &Path, data: &[u8]) -> Result<(), Error> {
        let limit_bytes = self.limits().max_json_bytes;
        if data.len() as u64 > limit_bytes {
            return Err(Error::LargeRecord { path: path.to_owned(), limit_bytes });
        }
        let temporary = self.temporary()?;
        let made = temporary.join("file");
        let mut file = File::create_new(&made).map_err(Error::io("create", &made))?;
        file.write_all(data).and_then(|()| file.sync_all()).map_err(Error::io("write", &made))?;
        fs::rename(&made, path).map_err(Error::io("store", path))?;
        match path.parent() {
            Some(parent) => open_directory(parent)?.sync_all().map_err(Error::io("sync", parent)),
            None => Ok(()),
        }
    }

    pub(super) fn sync_directory(&self, name: &str) -> Result<(), Error> {
        let path = self.inner.root.join(name);
        open_directory(&path)?.sync_all().map_err(Error::io("sync", &path))
    }
}
