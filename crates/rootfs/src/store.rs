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

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use rustix::fs::{CWD, RenameFlags, renameat_with, syncfs};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::archive::Archive;
use crate::digest::{Digest, LayerDigest};
use crate::error::{ArchiveError, Error};
use crate::image::{Described, Image};
use crate::limits::{Limits, MAX_IMAGE_NAME_BYTES};
use crate::progress::{ProgressFn, Reporter};
use crate::stream::{Stream, Totals};
use crate::temporary::{self, Temporary, open_directory};
use crate::tree::Tree;
use crate::unpack::{Below, Unpacked, unpack};
use crate::view::View;

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

    /// Opens the store in `directory`, making it where it is missing, and removes what a crash left.
    pub fn open_with(directory: impl Into<PathBuf>, limits: Limits) -> Result<Self, Error> {
        let root = directory.into();
        let root = std::path::absolute(&root).map_err(Error::io("find", root))?;
        for directory in [root.clone(), root.join("layers"), root.join("images"), root.join("names"), root.join("tmp")]
        {
            let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&directory);
            made.map_err(Error::io("create", &directory))?;
        }
        let closed = fs::set_permissions(&root, fs::Permissions::from_mode(0o700));
        closed.map_err(Error::io("restrict", &root))?;
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

    pub(crate) fn limits(&self) -> &Limits {
        &self.inner.limits
    }

    pub(crate) fn temporary(&self) -> Result<Temporary, Error> {
        Temporary::new(&self.inner.root.join("tmp"))
    }

    pub(crate) fn pin(&self) -> Pins {
        Pins { inner: Arc::clone(&self.inner), layers: Vec::new() }
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
        let mut found = self.layer_record(&alone)?.filter(|record| below.is_empty() || !record.borrowed).map(|_| alone);
        if found.is_none() && !below.is_empty() {
            let over = LayerDigest::over(diff_id, below, false);
            found = self.layer_record(&over)?.map(|_| over);
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
            // Another one was faster; ours goes away with its temporary directory.
            Err(Errno::EXIST | Errno::NOTEMPTY) => {}
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

    fn image_path(&self, digest: &Digest) -> PathBuf {
        self.inner.root.join("images").join(format!("{}.json", digest.hex()))
    }

    fn image(&self, digest: &Digest) -> Result<Option<(Image, SystemTime)>, Error> {
        let path = self.image_path(digest);
        let Some((data, modified)) = self.read(&path)? else { return Ok(None) };
        let image: Image = serde_json::from_slice(&data).map_err(|source| Error::DamagedRecord { path, source })?;
        Ok(Some((image, modified)))
    }

    fn image_digests(&self) -> Result<Vec<Digest>, Error> {
        let names = self.entries("images")?;
        Ok(names.iter().filter_map(|name| Digest::from_hex(name.strip_suffix(".json")?)).collect())
    }

    fn layer_record(&self, layer: &LayerDigest) -> Result<Option<LayerRecord>, Error> {
        let path = self.inner.layer(layer).join("layer.json");
        let Some((data, _)) = self.read(&path)? else { return Ok(None) };
        serde_json::from_slice(&data).map(Some).map_err(|source| Error::DamagedRecord { path, source })
    }

    /// The file of a name: slashes become `%2F`, which no name holds.
    fn name_path(&self, name: &str) -> Result<PathBuf, Error> {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"._:/@-".contains(&byte);
        let starts_well = name.as_bytes().first().is_some_and(u8::is_ascii_alphanumeric);
        let file = name.replace('/', "%2F");
        if !starts_well || !name.bytes().all(fits) || name.len() > MAX_IMAGE_NAME_BYTES || file.len() > 255 {
            return Err(Error::BadName { name: name.to_owned() });
        }
        Ok(self.inner.root.join("names").join(file))
    }

    fn name_target(&self, path: &Path) -> Result<Option<Digest>, Error> {
        let Some((data, _)) = self.read(path)? else { return Ok(None) };
        let quoted = serde_json::Value::String(String::from_utf8_lossy(&data).into_owned());
        let digest = serde_json::from_value(quoted);
        digest.map(Some).map_err(|source| Error::DamagedRecord { path: path.to_owned(), source })
    }

    fn names(&self) -> Result<BTreeMap<String, Digest>, Error> {
        let mut names = BTreeMap::new();
        for file in self.entries("names")? {
            let name = file.replace("%2F", "/");
            if let Some(digest) = self.name_target(&self.name_path(&name)?)? {
                names.insert(name, digest);
            }
        }
        Ok(names)
    }

    /// The names in a directory of the store; those that are not UTF-8 are not ours.
    fn entries(&self, directory: &str) -> Result<Vec<String>, Error> {
        let path = self.inner.root.join(directory);
        let mut names = Vec::new();
        for entry in fs::read_dir(&path).map_err(Error::io("read", &path))? {
            let entry = entry.map_err(Error::io("read", &path))?;
            names.extend(entry.file_name().into_string());
        }
        Ok(names)
    }

    fn read(&self, path: &Path) -> Result<Option<(Vec<u8>, SystemTime)>, Error> {
        let file = match File::open(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            file => file.map_err(Error::io("open", path))?,
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

    /// Writes a small file so that a crash leaves the old one or the new one.
    fn write(&self, path: &Path, data: &[u8]) -> Result<(), Error> {
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

    fn sync_directory(&self, name: &str) -> Result<(), Error> {
        let path = self.inner.root.join(name);
        open_directory(&path)?.sync_all().map_err(Error::io("sync", &path))
    }
}

fn to_json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec_pretty(value).expect("records hold only strings, numbers and lists")
}

fn check_digest(what: &'static str, expected: Option<Digest>, found: Digest) -> Result<(), ArchiveError> {
    match expected {
        Some(expected) if expected != found => Err(ArchiveError::DigestMismatch { what, expected, found }),
        _ => Ok(()),
    }
}
