//! The same wait over several sleeps: what is remembered of a thread's call, and how the call is known again.

use std::time::Duration;

use super::limit::Limit;

/// What is remembered of a thread from its last sleep, to recognise the same wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PriorWait {
    /// Number of the system call.
    pub number: u64,
    /// Instruction pointer.
    pub instruction: u64,
    /// Stack pointer.
    pub stack: u64,
    /// When it times out, by `CLOCK_MONOTONIC`; `None`: never.
    pub deadline: Option<Duration>,
    /// Its whole time-out.
    pub total: Duration,
    /// The thread has not run since its call was begun again.
    pub unmoved: bool,
    /// How it was let go on, if it cannot have begun more than one call since.
    pub given: Option<Given>,
}

/// A call that was let go on with what was left of its time-out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Given {
    /// When.
    pub(crate) at: Duration,
    /// As it was put into its place.
    pub(crate) left: Duration,
    /// How often the thread had given up its processor by itself.
    pub(crate) switches: u64,
}

impl Given {
    /// A wait with this limit, which is looked at now, is still the same one. However late the thread came to go on: on a busy
    /// machine that is later by far than any measure of nearness, each time, and the deadline must not move with it.
    pub(super) fn goes_on(&self, limit: Limit, now: Duration) -> bool {
        match limit {
            Limit::After(total) => total == self.left,
            Limit::Left(left) => left <= self.left && left + now.saturating_sub(self.at) + ROUNDED >= self.left,
            Limit::Never | Limit::At(_) => false,
        }
    }
}

/// What the kernel's and our own rounding of what is left can make up.
const ROUNDED: Duration = Duration::from_millis(2);
