//! What happens to an app: everything that its owner tells the state machine.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::time::{Millis, words};

/// A text made in advance and shared: naming a wake's cause allocates nothing.
pub type Text = Arc<str>;

/// The owner's number for a request that waits for its answer; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Someone wants something and gets one answer.
    Request(Ticket, Request),
    /// It is to be kept awake, or no longer.
    Pinned(bool),
    /// An exec session that was granted has ended, however it did.
    ExecEnded,
    /// Something that the app waits for became ready (`packet for tcp 80`). Watched in the sleeping phases;
    /// elsewhere it counts as use.
    Packet(Text),
    /// The timer rang, or may have: an early or late ring does no harm.
    TimerFired,
    /// Counters were read, as [`Action::Observe`](crate::Action::Observe) asked or for any other reason.
    Observed(Observation),
    /// [`Action::Spawn`](crate::Action::Spawn): the initial process runs.
    Started,
    /// [`Action::Spawn`](crate::Action::Spawn): it could not be started, and nothing of it is left.
    StartFailed(StartFailure),
    /// [`Action::BeginCapture`](crate::Action::BeginCapture): the image is durable; no way back but a wake.
    CaptureCommitted,
    /// [`Action::BeginCapture`](crate::Action::BeginCapture): all memory is dropped. `next_timer`: when it must be
    /// awake for a timer or time-out of its own, less what waking takes.
    Dozed {
        /// When to wake by itself, if ever.
        next_timer: Option<Millis>,
    },
    /// [`Action::BeginCapture`](crate::Action::BeginCapture): it was thawed before the commit, because of traffic that
    /// the engine saw or by [`Action::AbortCapture`](crate::Action::AbortCapture).
    CaptureAborted(WakeCause),
    /// [`Action::BeginCapture`](crate::Action::BeginCapture): it cannot be captured, or writing failed; it was thawed.
    CaptureRefused {
        /// Every reason found, with process and object.
        reasons: Vec<Text>,
        /// Whether trying again can help.
        retry: Retry,
    },
    /// [`Action::BeginCapture`](crate::Action::BeginCapture): dropping memory failed after the commit. It is frozen,
    /// with an unknown part of its memory.
    DropFailed(Text),
    /// The machine needs memory: it is to go warm if it dozes and nothing speaks against it. Elsewhere nothing happens.
    Hibernate(SleepCause),
    /// [`Action::BeginDeepen`](crate::Action::BeginDeepen): the image is durable; no way back but a wake.
    HibernateCommitted,
    /// [`Action::BeginDeepen`](crate::Action::BeginDeepen): its processes have ended; it is warm. Its image of the
    /// doze may go.
    Hibernated {
        /// As in [`Event::Dozed`].
        next_timer: Option<Millis>,
    },
    /// [`Action::BeginDeepen`](crate::Action::BeginDeepen): it was given up before the commit, because of traffic that
    /// the engine saw or by [`Action::AbortDeepen`](crate::Action::AbortDeepen), and it runs.
    HibernateAborted(WakeCause),
    /// [`Action::BeginDeepen`](crate::Action::BeginDeepen): it cannot go warm, or writing failed.
    HibernateRefused {
        /// Every reason found, with process and object.
        reasons: Vec<Text>,
        /// Whether trying again can help.
        retry: Retry,
        /// It dozes as before and nothing was touched; otherwise it runs.
        dozes: bool,
    },
    /// [`Action::BeginDeepen`](crate::Action::BeginDeepen): it neither runs nor sleeps. After the commit: ending its
    /// processes failed; the image is whole, and a wake ends what is left of them first. Before it: it is frozen with an
    /// unknown part of its memory, and a wake brings it back or finds it lost.
    HibernateFailed(Text),
    /// [`Action::BeginWake`](crate::Action::BeginWake): it runs, with all its memory.
    Woken,
    /// [`Action::BeginWake`](crate::Action::BeginWake): it does not run; it is where it was before.
    WakeFailed(WakeFailure),
    /// Its initial process ended, and all others with it. While it is warm: its sandbox has gone, and it cannot be made
    /// again.
    Exited(Exit),
    /// First event after a restart of the daemon, for an app that was running or asleep before.
    Adopted(Found),
}

/// What someone wants of an app.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// To run, from wherever it is. Answered once it runs.
    Start,
    /// To be awake. Refused when stopped. Answered once it runs.
    Wake,
    /// To sleep now. Answered once it is at this level or at a deeper one.
    Sleep {
        /// How deep.
        level: Level,
    },
    /// To run a command in it. The answer grants a session, which lasts until [`Event::ExecEnded`].
    Exec,
    /// To end: SIGTERM, and after `grace` SIGKILL. Answered once it has ended.
    Stop {
        /// Time between the two.
        grace: Duration,
    },
    /// To end as by a stop and to start afresh. Answered once it runs again.
    Restart {
        /// As in a stop.
        grace: Duration,
    },
}

