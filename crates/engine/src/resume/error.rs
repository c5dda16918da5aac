//! Why an app's processes were not built again.

use std::io;

use torpor_descriptors::RestoreFileError;
use torpor_restore::RestoreError;

/// Why a warm app was not woken. It stays warm, with its image and all that is parked, unless the step says otherwise.
#[derive(Debug, thiserror::Error)]
pub enum ResumeError {
    /// Its processes could not be built.
    #[error(transparent)]
    Restore(#[from] RestoreError),
    /// Its home could not be entered.
    #[error("{0}")]
    Sandbox(&'static str, #[source] io::Error),
    /// What is parked could not be had.
    #[error("fetching its parked files")]
    Parked(#[source] io::Error),
    /// They could not be frozen.
    #[error("freezing its processes")]
    Freeze(#[source] io::Error),
    /// Its image could not be consumed.
    #[error("renaming its image")]
    Image(#[source] io::Error),
    /// The journal could not be written.
    #[error("writing the journal")]
    Journal(#[source] io::Error),
    /// The rest of its memory cannot come while it runs.
    #[error("preparing the rest of its memory")]
    Pager(#[source] io::Error),
    /// It is awake by its journal, and nobody serves its page faults before the next start of the daemon.
    #[error("starting to serve its page faults")]
    Unserved(#[source] io::Error),
    /// It is awake by its journal, but could not be thawed.
    #[error("thawing its processes")]
    Thaw(#[source] io::Error),
}

impl ResumeError {
    /// The image is damaged, or not this app's: trying again is of no use.
    pub const fn is_lost(&self) -> bool {
        match self {
            Self::Restore(error) => {
                matches!(
                    error,
                    RestoreError::Format(..)
                        | RestoreError::Dozing(_)
                        | RestoreError::Files(RestoreFileError::Damaged { .. })
                )
            }
            _ => false,
        }
    }

    /// It may be tried again with all of its memory.
    pub const fn is_of_pager(&self) -> bool {
        matches!(self, Self::Pager(_))
    }

    /// What the image needs is not here: trying again is of no use before that is put right.
    pub fn is_refusal(&self) -> bool {
        match self {
            // A file that was only open and is gone.
            Self::Restore(RestoreError::Files(RestoreFileError::Step { source, .. })) => {
                matches!(source.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
            }
            Self::Restore(error) => error.is_refusal(),
            _ => false,
        }
    }

    /// The journal says that it is awake: its processes are complete, and must not be built again.
    pub const fn is_awake(&self) -> bool {
        matches!(self, Self::Thaw(_) | Self::Unserved(_))
    }
}
