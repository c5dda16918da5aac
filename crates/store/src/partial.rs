//! An image that is being written.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use torpor_image::Kind;

use crate::image::Image;
use crate::names::ImageState;
use crate::steps;

/// Where an image has its magic number: in the partial image of a dozing app, until its header is written last of all.
pub(crate) const BEGUN: [u8; 8] = *b"TPRBEGUN";

/// What a committed image must outlast.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// The processes of Torpor: after a reboot or a power cut nobody needs it. An image of a dozing app is of no use without the
    /// frozen processes.
    Processes,
    /// Reboots and power cuts, too.
    PowerCuts,
}

/// An image was not committed.
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
    /// It could not be renamed: it is partial as before.
    #[error("renaming {}", partial.path().display())]
    Unnamed {
        /// The partial image.
        partial: Partial,
        /// What rename(2) said.
        #[source]
        error: io::Error,
    },
    /// It is committed, but a power cut may take its name away.
    #[error("syncing the directory of {}", image.path().display())]
    Unsynced {
        /// The image.
        image: Image,
        /// What fsync(2) said.
        #[source]
        error: io::Error,
    },
}

impl CommitError {
    /// The error alone.
    pub fn into_error(self) -> io::Error {
        match self {
            Self::Unnamed { error, .. } | Self::Unsynced { error, .. } => error,
        }
    }
}

/// An image that is being written. Nothing is ever restored from it. It is removed when it is dropped without a
/// [commit](Partial::commit); a panic, like a crash, leaves it to the next start.
#[derive(Debug)]
pub struct Partial {
    image: Image,
    path: PathBuf,
    file: Arc<File>,
    /// It is behind another image, which ends at this byte of the file.
    base_bytes: Option<u64>,
    ended: bool,
}

impl Image {
    /// Begins it behind the committed image of a dozing app, `base`, in the same file: it can refer to the pages of that. It gets a name of
    /// its own for the file when it is committed; `base` stays as it is.
    ///
    /// # Errors
    /// Of open(2) and ftruncate(2); if `base` is damaged, or no image of a dozing app.
    pub fn begin_behind(&self, base: &Self) -> io::Result<Partial> {
        let lease = base.open()?;
        let header = lease.header();
        let base_bytes = header.end().filter(|_| header.kind == Kind::Dozing && header.generation == base.generation());
        let base_bytes = base_bytes.ok_or(io::ErrorKind::InvalidInput)?;
        self.store().record_generation(self.generation())?;
        let file = Arc::new(File::options().read(true).write(true).open(base.path())?);
        // An earlier attempt may have been killed.
        steps::truncate(&file, base_bytes)?;
        let (image, path) = (self.clone(), base.path().to_owned());
        Ok(Partial { image, path, file, base_bytes: Some(base_bytes), ended: false })
    }

    /// Begins it; its generation must be higher than all before.
    ///
    /// # Errors
    /// Of open(2).
    pub fn begin(&self) -> io::Result<Partial> {
        Partial::create(self.clone())
    }
}

impl Partial {
    /// Creates the file; one that an earlier attempt has left is removed first, and never written to.
    fn create(image: Image) -> io::Result<Self> {
        let path = image.path_as(ImageState::Partial);
        image.store().record_generation(image.generation())?;
        let file = match steps::create(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                steps::remove(&path)?;
                steps::create(&path)?
            }
            other => other?,
        };
        Ok(Self { image, path, file: Arc::new(file), base_bytes: None, ended: false })
    }

    /// Where it is now, for messages and for tools that read it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its bytes, for reading and writing. Others may go on syncing it after it has been discarded.
    pub const fn file(&self) -> &Arc<File> {
        &self.file
    }

    /// Generation that the image will have.
    pub const fn generation(&self) -> u64 {
        self.image.generation()
    }

    /// Marks it as the partial image of an app that is about to doze: as long as the mark is there and the image is not committed,
    /// the app's memory is complete. The header replaces the mark.
    ///
    /// # Errors
    /// Of pwrite(2).
    pub fn mark_begun(&self) -> io::Result<()> {
        self.file.write_all_at(&BEGUN, 0)
    }

    /// Commits the image: from here on the app may be restored from it. The caller has synced the file before, or lets it be
    /// interrupted as long as it has not.
    ///
    /// # Errors
    /// With what there is then.
    pub fn commit(mut self, durability: Durability) -> Result<Image, CommitError> {
        let named = match self.base_bytes {
            Some(_) => steps::link(&self.path, self.image.path()),
            None => steps::rename(&self.path, self.image.path()),
        };
        if let Err(error) = named {
            return Err(CommitError::Unnamed { partial: self, error });
        }
        self.ended = true;
        let image = self.image.clone();
        if durability == Durability::PowerCuts
            && let Err(error) = image.store().sync()
        {
            return Err(CommitError::Unsynced { image, error });
        }
        Ok(image)
    }

    /// Removes it.
    ///
    /// # Errors
    /// Of unlink(2), unless it is gone already.
    pub fn discard(mut self) -> io::Result<()> {
        self.ended = true;
        self.undo()
    }

    fn undo(&self) -> io::Result<()> {
        match self.base_bytes {
            Some(bytes) => steps::truncate(&self.file, bytes),
            None => steps::remove_if_there(&self.path),
        }
    }

    /// Where it begins in its file.
    pub fn begins_at(&self) -> u64 {
        self.base_bytes.unwrap_or(0)
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        // Whoever panics holds an app in a state that only the next start settles, and the file tells it about that.
        if self.ended || std::thread::panicking() {
            return;
        }
        if let Err(error) = self.undo() {
            tracing::warn!(image = %self.path.display(), %error, "removing an image that was not committed");
        }
    }
}
