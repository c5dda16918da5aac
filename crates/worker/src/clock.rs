//! The clock that timers of sleeping apps run by: `CLOCK_MONOTONIC`.

use std::time::Duration;

use jiff::Timestamp;
use rustix::time::{ClockId, clock_gettime};
use torpor_lifecycle::Millis;

/// Now.
pub(crate) fn monotonic() -> Duration {
    let time = clock_gettime(ClockId::Monotonic);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

/// Now, for the state machine.
pub(crate) fn now() -> Millis {
    millis(monotonic())
}

/// A time of the clock, for the state machine; rounded down, so that nothing is late.
pub(crate) fn millis(time: Duration) -> Millis {
    Millis(time.as_millis() as u64)
}

/// How long it is from now until `at`; zero if it has passed.
pub(crate) fn until(at: Millis) -> Duration {
    Duration::from_millis(at.0).saturating_sub(monotonic())
}

/// The moment of this clock at a wall-clock time; its beginning for an earlier one.
pub(crate) fn of_wall(at: Timestamp) -> Millis {
    let ago = Timestamp::now().duration_since(at).as_millis();
    let now = i128::from(now().0);
    Millis(u64::try_from((now - ago).clamp(0, i128::from(u64::MAX))).unwrap_or(0))
}

/// The wall-clock time of a moment of this clock.
pub(crate) fn wall(at: Millis) -> Timestamp {
    let offset = i64::try_from(at.0).unwrap_or(i64::MAX).saturating_sub(i64::try_from(now().0).unwrap_or(i64::MAX));
    Timestamp::now().checked_add(jiff::SignedDuration::from_millis(offset)).unwrap_or(Timestamp::MAX)
}
