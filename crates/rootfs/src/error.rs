//! How this crate refuses.

use std::io;
use std::path::PathBuf;

use crate::digest::{DigestError, LayerDigest};
use crate::form::ImageForm;

mod archive;
mod copy;
mod registry;

pub use archive::ArchiveError;
pub(crate) use archive::shown;
pub use copy::CopyError;
pub use registry::{RegistryError, RequestError};

/// What went wrong with the store or a source.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The machine's file system refused.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// What was tried, as a verb: `open`, `sync`.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// What a user has named as a source is not there.
    #[error("there is no file or directory {}", path.display())]
    NoSource {
        /// What was named.
        path: PathBuf,
    },
    /// A directory was named in the place of an archive.
    #[error("{} is {}, not an archive", path.display(), if *is_layout { "an OCI image layout" } else { "a directory" })]
    Directory {
        /// Which.
        path: PathBuf,
        /// It is an OCI image layout.
        is_layout: bool,
    },
    /// A file was named in the place of an OCI image layout.
    #[error("{} is a file, and an OCI image layout is a directory", path.display())]
    NotADirectory {
        /// Which.
        path: PathBuf,
    },
    /// The archive cannot be unpacked.
    #[error("cannot unpack {what}")]
    Archive {
        /// Which archive: a path, or a layer's digest.
        what: String,
        /// Why.
        source: ArchiveError,
    },
    /// The layer cannot be taken from or to another machine.
    #[error("cannot copy {what}")]
    Copy {
        /// Which layer.
        what: String,
        /// Why.
        source: CopyError,
    },
    /// The image's description is wrong.
    #[error("cannot use the image {what}")]
    Image {
        /// Which: a path or reference.
        what: String,
        /// Why.
        source: ImageError,
    },
    /// The registry did not give it.
    #[error("cannot pull {reference}")]
    Registry {
        /// What was asked for.
        reference: String,
        /// Why.
        source: RegistryError,
    },
    /// No image has this name.
    #[error("no image is stored under the name {name:?}")]
    UnknownImage {
        /// The name.
        name: String,
    },
    /// The layer is not in the store.
    #[error("layer {layer} is not in the store")]
    UnknownLayer {
        /// Which.
        layer: LayerDigest,
    },
    /// The name cannot name an image.
    #[error("{name:?} cannot name an image: 1 to 128 of a-z, A-Z, 0-9 and ._:/@-, beginning with a letter or digit")]
    BadName {
        /// The name.
        name: String,
    },
    /// A record of the store itself does not read back.
    #[error("the store's record {} is damaged", path.display())]
    DamagedRecord {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: serde_json::Error,
    },
    /// A record of the store itself is too large to be one.
    #[error("the store's record {} is larger than {limit_bytes} bytes", path.display())]
    LargeRecord {
        /// Which file.
        path: PathBuf,
        /// The bound.
        limit_bytes: u64,
    },
    /// The user cannot be resolved in the app's files.
    #[error("cannot resolve the user {user:?}: {why}")]
    User {
        /// What was asked for.
        user: String,
        /// Why not.
        why: UserRefusal,
    },
    /// A blocking task ended without a result.
    #[error("the task that unpacks {what} ended early")]
    Task {
        /// What it worked on.
        what: String,
        /// Why.
        source: tokio::task::JoinError,
    },
}

impl Error {
    /// What the user can do, where the source is of another kind than the one that it was named as.
    pub fn advice(&self) -> Option<String> {
        match self {
            Self::Directory { path, is_layout: true } => Some(format!("name it with: --oci-layout {}", path.display())),
            Self::Directory { path, is_layout: false } => {
                Some(format!("make a tarball of it, and name that: tar -C {} -cf root.tar .", path.display()))
            }
            Self::NotADirectory { path } => {
                Some(format!("name an archive that docker save wrote with: --docker-archive {}", path.display()))
            }
            Self::Archive { what, source: ArchiveError::HoldsImage(ImageForm::DockerArchive) } => {
                Some(format!("name it with: --docker-archive {what}"))
            }
            Self::Archive { source: ArchiveError::HoldsImage(ImageForm::OciLayout), .. } => {
                Some("unpack it into a directory, and name that with: --oci-layout DIRECTORY".to_owned())
            }
            _ => None,
        }
    }

    pub(crate) fn io(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { action, path, source }
    }

    pub(crate) fn errno(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(rustix::io::Errno) -> Self {
        let path = path.into();
        move |errno| Self::Io { action, path, source: errno.into() }
    }
}

/// Why a user cannot be resolved.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UserRefusal {
    /// No such name.
    #[error("{name:?} is not in {file}")]
    Unknown {
        /// The name.
        name: String,
        /// The file that lacks it.
        file: &'static str,
    },
    /// Beyond an app's ids.
    #[error("id {id} is above 65535")]
    IdTooLarge {
        /// The id.
        id: u64,
    },
    /// Empty part or too many parts.
    #[error("it is not user, uid, user:group or uid:gid")]
    Form,
}

/// Why an image's description cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// Not a SHA-256 digest.
    #[error(transparent)]
    BadDigest(#[from] DigestError),
    /// A part of it is missing.
    #[error("{what} is missing")]
    Missing {
        /// Which.
        what: String,
    },
    /// A part of it is no JSON of the expected form.
    #[error("{what} cannot be read")]
    Json {
        /// Which.
        what: String,
        /// Why.
        source: serde_json::Error,
    },
    /// A part of it is larger than allowed.
    #[error("{what} is larger than {limit_bytes} bytes")]
    TooLarge {
        /// Which.
        what: String,
        /// The bound.
        limit_bytes: u64,
    },
    /// A blob is not what its descriptor says.
    #[error("{what} does not match its description")]
    Mismatch {
        /// Which.
        what: String,
        /// How.
        source: Box<ArchiveError>,
    },
    /// There is more than one image.
    #[error("it holds several images; name one of: {}", available.join(", "))]
    Ambiguous {
        /// Their names.
        available: Vec<String>,
    },
    /// No image of that name.
    #[error("it holds no image {reference:?}; it has: {}", available.join(", "))]
    NoReference {
        /// What was asked for.
        reference: String,
        /// What there is.
        available: Vec<String>,
    },
    /// It is for other machines.
    #[error("it has no variant for linux/amd64")]
    NoPlatform,
    /// It is for another kind of machine.
    #[error("it is for {os}/{architecture}, not for linux/amd64")]
    Platform {
        /// Operating system.
        os: String,
        /// Architecture.
        architecture: String,
    },
    /// Layers and digests do not go together.
    #[error("it lists {layers} layers but {diff_ids} layer digests")]
    LayerCount {
        /// In the manifest.
        layers: usize,
        /// In the configuration.
        diff_ids: usize,
    },
    /// More of something than allowed.
    #[error("it has more than {limit} {what}")]
    TooMany {
        /// The bound.
        limit: usize,
        /// Of what.
        what: &'static str,
    },
}
