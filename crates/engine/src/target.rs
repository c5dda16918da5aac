//! What the engine needs of whoever runs the app: a way to freeze it, and a journal.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use torpor_image::tree::FileId;

/// Freezes and thaws all processes of an app at once (the cgroup v2 freezer).
pub trait Freezer: Send + Sync {
    /// Freezes; returns once every process is frozen. A frozen app stays as it is.
    fn freeze(&self) -> io::Result<()>;
    /// Asks for it and does not wait: whoever stands still now runs no instruction of its own before it is thawed.
    fn begin_freezing(&self) -> io::Result<()> {
        self.freeze()
    }
    /// Thaws.
    fn thaw(&self) -> io::Result<()>;
    /// Freezing was asked for and not taken back.
    fn is_freezing(&self) -> io::Result<bool>;
    /// Process ids (thread group leaders) in it.
    fn processes(&self) -> io::Result<Vec<i32>>;
    /// Ends every process of the app, while what they lived in stays: marks it first, so that the end of the initial process
    /// is not taken for the app's. Returns when no process is left. May be called again.
    fn end_processes(&self) -> io::Result<()>;
    /// Takes back the mark of [`Freezer::end_processes`]: the processes have been built again, the initial one with this id
    /// and process descriptor. Called before they are thawed.
    fn processes_are_back(&self, initial: i32, process: OwnedFd) -> io::Result<()>;
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
    /// It runs, or is about to; a pager brings the rest of its memory.
    Lazy {
        /// Generation of the image that this is in.
        generation: u64,
    },
    /// Its complete image is the truth, and its processes are being ended.
    Ending {
        /// Generation of the image.
        generation: u64,
        /// When a timer must wake it, by `CLOCK_MONOTONIC`.
        wake_at: Option<Duration>,
    },
    /// Its processes are gone; the complete image and the parked files are what is left. Also while processes are built
    /// again, until they are complete.
    Warm {
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

/// Holds the open files of a warm app, outside of the worker.
pub trait Parking: Send + Sync {
    /// Holds duplicates of these descriptors, by their place in the image's list of files, in place of all that it held of
    /// this app; all or nothing.
    fn park(&self, files: &[(FileId, BorrowedFd<'_>)]) -> io::Result<()>;

    /// Whether so many would be held; an error says why not. Asked before anything is done for going warm, so that an app with
    /// too many goes on dozing.
    fn has_room(&self, _files: usize) -> io::Result<()> {
        Ok(())
    }
}
