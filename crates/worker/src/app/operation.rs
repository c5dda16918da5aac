//! An operation of an app that is under way on a thread of its own, and how it is given up when it does not end.
//!
//! ```text
//! begun ──▶ … ──▶ committed ──▶ … ──▶ its outcome
//!   │               a deadline passes: nothing is given up any more, and it is said
//!   └─ a deadline passes: cancelled ──▶ it fails at its next step or at the commit ──▶ the app is as before
//!                             └──▶ it reaches none within the grace: held up
//! ```
//! Whether it is cancelled or committed is decided once, under a lock: a thread that comes back from a call after an hour finds that
//! it may not commit, and undoes what it has made. Until then nothing else is begun for its app (see `app::deadlines`).

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use torpor_lifecycle::Text;

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A sandbox is made and its program started.
    Start,
    /// Memory goes into an image.
    Sleep,
    /// Processes go into an image.
    Hibernate,
    /// Processes are built from an image.
    Wake,
    /// Memory is brought back from an image; never given up.
    Refill,
}

impl Kind {
    /// What it is called.
    pub(crate) const fn words(self) -> &'static str {
        match self {
            Self::Start => "starting it",
            Self::Sleep => "putting it to sleep",
            Self::Hibernate => "taking it to warm",
            Self::Wake | Self::Refill => "waking it",
        }
    }
}

#[derive(Debug, Default)]
struct Progress {
    /// The last step that was reached.
    step: Option<&'static str>,
    cancelled: bool,
    committed: bool,
}

/// An operation that is under way.
#[derive(Debug)]
pub(crate) struct Operation {
    pub(crate) kind: Kind,
    begun: Instant,
    /// How long it may take.
    pub(crate) allowed: Duration,
    progress: Mutex<Progress>,
}

impl Operation {
    pub(crate) fn begin(kind: Kind, allowed: Duration) -> Arc<Self> {
        Arc::new(Self { kind, begun: Instant::now(), allowed, progress: Mutex::default() })
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        // Nothing is left half changed in it.
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// When it should have ended.
    pub(crate) fn deadline(&self) -> Instant {
        self.begun + self.allowed
    }

    /// Gives it up; false: it has committed, and cannot be.
    pub(crate) fn cancel(&self) -> bool {
        let mut progress = self.progress();
        progress.cancelled |= !progress.committed;
        progress.cancelled
    }

    /// It was given up.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.progress().cancelled
    }

    /// `waking it has not ended within 60 s (at step built)`.
    pub(crate) fn words(&self) -> String {
        let step = self.progress().step.map_or_else(String::new, |step| format!(" (behind step {step})"));
        let Self { kind, allowed, .. } = self;
        format!("{} has not ended within {} s{step}", kind.words(), allowed.as_secs())
    }

    /// Commits it by `record`, unless it was given up: nothing is recorded then.
    pub(crate) fn commit(&self, record: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let mut progress = self.progress();
        if progress.cancelled {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "it was given up"));
        }
        record()?;
        progress.committed = true;
        Ok(())
    }

    /// A step has been reached; false: it is to be the last.
    pub(crate) fn reached(&self, step: &'static str) -> bool {
        let mut progress = self.progress();
        progress.step = Some(step);
        !progress.cancelled
    }
}

/// How an operation ended whose outcome has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// Before its deadline.
    InTime,
    /// After it was given up, for this reason; nobody was told yet.
    GivenUp(Text),
    /// So late that it was told to have failed.
    Abandoned,
}

impl Ended {
    /// Why it was given up, if it was.
    pub(crate) fn given_up(self) -> Option<Text> {
        match self {
            Self::GivenUp(reason) => Some(reason),
            Self::InTime | Self::Abandoned => None,
        }
    }
}
