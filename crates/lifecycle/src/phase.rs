//! Where an app is: one enum, with what each phase needs to know.

use std::fmt;

use crate::event::{Exit, Level, SleepCause, Text, WakeCause};
use crate::time::Millis;
use crate::watch::Watch;

/// Where an app is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Phase {
    /// No processes.
    Stopped {
        /// Why.
        why: StopReason,
    },
    /// Its sandbox and initial process are being made.
    Starting {
        /// On whose behalf.
        by: StartedBy,
    },
    /// It runs.
    Running(Awake),
    /// It is being captured; anything that needs it awake stops that.
    Capturing {
        /// Why it is to sleep.
        cause: SleepCause,
    },
    /// Its capture is to be given up; the commit may still win the race.
    Aborting {
        /// Why it was to sleep.
        cause: SleepCause,
        /// What needs it awake.
        by: WakeCause,
    },
    /// The image is durable and memory is being dropped: no way back but a wake.
    Dropping {
        /// Why it is to sleep.
        cause: SleepCause,
        /// A wake that came too late to abort; it follows at once.
        wake: Option<WakeCause>,
    },
    /// Frozen in place, memory in the image.
    Dozing(Asleep),
    /// It is being taken from dozing to warm.
    Hibernating {
        /// Why.
        cause: SleepCause,
        /// The sleep that it hibernates.
        asleep: Asleep,
        /// How far that is.
        stage: HibernateStage,
    },
    /// No processes: its image, its sandbox, and what is parked.
    Warm(Asleep),
    /// It is made to run again.
    Waking {
        /// Why.
        cause: WakeCause,
        /// The sleep that it wakes from.
        asleep: Asleep,
    },
    /// It was told to end, or killed.
    Stopping {
        /// How far that is.
        ending: Ending,
        /// What follows.
        next: Next,
    },
    /// It ended; its restart policy starts it again.
    Backoff {
        /// When.
        until: Millis,
    },
}

impl Phase {
    /// A name in lower case, as after "it is".
    pub fn name(&self) -> &'static str {
        match self {
            Self::Stopped { .. } => "stopped",
            Self::Starting { .. } => "starting",
            Self::Running(_) => "running",
            Self::Capturing { .. } => "falling asleep",
            Self::Aborting { .. } => "staying awake",
            Self::Dropping { .. } => "dropping memory",
            Self::Dozing(_) => "dozing",
            Self::Hibernating { .. } => "going warm",
            Self::Warm(_) => "warm",
            Self::Waking { .. } => "waking",
            Self::Stopping { .. } => "stopping",
            Self::Backoff { .. } => "waiting to restart",
        }
    }

    /// The owner works on an operation whose outcome is still to come.
    pub fn is_operation(&self) -> bool {
        matches!(
            self,
            Self::Starting { .. }
                | Self::Capturing { .. }
                | Self::Aborting { .. }
                | Self::Dropping { .. }
                | Self::Hibernating { .. }
                | Self::Waking { .. }
        )
    }
}

/// Why an app has no processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// It was never started, or not since the daemon was.
    NotStarted,
    /// Someone stopped it.
    Asked,
    /// It ended, and its restart policy leaves it so.
    Ended(Exit),
    /// It could not be started.
    StartFailed(Text),
}

impl fmt::Display for StopReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotStarted => f.write_str("not started"),
            Self::Asked => f.write_str("by request"),
            Self::Ended(exit) => exit.fmt(f),
            Self::StartFailed(reason) => write!(f, "could not be started: {reason}"),
        }
    }
}

/// On whose behalf an app starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartedBy {
    /// Someone asked.
    Request,
    /// Its restart policy.
    Policy,
}

/// A running app.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Awake {
    /// Start, wake or the last attempt to sleep.
    pub since: Millis,
    /// When counters are read next; none while something else than use keeps it awake anyway.
    pub look_at: Option<Millis>,
    pub(crate) watch: Watch,
}

/// How far a hibernating is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HibernateStage {
    /// Anything that needs it awake stops it.
    Abortable,
    /// It is to be given up for this; the commit may still win the race.
    Aborting(WakeCause),
    /// The image is durable and its processes are being ended: no way back but a wake.
    Committed {
        /// A wake that came too late to abort; it follows at once.
        wake: Option<WakeCause>,
    },
}

/// A sleeping app.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asleep {
    /// Since when, at whatever level.
    pub since: Millis,
    /// Why.
    pub cause: SleepCause,
    /// That it is warm, not dozing.
    pub warm: Option<Warmed>,
    /// When it wakes for a timer of its own.
    pub next_timer: Option<Millis>,
    /// A wake that failed.
    pub retry: Option<WakeRetry>,
}

/// When and why a sleep went from dozing to warm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Warmed {
    /// Since when it is warm.
    pub since: Millis,
    /// Why.
    pub cause: SleepCause,
}

impl Asleep {
    /// How deep it sleeps.
    pub fn level(&self) -> Level {
        if self.warm.is_some() { Level::Warm } else { Level::Dozing }
    }

    /// The phase of this sleep while nothing is done to it.
    pub(crate) fn phase(self) -> Phase {
        match self.level() {
            Level::Dozing => Phase::Dozing(self),
            Level::Warm => Phase::Warm(self),
        }
    }

    /// When it is to wake: the retry of a wake stands in for the timer.
    pub(crate) fn deadline(&self) -> Option<Millis> {
        self.retry.as_ref().map_or(self.next_timer, |retry| retry.at)
    }

    /// It cannot be woken as things are.
    pub fn is_refused(&self) -> bool {
        self.retry.as_ref().is_some_and(|retry| retry.at.is_none())
    }
}

/// A wake that failed though the image is whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WakeRetry {
    /// When to try again; none: it would be refused again, and only somebody who asks tries.
    pub at: Option<Millis>,
    /// What wants it awake.
    pub cause: WakeCause,
    /// Why it failed the last time.
    pub reason: Text,
    /// Failures in a row.
    pub failures: u32,
}

/// How far the end of an app is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// It was sent its stop signal.
    Asked {
        /// When it is killed.
        kill_at: Millis,
    },
    /// It was killed.
    Killed {
        /// When that is repeated.
        again_at: Millis,
    },
}

impl Ending {
    pub(crate) fn deadline(self) -> Millis {
        match self {
            Self::Asked { kill_at: at } | Self::Killed { again_at: at } => at,
        }
    }
}

/// What follows the end of an app.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// It stays stopped.
    Stay,
    /// It is started at once.
    Start,
    /// It was lost for this reason; its restart policy decides.
    Lost(Text),
}
