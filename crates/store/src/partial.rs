//! An image that is being written.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use torpor_image::{HEADER_BYTES, Header, Kind, PAGE};

use crate::header::{self, Found};
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
    /// It is behind this generation, in the same file.
    base: Option<Box<Found>>,
    ended: bool,
}

impl Image {
    /// Begins it behind `base`, in the same file: it can refer to the pages of that and of all generations in front of it. `base` is the image of
    /// a dozing app, or a complete one that was consumed: processes that were built from it may miss some of its pages. This one gets a name of its own for the
    /// file when it is committed; `base` stays as it is.
    ///
    /// # Errors
    /// Of open(2) and ftruncate(2); if `base` is damaged, or may still be restored from elsewhere.
    pub fn begin_behind(&self, base: &Self) -> io::Result<Partial> {
        let (path, kind) = match base.path().try_exists()? {
            true => (base.path().to_owned(), Kind::Dozing),
            false => (base.path_as(ImageState::Consumed), Kind::Complete),
        };
        let file = torpor_linux::regular::open_for_writing(&path)?;
        let found = header::find(&file, Some(base.generation()))?;
        if (found.header.generation, found.header.kind) != (base.generation(), kind) || !found.stays_found() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        self.store().record_generation(self.generation())?;
        let partial =
            Partial { image: self.clone(), path, file: Arc::new(file), base: Some(Box::new(found)), ended: false };
        // An earlier attempt may have been killed.
        partial.undo()?;
        Ok(partial)
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
        Ok(Self { image, path, file: Arc::new(file), base: None, ended: false })
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
        let named = match self.base {
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
        match &self.base {
            Some(base) => {
                // First: what it tells of is about to go.
                header::clear_behind(&self.file, base)?;
                steps::truncate(&self.file, base.end)
            }
            None => steps::remove_if_there(&self.path),
        }
    }

    /// Where its pages begin in its file.
    pub fn pages_at(&self) -> u64 {
        self.base.as_ref().map_or(HEADER_BYTES, |base| base.end.next_multiple_of(PAGE))
    }

    /// Writes its header, once all of its other bytes are written. Gives the length of the file.
    ///
    /// # Errors
    /// Of pwrite(2) and ftruncate(2).
    pub fn finish(&self, header: &Header) -> io::Result<u64> {
        let end = header::write(&self.file, header, self.base.as_deref())?;
        // There may have been more room for pages than there were pages.
        if self.file.metadata()?.len() != end {
            self.file.set_len(end)?;
        }
        Ok(end)
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
