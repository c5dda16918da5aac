//! The last sleeps and wakes of an app, phase by phase, for `torpor explain`.

use std::collections::VecDeque;

use jiff::Timestamp;
use torpor_api::view::{Phase, Transition};
use torpor_engine::{Named, Timings};

/// Transitions kept of each kind.
const KEPT: usize = 10;

/// Newest first.
#[derive(Debug, Default)]
pub(crate) struct History(VecDeque<Transition>);

impl History {
    /// Those of an earlier worker, newest first.
    pub(crate) fn from_newest(transitions: Vec<Transition>) -> Self {
        Self(transitions.into_iter().take(KEPT).collect())
    }

    /// Remembers one.
    pub(crate) fn add<S: Copy + Ord + Named>(&mut self, cause: String, timings: &Timings<S>, outcome: Option<String>) {
        let total = i64::try_from(timings.total_us()).unwrap_or(0);
        let at = Timestamp::now().checked_sub(jiff::SignedDuration::from_micros(total)).unwrap_or(Timestamp::MIN);
        let steps = timings.steps().iter();
        let phases = steps.map(|(step, us)| Phase { name: step.name().into(), us: *us }).collect();
        self.0.truncate(KEPT - 1);
        self.0.push_front(Transition { at, cause, phases, total_us: timings.total_us(), outcome });
    }

    pub(crate) fn all(&self) -> Vec<Transition> {
        self.0.iter().cloned().collect()
    }
}
