//! The store: a directory that holds unpacked layers, images and their names.
//!
//! ```text
//! DIR/                     0700: setuid programs of images are out of reach for the machine's users
//!   layers/<hex>/tree/     an unpacked layer; owners as in its archive (0 to 65535), which the sandbox maps
//!   layers/<hex>/layer.json
//!   images/<hex>.json      layers and configuration
//!   names/<name>           the digest of an image
//!   tmp/                   being made
//! ```
//! A layer is named by the digest of its uncompressed archive, or of that and the layers below where its tree depends
//! on them ([`LayerDigest`]). It is made in `tmp/`, synced, and renamed into place: what is in `layers/` is complete. Of
//! two that unpack the same layer, one wins and the other's work is thrown away.
//!
//! Lock order: there is one lock, on the layers in use by work in progress (`pins`). It is held for renames and
//! look-ups, never while unpacking. Garbage collection takes it while it decides and renames.
//!
//! A crash leaves entries of `tmp/`, which [`Store::open`] removes, and layers of no image, which [`Store::gc`] removes.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::{CWD, RenameFlags, renameat_with, syncfs};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::archive::Archive;
use crate::digest::{Digest, LayerDigest};
use crate::error::{ArchiveError, Error};
use crate::form::{self, ImageForm};
use crate::image::{Described, Image};
use crate::limits::Limits;
use crate::progress::{ProgressFn, Reporter};
use crate::stream::{Stream, Totals};
use crate::temporary::{self, Temporary, open_directory};
use crate::tree::Tree;
use crate::unpack::{Below, Unpacked, unpack};
use crate::view::View;

mod contents;
mod moved;
mod records;

pub use contents::{Collected, StoredImage};

/// A directory of layers and images. Clones share it.
#[derive(Clone)]
pub struct Store {
    inner: Arc<Inner>,
}

struct Inner {
    root: PathBuf,
    limits: Limits,
    /// Layers that work in progress counts on, and how often.
    pins: Mutex<HashMap<LayerDigest, usize>>,
}

/// What the store keeps of a layer beside its tree.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct LayerRecord {
    diff_id: Digest,
    bytes: u64,
    members: u64,
    /// Its archive leaves out directories, so over other layers the tree may be another one.
    borrowed: bool,
}

/// Keeps layers from being collected while an image is put together.
pub(crate) struct Pins {
    inner: Arc<Inner>,
    layers: Vec<LayerDigest>,
}

impl Drop for Pins {
    fn drop(&mut self) {
        let mut pins = self.inner.pins();
        for layer in &self.layers {
            if let Some(count) = pins.get_mut(layer) {
                *count -= 1;
                if *count == 0 {
                    pins.remove(layer);
                }
            }
        }
    }
}

impl Inner {
    /// The map is valid after any panic: every change to it is one step.
    fn pins(&self) -> MutexGuard<'_, HashMap<LayerDigest, usize>> {
        self.pins.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn layer(&self, layer: &LayerDigest) -> PathBuf {
        self.root.join("layers").join(layer.hex())
    }
}

/// A layer's archive: the next bytes of a file, and what they should be.
pub(crate) struct LayerSource {
    /// For messages: a path or digest.
    pub(crate) what: String,
    /// Positioned at the archive's first byte.
    pub(crate) file: File,
    pub(crate) length_bytes: u64,
    /// Digest of the bytes as stored, where it is known.
    pub(crate) stored: Option<Digest>,
    /// Digest of the uncompressed bytes, where it is known.
    pub(crate) diff_id: Option<Digest>,
}

impl Store {
    /// Opens the store in `directory` with the default limits, making it where it is missing.
    pub fn open(directory: impl Into<PathBuf>) -> Result<Self, Error> {
        Self::open_with(directory, Limits::default())
    }

