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

mod abort_on_panic;
mod accounting;
mod adoption;
mod deadlines;
mod files;
mod history;
mod history_file;
mod operation;
mod process_tree;
mod task;
mod transfer;
mod view;
mod wake_queue;

pub(crate) use files::AppFiles;
pub(crate) use process_tree::boot_image::{adopts_boot_image, has_boot_image};
pub(crate) use process_tree::operate::app_number;
pub(crate) use process_tree::parked::prefix as parked_prefix;
pub(crate) use task::{AppHandle, Order, spawn};
pub(crate) use transfer::Exportable;
pub(crate) use view::{explanation_of_unanswered, not_answering, stats_of_unanswered, status_of_unanswered};

use std::sync::Arc;

use torpor_engine::Attempt;
use torpor_lifecycle as lifecycle;

/// Result of a long operation.
pub(crate) enum Outcome {
    /// The sandbox stands and the program runs, or why not.
    Spawned(Arc<operation::Operation>, Box<Result<process_tree::start::Started, process_tree::start::StartError>>),
    /// Falling asleep has ended.
    Slept(Arc<operation::Operation>, Box<Attempt>),
    /// Going warm has ended.
    Hibernated(Arc<operation::Operation>, Box<process_tree::hibernate::Hibernated>),
    /// Killing this sandbox has ended; what holds it, where it has not.
    Killed(Arc<torpor_sandbox::Sandbox>, Option<lifecycle::Text>),
    /// Building its processes has ended.
    Resumed(Box<process_tree::resume::Resumed>),
    /// What the machine is told directly.
    Event(lifecycle::Event),
}

/// Reads a text as each kind of text is read: for fuzzing.
pub(crate) fn read_texts(text: &str) {
    process_tree::usage::parse(text);
    process_tree::wake_labels::parse(text);
}
