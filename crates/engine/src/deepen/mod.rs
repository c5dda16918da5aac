//! From dozing to warm: the app's processes are ended, a complete image and its parked files stay.
//!
//! ```text
//!        ┌ it dozes on ┐ ┌──────────────── it is awake ─────────────────┐
//! dozing ─▶ examined ─▶ resident ─▶ roused ─▶ held ─▶ collected ─▶ written ─▶ kept ─▶ named ─▶ ending
//!                                   journal: Awake                                              │ journal: Ending
//!                                                     warm ◀─ ended ◀───────────────────────────┘
//!                                                     journal: Warm
//! ```

mod error;

use std::path::PathBuf;
use std::time::Duration;

pub use self::error::DeepenError;
use crate::home::Home;
use crate::plan::Memories;
use crate::sleep::{Abort, Asleep, Target};
use crate::step::Timings;
use crate::target::Parking;

/// How an app is to become warm.
pub struct Deepen<'a> {
    /// Where it lives.
    pub home: &'a Home,
    /// Where the complete image goes; a file beside it, with `.part` appended, is used until it is complete.
    pub image: PathBuf,
    /// Generation of the image, higher than all before.
    pub generation: u64,
    /// Tells it to give up.
    pub abort: &'a Abort,
    /// Takes its open files.
    pub parking: &'a dyn Parking,
}

/// A warm app.
#[derive(Clone, Debug)]
pub struct Warm {
    /// Its complete image.
    pub image: PathBuf,
    /// Generation of the image.
    pub generation: u64,
    /// Bytes of the image's file.
    pub image_bytes: u64,
    /// When a timer must wake it, by `CLOCK_MONOTONIC`.
    pub wake_at: Option<Duration>,
    /// What will not survive a reboot, in words. Not known after a crash.
    pub warnings: Vec<String>,
}

/// What came of deepening an app's sleep.
#[derive(Debug)]
pub struct Deepened {
    /// It is warm, or why not and where it is.
    pub result: Result<Warm, DeepenError>,
    /// How long each step took.
    pub timings: Timings,
    /// For the next sleep, where it is awake.
    pub memories: Option<Memories>,
}

/// Makes a dozing app warm. Runs on one thread from beginning to end, since tracing belongs to a thread.
pub fn deepen(_target: &Target<'_>, _asleep: &Asleep, _request: &Deepen<'_>) -> Deepened {
    let refused = DeepenError::Dozing(vec!["this version cannot end its processes".to_owned()]);
    Deepened { result: Err(refused), timings: Timings::begin(), memories: None }
}
