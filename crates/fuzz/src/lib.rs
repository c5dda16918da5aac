//! Fuzzing of everything that reads bytes of unknown origin.
//!
//! A [target](Target) is a function of bytes that must neither panic nor take long, whatever they are. Where the format has
//! checksums, the target makes them right, so that the fuzzer gets past them. Its corpus lies in `corpus/NAME`: small files, each a
//! case of its own, and every finding that was fixed. `tests/corpus.rs` replays them as ordinary tests.
//!
//! `cargo xtask fuzz` builds the same functions with coverage instrumentation and libFuzzer, and searches for more
//! (`docs/decisions/0013-fuzzing.md`).
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a target fails by panicking")]

mod archive;
mod image;
mod layers;
mod registry;
mod tarballs;
mod texts;

use std::path::PathBuf;

pub use registry::can_pull;

/// Something that reads bytes.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name, and that of its corpus.
    pub name: &'static str,
    /// Reads them.
    pub run: fn(&[u8]),
}

/// All of them.
pub const TARGETS: &[Target] = &[
    Target { name: "header", run: image::header },
    Target { name: "dozing", run: image::dozing },
    Target { name: "state", run: image::state },
    Target { name: "vetting", run: image::vetting },
    Target { name: "archive", run: archive::frames },
    Target { name: "files", run: archive::files },
    Target { name: "keeper", run: torpor_keeper::read_packet },
    Target { name: "tar", run: layers::tar },
    Target { name: "layers", run: layers::layers },
    Target { name: "documents", run: torpor_rootfs::read_documents },
    Target { name: "registry", run: registry::answers_of_a_registry },
    Target { name: "texts", run: texts::texts },
];

/// The target with this name.
pub fn find(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}

/// Where a target's corpus lies.
pub fn corpus(target: &Target) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target.name)
}
