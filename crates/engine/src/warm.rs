//! What is known of a warm app.

use std::time::Duration;

use torpor_store::Image;

/// A warm app.
#[derive(Clone, Debug)]
pub struct Warm {
    /// Its complete image.
    pub image: Image,
    /// Bytes of the image's file.
    pub image_bytes: u64,
    /// When a timer must wake it, by `CLOCK_MONOTONIC`.
    pub wake_at: Option<Duration>,
    /// What will not survive a reboot, in words. Not known after a crash.
    pub warnings: Vec<String>,
}
