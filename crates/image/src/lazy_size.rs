//! How much memory a process must have for its pages to come back through userfaultfd. Tests lower it, so that programs of any size
//! come back that way.

use std::sync::atomic::{AtomicBool, Ordering};

static LOWERED: AtomicBool = AtomicBool::new(false);

/// Stored bytes of an app from which on it wakes before all of its memory is back, and of a process from which on it is filled from
/// outside. Less is in place before a pager has begun.
pub fn least_bytes() -> u64 {
    if LOWERED.load(Ordering::Relaxed) { 1 } else { 1 << 20 }
}

/// Stored pages of an area from which on it is registered with a userfaultfd, which costs as much as placing two to five pages.
pub fn least_pages() -> u64 {
    if LOWERED.load(Ordering::Relaxed) { 1 } else { 16 }
}

/// From now on any size is enough in this process, for tests.
pub fn lower() {
    LOWERED.store(true, Ordering::Relaxed);
}
