//! The named steps of falling asleep, of waking and of hibernating: where time is measured, and where tests make things fail.

mod restore;

use std::time::Instant;

pub use self::restore::{RestoreFaults, RestoreStep};

/// A point that has been reached. The order is the order of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Step {
    /// Processes and areas are listed; nothing has been touched.
    Prepared,
    /// Every process is frozen.
    Frozen,
    /// Every thread is in a trace stop, and its interrupted call is put right.
    Stopped,
    /// The descriptors that it waits for are being watched.
    Watched,
    /// Memory is copied.
    Copied,
    /// The image is on disk under its temporary name.
    Synced,
    /// The image has its name and the journal says `Dropping`: the point of no return.
    Committed,
    /// Every thread is in the park loop.
    Parked,
    /// Memory is dropped.
    Dropped,
    /// Frozen again, every thread with its own registers, no longer traced.
    Released,
    /// The journal says `Dozing`.
    Dozing,
    /// Waking: the image is open and is the right one.
    Opened,
    /// Memory is back.
    Refilled,
    /// The journal says `Awake`.
    Awake,
    /// Time-outs are put right.
    Adjusted,
    /// Running.
    Thawed,
    /// Hibernating: what can be seen from outside is not in the way; nothing has been touched.
    Examined,
    /// Memory is back in place; still frozen.
    Resident,
    /// The journal says `Awake`.
    Activated,
    /// Every thread is in a trace stop, and the app is not frozen any more.
    Attached,
    /// Everything is described, and memory is copied.
    Collected,
    /// The complete image is on disk under its temporary name.
    Written,
    /// The open files are parked.
    FilesParked,
    /// The complete image has its name, durably.
    Named,
    /// The journal says `Ending`, or a guard is there that ends plain processes if we do not: the point of no return.
    Ending,
    /// Every process has ended.
    Ended,
    /// The journal says `Warm`.
    Warm,
}

impl Step {
    /// All steps, in order.
    pub const ALL: [Self; 27] = [
        Self::Prepared,
        Self::Frozen,
        Self::Stopped,
        Self::Watched,
        Self::Copied,
        Self::Synced,
        Self::Committed,
        Self::Parked,
        Self::Dropped,
        Self::Released,
        Self::Dozing,
        Self::Opened,
        Self::Refilled,
        Self::Awake,
        Self::Adjusted,
        Self::Thawed,
        Self::Examined,
        Self::Resident,
        Self::Activated,
        Self::Attached,
        Self::Collected,
        Self::Written,
        Self::FilesParked,
        Self::Named,
        Self::Ending,
        Self::Ended,
        Self::Warm,
    ];

    /// Its name in phases, faults and documents.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Prepared => "prepared",
            Self::Frozen => "frozen",
            Self::Stopped => "stopped",
            Self::Watched => "watched",
            Self::Copied => "copied",
            Self::Synced => "synced",
            Self::Committed => "committed",
            Self::Parked => "parked",
            Self::Dropped => "dropped",
            Self::Released => "released",
            Self::Dozing => "dozing",
            Self::Opened => "opened",
            Self::Refilled => "refilled",
            Self::Awake => "awake",
            Self::Adjusted => "adjusted",
            Self::Thawed => "thawed",
            Self::Examined => "examined",
            Self::Resident => "resident",
            Self::Activated => "activated",
            Self::Attached => "attached",
            Self::Collected => "collected",
            Self::Written => "written",
            Self::FilesParked => "files-parked",
            Self::Named => "named",
            Self::Ending => "ending",
            Self::Ended => "ended",
            Self::Warm => "warm",
        }
    }
}

/// A step that has a name.
pub trait Named {
    /// Its name in phases, faults and documents.
    fn name(&self) -> &'static str;
}

impl Named for Step {
    fn name(&self) -> &'static str {
        Self::name(*self)
    }
}

/// An error that a test asked for at a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("fault asked for at step {}", .0.name())]
pub struct Fault<S: Named = Step>(pub S);

/// Told of every step; a fault makes the operation fail right there.
pub trait Faults: Send + Sync {
    /// Called when `step` has been reached.
    fn reached(&self, step: Step) -> Result<(), Fault>;

    /// Called when `step` of building processes again has been reached, but for the last.
    fn rebuilt(&self, _step: RestoreStep) -> Result<(), Fault<RestoreStep>> {
        Ok(())
    }
}

/// No faults.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoFaults;

impl Faults for NoFaults {
    fn reached(&self, _step: Step) -> Result<(), Fault> {
        Ok(())
    }
}

/// How long each step took.
#[derive(Clone, Debug)]
pub struct Timings<S = Step> {
    begun: Instant,
    last: Instant,
    steps: Vec<(S, u64)>,
}

impl Timings {
    /// Records that `step` is reached.
    ///
    /// # Errors
    /// The fault that a test injects there.
    pub fn reached(&mut self, step: Step, faults: &dyn Faults) -> Result<(), Fault> {
        self.mark(step);
        faults.reached(step)
    }
}

impl<S: Copy + Ord> Timings<S> {
    /// Nothing is reached yet.
    pub fn begin() -> Self {
        /// Room for those of one operation.
        const STEPS: usize = 16;
        let now = Instant::now();
        Self { begun: now, last: now, steps: Vec::with_capacity(STEPS) }
    }

    /// `step` has been reached.
    pub fn mark(&mut self, step: S) {
        let now = Instant::now();
        self.steps.push((step, now.duration_since(self.last).as_micros() as u64));
        self.last = now;
    }

    /// Each step with the microseconds since the one before.
    pub fn steps(&self) -> &[(S, u64)] {
        &self.steps
    }

    /// From the beginning to the last step, microseconds.
    pub fn total_us(&self) -> u64 {
        self.last.duration_since(self.begun).as_micros() as u64
    }

    /// From the end of `from` to the end of `to`, microseconds; 0 if `to` was not reached.
    pub fn between_us(&self, from: S, to: S) -> u64 {
        self.steps.iter().filter(|(step, _)| *step > from && *step <= to).map(|(_, us)| us).sum()
    }
}
