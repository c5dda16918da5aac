//! The image of an app that is being woken is set aside, durably, before an instruction of the app runs.
//!
//! After a power cut that comes later it must not be found: memory would come back under files that are newer. That whatever the
//! app writes reaches the disk behind the image's new name is not enough to hope for: `fdatasync` of a file whose length stays
//! (a database's log) is done without the log of the file system. The disk works while the processes are built.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};

/// The name of an image whose app runs again, or is about to.
pub fn woken(image: &Path) -> PathBuf {
    image.with_extension("image.woken")
}

/// An image on its way to its new name. Dropped without [`Aside::keep`], it gets the old one back.
pub(super) struct Aside {
    image: PathBuf,
    working: Option<JoinHandle<io::Result<()>>>,
    kept: bool,
}

impl Aside {
    /// Begins; the image is open already, where it is needed.
    pub(super) fn begin(image: &Path) -> Self {
        let path = image.to_owned();
        let working = thread::spawn(move || {
            fs::rename(&path, woken(&path))?;
            sync_name(&path)
        });
        Self { image: image.to_owned(), working: Some(working), kept: false }
    }

    /// Waits until it is on disk.
    pub(super) fn wait(&mut self) -> io::Result<()> {
        let Some(working) = self.working.take() else { return Ok(()) };
        working.join().unwrap_or_else(|_| Err(io::Error::other("it panicked")))
    }

    /// It stays so.
    pub(super) fn keep(mut self) {
        self.kept = true;
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        if self.kept {
            return;
        }
        if let Err(error) = self.wait() {
            tracing::warn!(image = %self.image.display(), %error, "setting aside an image");
        }
        // It sleeps on, and this is its image; where it was not renamed, it has its name still.
        match fs::rename(woken(&self.image), &self.image).and_then(|()| sync_name(&self.image)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::error!(image = %self.image.display(), %error, "giving an image its name back");
            }
            _ => {}
        }
    }
}

fn sync_name(path: &Path) -> io::Result<()> {
    File::open(path.parent().unwrap_or(Path::new("/")))?.sync_all()
}
