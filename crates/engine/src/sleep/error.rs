//! Why an app did not fall asleep.

use std::io;
use std::path::PathBuf;

use crate::watch::{Source, WatchError};
use torpor_capture::CaptureError;
use torpor_pages::copy::CopyError;
use torpor_process::step::{Fault, Step};
use torpor_process::trace::TraceError;

/// Why it did not fall asleep. In all cases but [`SleepError::Lost`] it runs as before.
#[derive(Debug, thiserror::Error)]
pub enum SleepError {
    /// It has work to do, or was asked to give up.
    #[error("given up: {0}")]
    Aborted(String),
    /// It cannot sleep as it is.
    #[error("it cannot sleep: {0}")]
    Refused(String),
    /// Something failed on the way.
    #[error("an attempt failed after step {}", .at.name())]
    Failed {
        /// The last step that was reached.
        at: Step,
        /// What failed.
        #[source]
        error: Box<Failure>,
    },
    /// It failed after memory had been dropped, and memory could not be brought back: the app stays frozen, the image is
    /// kept.
    #[error("failed, and its memory could not be brought back")]
    Lost(#[source] Box<Failure>),
}

/// What can fail.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// Freezing or thawing.
    #[error("freezing or thawing it")]
    Freeze(#[source] io::Error),
    /// Looking at it.
    #[error("looking at its processes")]
    Look(#[source] io::Error),
    /// Tracing.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// Copying memory.
    #[error(transparent)]
    Copy(#[from] CopyError),
    /// Watching descriptors.
    #[error(transparent)]
    Watch(#[from] WatchError),
    /// The image's file.
    #[error("image {}", .0.display())]
    Image(PathBuf, #[source] io::Error),
    /// The journal.
    #[error("writing the journal")]
    Journal(#[source] io::Error),
    /// Memory did not come back.
    #[error(transparent)]
    Refill(#[from] crate::RefillError),
    /// No pager.
    #[error("starting its pager")]
    Pager(#[source] io::Error),
    /// Describing its processes.
    #[error(transparent)]
    Collect(Box<CaptureError>),
    /// Keeping its open files.
    #[error("keeping its open files")]
    Park(#[source] io::Error),
    /// Ending its processes.
    #[error("ending its processes")]
    End(#[source] io::Error),
    /// A test asked for it.
    #[error(transparent)]
    Fault(#[from] Fault),
}

/// Why the first part ended.
pub(crate) enum Stop {
    Aborted(String),
    Refused(String),
    Failed(Failure),
}

impl Stop {
    /// The error of a sleep that ended at `at` and was undone; where that failed too, it is what counts.
    pub(crate) fn told(self, at: Step, undone: Result<(), Failure>) -> SleepError {
        match (undone, self) {
            (Err(failure), _) | (Ok(()), Self::Failed(failure)) => SleepError::Failed { at, error: Box::new(failure) },
            (Ok(()), Self::Aborted(by)) => SleepError::Aborted(by),
            (Ok(()), Self::Refused(why)) => SleepError::Refused(why),
        }
    }
}

impl<T: Into<Failure>> From<T> for Stop {
    fn from(failure: T) -> Self {
        match failure.into() {
            Failure::Watch(WatchError::Ready(source)) => Self::Aborted(describe(&source)),
            Failure::Trace(error @ TraceError::Uninterruptible { .. }) => Self::Refused(error.to_string()),
            Failure::Trace(error @ TraceError::Traced { .. }) => Self::Refused(error.to_string()),
            Failure::Trace(error @ TraceError::NoVdso(_)) => Self::Refused(error.to_string()),
            Failure::Copy(error @ CopyError::Refused { .. }) => Self::Refused(error.to_string()),
            other => Self::Failed(other),
        }
    }
}

pub(super) fn describe(source: &Source) -> String {
    format!("an event on {} (descriptor {} of process {})", source.what, source.fd, source.pid)
}
