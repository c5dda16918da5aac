//! The last sleeps and wakes of an app, phase by phase, for `torpor explain`.

use std::collections::VecDeque;
use std::time::Duration;

use jiff::Timestamp;
use torpor_api::view::{Phase, Transition};
use torpor_engine::{Named, Timings};

/// Transitions kept of each kind.
const KEPT: usize = 10;

/// The phase of a wake that had to wait for others.
pub(crate) const QUEUED: &str = "queued";

/// A sleep or a wake, as whoever performed it measured it.
#[derive(Debug)]
pub(crate) struct Entry {
    at: Timestamp,
    phases: Vec<Phase>,
    total_us: u64,
    /// Why it failed; none: it did not.
    outcome: Option<String>,
}

impl Entry {
    /// One that has just ended.
    pub(crate) fn new<S: Copy + Ord + Named>(timings: &Timings<S>, outcome: Option<String>) -> Self {
        let total = i64::try_from(timings.total_us()).unwrap_or(0);
        let at = Timestamp::now().checked_sub(jiff::SignedDuration::from_micros(total)).unwrap_or(Timestamp::MIN);
        let steps = timings.steps().iter();
        let phases = steps.map(|(step, us)| Phase { name: step.name().into(), us: *us }).collect();
        Self { at, phases, total_us: timings.total_us(), outcome }
    }
}

/// Newest first.
#[derive(Debug, Default)]
pub(crate) struct History(VecDeque<Transition>);

impl History {
    /// Those of an earlier worker, newest first.
    pub(crate) fn from_newest(transitions: Vec<Transition>) -> Self {
        Self(transitions.into_iter().take(KEPT).collect())
    }

    /// Remembers one.
    pub(crate) fn add(&mut self, cause: String, entry: Entry) {
        let Entry { at, phases, total_us, outcome } = entry;
        self.0.truncate(KEPT - 1);
        self.0.push_front(Transition { at, cause, phases, total_us, outcome });
    }

    /// The newest had to wait so long before.
    pub(crate) fn waited(&mut self, waited: Duration) {
        let Some(newest) = self.0.front_mut() else { return };
        let us = u64::try_from(waited.as_micros()).unwrap_or(u64::MAX);
        newest.phases.insert(0, Phase { name: QUEUED.into(), us });
        newest.total_us = newest.total_us.saturating_add(us);
        newest.at = newest.at.checked_sub(jiff::SignedDuration::from_micros(us.cast_signed())).unwrap_or(newest.at);
    }

    pub(crate) fn all(&self) -> Vec<Transition> {
        self.0.iter().cloned().collect()
    }
}
