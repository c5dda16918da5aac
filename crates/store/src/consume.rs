//! An image is consumed, durably, before an instruction of the app that wakes from it runs.
//!
//! After a power cut that comes later it must not be found: memory would come back under files that are newer. It is not enough
//! that what the app writes reaches the disk after the image's new name: `fdatasync` of a file whose length stays
//! (a database's log) is done without the log of the file system. Another thread does it, so that the disk works while the processes are built.

use std::io;
use std::sync::mpsc;

use crate::image::Image;

/// An image that is being consumed, or was. Dropped without [`Consuming::keep`], it is given back: the wake has failed, and the app may
/// be restored from it again.
#[derive(Debug)]
pub struct Consuming {
    image: Image,
    working: Option<mpsc::Receiver<io::Result<()>>>,
    kept: bool,
}

impl Consuming {
    /// Begins, by what `elsewhere` has done in another thread; whoever needs its bytes has opened it already.
    pub fn begin(image: &Image, elsewhere: impl FnOnce(Box<dyn FnOnce() + Send>)) -> Self {
        let (done, working) = mpsc::sync_channel(1);
        let consumed = image.clone();
        elsewhere(Box::new(move || {
            // Whoever asked waits for it.
            let _ = done.send(consumed.consume());
        }));
        Self { image: image.clone(), working: Some(working), kept: false }
    }

    /// Waits until it is consumed, also after a power cut.
    ///
    /// # Errors
    /// Of [`Image::consume`].
    pub fn wait(&mut self) -> io::Result<()> {
        let Some(working) = self.working.take() else { return Ok(()) };
        working.recv().unwrap_or_else(|_| Err(io::Error::other("nobody consumes it")))
    }

    /// The app runs: it stays consumed.
    pub fn keep(mut self) {
        self.kept = true;
    }
}

impl Drop for Consuming {
    fn drop(&mut self) {
        if self.kept {
            return;
        }
        if let Err(error) = self.wait() {
            tracing::warn!(image = %self.image.path().display(), %error, "consuming an image");
        }
        if let Err(error) = self.image.unconsume() {
            tracing::error!(image = %self.image.path().display(), %error, "giving an image back");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Durability, Store};

    #[test]
    fn an_image_is_given_back_unless_the_app_runs() {
        let folder = tempfile::tempdir().unwrap();
        let elsewhere = |work: Box<dyn FnOnce() + Send>| drop(std::thread::spawn(work));
        let image = Store::of_app(folder.path()).begin(1).unwrap().commit(Durability::Processes).unwrap();
        let lease_before = std::fs::File::open(image.path()).unwrap();
        let mut consuming = Consuming::begin(&image, elsewhere);
        consuming.wait().unwrap();
        assert!(!image.path().exists(), "it is consumed");
        drop(consuming);
        assert!(image.path().exists(), "it is given back");
        drop(Consuming::begin(&image, elsewhere));
        assert!(image.path().exists(), "it is given back as soon as it is consumed");
        Consuming::begin(&image, |work| work()).keep();
        assert!(!image.path().exists(), "it stays consumed");
        assert!(lease_before.metadata().is_ok());
        let mut nobody = Consuming::begin(&image, drop);
        assert!(nobody.wait().is_err());
    }
}
