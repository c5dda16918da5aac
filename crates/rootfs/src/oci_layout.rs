//! OCI image layout directories (OCI image specification, "Image Layout").

use std::io::Read as _;
use std::path::Path;

use crate::digest::Digest;
use crate::error::{ArchiveError, Error, ImageError};
use crate::form::ImageForm;
use crate::image::{Described, Descriptor, Document, Image, check_counts, choose};
use crate::limits::MAX_INDEX_DEPTH;
use crate::progress::ProgressFn;
use crate::source::{self, NamedAs, open_input};
use crate::store::{LayerSource, Store};

impl Store {
    /// Stores the linux/amd64 image of an OCI layout directory. `reference` is its
    /// `org.opencontainers.image.ref.name`, needed where there are several.
    pub fn add_oci_layout(&self, path: &Path, reference: Option<&str>, progress: &ProgressFn) -> Result<Image, Error> {
        source::check(path, NamedAs::Image(ImageForm::OciLayout))?;
        let unusable = |source| Error::Image { what: path.display().to_string(), source };
        if !path.join("oci-layout").is_file() {
            let what = "the file oci-layout, which marks an OCI image layout,".to_owned();
            return Err(unusable(ImageError::Missing { what }));
        }
        let index = self.read_document(&path.join("index.json"), "index.json", path)?;
        let (config, layers) = self.find_manifest(path, &index, reference)?;
        let config = self.read_blob(path, &config)?;
        let described = Described::parse(&config, self.limits()).map_err(unusable)?;
        check_counts(layers.len(), &described).map_err(unusable)?;
        let mut pins = self.pin();
        let mut stored = Vec::new();
        for (layer, diff_id) in layers.iter().zip(&described.diff_ids) {
            let known = self.find_layer(*diff_id, &stored, &mut pins)?;
            let added = match known {
                Some(known) => known,
                None => {
                    let source = layout_layer(path, layer, *diff_id)?;
                    self.add_layer(source, &stored, false, progress, &mut pins)?.0
                }
            };
            stored.push(added);
        }
        self.save_image(described, stored)
    }

    fn find_manifest(
        &self,
        path: &Path,
        index: &[u8],
        reference: Option<&str>,
    ) -> Result<(Descriptor, Vec<Descriptor>), Error> {
        let unusable = |source| Error::Image { what: path.display().to_string(), source };
        let mut data = index.to_vec();
        let mut reference = reference;
        for _ in 0..MAX_INDEX_DEPTH {
            match Document::parse(&data, self.limits()).map_err(unusable)? {
                Document::Manifest { config, layers } => return Ok((config, layers)),
                Document::Index(entries) => {
                    // The name stands in the outermost index.
                    let chosen = choose(&entries, reference.take()).map_err(unusable)?;
                    data = self.read_blob(path, chosen)?;
                }
            }
        }
        Err(unusable(ImageError::TooMany { limit: MAX_INDEX_DEPTH, what: "nested indexes" }))
    }

    /// Reads a blob that is a document, and checks it.
    fn read_blob(&self, layout: &Path, descriptor: &Descriptor) -> Result<Vec<u8>, Error> {
        let what = descriptor.digest.to_string();
        let data = self.read_document(&blob_path(layout, &descriptor.digest), &what, layout)?;
        check_blob(&data, descriptor, &what)
            .map_err(|source| Error::Image { what: layout.display().to_string(), source })?;
        Ok(data)
    }

    fn read_document(&self, path: &Path, what: &str, layout: &Path) -> Result<Vec<u8>, Error> {
        let (file, _) = open_input(path)?;
        let limit_bytes = self.limits().max_json_bytes;
        let mut data = Vec::new();
        file.take(limit_bytes + 1).read_to_end(&mut data).map_err(Error::io("read", path))?;
        if data.len() as u64 > limit_bytes {
            let source = ImageError::TooLarge { what: what.to_owned(), limit_bytes };
            return Err(Error::Image { what: layout.display().to_string(), source });
        }
        Ok(data)
    }
}

fn layout_layer(layout: &Path, layer: &Descriptor, diff_id: Digest) -> Result<LayerSource, Error> {
    let (file, length_bytes) = open_input(&blob_path(layout, &layer.digest))?;
    let what = format!("layer {}", layer.digest);
    if length_bytes != layer.size {
        let source = ArchiveError::SizeMismatch { expected: layer.size, found: length_bytes };
        return Err(Error::Archive { what, source });
    }
    Ok(LayerSource { what, file, length_bytes, stored: Some(layer.digest), diff_id: Some(diff_id) })
}

fn blob_path(layout: &Path, digest: &Digest) -> std::path::PathBuf {
    layout.join("blobs").join("sha256").join(digest.hex())
}

/// Fails unless `data` is what its descriptor says.
pub(crate) fn check_blob(data: &[u8], descriptor: &Descriptor, what: &str) -> Result<(), ImageError> {
    let (expected, found) = (descriptor.size, data.len() as u64);
    let mismatch = |source| ImageError::Mismatch { what: what.to_owned(), source: Box::new(source) };
    if expected != found {
        return Err(mismatch(ArchiveError::SizeMismatch { expected, found }));
    }
    let (expected, found) = (descriptor.digest, Digest::of(data));
    if expected != found {
        return Err(mismatch(ArchiveError::DigestMismatch { what: "digest", expected, found }));
    }
    Ok(())
}
