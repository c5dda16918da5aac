//! The files of apps: a store of unpacked layers, and every source that fills it.
//!
//! # Purpose
//! A [`Store`] is a directory. Tarballs, OCI layouts, `docker save` archives and registries are turned into *layers*
//! (directory trees that overlayfs can stack) and *images* (a list of layers, lowest first, and what the image says of
//! its program). Running them is the sandbox's business; so is the overlay mount.
//!
//! ```text
//! tarball ─────────────┐
//! OCI layout ──────────┤  bytes   ┌────────────┐ members ┌────────┐ calls  ┌──────┐ rename ┌───────┐
//! docker save archive ─┼─────────▶│ stream     │────────▶│ unpack │───────▶│ tree │───────▶│ store │
//! registry ────────────┘          │ + archive  │         └────────┘        └──────┘        └───────┘
//!                                 └────────────┘
//! ```
//! * [`store`]: the directory, what is in it, how things get in and out of it.
//! * `stream`: decompression, sizes and checksums of what goes by.
//! * `archive`, `pax`: the tar format: bytes to members.
//! * `unpack`: members to calls: who wins, whiteouts, missing parents.
//! * `tree`: the calls, none of which can leave the tree.
//! * [`remove_tree`]: removing trees of any depth.
//! * [`view`]: reading one file of the stacked layers; [`users`]: names from `etc/passwd` and `etc/group`.
//!
//! # Invariants
//! * Nothing outside the tree being unpacked is ever written, whatever the archive says: every path is opened below
//!   the tree's root with `openat2(RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS)`, one component is
//!   created at a time, and the last component is never followed.
//! * Everything read from outside is bounded ([`Limits`]) and checked against its digest and size where it has them,
//!   before it becomes visible in the store.
//! * A layer in the store is complete and on disk: it is unpacked elsewhere, synced, and renamed into place.
//!
//! # What a crash leaves
//! Temporaries under `tmp/`, which the next [`Store::open`] removes.
#![forbid(unsafe_code)]

mod archive;
mod budget;
mod copy;
mod digest;
mod docker_archive;
mod error;
mod form;
mod image;
mod limits;
mod oci_layout;
mod pax;
mod progress;
mod reference;
mod registry;
mod remove;
mod resolve;
mod source;
pub mod store;
mod stream;
mod tarball;
mod temporary;
mod tree;
mod unpack;
pub mod users;
pub mod view;

pub use copy::{Copied, Ids, Meta, NodeKind, Record, read_tree, read_tree_within, write_tree};
pub use digest::{Digest, DigestError, LayerDigest};
pub use error::{ArchiveError, CopyError, Error, ImageError, RegistryError, RequestError};
pub use form::ImageForm;
pub use image::{Image, ImageConfig};
pub use limits::{Limits, MAX_IMAGE_NAME_BYTES};
pub use progress::{Progress, ProgressFn, no_progress};
pub use reference::ReferenceError;
pub use registry::default_auth_file;
pub use remove::remove_tree;
pub use store::{Collected, Store, StoredImage};
pub use users::User;

/// Reads `bytes` as each document of an image or registry is read, and as the files that name users and credentials: for fuzzing.
#[doc(hidden)]
pub fn read_documents(bytes: &[u8]) {
    let limits = Limits::default();
    if let Ok(image::Document::Index(entries)) = image::Document::parse(bytes, &limits) {
        let _ = [None, Some("latest")].map(|reference| image::choose(&entries, reference).is_ok());
    }
    let _ = image::Described::parse(bytes, &limits);
    docker_archive::read_manifest(bytes);
    registry::read_documents(bytes);
    users::read_files(&String::from_utf8_lossy(bytes));
}
