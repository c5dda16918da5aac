//! An app as hub and worker know it: its record, and what it is made from.

use std::num::NonZeroU64;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::spec::AppSpec;

/// Digits of an app's id: 64 random bits.
const APP_ID_DIGITS: usize = 16;

/// Whether this may be the id of an app: 16 lower-case hexadecimal digits. Ids name directories and cgroups.
#[must_use]
pub fn is_app_id(id: &str) -> bool {
    id.len() == APP_ID_DIGITS && id.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// An app as the hub keeps it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AppRecord {
    /// Unique id, never used again: 16 lower-case hexadecimal digits.
    pub id: String,
    /// Small number, unique among living apps of a worker: addresses and id ranges derive from it (1 to 65,000).
    pub index: u32,
    /// What was asked for.
    pub spec: AppSpec,
    /// Its files.
    pub resolved: Resolved,
    /// When it was made.
    pub created: Timestamp,
    /// Whether it should run (asleep counts as running) or rest.
    pub desired: Desired,
    /// Kept awake by hand.
    pub pinned: bool,
    /// Since when this worker owns it.
    #[serde(default)]
    pub epoch: Epoch,
}

/// Counts the owners that an app has had: it grows by one whenever another worker gets the app. Journals and images carry it, so that
/// those of a former owner are told apart from those of the present one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Epoch(NonZeroU64);

impl Epoch {
    /// That of an app on the worker that it was made on, and of everything that was written before there were epochs.
    pub const FIRST: Self = Self(NonZeroU64::MIN);

    /// `None` for 0, which is no epoch.
    #[must_use]
    pub fn new(epoch: u64) -> Option<Self> {
        NonZeroU64::new(epoch).map(Self)
    }

    /// The number.
    #[must_use]
    pub fn get(self) -> NonZeroU64 {
        self.0
    }
}

impl Default for Epoch {
    fn default() -> Self {
        Self::FIRST
    }
}

/// An app of which the hub cannot read the row, or has none. Nothing is done with it: its processes, files, images and layers stay as
/// they are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftAlone {
    /// Its id; of a damaged row, whatever it says.
    pub id: String,
    /// Its name, as far as it can be read; for messages only.
    pub name: String,
    /// `sha256:…` of its layers. `None`: they cannot be read, so that any layer may be one of its.
    pub layers: Option<Vec<String>>,
}

/// What is wanted of an app.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Desired {
    /// Running or asleep.
    Up,
    /// Stopped.
    Down,
}

/// A source turned into layers on the worker's disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resolved {
    /// `sha256:…` of each unpacked layer, lowest first.
    pub layers: Vec<String>,
    /// What the image says of itself.
    pub defaults: ImageDefaults,
}

/// What an image says of its program; empty where it came as a tarball.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ImageDefaults {
    /// Entry point and arguments, already joined.
    pub command: Vec<String>,
    /// `NAME=value`, in order.
    pub env: Vec<String>,
    /// User, as in the image's configuration.
    pub user: Option<String>,
    /// Working directory.
    pub workdir: Option<String>,
    /// Signal that asks it to stop, as `SIGTERM`.
    pub stop_signal: Option<String>,
}
