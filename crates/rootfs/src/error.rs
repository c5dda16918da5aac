//! How this crate refuses.

use std::io;
use std::path::PathBuf;

use crate::digest::{Digest, LayerDigest};

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
    /// The archive cannot be unpacked.
    #[error("cannot unpack {what}")]
    Archive {
        /// Which archive: a path, or a layer's digest.
        what: String,
        /// Why.
        source: ArchiveError,
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

/// Why an archive cannot be unpacked. Names are shown escaped.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// Reading it failed.
    #[error("cannot read the archive")]
    Read(#[source] io::Error),
    /// Its compression is damaged or cut off.
    #[error("the {format} data is damaged or cut off")]
    Compression {
        /// Which compression.
        format: &'static str,
        /// What the decoder says.
        source: io::Error,
    },
    /// It uses a compression that is not read here.
    #[error("it is compressed with {format}; only gzip and zstd are read")]
    UnknownCompression {
        /// Which.
        format: &'static str,
    },
    /// It is not a tar archive, or not one at this place.
    #[error("it is not a tar archive, or a damaged one (bad header checksum at byte {offset})")]
    BadHeader {
        /// Where, in the uncompressed archive.
        offset: u64,
    },
    /// A number in a header does not read.
    #[error("the {field} of {name} is damaged")]
    BadField {
        /// Which.
        field: &'static str,
        /// Whose.
        name: String,
    },
    /// A PAX record does not read.
    #[error("a PAX header at byte {offset} is damaged")]
    BadPax {
        /// Where, in the uncompressed archive.
        offset: u64,
    },
    /// An extension header describes no member, or two of a kind describe one.
    #[error("an extension header at byte {offset} is repeated or describes nothing")]
    StrayExtension {
        /// Where.
        offset: u64,
    },
    /// The map of a sparse file is wrong.
    #[error("the sparse map of {name} is damaged")]
    BadSparse {
        /// Whose.
        name: String,
    },
    /// It ends too early.
    #[error("it is cut off after {offset} bytes")]
    Truncated {
        /// Where.
        offset: u64,
    },
    /// It holds nothing.
    #[error("it holds no files")]
    Empty,
    /// A bound was reached.
    #[error("it has more than {limit} {what}")]
    Limit {
        /// The bound.
        limit: u64,
        /// Of what: `bytes when uncompressed`.
        what: &'static str,
    },
    /// A path is absolute.
    #[error("it holds the absolute path {name}; make it with paths relative to the app's root")]
    AbsolutePath {
        /// The path.
        name: String,
    },
    /// A path goes up.
    #[error("it holds the path {name}, which leads through \"..\"")]
    ParentPath {
        /// The path.
        name: String,
    },
    /// A path is empty, holds a zero byte, or is too long or too deep.
    #[error("it holds the path {name}, which {why}")]
    BadPath {
        /// The path, perhaps shortened.
        name: String,
        /// What is wrong.
        why: &'static str,
    },
    /// A path leads through something that is not a directory.
    #[error("{name} lies below {through}, which the archive made {kind}")]
    ThroughNonDirectory {
        /// The path.
        name: String,
        /// What it leads through.
        through: String,
        /// What that is: `a symbolic link`.
        kind: &'static str,
    },
    /// A hard link leads nowhere.
    #[error("the hard link {name} leads to {target}, which is not a file of the archive before it")]
    BadHardLink {
        /// The link.
        name: String,
        /// Where it leads.
        target: String,
    },
    /// A symbolic link without a usable target.
    #[error("the symbolic link {name} has an empty, too long or unusable target")]
    BadSymlink {
        /// The link.
        name: String,
    },
    /// A device outside `dev/`.
    #[error("{name} is a {kind} device ({major}:{minor}); apps get their devices from the sandbox, in /dev")]
    Device {
        /// The path.
        name: String,
        /// `block` or `character`.
        kind: &'static str,
        /// Major number.
        major: u32,
        /// Minor number.
        minor: u32,
    },
    /// A kind of member that is not known.
    #[error("{name} is of the unknown kind {kind:?}")]
    UnknownKind {
        /// The path.
        name: String,
        /// The type flag.
        kind: char,
    },
    /// An owner outside the app's range.
    #[error("{name} belongs to {what} {id}; only 0 to 65535 can be had in an app")]
    IdTooLarge {
        /// The path.
        name: String,
        /// `user` or `group`.
        what: &'static str,
        /// The id.
        id: u64,
    },
    /// An extended attribute that the file system does not take.
    #[error("cannot give {name} the extended attribute {attribute}")]
    Xattr {
        /// The path.
        name: String,
        /// The attribute.
        attribute: String,
        /// Why.
        source: io::Error,
    },
    /// A call on the tree failed.
    #[error("cannot {action} {name}")]
    Write {
        /// What was tried.
        action: &'static str,
        /// The path.
        name: String,
        /// Why.
        source: io::Error,
    },
    /// The bytes are not those that were promised.
    #[error("its {what} is {found}, not {expected}")]
    DigestMismatch {
        /// `digest` of the blob or `uncompressed digest`.
        what: &'static str,
        /// What was promised.
        expected: Digest,
        /// What came.
        found: Digest,
    },
    /// The bytes are not as many as were promised.
    #[error("it has {found} bytes, not {expected}")]
    SizeMismatch {
        /// What was promised.
        expected: u64,
        /// What came.
        found: u64,
    },
}

/// Why an image's description cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// Not a SHA-256 digest.
    #[error("{text:?} is not a sha256 digest")]
    BadDigest {
        /// What stands there.
        text: String,
    },
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

/// Why a registry did not give an image.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// The reference does not parse.
    #[error("it is not a reference to an image")]
    Reference(#[source] oci_client::ParseError),
    /// The registry or the way to it.
    #[error("cannot fetch {what}")]
    Fetch {
        /// The manifest, a blob.
        what: String,
        /// Why.
        source: Box<oci_client::errors::OciDistributionError>,
    },
    /// The connection broke.
    #[error("the download of {what} broke off")]
    Download {
        /// What was fetched.
        what: String,
        /// Why.
        source: io::Error,
    },
    /// The client cannot be made.
    #[error("cannot set up the registry client")]
    Client(#[source] Box<oci_client::errors::OciDistributionError>),
    /// The file with credentials does not read.
    #[error("the credentials in {} cannot be read", path.display())]
    AuthFile {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Credentials are kept by a helper program.
    #[error(
        "the credentials for {registry} are kept by the helper {helper:?}, which is not supported; use \"docker login\" without helpers"
    )]
    AuthHelper {
        /// Which registry.
        registry: String,
        /// Which helper.
        helper: String,
    },
}

/// A name from an archive as it can be shown: escaped and shortened.
pub(crate) fn shown(name: &[u8]) -> String {
    const SHOWN_BYTES: usize = 200;
    if name.len() <= SHOWN_BYTES {
        return format!("\"{}\"", name.escape_ascii());
    }
    format!("\"{}…\"", name[..SHOWN_BYTES].escape_ascii())
}
