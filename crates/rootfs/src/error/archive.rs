//! How unpacking refuses.

use std::io;

use crate::digest::Digest;
use crate::form::ImageForm;

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
    /// It is an image in its own form, not the files of one.
    #[error(
        "it is {} and not the files of a root file system",
        match .0 {
            ImageForm::DockerArchive => "an archive that docker save wrote",
            ImageForm::OciLayout => "an OCI image layout in an archive",
        }
    )]
    HoldsImage(ImageForm),
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

/// A name from an archive as it can be shown: escaped and shortened.
pub(crate) fn shown(name: &[u8]) -> String {
    const SHOWN_BYTES: usize = 200;
    if name.len() <= SHOWN_BYTES {
        return format!("\"{}\"", name.escape_ascii());
    }
    format!("\"{}…\"", name[..SHOWN_BYTES].escape_ascii())
}
