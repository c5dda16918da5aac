//! The image that a sleep makes: begun, then committed, or removed again.

use std::fs::File;
use std::io;
use std::sync::Arc;

use torpor_store::{CommitError, Durability, Image, Partial};

use super::Failure;

/// The image of a sleep that may still be given up. One that is neither committed nor removed when this is dropped is removed then.
pub(crate) struct NewImage {
    image: Image,
    /// From [`begin`](Self::begin) to the commit.
    partial: Option<Partial>,
}

impl NewImage {
    /// Nothing of `image` is there yet.
    pub(crate) fn of(image: &Image) -> Self {
        Self { image: image.clone(), partial: None }
    }

    /// Makes its file, which the caller writes to.
    pub(crate) fn begin(&mut self) -> Result<Arc<File>, Failure> {
        let partial = self.image.begin().map_err(|error| self.failed(error))?;
        Ok(self.partial.insert(partial).file().clone())
    }

    /// As [`begin`](Self::begin), behind an image whose pages it refers to ([`Image::begin_behind`]).
    pub(crate) fn begin_behind(&mut self, base: &Image) -> Result<Arc<File>, Failure> {
        let partial = self.image.begin_behind(base).map_err(|error| self.failed(error))?;
        Ok(self.partial.insert(partial).file().clone())
    }

    /// What is written, once it was begun.
    pub(crate) fn partial(&self) -> Result<&Partial, Failure> {
        self.partial.as_ref().ok_or_else(|| self.failed(io::ErrorKind::NotFound.into()))
    }

    /// As [`begin`](Self::begin), for an app that still runs and is about to doze ([`Partial::mark_begun`]).
    pub(crate) fn begin_doze(&mut self) -> Result<Arc<File>, Failure> {
        let file = self.begin()?;
        self.partial()?.mark_begun().map_err(|error| self.failed(error))?;
        Ok(file)
    }

    /// Commits it. After an error it may be partial or committed: [`remove`](Self::remove) removes either.
    pub(crate) fn commit(&mut self, durability: Durability) -> Result<(), Failure> {
        let Some(partial) = self.partial.take() else { return Err(self.failed(io::ErrorKind::NotFound.into())) };
        let error = match partial.commit(durability) {
            Ok(_) => return Ok(()),
            Err(CommitError::Unnamed { partial, error }) => {
                self.partial = Some(partial);
                error
            }
            Err(CommitError::Unsynced { error, .. }) => error,
        };
        Err(self.failed(error))
    }

    /// Removes it where it is committed: nothing is restored from it any more.
    pub(crate) fn remove_committed(&self) -> Result<(), Failure> {
        remove_image(&self.image)
    }

    /// Removes it, partial or committed.
    pub(crate) fn remove(&mut self) -> Result<(), Failure> {
        if let Some(partial) = self.partial.take() {
            let path = partial.path().to_owned();
            partial.discard().map_err(|error| Failure::Image(path, error))?;
        }
        self.remove_committed()
    }

    /// An error of reading or writing it.
    pub(crate) fn failed(&self, error: io::Error) -> Failure {
        let path = self.partial.as_ref().map_or(self.image.path(), Partial::path);
        Failure::Image(path.to_owned(), error)
    }
}

/// Removes an image that is not needed any more, if it is there.
pub(crate) fn remove_image(image: &Image) -> Result<(), Failure> {
    image.remove().map_err(|error| Failure::Image(image.path().to_owned(), error))
}
