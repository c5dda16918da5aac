//! The image of an app that is being woken is set aside, durably, before an instruction of the app runs.
//!
//! After a power cut that comes later it must not be found: memory would come back under files that are newer. That whatever the
//! app writes reaches the disk behind the image's new name is not enough to hope for: `fdatasync` of a file whose length stays
//! (a database's log) is done without the log of the file system. Another thread does it ([`serve`]), and so the disk works while
//! the processes are built.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc;

/// The name of an image whose app runs again, or is about to.
pub fn woken(image: &Path) -> PathBuf {
    image.with_extension("image.woken")
}

/// An image that is to get its new name.
pub(super) struct Renaming {
    image: PathBuf,
    done: mpsc::SyncSender<io::Result<()>>,
}

/// Renames what is asked for, until nobody can ask any more.
pub(super) fn serve(asked: mpsc::Receiver<Renaming>) {
    for Renaming { image, done } in asked {
        let renamed = fs::rename(&image, woken(&image)).and_then(|()| sync_name(&image));
        // Whoever asked waits for it.
        let _ = done.send(renamed);
    }
}

/// An image on its way to its new name. Dropped without [`Aside::keep`], it gets the old one back.
pub(super) struct Aside {
    image: PathBuf,
    working: Option<mpsc::Receiver<io::Result<()>>>,
    kept: bool,
}

impl Aside {
    /// Begins; the image is open already, where it is needed.
    pub(super) fn begin(image: &Path, setting_aside: &mpsc::Sender<Renaming>) -> Self {
        let (done, working) = mpsc::sync_channel(1);
        // Where nobody does it, waiting tells.
        let _ = setting_aside.send(Renaming { image: image.to_owned(), done });
        Self { image: image.to_owned(), working: Some(working), kept: false }
    }

    /// Waits until it is on disk.
    pub(super) fn wait(&mut self) -> io::Result<()> {
        let Some(working) = self.working.take() else { return Ok(()) };
        working.recv().unwrap_or_else(|_| Err(io::Error::other("nobody renames it")))
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
