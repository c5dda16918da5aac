//! Archives that `docker save` writes, in the old form (`<id>/layer.tar`, links between them) and the new one
//! (`blobs/sha256/…`). Both have `manifest.json`, which is all that is used here.
//!
//! The archive is read once to find where each member is; then layers are read in place. A compressed archive is first
//! uncompressed into a temporary file.

use std::collections::HashMap;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::Path;

use serde::Deserialize;

use crate::archive::{Archive, Kind, Member};
use crate::budget::Budget;
use crate::digest::Digest;
use crate::error::{ArchiveError, Error, ImageError};
use crate::form::ImageForm;
use crate::image::{Described, Image, check_counts};
use crate::limits::{MAX_INDEX_ENTRIES, MAX_SYMLINKS};
use crate::progress::{ProgressFn, Reporter};
use crate::reference::Reference;
use crate::source::{self, NamedAs, open_input};
use crate::store::{LayerSource, Store};
use crate::stream::Stream;
use crate::tree::TreePath;

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Entry {
    config: String,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    layers: Vec<String>,
}

/// Where a member is.
enum Place {
    Data { offset: u64, length_bytes: u64 },
    Link(TreePath),
}

/// An uncompressed archive and where its members are.
struct Contents {
    file: File,
    places: HashMap<TreePath, Place>,
    name: String,
}

impl Store {
    /// Stores the image of a `docker save` archive. `reference` is one of its `RepoTags`, needed where there are several
    /// images; `latest` may be left out.
    pub fn add_docker_archive(
        &self,
        path: &Path,
        reference: Option<&str>,
        progress: &ProgressFn,
    ) -> Result<Image, Error> {
        source::check(path, NamedAs::Image(ImageForm::DockerArchive))?;
        let name = path.display().to_string();
        let unusable = |source| Error::Image { what: name.clone(), source };
        let temporary = self.temporary()?;
        let contents = self.contents(path, &temporary.join("archive.tar"), progress)?;
        let manifest = contents.document("manifest.json", self.limits().max_json_bytes)?;
        let parsed = serde_json::from_slice::<Vec<Entry>>(&manifest);
        let parsed = parsed.map_err(|source| ImageError::Json { what: "manifest.json".to_owned(), source });
        let entry = choose_entry(parsed.map_err(unusable)?, reference).map_err(unusable)?;
        let config = contents.document(&entry.config, self.limits().max_json_bytes)?;
        let described = Described::parse(&config, self.limits()).map_err(unusable)?;
        check_name(&entry.config, described.digest).map_err(unusable)?;
        check_counts(entry.layers.len(), &described).map_err(unusable)?;
        let mut pins = self.pin();
        let mut stored = Vec::new();
        for (layer, diff_id) in entry.layers.iter().zip(&described.diff_ids) {
            let added = match self.find_layer(*diff_id, &stored, &mut pins)? {
                Some(known) => known,
                None => {
                    let source = contents.layer(layer, *diff_id)?;
                    self.add_layer(source, &stored, false, progress, &mut pins)?.0
                }
            };
            stored.push(added);
        }
        self.save_image(described, stored)
    }

    fn contents(&self, path: &Path, plain: &Path, progress: &ProgressFn) -> Result<Contents, Error> {
        let name = path.display().to_string();
        let damaged = |source| Error::Archive { what: name.clone(), source };
        let (mut file, mut length_bytes) = open_input(path)?;
        let again = |file: &File| file.try_clone().map_err(Error::io("open", path));
        let reporter = Reporter::new(progress, format!("reading {name}"), Some(length_bytes));
        let mut stream = Stream::new(again(&file)?, length_bytes, self.limits(), reporter).map_err(damaged)?;
        if stream.is_compressed() {
            let mut output = File::create_new(plain).map_err(Error::io("create", plain))?;
            let mut buffer = vec![0; 128 << 10];
            loop {
                let count = stream.read(&mut buffer).map_err(damaged)?;
                if count == 0 {
                    break;
                }
                output.write_all(&buffer[..count]).map_err(Error::io("write", plain))?;
            }
            (file, length_bytes) = open_input(plain)?;
        }
        file.seek(SeekFrom::Start(0)).map_err(Error::io("read", path))?;
        let reporter = Reporter::new(progress, format!("looking through {name}"), Some(length_bytes));
        let stream = Stream::new(again(&file)?, length_bytes, self.limits(), reporter).map_err(damaged)?;
        let mut archive = Archive::new(stream, self.limits());
        let mut places = HashMap::new();
        let mut budget = Budget::new(self.limits().max_kept_bytes);
        while let Some(member) = archive.next().map_err(damaged)? {
            let at = TreePath::parse(&member.path).map_err(damaged)?;
            if let Some(place) = place(&member, &at).map_err(damaged)? {
                let linked = if let Place::Link(target) = &place { target.bytes().len() } else { 0 };
                budget.take(at.bytes().len() + linked).map_err(damaged)?;
                places.insert(at, place);
            }
        }
        archive.finish(true).map_err(damaged)?;
        Ok(Contents { file, places, name })
    }
}

