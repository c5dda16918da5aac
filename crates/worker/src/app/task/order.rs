//! What others ask of an app's task.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{mpsc, oneshot};
use torpor_api::ApiError;
use torpor_api::view::{AppImage, AppStatus, Explanation, Stats};
use torpor_api::worker::AppRecord;
use torpor_lifecycle::{Millis, Refusal, Request};

use crate::app::workload::{Exportable, StartFault};
use crate::app_files::AppFiles;
use crate::logs::Log;
use crate::pressure::Demote;

/// Something asked of an app whose commands run in a `P`.
pub(crate) enum Order<P> {
    /// A request with its answer.
    Request(Request, oneshot::Sender<Result<(), Refusal>>),
    /// Keep it awake, or no longer.
    Pin(bool),
    /// An exec session has ended.
    ExecEnded,
    /// Whether it rests and was not started since its task began: it did not end while no worker lived either.
    NotStarted(oneshot::Sender<bool>),
    /// Where it is.
    Status(oneshot::Sender<AppStatus>),
    /// Why.
    Explain(oneshot::Sender<Explanation>),
    /// What it costs.
    Stats(oneshot::Sender<Stats>),
    /// Images of its processes.
    Images(oneshot::Sender<Result<Vec<AppImage>, ApiError>>),
    /// Removes those of them that nothing uses.
    RemoveImages(oneshot::Sender<Result<Vec<AppImage>, ApiError>>),
    /// Its image, to be exported; `None` where it is not warm.
    Export(oneshot::Sender<io::Result<Option<Exportable>>>),
    /// Become warm from the image that an import has put there, or say why not.
    AdoptImport(oneshot::Sender<Result<(), String>>),
    /// What a command runs in; `None` when there is no such thing.
    Place(oneshot::Sender<Option<P>>),
    /// Take a warm app off the machine and leave its image to the next daemon, or say why not. Nothing else follows.
    PutAway(oneshot::Sender<Result<(), String>>),
    /// Go warm if it can, for memory is short. The sender is dropped when that has come to its end, or is not to be.
    Hibernate(oneshot::Sender<()>),
    /// End the task; the app is stopped.
    End(oneshot::Sender<()>),
}

impl<P: Send + 'static> Demote for mpsc::WeakSender<Order<P>> {
    fn demote(&self, done: oneshot::Sender<()>) -> bool {
        self.upgrade().is_some_and(|orders| orders.try_send(Order::Hibernate(done)).is_ok())
    }
}

/// The way to an app's task.
#[derive(Debug)]
pub(crate) struct AppHandle<P> {
    pub(crate) record: Arc<AppRecord>,
    pub(crate) files: AppFiles,
    pub(crate) log: Arc<Log>,
    /// Whose fault it was that it could not be started the last time.
    pub(crate) start_failure: Arc<Mutex<StartFault>>,
    pub(crate) orders: mpsc::Sender<Order<P>>,
    pub(crate) busy: Arc<Busy>,
}

// A handle is shared; what commands run in is not copied with it.
impl<P> Clone for AppHandle<P> {
    fn clone(&self) -> Self {
        Self {
            record: self.record.clone(),
            files: self.files.clone(),
            log: self.log.clone(),
            start_failure: self.start_failure.clone(),
            orders: self.orders.clone(),
            busy: self.busy.clone(),
        }
    }
}

/// Since when a task has been at something, for those who wait for its answer.
#[derive(Debug, Default)]
pub(crate) struct Busy(Mutex<Option<Millis>>);

impl Busy {
    pub(super) fn set(&self, since: Option<Millis>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = since;
    }

    /// Since when; none: it waits for something to do.
    pub(crate) fn since(&self) -> Option<Millis> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
