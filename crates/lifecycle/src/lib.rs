//! The app's state machine and policies: pure, no clock, no I/O.
//!
//! One [`App`] is the whole life-cycle of one app. The task that owns it feeds it [`Event`]s with the time and performs
//! the [`Action`]s that come back, in order; nothing else changes it. Everything that decides (when to sleep, what
//! wakes, what a stop or an exit leads to, what a restart of the daemon found) is here, and everything that does is not.
//! It does not know processes, sockets or files, and nothing here survives a crash: after one, the owner says what it
//! found ([`Event::Adopted`]).
//!
//! ```text
//!          start        started      idle, by hand   committed      dropped
//! Stopped ─────▶ Starting ──▶ Running ──▶ Capturing ─────▶ Dropping ──▶ Dozing
//!    ▲            ▲  ▲         │ ▲  ▲         │ packet,     ▲  │        │   ▲
//!    │            │  │         │ │  │ thawed  ▼ exec, stop  │  │ failed │   │ failed: tried
//!    │            │  │         │ │  └───── Aborting ────────┘  ▼        ▼   │ again later
//!    │            │  │         │ └──────────────────────────── Waking ──────┘
//!    │            │  │    stop │        woken                  │  packet, timer, request
//!    │   restart, │  Backoff   ▼                               │
//!    │   by start │  ▲ policy  Stopping ◀──────────────────────┘ damaged, or needed for a stop and failed: killed
//!    └────────────┴──┴────────────┘ exited
//! ```
//! One level deeper, with the processes ended and only the image and what is parked left:
//! ```text
//!          asleep for long, memory, by hand   committed       ended
//! Dozing ─────▶ Hibernating ────────────────▶ (Hibernating) ─────▶ Warm
//!    ▲ refused,   │ packet, exec, stop,       │ failed          │  ▲
//!    └ untouched ─┤ refused after a change    ▼                 ▼  │ failed: tried again later
//!                 ▼                         Waking ◀────────────┴──┘
//!              Running (as after a wake)
//! ```
//! A wake that was asked for after a commit (`Dropping`, `Hibernating`), a stop that was ordered and an exit that happened
//! during an operation are kept and follow its outcome. A stop of a sleeping app goes through `Waking`. A process that
//! ends in `Running` or `Dozing`, or a sandbox that has gone in `Warm`, goes to the policy at once. A wake whose image is
//! damaged goes to `Stopping`, killed.
//!
//! # Invariants
//! - **One operation at a time.** `Starting`, `Capturing`/`Aborting`/`Dropping`, `Hibernating` and `Waking` are operations: the
//!   owner answers each [`Action::Spawn`], [`Action::BeginCapture`], [`Action::BeginDeepen`] and [`Action::BeginWake`]
//!   with exactly one outcome, and nothing new begins before it. What arrives meanwhile is kept: a wake after a commit,
//!   an order to stop, an exit.
//! - **The last good copy stays.** From the commit on the image is the only copy. It is discarded when the wake is
//!   confirmed or the processes are gone, never earlier. A kill while asleep happens for two reasons only: the image is
//!   damaged (it is set aside, not deleted), or a stop was ordered and the wake for it failed.
//! - **No request is lost.** Every [`Ticket`] gets exactly one [`Action::Reply`]. A packet in any sleeping phase leads
//!   to `Running`, or to a retry with a timer, or to the app's end.
//! - **Nobody sleeps in use.** No capture begins with an exec session or a pin; both end a sleep that has begun.
//! - **Unknown means awake.** Only a fresh [`Observation`] can put an app to sleep by itself; while nothing is watched
//!   (pin, exec session) everything counts as use.
//! - **One timer**, a function of the state, never in the past. `Stopped` arms nothing; a sleeping app only for a timer
//!   of its own and for going warm. Neither is observed: sleeping costs no CPU.
//!
//! # Decisions
//! - A sleep by hand wins over idleness, connections, `min_awake` and earlier refusals, and is refused with the reason
//!   while there is an exec session or a pin. Traffic aborts it as any other.
//! - A stop of a sleeping app wakes it first: only a running process can answer SIGTERM.
//! - A start that a person asked for and that fails leaves the app stopped; one by the restart policy is tried again.
//! - Deeper levels are phases beside `Dozing`, entered from it and left through `Waking`. A wake that fails goes back to
//!   the level that it came from.
//! - Going warm is refused without harm: the app dozes on, and it is tried again later, or not before it is started
//!   afresh. A hibernating that is given up after it has begun is a wake, for users too.
#![forbid(unsafe_code)]

mod action;
mod app;
mod end;
mod event;
mod explain;
mod hibernate;
mod idle;
mod phase;
mod policy;
mod request;
mod sleep;
mod time;
mod watch;

pub use action::{Action, MAX_WAITING, Note, Refusal};
pub use app::{App, Counts};
pub use event::{
    Event, Exit, Found, Level, Observation, Request, Retry, SleepCause, StartFailure, Text, Ticket, WakeCause,
    WakeFailure,
};
pub use explain::Account;
pub use idle::{Blocker, OBSERVE_MAX};
pub use phase::{Asleep, Awake, Ending, HibernateStage, Next, Phase, StartedBy, StopReason, WakeRetry, Warmed};
pub use policy::{
    Backoff, CAPTURE_RETRY, KILL_AGAIN, Policy, RAN_WELL, RESTART_DELAY, RestartPolicy, Share, WAKE_RETRY, WakeBlocked,
};
pub use time::{Millis, words};
pub use watch::OBSERVE_MIN;