/// A level of sleep, the lightest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// Frozen in place, memory in an image.
    Dozing,
    /// An image, parked descriptors and a sandbox without processes.
    Warm,
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Dozing => "dozing",
            Self::Warm => "warm",
        })
    }
}

/// Whether trying a refused capture again can help.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// Yes, later.
    Later,
    /// Not until the program is started afresh, or someone asks by hand.
    Pointless,
}

/// Why a wake failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WakeFailure {
    /// The image is whole; the machine could not do it now (no memory, a failing call).
    Passing(Text),
    /// The image is whole, but what it needs is not as it was (its files have changed, the machine is another): it would be
    /// refused again, until somebody puts that right or gives up its memory.
    Refused(Text),
    /// The image is damaged: the app's memory is lost.
    Damaged(Text),
}

/// Why it sleeps, or went deeper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SleepCause {
    /// Nobody used it for so long.
    Idle(Duration),
    /// It dozed for so long (a cause of going warm).
    Dozed(Duration),
    /// The machine runs short of memory (a cause of going warm).
    Memory,
    /// Someone asked.
    Command,
    /// From before the daemon was restarted.
    Adopted,
}

impl fmt::Display for SleepCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Idle(span) => write!(f, "idle for {}", words(*span)),
            Self::Dozed(span) => write!(f, "dozed for {}", words(*span)),
            Self::Memory => f.write_str("memory is short"),
            Self::Command => f.write_str("command"),
            Self::Adopted => f.write_str("found so when the worker started"),
        }
    }
}

/// Why it wakes, or why its capture or hibernating is aborted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WakeCause {
    /// Something that it waits for became ready, in words: `packet for tcp 80`.
    Packet(Text),
    /// A timer or time-out of its own.
    Timer,
    /// `torpor wake` or `start`, or the same through the API.
    Command,
    /// A command to be run in it.
    Exec,
    /// It was pinned.
    Pin,
    /// It is to end, and only a running program can.
    Stop,
    /// A sleep was interrupted, by a failure or by a restart of the daemon, and is undone.
    Recovery,
}

impl fmt::Display for WakeCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Packet(source) => source,
            Self::Timer => "timer",
            Self::Command => "command",
            Self::Exec => "exec",
            Self::Pin => "pin",
            Self::Stop => "stop",
            Self::Recovery => "recovery",
        })
    }
}

/// Counters of an app, as read from the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Observation {
    /// Packets with meaning (no keepalives, no bare acknowledgements, no ignored sources) since its start.
    pub packets: u64,
    /// CPU of all its processes since its start, in microseconds.
    pub cpu_us: u64,
    /// TCP connections that are open now: established, or closed by the other side alone.
    pub connections: u32,
}

/// How an app ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Exit {
    /// By itself, with this status.
    Status(i32),
    /// By this signal.
    Signal(i32),
    /// Killed by its memory limit, in bytes.
    MemoryLimit(u64),
    /// Its image was damaged while it slept.
    Lost(Text),
    /// Its program could not be run: the status that a shell gives for this, and why.
    NotRun(i32, Text),
    /// While nobody watched: the daemon or the machine was down.
    Unknown,
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status(status) => write!(f, "exited with status {status}"),
            Self::Signal(signal) => write!(f, "ended by signal {signal}"),
            Self::MemoryLimit(bytes) if *bytes >= 1 << 20 => {
                write!(f, "killed by the memory limit ({} MiB)", bytes >> 20)
            }
            Self::MemoryLimit(bytes) => write!(f, "killed by the memory limit ({bytes} bytes)"),
            Self::Lost(reason) => write!(f, "its memory is lost: {reason}"),
            Self::NotRun(status, reason) => write!(f, "{reason} (status {status})"),
            Self::Unknown => f.write_str("ended while the worker was down"),
        }
    }
}

/// Why an app could not be started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartFailure {
    /// In words.
    pub reason: Text,
    /// Where its program cannot be run: the exit status that a shell gives for this.
    pub status: Option<i32>,
}

impl From<Text> for StartFailure {
    fn from(reason: Text) -> Self {
        Self { reason, status: None }
    }
}

impl From<&str> for StartFailure {
    fn from(reason: &str) -> Self {
        Text::from(reason).into()
    }
}

/// What a new daemon found of an app that is meant to be up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// It runs.
    Running,
    /// It is frozen, its memory dropped, its image durable.
    Dozing {
        /// As in [`Event::Dozed`].
        next_timer: Option<Millis>,
    },
    /// It is warm: its sandbox without processes, its image and what was parked.
    Warm {
        /// As in [`Event::Dozed`].
        next_timer: Option<Millis>,
    },
    /// It is warm, but after a reboot only its image is left.
    Stored {
        /// As in [`Event::Dozed`].
        next_timer: Option<Millis>,
    },
    /// It was being captured; the image is not durable.
    MidCapture,
    /// Its image is durable; its memory is partly dropped, or partly filled again.
    MidDropOrWake,
    /// None of its processes live.
    Gone(Exit),
}
