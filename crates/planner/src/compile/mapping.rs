//! Steps that make a mapping.

use torpor_linux::uapi::memory::{MAP_ANONYMOUS, MAP_FIXED_NOREPLACE, MAP_GROWSDOWN, MAP_NORESERVE, MAP_PRIVATE};

use super::build::Steps;
use crate::calls;

/// A mapping to make.
pub(super) struct Mapped {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) protection: u32,
}

impl Mapped {
    /// Anonymous memory.
    pub(super) fn anonymous(&self, grows_down: bool, no_reserve: bool, steps: &mut Steps) {
        let down = if grows_down { MAP_GROWSDOWN } else { 0 };
        let reserve = if no_reserve { MAP_NORESERVE } else { 0 };
        self.map(MAP_PRIVATE | MAP_ANONYMOUS | down | reserve, -1, 0, steps);
    }

    /// Private memory over a file.
    pub(super) fn private(&self, fd: i32, offset: u64, steps: &mut Steps) {
        self.map(MAP_PRIVATE, fd, offset, steps);
    }

    /// With these flags, of descriptor `fd` or of none (-1).
    pub(super) fn map(&self, flags: u64, fd: i32, offset: u64, steps: &mut Steps) {
        let (flags, protection) = (flags | MAP_FIXED_NOREPLACE, u64::from(self.protection));
        let bytes = self.end - self.start;
        let arguments = [self.start.into(), bytes.into(), protection.into(), flags.into(), fd.into(), offset.into()];
        steps.exact(calls::MMAP, self.start, &arguments);
    }
}
