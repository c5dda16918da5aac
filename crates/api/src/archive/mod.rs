//! An app as one stream of bytes: what `torpor image export` writes and `torpor image import` reads.
//!
//! ```text
//! magic, version │ manifest │ layer … │ files │ image │ end
//!                            └──────── sections: begin, data …, end ───┘
//! ```
//! Everything behind the version is frames: a byte that says what it is, the length of its contents (at most
//! [`MOST_FRAME_BYTES`]), the contents, and a checksum of all bytes of the archive up to there. So damage is found at the frame
//! that it is in, before anything is made of it; a stream without its end frame was cut off. Whoever writes and cannot go on
//! says why in a last frame.
//!
//! The checksum finds damage; it does not authenticate. Nothing read from an archive is trusted.

mod read;
#[cfg(test)]
mod tests;
mod write;

use std::net::IpAddr;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

pub use self::read::Reader;
pub use self::write::{SectionWriter, Writer};
use crate::error::{ApiError, one_line};
use crate::record::Resolved;
use crate::spec::{AppSpec, Security};

/// Media type of an archive.
pub const MEDIA_TYPE: &str = "application/x-torpor-archive";
/// The version that this code writes, and the only one that it reads.
pub const VERSION: u32 = 1;
/// Most bytes in one frame.
pub const MOST_FRAME_BYTES: usize = 1 << 20;
/// First bytes.
const MAGIC: [u8; 16] = *b"TORPOR-ARCHIVE\r\n";
/// Bytes of a checksum.
const SUM_BYTES: usize = 8;

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Kind {
    /// A [`Manifest`] as JSON: the first frame.
    Manifest = 1,
    /// A [`Section`] as JSON.
    Section = 2,
    /// Bytes of the section.
    Data = 3,
    /// The section is complete.
    SectionEnd = 4,
    /// The archive is complete.
    End = 5,
    /// An [`ApiError`] as JSON: it will not be completed.
    Failed = 6,
}

/// What is in an archive, and what a machine must know before it takes it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// Version of Torpor that has written it.
    pub torpor: String,
    /// When.
    pub made: Timestamp,
    /// The app's description.
    pub spec: AppSpec,
    /// Its layers, and what its image said.
    pub resolved: Resolved,
    /// Addresses that it had: others are put in their places.
    pub addresses: Vec<IpAddr>,
    /// What is not in the archive and will be missing: connections, for example.
    pub left_out: Vec<String>,
}

/// What a description asks for that reaches beyond a sandbox as any app has it. Whoever runs an app has written that; whoever
/// imports one has not read it. Each is one line, whatever the names in it are.
pub fn beyond_default(spec: &AppSpec) -> Vec<String> {
    let Security { user_namespace, cap_add, seccomp, .. } = &spec.security;
    let mut asked: Vec<String> =
        spec.volumes.iter().map(|volume| format!("to read {} of this machine", volume.host.display())).collect();
    if !user_namespace {
        asked.push("to run without a user namespace".to_owned());
    }
    if !seccomp {
        asked.push("to run without a system-call filter".to_owned());
    }
    asked.extend(cap_add.iter().map(|name| format!("the capability {name}")));
    asked.extend(spec.network.join.iter().map(|name| format!("to join the network {name}")));
    asked.iter().map(|asked| one_line(asked)).collect()
}

/// A part of an archive: layers, lowest first, then the app's own files, then its image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Section {
    /// A layer of its files.
    Layer {
        /// Its name in [`Resolved::layers`].
        name: String,
    },
    /// Its own files: what differs from the layers.
    Files,
    /// The image of its processes.
    Image {
        /// Its length.
        bytes: u64,
    },
}

/// Why an archive cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// The stream failed.
    #[error("the archive cannot be read")]
    Read(#[source] std::io::Error),
    /// Not an archive.
    #[error("this is not an archive that torpor image export has written")]
    Magic,
    /// Of another version.
    #[error("the archive has version {0}, and this torpor reads version {VERSION}")]
    Version(u32),
    /// The stream ended before the archive did.
    #[error("the archive is cut off")]
    Truncated,
    /// Bytes are not what they were.
    #[error("the archive is damaged: the checksum at byte {0} is wrong")]
    Checksum(u64),
    /// It does not keep to its format.
    #[error("the archive is damaged: {0}")]
    Invalid(&'static str),
    /// Its manifest cannot be understood.
    #[error("the archive's {0} cannot be understood")]
    Json(&'static str, #[source] serde_json::Error),
    /// Whoever wrote it could not go on.
    #[error(transparent)]
    Failed(ApiError),
}

impl ArchiveError {
    /// As an answer to a user.
    pub fn to_api(&self) -> ApiError {
        match self {
            Self::Failed(error) => error.clone(),
            error => ApiError::new(crate::ErrorKind::Invalid, crate::error::chain(error)),
        }
    }
}
