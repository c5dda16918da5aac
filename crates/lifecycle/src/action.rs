//! What the owner of an app has to do, what users are told, and how requests are refused.

use std::fmt;
use std::time::Duration;

use crate::event::{Exit, Retry, SleepCause, Text, Ticket, WakeCause};
use crate::phase::StopReason;
use crate::time::{Millis, words};

/// Requests that may wait for their answers at once, and as many again to stop or restart; more are refused.
pub const MAX_WAITING: usize = 1_024;

/// Something to do, in the order given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Make the sandbox and start the initial process: leads to `Started` or `StartFailed`.
    Spawn,
    /// Freeze and capture it: leads to `CaptureCommitted` and then `Dozed` or `DropFailed`, or before the commit to
    /// `CaptureAborted` or `CaptureRefused`.
    BeginCapture {
        /// Why.
        cause: SleepCause,
    },
    /// Give up the capture if it has not committed, and thaw. Its outcome comes as of any capture. After a restart of
    /// the daemon: undo what the old one left.
    AbortCapture,
    /// Take it from dozing to warm: leads to `HibernateCommitted` and then `Hibernated`, or before the commit to
    /// `HibernateAborted` or `HibernateRefused`, or any time to `HibernateFailed`.
    BeginDeepen {
        /// Why.
        cause: SleepCause,
    },
    /// Give up the hibernating if it has not committed. Its outcome comes as of any hibernating.
    AbortDeepen,
    /// Let it run again from the level where it is, dozing or warm: leads to `Woken` or `WakeFailed`.
    BeginWake {
        /// Why.
        cause: WakeCause,
    },
    /// Send its initial process the signal that asks it to end.
    Terminate,
    /// Kill all its processes, and end its sandbox: leads to `Exited`, also where no process (warm) or not even a
    /// sandbox ([`Found::Stored`](crate::Found::Stored)) is left.
    Kill,
    /// Its image is not needed any more. Nothing to do where there is none.
    DiscardImage,
    /// Its image is damaged: keep it for inspection, never use it again.
    SetImageAside,
    /// Read its counters: leads to `Observed`, or to nothing when they cannot be read.
    Observe,
    /// Send `TimerFired` at this time; replaces the earlier timer.
    SetTimer(Millis),
    /// No timer is needed any more.
    ClearTimer,
    /// Answer a request.
    Reply(Ticket, Result<(), Refusal>),
    /// Tell users.
    Emit(Note),
    /// An event that cannot happen in this phase: a defect of the owner or the engine. Nothing was changed by it.
    Unexpected {
        /// Name of the phase.
        phase: &'static str,
        /// The event, in the debug format.
        event: String,
    },
}

/// Something that users see in the stream of events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// Its program runs.
    Started,
    /// It could not be started.
    StartFailed(Text),
    /// It is being captured.
    FallingAsleep(SleepCause),
    /// It dozes.
    Dozing,
    /// It is being taken from dozing to warm.
    GoingWarm(SleepCause),
    /// It is warm.
    Warm,
    /// It cannot go warm: it dozes on, or runs.
    WarmRefused(Vec<Text>, Retry),
    /// Its capture was given up.
    SleepAborted(WakeCause),
    /// It cannot be captured.
    SleepRefused(Vec<Text>, Retry),
    /// It runs again after sleeping for so long.
    Woken(WakeCause, Duration),
    /// It could not be woken; it sleeps on, and is tried again after so long (none: it is killed for a stop).
    WakeFailed(Text, Option<Duration>),
    /// It cannot be woken as things are; it sleeps on until somebody asks again.
    WakeRefused(Text),
    /// It cannot be woken as things are; its memory is given up for that, and it is started afresh.
    GivenUp(Text),
    /// Its image is damaged.
    Lost(Text),
    /// It was asked to end.
    Stopping,
    /// It did not end in time and is killed.
    Killed,
    /// It ended.
    Exited(Exit),
    /// It will be started again after so long.
    Restarting(Duration),
    /// A new worker found it running, or asleep.
    Adopted,
}

