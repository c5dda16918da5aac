//! Images as files: the one place that writes, commits, opens, lists, consumes, quarantines and removes them.
//!
//! A [`Store`] is the images of one app, or of one checkpoint, in a local directory. Who uses it holds handles and builds no names.
//!
//! ```text
//!           begin             commit              consume
//! nothing ────────▶ Partial ─────────▶ Image ────────────────▶ consumed
//!    ▲                 │               │ │ ▲                      │ │
//!    └── discard, drop ┘               │ │ └──── unconsume ───────┘ │
//!    ▲                                 │ └─ quarantine ─▶ kept for inspection
//!    └──────────── remove ─────────────┴────────────────────────────┘
//!
//!                    open
//!              Image ─────▶ Lease: its bytes, until it is dropped, in whatever state the image is by then
//! ```
//! Two questions, two states. *May the app be restored from it?* Only from an image that is committed and not consumed; the name of the
//! file says so. *Are its bytes used?* As long as somebody holds a [`Lease`], which is an open file: a wake consumes an image and reads
//! on from it.
//!
//! Invariants:
//! - Of each generation at most one file is committed or consumed, and an app may be restored from the committed one only.
//! - A commit replaces the name of a file whose bytes are complete. The caller syncs these before ([`Partial::file`]), because it must be
//!   able to give that up. What is to outlast a power cut ([`Durability::PowerCuts`]) has its directory synced as well.
//! - [`Image::consume`] returns after the directory is synced, and a wake waits for it before an instruction of the app runs
//!   ([`consume::Consuming`]). Memory of an app that runs is never found again, also after a power cut: its files have gone on. An
//!   image of a dozing app is not consumed: the journal of its worker says the same, and a power cut ends the processes that it is for.
//! - No generation of an app is used twice: the highest one is recorded before an image is begun (`last_generation.rs`). What is
//!   quarantined is never replaced.
//!
//! | killed after | file | what the next start does |
//! |---|---|---|
//! | `begin` | `N.image.part` | removes it ([`Store::clean`]) |
//! | `commit` | `N.image` | uses it if the journal says so, or if nothing of the app is left |
//! | `consume` | `N.image.woken` | takes it back ([`Image::unconsume`]) if the journal says that the wake did not end; else removes it |
//! | `unconsume` | `N.image` | as after `commit` |
//! | `quarantine` | `N.damaged` | leaves it to the user |
//! | `remove`, `discard` | none | |
//!
//! Each of them is one rename or unlink, so a crash in the middle leaves the state before or after it. A power cut may also take back the
//! last ones, but for those that were synced. A checkpoint's directory has the names `image`, `image.part` and so on.
#![forbid(unsafe_code)]

pub mod consume;
mod directory;
mod entries;
mod fold;
pub mod header;
mod image;
mod image_file;
mod last_generation;
mod names;
mod partial;
mod steps;
#[cfg(test)]
mod tests;
mod trim;

pub use directory::Store;
pub use entries::{Entry, Owner};
pub use fold::{Areas, Folded, Scattered};
pub use image::{FileInfo, Image, Lease};
pub use image_file::{Contents, ImageError, ImageFile, MemoryDifference, Verified, compare_memory};
pub use names::{IMAGE_NAME, ImageState};
pub use partial::{CommitError, Durability, Partial};
pub use trim::Trim;
