//! What a user chose for an app, and the bounds that nobody chooses.

use std::fmt;
use std::time::Duration;

/// When an app sleeps and what happens when it ends. The owner makes it from the app's specification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Sleeps by itself when idle; otherwise only on command.
    pub sleep: bool,
    /// Without use for this long it is idle.
    pub idle_after: Duration,
    /// Goes from dozing to warm after so long; none: only on command, or when memory is short.
    pub warm_after: Option<Duration>,
    /// Stays awake at least this long after a start or wake.
    pub min_awake: Duration,
    /// More CPU than this keeps it awake.
    pub cpu_limit: Share,
    /// Established connections do not keep it awake.
    pub with_connections: bool,
    /// What to do when it ends.
    pub restart: RestartPolicy,
    /// What to do when it cannot be woken as things are.
    pub wake_blocked: WakeBlocked,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            sleep: true,
            idle_after: Duration::from_secs(30),
            warm_after: Some(Duration::from_secs(600)),
            min_awake: Duration::from_secs(2),
            cpu_limit: Share(500),
            with_connections: true,
            restart: RestartPolicy::OnFailure,
            wake_blocked: WakeBlocked::Wait,
        }
    }
}

/// What to do when the initial process ends without having been asked to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestartPolicy {
    /// Leave it stopped.
    No,
    /// Start it again unless it ended with status 0.
    OnFailure,
    /// Start it again.
    Always,
}

/// What to do when an app cannot be woken as things are: what its image needs is not there any more, or has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WakeBlocked {
    /// Keep its image, and wait until somebody wakes it again.
    Wait,
    /// Give up its memory, and start it afresh on its files.
    Restart,
}

/// A share of one CPU core, in hundredths of a percent; above 10,000 for more than one core.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Share(pub u32);

impl Share {
    /// From percent of one core; negative and not-a-number become 0.
    #[allow(clippy::cast_sign_loss, reason = "the conversion saturates, which is what is wanted")]
    pub fn from_percent(percent: f64) -> Self {
        Self((percent * 100.0).round() as u32)
    }

    /// `cpu_us` microseconds of CPU in `span`; none if no time has passed.
    pub fn of(cpu_us: u64, span: Duration) -> Option<Self> {
        let share = (u128::from(cpu_us) * 10_000).checked_div(span.as_micros())?;
        Some(Self(u32::try_from(share).unwrap_or(u32::MAX)))
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0 / 100)?;
        match self.0 % 100 {
            0 => {}
            tenths if tenths % 10 == 0 => write!(f, ".{}", tenths / 10)?,
            hundredths => write!(f, ".{hundredths:02}")?,
        }
        f.write_str(" %")
    }
}

/// A delay that doubles with each failure in a row, up to a bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// After the first failure.
    pub first: Duration,
    /// Upper bound.
    pub most: Duration,
}

impl Backoff {
    /// The delay after `earlier` failures before this one.
    pub fn delay(self, earlier: u32) -> Duration {
        let factor = 1_u32.checked_shl(earlier).unwrap_or(u32::MAX);
        self.first.saturating_mul(factor).min(self.most)
    }
}

/// Between an unasked end and the restart.
pub const RESTART_DELAY: Backoff = Backoff { first: Duration::from_millis(250), most: Duration::from_secs(60) };
/// An app that lived this long since its start begins again with the first restart delay.
pub const RAN_WELL: Duration = Duration::from_secs(60);
/// Between a refused capture or hibernating and the next attempt that nobody asked for.
pub const CAPTURE_RETRY: Backoff = Backoff { first: Duration::from_secs(10), most: Duration::from_secs(600) };
/// Between a failed wake of an intact image and the next attempt.
pub const WAKE_RETRY: Backoff = Backoff { first: Duration::from_millis(100), most: Duration::from_secs(30) };
/// A kill that has shown no effect is repeated after this.
pub const KILL_AGAIN: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_their_bound() {
        let delays: Vec<_> = (0..10).map(|n| RESTART_DELAY.delay(n).as_millis()).collect();
        assert_eq!(delays, [250, 500, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000]);
        assert_eq!(CAPTURE_RETRY.delay(u32::MAX), CAPTURE_RETRY.most);
    }

    #[test]
    fn shares() {
        assert_eq!(Share::from_percent(5.0), Share(500));
        assert_eq!(Share::from_percent(-1.0), Share(0));
        assert_eq!(Share::from_percent(f64::NAN), Share(0));
        assert_eq!(Share::of(50_000, Duration::from_secs(1)), Some(Share(500)));
        assert_eq!(Share::of(1, Duration::ZERO), None);
        assert_eq!(Share::of(u64::MAX, Duration::from_micros(1)), Some(Share(u32::MAX)));
        for (share, text) in [(0, "0 %"), (500, "5 %"), (1_250, "12.5 %"), (1_205, "12.05 %")] {
            assert_eq!(Share(share).to_string(), text);
        }
    }
}
