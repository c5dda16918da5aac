//! The app's state machine and policies: pure, no clock, no I/O.
//!
//! One [`App`] is the whole life-cycle of one app. The task that owns it feeds it [`Event`]s with the time and performs
//! the [`Action`]s that come back, in order; nothing else changes it. Everything that decides (when to sleep, what
//! wakes, what a stop or an exit leads to, what a restart of the daemon found) is here, and everything that does is not.
//! It does not know processes, sockets or files, and nothing here survives a crash: after one, the owner says what it
//! found ([`Event::TakenOver`]).
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
//! A wake that was asked for in `Dropping`, a stop that was ordered and an exit that happened during an operation are
//! kept and follow its outcome. A stop of a sleeping app goes through `Waking`. A process that ends in `Running` or
//! `Dozing` goes to the policy at once. A wake whose image is damaged goes to `Stopping`, killed.
//!
//! # Invariants
//! - **One operation at a time.** `Starting`, `Capturing`/`Aborting`/`Dropping` and `Waking` are operations: the owner
//!   answers each [`Action::Spawn`], [`Action::BeginCapture`] and [`Action::BeginWake`] with exactly one outcome, and
//!   nothing new begins before it. What arrives meanwhile is kept: a wake in `Dropping`, an order to stop, an exit.
//! - **The last good copy stays.** From the commit on the image is the only copy. It is discarded when the wake is
//!   confirmed or the processes are gone, never earlier. A kill while asleep happens for two reasons only: the image is
//!   damaged (it is set aside, not deleted), or a stop was ordered and the wake for it failed.
//! - **No request is lost.** Every [`Ticket`] gets exactly one [`Action::Reply`]. A packet in any sleeping phase leads
//!   to `Running`, or to a retry with a timer, or to the app's end.
//! - **Nobody sleeps in use.** No capture begins with an exec session or a pin; both end a sleep that has begun.
//! - **Unknown means awake.** Only a fresh [`Observation`] can put an app to sleep by itself; while nothing is watched
//!   (pin, exec session) everything counts as use.
//! - **One timer**, a function of the state, never in the past. `Stopped` and `Dozing` without a timer of the app's own
//!   arm nothing and observe nothing: sleeping costs no CPU.
//!
//! # Decisions
//! - A sleep by hand wins over idleness, connections, `min_awake` and earlier refusals, and is refused with the reason
//!   while there is an exec session or a pin. Traffic aborts it as any other.
//! - A stop of a sleeping app wakes it first: only a running process can answer SIGTERM.
//! - A start that a person asked for and that fails leaves the app stopped; one by the restart policy is tried again.
//! - Deeper levels will be phases beside `Dozing`, entered from it and left through `Waking`.
#![forbid(unsafe_code)]

mod action;
mod app;
mod end;
mod event;
mod explain;
mod idle;
mod phase;
mod policy;
mod request;
mod sleep;
mod time;
mod watch;

pub use action::{Action, Note, Refusal};
pub use app::{App, Counts, MAX_WAITING};
pub use event::{
    Event, Exit, Found, Observation, Request, Retry, SleepCause, StartFailure, Text, Ticket, WakeCause, WakeFailure,
};
pub use explain::Account;
pub use idle::{Blocker, OBSERVE_MAX, OBSERVE_MIN};
pub use phase::{Asleep, Awake, Ending, Next, Phase, StartedBy, StopReason, WakeRetry};
pub use policy::{
    Backoff, CAPTURE_RETRY, KILL_AGAIN, Policy, RAN_WELL, RESTART_DELAY, RestartPolicy, Share, WAKE_RETRY,
};
pub use time::{Millis, words};
