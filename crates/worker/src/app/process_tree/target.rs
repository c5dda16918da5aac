//! What the engine works on when an operation of the task acts on the tree: its faults, its steps and its commit are the operation's.

use std::io;

use torpor_engine::{Fault, Faults, Freezer, Journal, Phase, RestoreStep, Step, Target};
use torpor_store::Owner;

use crate::app::operation::{Kind, Operation};
use crate::faults::RequestedFaults;

/// Runs `run` for a tree, as a part of `operation`: it fails at its next step, and does not commit, where that is given up.
pub(super) fn with_target<T>(
    owner: Owner,
    operation: &Operation,
    freezer: &dyn Freezer,
    journal: &dyn Journal,
    faults: &RequestedFaults,
    run: impl FnOnce(&Target<'_>) -> T,
) -> T {
    run(&Target {
        app: owner.app,
        epoch: owner.epoch,
        boot: owner.boot,
        freezer,
        journal: &Commits { operation, journal },
        faults: &Steps { operation, faults },
    })
}

/// Whether an operation of this kind cannot be given up any more once the journal says `phase`.
const fn commits(kind: Kind, phase: Phase) -> bool {
    match kind {
        Kind::Start | Kind::Refill => false,
        Kind::Sleep => matches!(phase, Phase::Dropping { .. }),
        Kind::Hibernate => matches!(phase, Phase::Ending { .. }),
        Kind::Wake => matches!(phase, Phase::Awake | Phase::Lazy { .. }),
    }
}

/// The steps of an operation: faults that a test asks for, and the end where it was given up.
struct Steps<'a> {
    operation: &'a Operation,
    faults: &'a RequestedFaults,
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
struct Commits<'a> {
    operation: &'a Operation,
    journal: &'a dyn Journal,
}

impl Journal for Commits<'_> {
    fn record(&self, phase: Phase) -> io::Result<()> {
        if !commits(self.operation.kind, phase) {
            return self.journal.record(phase);
        }
        self.operation.commit(|| self.journal.record(phase))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::time::Duration;

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
