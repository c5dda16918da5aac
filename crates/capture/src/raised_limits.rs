//! Limits of a process that leave no room for the pages that it is asked with, lifted for the one call that maps these pages.
//!
//! A program may lower `RLIMIT_AS`, `RLIMIT_DATA` or `RLIMIT_MEMLOCK` below what it uses: from then on every mapping is refused, also
//! ours. Hard limits are lifted from outside, which takes CAP_SYS_RESOURCE in the user namespace of the process. Without it, the process
//! itself raises its soft limits to its hard ones. If we are killed while they are lifted, which takes microseconds, they stay lifted.

use std::io;

use rustix::process::{Pid, Resource, Rlimit, prlimit};
use torpor_image::tree::Limit;

use torpor_process::trace::TraceError;

/// What `mmap(2)` looks at, and the numbers of these limits.
const LIMITS: [(Resource, usize); 3] = [(Resource::Data, 2), (Resource::Memlock, 8), (Resource::As, 9)];

/// No limit.
const NONE: Limit = Limit { soft: u64::MAX, hard: u64::MAX };

/// Limits that a process does not have at the moment.
pub(super) struct RaisedLimits<'r> {
    pid: i32,
    /// The process sets one of its limits, by its number.
    set: &'r dyn Fn(usize, Limit) -> Result<(), TraceError>,
    before: Vec<(Resource, usize, Limit)>,
}

impl<'r> RaisedLimits<'r> {
    /// Lifts the limits of a process, which are `limits` by their numbers, as far as that is allowed. By `set`, the process sets one
    /// itself.
    ///
    /// # Errors
    /// Where the process cannot be made to call. It has all its limits then, if that can be done.
    pub(super) fn lift(
        pid: i32,
        limits: &[Limit],
        set: &'r dyn Fn(usize, Limit) -> Result<(), TraceError>,
    ) -> Result<Self, TraceError> {
        let mut lifted = Self { pid, set, before: Vec::with_capacity(LIMITS.len()) };
        for (resource, number) in LIMITS {
            let Some(before) = limits.get(number).copied() else { continue };
            if before == NONE {
                continue;
            }
            lifted.before.push((resource, number, before));
            if from_outside(pid, resource, NONE).is_err()
                && let Err(error) = set(number, Limit { soft: before.hard, ..before })
            {
                return lifted.put_back().and(Err(error));
            }
        }
        Ok(lifted)
    }

    /// Gives the process its limits back: each of them, whatever becomes of the others.
    pub(super) fn put_back(self) -> Result<(), TraceError> {
        let put = |(resource, number, before)| match from_outside(self.pid, resource, before) {
            Err(_) => (self.set)(number, before),
            Ok(()) => Ok(()),
        };
        let done: Vec<_> = self.before.iter().copied().map(put).collect();
        done.into_iter().collect()
    }
}

fn from_outside(pid: i32, resource: Resource, limit: Limit) -> io::Result<()> {
    let finite = |value: u64| (value != u64::MAX).then_some(value);
    let new = Rlimit { current: finite(limit.soft), maximum: finite(limit.hard) };
    Ok(prlimit(Pid::from_raw(pid), resource, new).map(drop)?)
}
