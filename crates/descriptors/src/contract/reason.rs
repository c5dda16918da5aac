//! Why an open file cannot be dumped.

use std::io;

/// Why an open file cannot be described.
#[derive(Debug)]
pub(crate) enum Reason {
    /// It cannot go into an image.
    Refused {
        /// What it is, and what is wrong with it.
        what: String,
        /// What could be done; may be empty.
        remedy: String,
    },
    /// It cannot be described, but the open file itself can be parked: an app's is, a plain tree's is refused.
    Parkable {
        /// As above.
        what: String,
        /// As above.
        remedy: String,
    },
    /// It leads out of the tree, so that only whoever restores can give it.
    Outside {
        /// As above.
        what: String,
        /// As above.
        remedy: String,
    },
    /// The kernel would not tell.
    Failed(io::Error),
    /// The image could not be written.
    Write(io::Error),
    /// It was given up.
    Stopped,
}

impl From<io::Error> for Reason {
    fn from(error: io::Error) -> Self {
        Self::Failed(error)
    }
}

impl From<rustix::io::Errno> for Reason {
    fn from(error: rustix::io::Errno) -> Self {
        Self::Failed(error.into())
    }
}

impl Reason {
    pub(crate) fn refused(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::Refused { what: what.into(), remedy: remedy.into() }
    }

    pub(crate) fn parkable(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::Parkable { what: what.into(), remedy: remedy.into() }
    }

    pub(crate) fn outside(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::Outside { what: what.into(), remedy: remedy.into() }
    }
}

/// A description, or why there is none.
pub(crate) type Described<T> = Result<T, Reason>;