impl Note {
    /// The event's kind, from the fixed list in `docs/reference/events.md`.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Started => "started",
            Self::StartFailed(_) => "start-failed",
            Self::FallingAsleep(_) => "falling-asleep",
            Self::Dozing => "dozing",
            Self::GoingWarm(_) => "going-warm",
            Self::Warm => "warm",
            Self::WarmRefused(..) => "warm-refused",
            Self::SleepAborted(_) => "sleep-aborted",
            Self::SleepRefused(..) => "sleep-refused",
            Self::Woken(..) => "woken",
            Self::WakeFailed(..) => "wake-failed",
            Self::WakeRefused(_) => "wake-refused",
            Self::GivenUp(_) => "given-up",
            Self::Lost(_) => "lost",
            Self::Stopping => "stopping",
            Self::Killed => "killed",
            Self::Exited(_) => "exited",
            Self::Restarting(_) => "restarting",
            Self::Adopted => "adopted",
        }
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Started => f.write_str("started"),
            Self::StartFailed(reason) => write!(f, "could not be started: {reason}"),
            Self::FallingAsleep(cause) => write!(f, "falling asleep: {cause}"),
            Self::Dozing => f.write_str("dozing"),
            Self::GoingWarm(cause) => write!(f, "going warm: {cause}"),
            Self::Warm => f.write_str("warm"),
            Self::WarmRefused(reasons, _) => write!(f, "cannot go warm: {}", reasons.join("; ")),
            Self::SleepAborted(cause) => write!(f, "stays awake: {cause}"),
            Self::SleepRefused(reasons, _) => write!(f, "cannot sleep: {}", reasons.join("; ")),
            Self::Woken(cause, slept) => write!(f, "woken by {cause} after {}", words(*slept)),
            Self::WakeFailed(reason, Some(again)) => {
                write!(f, "could not be woken, trying again in {}: {reason}", words(*again))
            }
            Self::WakeFailed(reason, None) => write!(f, "could not be woken to end by itself, killed: {reason}"),
            Self::WakeRefused(reason) => write!(f, "cannot be woken: {reason}"),
            Self::GivenUp(reason) => {
                write!(f, "cannot be woken, so its memory is given up and it is started afresh: {reason}")
            }
            Self::Lost(reason) => write!(f, "its memory is lost, its image cannot be used: {reason}"),
            Self::Stopping => f.write_str("asked to end"),
            Self::Killed => f.write_str("did not end in time, killed"),
            Self::Exited(exit) => exit.fmt(f),
            Self::Restarting(delay) => write!(f, "starting again in {}", words(*delay)),
            Self::Adopted => f.write_str("adopted by a new worker"),
        }
    }
}

/// Why a request was not done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It has to be started first.
    #[error("it is stopped ({0})")]
    Stopped(StopReason),
    /// It ended, and its restart policy will start it again.
    #[error("it ended and will be started again by its restart policy")]
    Restarting,
    /// A stop came first, or in between.
    #[error("it is being stopped")]
    BeingStopped,
    /// It ended before the request was done.
    #[error("it ended: {0}")]
    Ended(Exit),
    /// It could not be started.
    #[error("it could not be started: {0}")]
    StartFailed(Text),
    /// Its memory is lost; its restart policy decides what follows.
    #[error("its image cannot be used and its memory is lost: {0}")]
    Lost(Text),
    /// It could not be woken; it sleeps on and will be tried again.
    #[error("it could not be woken and will be tried again: {0}")]
    WakeFailed(Text),
    /// It cannot be woken as things are.
    #[error("it cannot be woken: {0}")]
    WakeRefused(Text),
    /// It may not sleep.
    #[error("it is pinned awake")]
    Pinned,
    /// It may not sleep.
    #[error("{0} exec session(s) run in it")]
    ExecSessions(u32),
    /// Something needed it awake before the capture had committed.
    #[error("falling asleep was aborted: {0}")]
    SleepAborted(WakeCause),
    /// It cannot be captured now.
    #[error("it cannot be put to sleep: {}", .0.join("; "))]
    SleepRefused(Vec<Text>),
    /// It cannot go warm now.
    #[error("it cannot go warm: {}", .0.join("; "))]
    WarmRefused(Vec<Text>),
    /// The daemon has started and could not adopt it; it is left as it is and will be tried again.
    #[error("it cannot be adopted now and is left as it is: {0}")]
    NotAdopted(Text),
    /// The queue is full.
    #[error("{MAX_WAITING} requests or more wait for it already")]
    TooMany,
}
