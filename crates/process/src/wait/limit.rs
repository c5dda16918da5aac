//! Until when a call waits, as the program asked.

use std::time::Duration;

/// A relative or absolute end of a wait, as the program gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Limit {
    Never,
    /// From when the wait began.
    After(Duration),
    /// What the kernel has written back as left at the interruption.
    Left(Duration),
    /// `CLOCK_MONOTONIC`.
    At(Duration),
}
