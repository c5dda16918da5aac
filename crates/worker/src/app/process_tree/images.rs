//! The images of an app's processes, as users see them and may remove them.
//!
//! The app's own task looks and removes, so that nothing goes to sleep or wakes meanwhile. The image that a sleeping app wakes
//! from is the only copy of its memory: nothing here removes it.

use std::fs;
use std::io;
use std::path::Path;

use jiff::Timestamp;
use torpor_api::view::{AppImage, ImageStanding, Level};
use torpor_api::{ApiError, ErrorKind};
use torpor_engine::ImageFile;

use super::ProcessTree;

impl ProcessTree {
    /// Images that lie in its directory, oldest first.
    pub(super) fn list_images(&self) -> Result<Vec<AppImage>, ApiError> {
        let name = &self.record.spec.name;
        let failed = |error: io::Error| ApiError::new(ErrorKind::Internal, format!("images of {name}: {error}"));
        let current = self.sleep.state.as_ref().map(|asleep| asleep.image().to_owned());
        let mut images = Vec::new();
        for (path, generation, aside) in self.files.listed_images().map_err(failed)? {
            let metadata = fs::metadata(&path).map_err(failed)?;
            let written = metadata.modified().map_err(failed)?;
            let standing = match current.as_ref() == Some(&path) {
                true => ImageStanding::InUse,
                false if aside => ImageStanding::SetAside,
                false => ImageStanding::Passing,
            };
            images.push(AppImage {
                app: name.clone(),
                level: level(&path),
                generation,
                bytes: metadata.len(),
                written: Timestamp::try_from(written).unwrap_or(Timestamp::UNIX_EPOCH),
                standing,
                path: path.to_string_lossy().into_owned(),
            });
        }
        Ok(images)
    }

    /// Removes those that were set aside.
    pub(super) fn remove_unused_images(&self) -> Result<Vec<AppImage>, ApiError> {
        let name = &self.record.spec.name;
        let images = self.list_images()?;
        let kept = images.iter().find(|image| image.standing != ImageStanding::SetAside).cloned();
        let aside: Vec<AppImage> =
            images.into_iter().filter(|image| image.standing == ImageStanding::SetAside).collect();
        if let (true, Some(kept)) = (aside.is_empty(), kept) {
            let message =
                format!("image {} of `{name}` is the only copy of its memory and is not removed", kept.generation);
            let hint = format!(
                "to give up what it had in memory: torpor stop {name}, or torpor restart {name}; the image goes with it"
            );
            return Err(ApiError::new(ErrorKind::Conflict, message).with_hint(hint));
        }
        if aside.is_empty() {
            return Err(ApiError::new(ErrorKind::NotFound, format!("`{name}` has no image"))
                .with_hint("torpor image ls lists what is there"));
        }
        for image in &aside {
            fs::remove_file(&image.path)
                .map_err(|error| ApiError::new(ErrorKind::Internal, format!("removing {}: {error}", image.path)))?;
        }
        Ok(aside)
    }
}

/// What an image was made for, as far as its header tells.
fn level(path: &Path) -> Option<Level> {
    let file = ImageFile::open(path).ok()?;
    Some(if file.is_complete() { Level::Warm } else { Level::Dozing })
}
