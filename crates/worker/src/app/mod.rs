//! One app: the task that owns its state and performs what its state machine decides, and what that task drives.
//!
//! ```text
//!   requests ─┐                         ┌─▶ Workload (start, sleep, wake, stop): a process tree
//!   turns ────┤   ┌──────────────────┐  │
//!   timer ────┼──▶│ lifecycle::App   │──┼─▶ timer, answers, events
//!   deadlines ┤   └──────────────────┘  │
//!   workload ─┘      one task           └─▶ …
//! ```
//!
//! Nothing else touches an app. The [`task`] knows nothing of processes: it drives a [`workload::Workload`], which the
//! [`process_tree`] implements. Only this module names both.

mod abort_on_panic;
mod deadlines;
mod history;
mod operation;
mod policy;
mod process_tree;
mod task;
mod unanswered;
mod working_set;
mod workload;

pub(crate) use crate::app_files::AppFiles;
pub(crate) use process_tree::{adopts_boot_image, has_boot_image, parked_prefix, read_texts};
pub(crate) use unanswered::{explanation_of_unanswered, not_answering, stats_of_unanswered, status_of_unanswered};
pub(crate) use workload::Exportable;

use std::io;
use std::sync::Arc;

use torpor_api::worker::AppRecord;

use crate::shared::Shared;
use process_tree::ProcessTree;
use workload::Workload;

/// What a command of an app runs in.
type Place = <ProcessTree as Workload>::Place;

/// The way to an app's task.
pub(crate) type AppHandle = task::AppHandle<Place>;

/// Something asked of an app.
pub(crate) type Order = task::Order<Place>;

/// Starts the task of an app.
pub(crate) fn spawn(record: AppRecord, files: AppFiles, shared: Arc<Shared>) -> io::Result<AppHandle> {
    let beginning = task::Beginning::new(record, files, shared.config.logs)?;
    let task::Beginning { record, files, log, .. } = &beginning;
    let (policy, services) = (policy::policy(&record.spec), shared.services.clone());
    let workload = ProcessTree::new(record.clone(), files.clone(), shared, log.clone())?;
    Ok(task::spawn(beginning, services, policy, workload))
}
