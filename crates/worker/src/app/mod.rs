//! One app: the task that owns its state and performs what its state machine decides.
//!
//! ```text
//!   requests ─┐                         ┌─▶ sandbox (start, signal, kill)
//!   wake fds ─┤   ┌──────────────────┐  ├─▶ engine  (sleep, wake)
//!   timer    ─┼──▶│ lifecycle::App   │──┼─▶ keeper  (park)
//!   outcomes ─┤   └──────────────────┘  ├─▶ timer, answers, events
//!   exit     ─┘      one task           └─▶ …
//! ```
//!
//! Nothing else touches an app. Long operations (starting, capturing, large wakes) run on threads of their own and come back
//! as [`Outcome`]s; the machine sees to it that there is only one at a time.

mod deepen;
mod files;
mod freezer;
mod history;
mod images;
mod inferred;
mod killing;
mod known;
mod labels;
mod measure;
mod moving;
mod operate;
mod operation;
mod overdue;
mod panics;
mod parking;
mod past;
mod revive;
mod sleeping;
mod start;
mod stored;
mod takeover;
mod task;
mod turn;
mod turned_away;
mod view;

pub(crate) use files::AppFiles;
pub(crate) use moving::Exportable;
pub(crate) use operate::app_number;
pub(crate) use stored::is_stored;
pub(crate) use task::{AppHandle, Order, spawn};
pub(crate) use view::{explanation_of_unanswered, not_answering, stats_of_unanswered, status_of_unanswered};

use std::sync::Arc;

use torpor_engine::Attempt;
use torpor_lifecycle as lifecycle;

/// Result of a long operation.
pub(crate) enum Outcome {
    /// The sandbox stands and the program runs, or why not.
    Spawned(Arc<operation::Operation>, Box<Result<start::Started, start::StartError>>),
    /// Falling asleep has ended.
    Slept(Arc<operation::Operation>, Box<Attempt>),
    /// Going warm has ended.
    Deepened(Arc<operation::Operation>, Box<deepen::Went>),
    /// Killing this sandbox has ended; what holds it, where it has not.
    Killed(Arc<torpor_sandbox::Sandbox>, Option<lifecycle::Text>),
    /// Building its processes has ended.
    Revived(Box<revive::Built>),
    /// What the machine is told directly.
    Event(lifecycle::Event),
}

/// Reads a text as each kind of text is read: for fuzzing.
pub(crate) fn read_texts(text: &str) {
    measure::parse(text);
    labels::parse(text);
}
