//! Which owner of an app is meant.

use std::num::NonZeroU64;

/// Counts the workers that have owned an app: it grows by one whenever another worker gets the app. What a former owner wrote is told
/// apart by it from what the present one wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Epoch(NonZeroU64);

impl Epoch {
    /// That of an app which has had one owner only, and of everything that was written before there were epochs.
    pub const FIRST: Self = Self(NonZeroU64::MIN);

    /// `None` for 0, which is no epoch.
    #[must_use]
    pub const fn new(epoch: u64) -> Option<Self> {
        match NonZeroU64::new(epoch) {
            Some(epoch) => Some(Self(epoch)),
            None => None,
        }
    }

    /// The number, at least 1.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0.get()
    }
}

impl Default for Epoch {
    fn default() -> Self {
        Self::FIRST
    }
}

impl From<NonZeroU64> for Epoch {
    fn from(epoch: NonZeroU64) -> Self {
        Self(epoch)
    }
}
