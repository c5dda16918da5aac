//! A directory of images: where they are, and the steps that concern no single one.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::names::{ImageState, Layout, number};
use crate::{last_generation, steps};

/// Generations beyond this are nobody's.
pub(crate) const HIGHEST: u64 = 1 << 62;

/// The images of one app, or of one checkpoint, in a local directory. Files of other names in it are left alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Store {
    folder: Arc<Path>,
    layout: Layout,
}

impl Store {
    /// The images of an app, in its directory.
    pub fn of_app(folder: &Path) -> Self {
        Self { folder: folder.into(), layout: Layout::App }
    }

    /// The one image of a checkpoint's directory; its generation is 0.
    pub fn of_checkpoint(folder: &Path) -> Self {
        Self { folder: folder.into(), layout: Layout::Checkpoint }
    }

    /// The directory.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    pub(crate) fn path(&self, generation: u64, state: ImageState) -> PathBuf {
        self.folder.join(self.layout.name(generation, state))
    }

    /// Generation and state of the image with this name.
    pub(crate) fn parse(&self, name: &str) -> Option<(u64, ImageState)> {
        self.layout.parse(name)
    }

    /// What was renamed or removed is so after a power cut, too.
    ///
    /// # Errors
    /// Of fsync(2).
    pub fn sync(&self) -> io::Result<()> {
        steps::sync(&self.folder)
    }

    /// No image of an app gets this number again, or a lower one. A checkpoint's image has none.
    pub(crate) fn record_generation(&self, generation: u64) -> io::Result<()> {
        match self.layout {
            Layout::App => last_generation::record(&self.folder, generation),
            Layout::Checkpoint => Ok(()),
        }
    }

    /// The highest number that was recorded, or that one of `names` has; 0 if there is none.
    pub(crate) fn last_generation(&self, names: &[String]) -> u64 {
        let recorded = match self.layout {
            Layout::App => last_generation::read(&self.folder),
            Layout::Checkpoint => 0,
        };
        let numbers = names.iter().filter_map(|name| number(name));
        numbers.chain([recorded]).max().unwrap_or(0).min(HIGHEST)
    }

    /// Names in the directory, whatever has them.
    pub(crate) fn names(&self) -> io::Result<Vec<String>> {
        let names = fs::read_dir(&self.folder)?.map(|entry| Ok(entry?.file_name().into_string().ok()));
        names.filter_map(Result::transpose).collect()
    }

    /// What is quarantined is never written over.
    pub(crate) fn quarantine(&self, path: &Path, generation: u64) -> io::Result<PathBuf> {
        let paths = (generation.min(HIGHEST)..).map(|number| match self.layout {
            Layout::App => self.path(number, ImageState::Quarantined),
            Layout::Checkpoint if number == 0 => self.path(0, ImageState::Quarantined),
            Layout::Checkpoint => self.path(0, ImageState::Quarantined).with_extension(format!("damaged.{number}")),
        });
        let free = paths.into_iter().find(|path| !path.exists()).ok_or(io::ErrorKind::AlreadyExists)?;
        steps::rename(path, &free)?;
        Ok(free)
    }
}