/// Reads `manifest.json`: for fuzzing.
pub(crate) fn read_manifest(bytes: &[u8]) {
    let Ok(entries) = serde_json::from_slice::<Vec<Entry>>(bytes) else { return };
    if let Ok(entry) = choose_entry(entries, Some("app:latest")) {
        let _ = check_name(&entry.config, Digest::of(bytes));
    }
}

fn place(member: &Member, at: &TreePath) -> Result<Option<Place>, ArchiveError> {
    let link = |target: &TreePath| Some(Place::Link(target.clone()));
    Ok(match member.kind {
        Kind::File if member.pieces.iter().any(|piece| piece.offset != 0 || piece.length != member.size) => {
            return Err(ArchiveError::BadSparse { name: at.shown() });
        }
        Kind::File => Some(Place::Data { offset: member.data_offset, length_bytes: member.size }),
        Kind::HardLink => link(&TreePath::parse(&member.link)?),
        // Old archives keep each layer once and link to it from beside: `../<id>/layer.tar`.
        Kind::Symlink => link(&beside(at, &member.link)?),
        Kind::Directory | Kind::Fifo | Kind::CharDevice { .. } | Kind::BlockDevice { .. } => None,
    })
}

/// Where the target of a symbolic link at `at` is, by name.
fn beside(at: &TreePath, target: &[u8]) -> Result<TreePath, ArchiveError> {
    let mut here = at.split().map(|(parent, _)| parent).unwrap_or_default();
    let outside = || ArchiveError::BadSymlink { name: at.shown() };
    if target.first() == Some(&b'/') {
        return Err(outside());
    }
    for name in target.split(|byte| *byte == b'/') {
        here = match name {
            b"" | b"." => continue,
            b".." => here.split().map(|(parent, _)| parent).ok_or_else(outside)?,
            name => here.join(name),
        };
    }
    TreePath::parse(here.openable())
}

impl Contents {
    /// Opens a member of the name that the manifest uses.
    fn open(&self, name: &str) -> Result<(File, u64), Error> {
        let damaged = |source| Error::Archive { what: self.name.clone(), source };
        let missing = || {
            let what = format!("the member {name:?}");
            Error::Image { what: self.name.clone(), source: ImageError::Missing { what } }
        };
        let mut at = TreePath::parse(name.as_bytes()).map_err(damaged)?;
        for _ in 0..MAX_SYMLINKS {
            match self.places.get(&at).ok_or_else(missing)? {
                Place::Link(target) => at = target.clone(),
                Place::Data { offset, length_bytes } => {
                    let mut file = self.file.try_clone().map_err(Error::io("open", &self.name))?;
                    file.seek(SeekFrom::Start(*offset)).map_err(Error::io("read", &self.name))?;
                    return Ok((file, *length_bytes));
                }
            }
        }
        Err(missing())
    }

    fn document(&self, name: &str, limit_bytes: u64) -> Result<Vec<u8>, Error> {
        let (file, length_bytes) = self.open(name)?;
        if length_bytes > limit_bytes {
            let source = ImageError::TooLarge { what: name.to_owned(), limit_bytes };
            return Err(Error::Image { what: self.name.clone(), source });
        }
        let mut data = Vec::new();
        file.take(length_bytes).read_to_end(&mut data).map_err(Error::io("read", &self.name))?;
        Ok(data)
    }

    fn layer(&self, name: &str, diff_id: Digest) -> Result<LayerSource, Error> {
        let (file, length_bytes) = self.open(name)?;
        let stored = name.strip_prefix("blobs/sha256/").and_then(Digest::from_hex);
        Ok(LayerSource { what: format!("layer {diff_id}"), file, length_bytes, stored, diff_id: Some(diff_id) })
    }
}

/// The configuration's name is its digest, in both forms.
fn check_name(name: &str, found: Digest) -> Result<(), ImageError> {
    let hex = name.strip_prefix("blobs/sha256/").or_else(|| name.strip_suffix(".json")).unwrap_or(name);
    match Digest::from_hex(hex) {
        Some(expected) if expected != found => {
            let source = ArchiveError::DigestMismatch { what: "digest", expected, found };
            Err(ImageError::Mismatch { what: name.to_owned(), source: Box::new(source) })
        }
        _ => Ok(()),
    }
}

fn choose_entry(mut entries: Vec<Entry>, reference: Option<&str>) -> Result<Entry, ImageError> {
    if entries.len() > MAX_INDEX_ENTRIES {
        return Err(ImageError::TooMany { limit: MAX_INDEX_ENTRIES, what: "images" });
    }
    let available = entries.iter().flat_map(|entry| entry.repo_tags.clone().unwrap_or_default()).collect();
    let Some(reference) = reference else {
        return match entries.len() {
            0 => Err(ImageError::Missing { what: "an image in manifest.json".to_owned() }),
            1 => Ok(entries.remove(0)),
            _ => Err(ImageError::Ambiguous { available }),
        };
    };
    let whole = |text: &str| text.parse::<Reference>().map(|parsed| parsed.to_string()).ok();
    let wanted = whole(reference);
    let is_called = |tag: &String| tag == reference || (wanted.is_some() && whole(tag) == wanted);
    let found = entries.into_iter().find(|entry| entry.repo_tags.iter().flatten().any(is_called));
    found.ok_or_else(|| ImageError::NoReference { reference: reference.to_owned(), available })
}
