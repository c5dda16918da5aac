//! Why open files could not be dumped or restored.

use std::io;

use torpor_image::FormatError;

use torpor_process::blocker::Blocker;
use torpor_process::step::Fault;
use torpor_process::step::RestoreStep;

/// Why the open files of a tree could not be dumped.
#[derive(Debug, thiserror::Error)]
pub enum DumpError {
    /// Some of them cannot go into an image.
    #[error("{} of the tree's open files and shared memory cannot be captured", .0.len())]
    Refused(Vec<Blocker>),
    /// The kernel refused to show one.
    #[error("looking at {what} of process {pid}")]
    Look {
        /// Process, as the machine numbers it.
        pid: i32,
        /// What was looked at.
        what: String,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
    /// The image could not be written.
    #[error("its image cannot be written")]
    Write(#[source] io::Error),
    /// Packets of its connections could not be kept away.
    #[error("keeping away the packets of its TCP connections")]
    Lock(#[source] io::Error),
    /// It was given up.
    #[error("given up")]
    Stopped,
}

/// Why an open file could not be restored.
#[derive(Debug, thiserror::Error)]
pub enum RestoreFileError {
    /// A step failed.
    #[error("{step} {what}")]
    Step {
        /// What was tried: `opening`, `binding`.
        step: &'static str,
        /// The file: a path, `a pipe`, a socket with its address.
        what: String,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
    /// A file is not what it was.
    #[error("{path} is not what it was when the image was made: {how}")]
    Changed {
        /// Its path.
        path: String,
        /// What differs.
        how: &'static str,
    },
    /// Something else has its key or id.
    #[error("{what} {how}")]
    Taken {
        /// What is taken.
        what: String,
        /// By what.
        how: String,
    },
    /// Nobody has given a descriptor that came from outside.
    #[error("{0} came from outside of the tree, and nothing was given for it")]
    Missing(String),
    /// The image is damaged.
    #[error("contents of {what}")]
    Damaged {
        /// What they belong to.
        what: String,
        /// What is wrong.
        #[source]
        source: FormatError,
    },
    /// The image could not be read.
    #[error("reading the image")]
    Read(#[source] io::Error),
    /// A test asked for it.
    #[error(transparent)]
    Fault(#[from] Fault<RestoreStep>),
}

impl RestoreFileError {
    /// For `map_err`: `step` with `what` failed.
    pub(crate) fn at<E: Into<io::Error>>(step: &'static str, what: impl Into<String>) -> impl FnOnce(E) -> Self {
        let what = what.into();
        move |source| Self::Step { step, what, source: source.into() }
    }
}
