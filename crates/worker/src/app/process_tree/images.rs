//! The images of an app's processes, as users see them and may remove them.
//!
//! The app's own task looks and removes, so that nothing goes to sleep or wakes meanwhile. The image that a sleeping app wakes
//! from is the only copy of its memory: nothing here removes it.

use std::io;

use jiff::Timestamp;
use torpor_api::view::{AppImage, ImageStanding, Level};
use torpor_api::{ApiError, ErrorKind};
use torpor_store::{Entry, ImageState};

use super::ProcessTree;
use super::sleep_state::SleepState;

impl ProcessTree {
    /// Images that lie in its directory, oldest first.
    pub(super) fn list_images(&self) -> Result<Vec<AppImage>, ApiError> {
        Ok(self.listed()?.into_iter().map(|(_, image)| image).collect())
    }

    /// Removes those that were quarantined.
    pub(super) fn remove_unused_images(&self) -> Result<Vec<AppImage>, ApiError> {
        let name = &self.record.spec.name;
        let (unused, used): (Vec<_>, Vec<_>) =
            self.listed()?.into_iter().partition(|(_, image)| image.standing == ImageStanding::SetAside);
        if unused.is_empty() {
            return Err(match used.first() {
                Some((_, kept)) => {
                    let message = format!(
                        "image {} of `{name}` is the only copy of its memory and is not removed",
                        kept.generation
                    );
                    let hint = format!(
                        "to give up what it had in memory: torpor stop {name}, or torpor restart {name}; the image goes with it"
                    );
                    ApiError::new(ErrorKind::Conflict, message).with_hint(hint)
                }
                None => ApiError::new(ErrorKind::NotFound, format!("`{name}` has no image"))
                    .with_hint("torpor image ls lists what is there"),
            });
        }
        for (entry, image) in &unused {
            let failed = |error| ApiError::new(ErrorKind::Internal, format!("removing {}: {error}", image.path));
            entry.remove().map_err(failed)?;
        }
        Ok(unused.into_iter().map(|(_, image)| image).collect())
    }

    /// Those that are committed or quarantined.
    fn listed(&self) -> Result<Vec<(Entry, AppImage)>, ApiError> {
        let name = &self.record.spec.name;
        let failed = |error: io::Error| ApiError::new(ErrorKind::Internal, format!("images of {name}: {error}"));
        let current = self.sleep.state.as_ref().map(SleepState::image);
        let mut images = Vec::new();
        for entry in self.files.images.list().map_err(failed)? {
            let standing = match entry.state {
                ImageState::Committed if current == Some(&entry.image) => ImageStanding::InUse,
                ImageState::Committed => ImageStanding::Passing,
                ImageState::Quarantined => ImageStanding::SetAside,
                ImageState::Partial | ImageState::Consumed => continue,
            };
            let info = entry.info().map_err(failed)?;
            let written = info.written.and_then(|written| Timestamp::try_from(written).ok());
            let image = AppImage {
                app: name.clone(),
                level: entry.is_complete().map(|complete| if complete { Level::Warm } else { Level::Dozing }),
                generation: entry.generation(),
                bytes: info.bytes,
                written: written.unwrap_or(Timestamp::UNIX_EPOCH),
                standing,
                path: entry.path.to_string_lossy().into_owned(),
            };
            images.push((entry, image));
        }
        Ok(images)
    }
}
