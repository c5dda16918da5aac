//! A committed image, and leases on its bytes.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustix::fs::{Advice, FallocateFlags};
use rustix::io::Errno;
use torpor_image::Header;

use crate::directory::Store;
use crate::header::{self, Unopened};
use crate::names::ImageState;
use crate::steps;

/// The unit of `st_blocks`, stat(2).
const BLOCK_BYTES: u64 = 512;

/// Names an image of a store. It is a name, not a promise: whoever uses it learns whether the image is still there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    store: Store,
    generation: u64,
    /// Made once: a wake builds no names.
    path: PathBuf,
}

/// Size and age of an image's file.
#[derive(Clone, Copy, Debug)]
pub struct FileInfo {
    /// Length of the file, bytes.
    pub bytes: u64,
    /// What it takes on disk, bytes.
    pub allocated_bytes: u64,
    /// When it was written; none where the file system does not know.
    pub written: Option<SystemTime>,
}

impl Image {
    pub(crate) fn new(store: Store, generation: u64) -> Self {
        let path = store.path(generation, ImageState::Committed);
        Self { store, generation, path }
    }

    /// The store that it belongs to.
    pub const fn store(&self) -> &Store {
        &self.store
    }

    /// Number of the sleep that it was made in; 0 for a checkpoint.
    pub const fn generation(&self) -> u64 {
        self.generation
    }

    /// Where it is while it is committed, for messages and for tools that read it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn path_as(&self, state: ImageState) -> PathBuf {
        self.store.path(self.generation, state)
    }

    /// Whether this many bytes can be written for it: tried with a file that is removed at once, since the numbers of a file
    /// system do not include quotas and blocks that are reserved for root. It must not have been begun.
    ///
    /// # Errors
    /// `StorageFull` or `QuotaExceeded` where it cannot; others of open(2) and unlink(2).
    pub fn has_room(&self, bytes: u64) -> io::Result<()> {
        let partial = self.begin()?;
        let tried = rustix::fs::fallocate(&**partial.file(), FallocateFlags::empty(), 0, bytes);
        partial.discard()?;
        match tried {
            // This file system cannot tell.
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
            tried => Ok(tried?),
        }
    }

    /// Opens the committed image and reads its header.
    ///
    /// # Errors
    /// `NotFound` where it is not committed; or it cannot be read, or is damaged.
    pub fn open(&self) -> Result<Lease, Unopened> {
        let (file, header) = header::open_generation(&self.path, self.generation)?;
        Ok(Lease { image: self.clone(), file, header })
    }

    /// Opens the consumed image, whose pages may still be missed.
    ///
    /// # Errors
    /// `NotFound` where it is not consumed; or it cannot be read, or is damaged.
    pub fn open_consumed(&self) -> Result<Lease, Unopened> {
        let (file, header) = header::open_generation(&self.path_as(ImageState::Consumed), self.generation)?;
        Ok(Lease { image: self.clone(), file, header })
    }

    /// Size and age of the committed image.
    ///
    /// # Errors
    /// Of stat(2).
    pub fn info(&self) -> io::Result<FileInfo> {
        FileInfo::of(&self.path)
    }

    /// Where it is, committed or consumed, with its size and age.
    ///
    /// # Errors
    /// `NotFound` where it is neither; others of stat(2).
    pub fn find(&self) -> io::Result<(PathBuf, FileInfo)> {
        match self.info() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let path = self.path_as(ImageState::Consumed);
                FileInfo::of(&path).map(|info| (path, info))
            }
            info => Ok((self.path.clone(), info?)),
        }
    }

    /// Ends that the app may be restored from it, also after a power cut. Its bytes stay for those who hold a [`Lease`], and it can
    /// be [given back](Image::unconsume).
    ///
    /// # Errors
    /// Of rename(2) and fsync(2). Where only the latter failed, it is renamed: [`Image::unconsume`] works either way.
    pub fn consume(&self) -> io::Result<()> {
        steps::rename(&self.path, &self.path_as(ImageState::Consumed))?;
        self.store.sync()
    }

    /// The wake that has consumed it has failed, or was killed: the app may be restored from it again, also after a power cut. Where
    /// it was not consumed, nothing changes.
    ///
    /// # Errors
    /// Of rename(2) and fsync(2).
    pub fn unconsume(&self) -> io::Result<()> {
        if self.path.exists() {
            return Ok(());
        }
        match steps::rename(&self.path_as(ImageState::Consumed), &self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other.and_then(|()| self.store.sync()),
        }
    }

    /// Keeps it for inspection: nothing is restored from it any more. Returns where it is now.
    ///
    /// # Errors
    /// Of rename(2).
    pub fn quarantine(&self) -> io::Result<PathBuf> {
        self.store.quarantine(&self.path, self.generation)
    }

    /// Removes it, if it is there.
    ///
    /// # Errors
    /// Of unlink(2).
    pub fn remove(&self) -> io::Result<()> {
        steps::remove_if_there(&self.path)
    }

    /// Removes the consumed image, if it is there: nobody needs its pages any more.
    ///
    /// # Errors
    /// Of unlink(2).
    pub fn remove_consumed(&self) -> io::Result<()> {
        steps::remove_if_there(&self.path_as(ImageState::Consumed))
    }

    /// Drops its pages from the page cache. They are clean: an image is synced before it is committed. Returns whether it is there.
    ///
    /// # Errors
    /// Of open(2) and posix_fadvise(2).
    pub fn uncache(&self) -> io::Result<bool> {
        match File::open(&self.path) {
            Ok(file) => rustix::fs::fadvise(&file, 0, None, Advice::DontNeed)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(error),
        }
        Ok(true)
    }
}

impl FileInfo {
    pub(crate) fn of(path: &Path) -> io::Result<Self> {
        let file = fs::metadata(path)?;
        Ok(Self { bytes: file.len(), allocated_bytes: file.blocks() * BLOCK_BYTES, written: file.modified().ok() })
    }
}

/// The bytes of an image stay readable while this exists, even if the image is consumed, quarantined or removed meanwhile. It says
/// nothing about whether the app may still be restored from them.
#[derive(Debug)]
pub struct Lease {
    image: Image,
    file: File,
    header: Header,
}

impl Lease {
    /// Another lease of the same bytes.
    ///
    /// # Errors
    /// Of dup(2).
    pub fn duplicate(&self) -> io::Result<Self> {
        Ok(Self { image: self.image.clone(), file: self.file.try_clone()?, header: self.header.clone() })
    }

    /// The image that was opened.
    pub const fn image(&self) -> &Image {
        &self.image
    }

    /// Its bytes; for reading only.
    pub const fn file(&self) -> &File {
        &self.file
    }

    /// Its header, which is sound.
    pub const fn header(&self) -> &Header {
        &self.header
    }
}
