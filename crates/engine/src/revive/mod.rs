//! From warm to running: the app's processes are built again in its home.

mod error;

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::Path;

use torpor_image::tree::FileId;

pub use self::error::ReviveError;
use crate::home::Home;
use crate::plan::Memories;
use crate::restore::{RestoreError, RestoreStep};
use crate::sleep::Target;
use crate::step::Timings;

/// How an app is to be woken.
pub struct Revive<'a> {
    /// Where it lives.
    pub home: &'a Home,
    /// Its complete image.
    pub image: &'a Path,
    /// Generation of the image.
    pub generation: u64,
    /// Its parked files, by their place in the image's list of files.
    pub given: BTreeMap<FileId, OwnedFd>,
}

/// An app that runs again.
#[derive(Debug)]
pub struct Revived {
    /// Its initial process, as the machine numbers it.
    pub initial: i32,
    /// What the next sleep must know.
    pub memories: Memories,
    /// What is not as it was, and why.
    pub warnings: Vec<String>,
}

/// Wakes a warm app.
pub fn revive(_target: &Target<'_>, _request: Revive<'_>) -> (Result<Revived, ReviveError>, Timings<RestoreStep>) {
    let refused = RestoreError::Refused(vec!["this version cannot build its processes again".to_owned()]);
    (Err(refused.into()), Timings::begin())
}
