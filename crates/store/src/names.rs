//! Names of image files. Nothing outside of this module builds or parses one.

/// How the files of a directory are named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// An app's directory: an image for each sleep, by its generation.
    App,
    /// The directory of a checkpoint: one image, which has no generation.
    Checkpoint,
}

/// What an image file may be used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ImageState {
    /// It is being written, or its writer was killed.
    Partial,
    /// It is complete, and the app may be restored from it.
    Committed,
    /// A wake from it has begun: unless that fails, the app must not be restored from it.
    Consumed,
    /// It is damaged or unusable, and kept for inspection.
    Quarantined,
}

/// Name of the image in the directory that a checkpoint makes.
pub const IMAGE_NAME: &str = "image";

impl Layout {
    pub(crate) fn name(self, generation: u64, state: ImageState) -> String {
        let suffix = match state {
            ImageState::Partial => "image.part",
            ImageState::Committed => "image",
            ImageState::Consumed => "image.woken",
            ImageState::Quarantined => "damaged",
        };
        match (self, state) {
            (Self::App, _) => format!("{generation}.{suffix}"),
            (Self::Checkpoint, ImageState::Quarantined) => format!("{IMAGE_NAME}.{suffix}"),
            (Self::Checkpoint, _) => suffix.to_owned(),
        }
    }

    /// Generation and state of the image with this name.
    pub(crate) fn parse(self, name: &str) -> Option<(u64, ImageState)> {
        let generation = match self {
            Self::App => number(name)?,
            Self::Checkpoint => 0,
        };
        let states = [ImageState::Partial, ImageState::Committed, ImageState::Consumed, ImageState::Quarantined];
        let state = states.into_iter().find(|state| self.name(generation, *state) == name)?;
        Some((generation, state))
    }
}

/// The number that a name begins with, up to a dot; of files of any kind.
pub(crate) fn number(name: &str) -> Option<u64> {
    name.split_once('.')?.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Images of earlier versions must be found: these names never change.
    #[test]
    fn names_are_what_they_were() {
        use ImageState::{Committed, Consumed, Partial, Quarantined};
        for (layout, generation, state, name) in [
            (Layout::App, 7, Partial, "7.image.part"),
            (Layout::App, 7, Committed, "7.image"),
            (Layout::App, 7, Consumed, "7.image.woken"),
            (Layout::App, 7, Quarantined, "7.damaged"),
            (Layout::App, u64::MAX, Committed, "18446744073709551615.image"),
            (Layout::Checkpoint, 0, Partial, "image.part"),
            (Layout::Checkpoint, 0, Committed, "image"),
            (Layout::Checkpoint, 0, Consumed, "image.woken"),
            (Layout::Checkpoint, 0, Quarantined, "image.damaged"),
        ] {
            assert_eq!(layout.name(generation, state), name);
            assert_eq!(layout.parse(name), Some((generation, state)));
        }
        for other in ["log", "x.image", "past.json", "7.imag", "7.image.", "07.image", "+7.image", "image", ".image"] {
            assert_eq!(Layout::App.parse(other), None, "{other}");
        }
        assert_eq!(Layout::Checkpoint.parse("7.image"), None);
    }
}
