//! What the engine needs of whoever runs the app: a way to freeze it, and a journal.

use std::io;
use std::time::Duration;

/// Freezes and thaws all processes of an app at once (the cgroup v2 freezer).
pub trait Freezer: Send + Sync {
    /// Freezes; returns once every process is frozen. A frozen app stays as it is.
    fn freeze(&self) -> io::Result<()>;
    /// Thaws.
    fn thaw(&self) -> io::Result<()>;
    /// Freezing was asked for and not taken back.
    fn is_freezing(&self) -> io::Result<bool>;
    /// Process ids (thread group leaders) in it.
    fn processes(&self) -> io::Result<Vec<i32>>;
}

/// How far an app is, for whoever comes after a crash. Written before the step that it announces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Its memory is complete.
    Awake,
    /// Its memory is being dropped: the image is the truth.
    Dropping {
        /// Generation of the image.
        generation: u64,
    },
    /// Its memory is dropped and its processes are frozen with their own registers.
    Dozing {
        /// Generation of the image.
        generation: u64,
        /// When a timer must wake it, by `CLOCK_MONOTONIC`.
        wake_at: Option<Duration>,
    },
}

/// Keeps an app's phase across a crash of the worker (not of the machine).
pub trait Journal: Send + Sync {
    /// Replaces the phase, all or nothing.
    fn record(&self, phase: Phase) -> io::Result<()>;
}
