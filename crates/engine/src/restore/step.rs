//! The named steps of a restore: where time is measured, and where tests make things fail.

use std::time::Instant;

/// A point that has been reached. The order is the order of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RestoreStep {
    /// The image is read and fits this machine; its plan is at hand.
    Read,
    /// Process ids are free, files are what they were.
    Checked,
    /// Everything that will be open is open here.
    Opened,
    /// The first process is there.
    Launched,
    /// All processes are there, in their sessions and groups.
    Born,
    /// The stored pages match their checksums.
    Verified,
    /// Every process and thread has made all its steps.
    Built,
    /// Every thread has its own registers, and nothing of the restorer is left in them.
    Finished,
    /// The tree runs.
    Running,
}

impl RestoreStep {
    /// All steps, in order.
    pub const ALL: [Self; 9] = [
        Self::Read,
        Self::Checked,
        Self::Opened,
        Self::Launched,
        Self::Born,
        Self::Verified,
        Self::Built,
        Self::Finished,
        Self::Running,
    ];

    /// Its name in phases, faults and documents.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Checked => "checked",
            Self::Opened => "opened",
            Self::Launched => "launched",
            Self::Born => "born",
            Self::Verified => "verified",
            Self::Built => "built",
            Self::Finished => "finished",
            Self::Running => "running",
        }
    }
}

/// An error that a test asked for at a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("fault asked for at step {}", .0.name())]
pub struct RestoreFault(pub RestoreStep);

/// Told of every step but the last; a fault makes the restore fail right there.
pub type RestoreFaults<'a> = &'a dyn Fn(RestoreStep) -> Result<(), RestoreFault>;

/// How long each step took.
#[derive(Clone, Debug)]
pub struct RestoreTimings {
    begun: Instant,
    last: Instant,
    steps: Vec<(RestoreStep, u64)>,
}

impl RestoreTimings {
    pub(super) fn begin() -> Self {
        let now = Instant::now();
        Self { begun: now, last: now, steps: Vec::with_capacity(RestoreStep::ALL.len()) }
    }

    pub(super) fn reached(&mut self, step: RestoreStep) {
        let now = Instant::now();
        self.steps.push((step, now.duration_since(self.last).as_micros() as u64));
        self.last = now;
    }

    /// Each step with the microseconds since the one before.
    pub fn steps(&self) -> &[(RestoreStep, u64)] {
        &self.steps
    }

    /// From the beginning to the last step, microseconds.
    pub fn total_us(&self) -> u64 {
        self.last.duration_since(self.begun).as_micros() as u64
    }
}
