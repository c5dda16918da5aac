//! How copying refuses.

use std::io;

/// Why a tree cannot be copied. Names are shown escaped.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// The stream failed.
    #[error("the files cannot be read or written on their way")]
    Stream(#[source] io::Error),
    /// The tree's file system refused.
    #[error("cannot {action} {name}")]
    Tree {
        /// What was tried, as a verb.
        action: &'static str,
        /// On what.
        name: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The stream does not keep to its format.
    #[error("the files are damaged: {0}")]
    Invalid(&'static str),
    /// A path is not one.
    #[error("the files are damaged")]
    Path(#[source] super::ArchiveError),
    /// An owner that is none of the app's.
    #[error("{name} belongs to id {id}, which is none of the app's")]
    Owner {
        /// Of what.
        name: String,
        /// As the machine counts.
        id: u32,
    },
    /// An extended attribute that cannot be taken along.
    #[error("{name} has the extended attribute {attribute}, which cannot be taken to another machine")]
    Attribute {
        /// Of what.
        name: String,
        /// Its name.
        attribute: String,
    },
    /// It is not a kind of file that can be taken along.
    #[error("{name} is of a kind that is not known")]
    Kind {
        /// Which.
        name: String,
    },
    /// It is a device node.
    #[error("{name} is a device node, which is not taken to another machine")]
    Device {
        /// Which.
        name: String,
    },
    /// It changed while it was read.
    #[error("{name} changed while it was read")]
    Changed {
        /// Which.
        name: String,
    },
    /// Its files have more bytes than there is room for.
    #[error("there are more than {limit} bytes")]
    Bytes {
        /// The bound.
        limit: u64,
    },
    /// There is too much.
    #[error("there are more than {limit} {what}")]
    Limit {
        /// The bound.
        limit: u64,
        /// Of what.
        what: &'static str,
    },
}

impl CopyError {
    /// It is the stream that is wrong, and not this machine.
    pub fn is_of_stream(&self) -> bool {
        match self {
            Self::Tree { source, .. } => {
                matches!(source.kind(), io::ErrorKind::AlreadyExists | io::ErrorKind::NotADirectory)
            }
            Self::Changed { .. } => false,
            _ => true,
        }
    }
}
