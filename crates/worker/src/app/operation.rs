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

use torpor_engine::{Fault, Faults, Journal, Phase, RestoreStep, Step};

use crate::faults::RequestedFaults;

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

    /// What the journal says from the point on from which it cannot be given up any more.
    const fn commits(self, phase: Phase) -> bool {
        match self {
            Self::Start | Self::Refill => false,
            Self::Sleep => matches!(phase, Phase::Dropping { .. }),
            Self::Hibernate => matches!(phase, Phase::Ending { .. }),
            Self::Wake => matches!(phase, Phase::Awake),
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

    /// A step has been reached; false: it is to be the last.
    fn reached(&self, step: &'static str) -> bool {
        let mut progress = self.progress();
        progress.step = Some(step);
        !progress.cancelled
    }
}

/// The steps of an operation: faults that a test asks for, and the end where it was given up.
pub(super) struct Steps<'a> {
    pub(super) operation: &'a Operation,
    pub(super) faults: &'a RequestedFaults,
}

impl Faults for Steps<'_> {
    fn reached(&self, step: Step) -> Result<(), Fault> {
        self.faults.reached(step)?;
        if self.operation.reached(step.name()) { Ok(()) } else { Err(Fault(step)) }
    }

    fn rebuilt(&self, step: RestoreStep) -> Result<(), Fault<RestoreStep>> {
        self.faults.rebuilt(step)?;
        if self.operation.reached(step.name()) { Ok(()) } else { Err(Fault(step)) }
    }
}

/// A journal in which an operation that was given up does not commit.
pub(super) struct Commits<'a> {
    pub(super) operation: &'a Operation,
    pub(super) journal: &'a dyn Journal,
}

impl Journal for Commits<'_> {
    fn record(&self, phase: Phase) -> io::Result<()> {
        if !self.operation.kind.commits(phase) {
            return self.journal.record(phase);
        }
        let mut progress = self.operation.progress();
        if progress.cancelled {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "it was given up"));
        }
        self.journal.record(phase)?;
        progress.committed = true;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What was written.
    #[derive(Default)]
    struct Written(Mutex<Vec<Phase>>);

    impl Journal for Written {
        fn record(&self, phase: Phase) -> io::Result<()> {
            self.0.lock().unwrap().push(phase);
            Ok(())
        }
    }

    #[test]
    fn it_is_cancelled_or_committed_and_never_both() {
        let (faults, written) = (RequestedFaults::default(), Written::default());
        let operation = Operation::begin(Kind::Wake, Duration::from_secs(7));
        let steps = Steps { operation: &operation, faults: &faults };
        let journal = Commits { operation: &operation, journal: &written };
        steps.rebuilt(RestoreStep::Built).unwrap();
        assert_eq!(operation.words(), "waking it has not ended within 7 s (behind step built)");
        assert!(operation.cancel() && operation.cancel());
        assert!(steps.rebuilt(RestoreStep::Frozen).is_err());
        assert_eq!(journal.record(Phase::Awake).unwrap_err().kind(), io::ErrorKind::TimedOut);
        // What undoes it is written.
        journal.record(Phase::Warm { generation: 1, wake_at: None }).unwrap();
        assert_eq!(written.0.lock().unwrap().len(), 1);

        let operation = Operation::begin(Kind::Wake, Duration::ZERO);
        let journal = Commits { operation: &operation, journal: &written };
        journal.record(Phase::Awake).unwrap();
        assert!(!operation.cancel() && !operation.is_cancelled());
        assert!(Steps { operation: &operation, faults: &faults }.rebuilt(RestoreStep::Awake).is_ok());
    }
}