    /// Opens the store in `directory`, making it where it is missing, and removes what a crash left. The caller has made sure that
    /// nobody else can replace `directory`.
    ///
    /// # Errors
    /// Where it, or a directory of the store in it, is a symbolic link or belongs to somebody else.
    pub fn open_with(directory: impl Into<PathBuf>, limits: Limits) -> Result<Self, Error> {
        let root = directory.into();
        let root = std::path::absolute(&root).map_err(Error::io("find", root))?;
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&root).map_err(Error::io("create", &root))?;
        temporary::close_directory(&root)?;
        for name in ["layers", "images", "names", "tmp"] {
            let directory = root.join(name);
            match fs::DirBuilder::new().mode(0o700).create(&directory) {
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                made => made.map_err(Error::io("create", &directory))?,
            }
            temporary::close_directory(&directory)?;
        }
        let removed = temporary::clean(&root.join("tmp"))?;
        if removed > 0 {
            tracing::info!(removed, "removed temporaries of an earlier run");
        }
        Ok(Self { inner: Arc::new(Inner { root, limits, pins: Mutex::default() }) })
    }

    /// The directory that holds the files of `layer`.
    pub fn layer_path(&self, layer: &LayerDigest) -> Result<PathBuf, Error> {
        let tree = self.inner.layer(layer).join("tree");
        if tree.is_dir() { Ok(tree) } else { Err(Error::UnknownLayer { layer: *layer }) }
    }

    /// Bytes of the files of `layer`, unpacked.
    pub fn layer_bytes(&self, layer: &LayerDigest) -> Result<u64, Error> {
        Ok(self.layer_record(layer)?.ok_or(Error::UnknownLayer { layer: *layer })?.bytes)
    }

    /// `layers` (lowest first) as one tree.
    pub fn view(&self, layers: &[LayerDigest]) -> Result<View, Error> {
        let trees = layers.iter().map(|layer| self.layer_path(layer)).collect::<Result<Vec<_>, _>>()?;
        View::open(trees).map_err(Error::io("open the layers in", self.inner.root.join("layers")))
    }

    /// Gives `image` a name, which moves from the image that had it.
    pub fn tag(&self, name: &str, image: &Image) -> Result<(), Error> {
        let path = self.name_path(name)?;
        // Fails unless the image is stored.
        self.image(&image.digest)?.ok_or_else(|| Error::UnknownImage { name: image.digest.to_string() })?;
        self.write(&path, image.digest.to_string().as_bytes())
    }

    /// The image of that name, or of that digest (`sha256:…`).
    pub fn resolve(&self, name: &str) -> Result<Image, Error> {
        let unknown = || Error::UnknownImage { name: name.to_owned() };
        let digest = match name.parse::<Digest>() {
            Ok(digest) => digest,
            Err(_) => self.name_target(&self.name_path(name)?)?.ok_or_else(unknown)?,
        };
        let (image, _) = self.image(&digest)?.ok_or_else(unknown)?;
        Ok(image)
    }

    /// Takes a name away. Files go with the next [`Store::gc`].
    pub fn remove(&self, name: &str) -> Result<(), Error> {
        let path = self.name_path(name)?;
        match fs::remove_file(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                Err(Error::UnknownImage { name: name.to_owned() })
            }
            removed => removed.map_err(Error::io("remove", &path)),
        }
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.inner.limits
    }

    pub(crate) fn temporary(&self) -> Result<Temporary, Error> {
        Temporary::new(&self.inner.root.join("tmp"))
    }

    pub(crate) fn pin(&self) -> Pins {
        Pins { inner: Arc::clone(&self.inner), layers: Vec::new() }
    }

    /// Keeps layers that should be here from being collected.
    pub(crate) fn pin_layers(&self, layers: &[LayerDigest], pins: &mut Pins) -> Result<(), Error> {
        let mut state = self.inner.pins();
        for layer in layers {
            self.layer_path(layer)?;
            *state.entry(*layer).or_default() += 1;
            pins.layers.push(*layer);
        }
        Ok(())
    }

    /// The layer of an image with the uncompressed digest `diff_id` over `below`, if it is here.
    pub(crate) fn find_layer(
        &self,
        diff_id: Digest,
        below: &[LayerDigest],
        pins: &mut Pins,
    ) -> Result<Option<LayerDigest>, Error> {
        let alone = LayerDigest::alone(diff_id);
        let mut state = self.inner.pins();
        let mut found =
            self.readable_record(&alone)?.filter(|record| below.is_empty() || !record.borrowed).map(|_| alone);
        if found.is_none() && !below.is_empty() {
            let over = LayerDigest::over(diff_id, below, false);
            found = self.readable_record(&over)?.map(|_| over);
        }
        if let Some(layer) = found {
            *state.entry(layer).or_default() += 1;
            pins.layers.push(layer);
        }
        Ok(found)
    }

    /// Unpacks a layer, checks it against what is known of it, and stores it.
    pub(crate) fn add_layer(
        &self,
        source: LayerSource,
        below: &[LayerDigest],
        is_tarball: bool,
        progress: &ProgressFn,
        pins: &mut Pins,
    ) -> Result<(LayerDigest, Digest), Error> {
        let temporary = self.temporary()?;
        let made = temporary.join("layer");
        let tree = made.join("tree");
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&tree).map_err(Error::io("create", &tree))?;
        let view = if below.is_empty() { None } else { Some(self.view(below)?) };
        let below_it = match &view {
            None => Below::Nothing,
            Some(view) if is_tarball => Below::Base(view),
            Some(view) => Below::Layers(view),
        };
        let root = Tree::open(&tree).map_err(Error::errno("open", &tree))?;
        let what = source.what.clone();
        let unpacked = self.unpack_checked(source, root, below_it, is_tarball, progress);
        let (unpacked, totals, members) = unpacked.map_err(|source| Error::Archive { what: what.clone(), source })?;
        if is_tarball && let Some(form) = image_in(&tree)? {
            return Err(Error::Archive { what, source: ArchiveError::HoldsImage(form) });
        }
        if unpacked.skipped_devices > 0 {
            tracing::info!(archive = what, devices = unpacked.skipped_devices, "left out device nodes below /dev");
        }
        let diff_id = totals.unpacked;
        let layer = match view {
            Some(_) if is_tarball || unpacked.borrowed => LayerDigest::over(diff_id, below, is_tarball),
            _ => LayerDigest::alone(diff_id),
        };
        let record = LayerRecord { diff_id, bytes: unpacked.bytes, members, borrowed: unpacked.borrowed };
        self.publish(&made, &layer, &record, pins)?;
        Ok((layer, diff_id))
    }

    fn unpack_checked(
        &self,
        source: LayerSource,
        tree: Tree,
        below: Below<'_>,
        is_tarball: bool,
        progress: &ProgressFn,
    ) -> Result<(Unpacked, Totals, u64), ArchiveError> {
        let LayerSource { what, file, length_bytes, stored, diff_id } = source;
        let reporter = Reporter::new(progress, format!("unpacking {what}"), Some(length_bytes));
        let stream = Stream::new(file, length_bytes, self.limits(), reporter)?;
        let mut archive = Archive::new(stream, self.limits());
        let unpacked = unpack(&mut archive, tree, below, self.limits())?;
        let members = archive.members();
        // A layer's digest shows that it is whole; a tarball has only its end mark for that.
        let totals = archive.finish(diff_id.is_none())?;
        if totals.stored_bytes != length_bytes {
            return Err(ArchiveError::SizeMismatch { expected: length_bytes, found: totals.stored_bytes });
        }
        check_digest("digest", stored, totals.stored)?;
        check_digest("uncompressed digest", diff_id, totals.unpacked)?;
        if is_tarball && members == 0 {
            return Err(ArchiveError::Empty);
        }
        Ok((unpacked, totals, members))
    }

    fn publish(&self, made: &Path, layer: &LayerDigest, record: &LayerRecord, pins: &mut Pins) -> Result<(), Error> {
        let path = made.join("layer.json");
        fs::write(&path, to_json(record)).map_err(Error::io("write", &path))?;
        let directory = open_directory(made)?;
        syncfs(&directory).map_err(Error::errno("sync", made))?;
        let target = self.inner.layer(layer);
        let mut state = self.inner.pins();
        match renameat_with(CWD, made, CWD, &target, RenameFlags::NOREPLACE) {
            // Another one was faster, or its record is damaged; ours goes away with its temporary directory.
            Err(Errno::EXIST | Errno::NOTEMPTY) => {
                if self.readable_record(layer)?.is_none() {
                    let damaged = target.join("layer.json");
                    fs::rename(&path, &damaged).map_err(Error::io("store", &damaged))?;
                    open_directory(&target)?.sync_all().map_err(Error::io("sync", &target))?;
                }
            }
            renamed => renamed.map_err(Error::errno("store", &target))?,
        }
        *state.entry(*layer).or_default() += 1;
        pins.layers.push(*layer);
        drop(state);
        self.sync_directory("layers")
    }

    /// Stores an image whose layers are here.
    pub(crate) fn save_image(&self, described: Described, layers: Vec<LayerDigest>) -> Result<Image, Error> {
        let image = Image { digest: described.digest, layers, config: described.config };
        self.write(&self.image_path(&image.digest), &to_json(&image))?;
        Ok(image)
    }
}

/// The image that the files in `tree` are the parts of.
fn image_in(tree: &Path) -> Result<Option<ImageForm>, Error> {
    let names = fs::read_dir(tree).and_then(|entries| entries.map(|entry| Ok(entry?.file_name())).collect());
    let names: Vec<OsString> = names.map_err(Error::io("list", tree))?;
    Ok(form::of_root(names.iter().map(|name| name.as_bytes())))
}

fn to_json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("records hold only strings, numbers and lists")
}

fn check_digest(what: &'static str, expected: Option<Digest>, found: Digest) -> Result<(), ArchiveError> {
    match expected {
        Some(expected) if expected != found => Err(ArchiveError::DigestMismatch { what, expected, found }),
        _ => Ok(()),
    }
}
