//! What the task of an app asks of the thing that it drives.
//!
//! ```text
//!   requests, timer ─▶ Task ─▶ lifecycle::App ─▶ Task ──start, sleep, wake, stop──▶ Workload
//!                       ▲                                                            │
//!                       └── Happening: an outcome, an end, something that it awaits ─┘
//! ```
//! The task decides nothing and knows no level's mechanism; the workload decides nothing about levels. Between them stand lifecycle
//! [`Event`]s, which the workload reports and the task tells the state machine.
//!
//! # Invariants
//! - **One operation at a time.** The task begins starting, sleeping, hibernating or waking only when no other operation is under way.
//!   Each ends with exactly one [`Happening::Ended`], unless the workload reports at once that it did not begin.
//! - **The last good copy stays.** Only [`Workload::discard`], which the state machine asks for, removes the image that the
//!   workload would wake from.
//! - **A workload may be dropped at any time,** as the worker may be killed: what the next one needs is already where
//!   [`Workload::adopt`] finds it.

use std::fs::File;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Instant;

use torpor_api::error::{ApiError, ErrorKind};
use torpor_api::view::{AppImage, AppStatus, Explanation, Stats};
use torpor_lifecycle::{Event, Exit, Found, Millis, Observation, SleepCause, Text, WakeCause, WakeFailure};

use super::deadlines::Operations;
use super::history::Entry;
use super::operation::{Ended, Kind, Operation};

/// Something that sleeps, wakes and ends at the command of an app's task.
pub(crate) trait Workload: Send + 'static {
    /// What a command runs in.
    type Place: Send + 'static;
    /// What came of an operation, as its thread reports it.
    type Outcome: Send;

    // Its beginning and its end.

    /// Finds what an earlier worker left of it, and takes that up.
    ///
    /// # Errors
    /// Why that cannot be told now. Nothing of it was changed then, or only so that it can be tried again.
    fn adopt(&mut self) -> impl Future<Output = Result<Adoption, Text>> + Send;
    /// Lets go of what is held of it, after an adoption that failed. Nothing is ended; what is parked stays parked.
    fn release(&mut self);
    /// Ends whatever there is of it although it was not adopted, and quarantines its images. `reason`: why it was not.
    fn end_unadopted(&mut self, reason: &Text) -> impl Future<Output = Result<(), Text>> + Send;
    /// Becomes warm from the image that an import has put there; when it wakes by itself. After an error nothing of it runs.
    fn adopt_import(&mut self) -> impl Future<Output = Result<Option<Millis>, String>> + Send;
    /// Begins to start it afresh: ends with [`Event::Started`] or [`Event::StartFailed`].
    fn start(&mut self, operations: &mut Operations);
    /// Asks it to end.
    fn terminate(&mut self);
    /// Ends it, without its consent: [`Happening::Exited`] follows. How it ended, where nothing of it runs.
    fn kill(&mut self) -> Option<Exit>;
    /// After [`Happening::Exited`]: removes what is left of it. `sleeps_on`: it is warm, or waits for its turn to wake, so nobody wants
    /// its end. None: it has not ended after all, or the worker ends.
    fn exited(&mut self, sleeps_on: bool) -> impl Future<Output = Option<Exit>> + Send;
    /// Leaves a warm one to the next worker, so that nothing of it stays on the machine but its files and its image.
    fn put_away(&mut self) -> impl Future<Output = Result<(), String>> + Send;

    // What happens to it.

    /// The next thing that happens to it. May be cancelled and called again.
    fn next(&mut self) -> impl Future<Output = Happening<Self::Outcome>> + Send;
    /// After [`Happening::Awaited`]: what happened, if that counts.
    fn awaited(&mut self) -> Option<Event>;
    /// After [`Happening::Ended`]: what came of the operation. None: nobody needs to know any more.
    fn ended(&mut self, outcome: Self::Outcome, ended: Ended) -> impl Future<Output = Option<Report>> + Send;
    /// Gives up the operation under way, as far as another thread can.
    fn give_up(&mut self, kind: Kind);
    /// The operation was given up and its thread has not come back: it is again what it was before.
    fn abandon(&mut self, kind: Kind);

    // Sleeping and waking.

    /// Begins to put it to sleep: [`Event::CaptureCommitted`] and then an outcome follow.
    fn sleep(&mut self, cause: SleepCause, operations: &mut Operations);
    /// Begins to take it from dozing to warm: [`Event::HibernateCommitted`] and then an outcome follow.
    fn hibernate(&mut self, operations: &mut Operations);
    /// Asks the sleep or the hibernation under way to stop.
    fn abort(&mut self);
    /// How much memory comes back for a moment when it goes warm, if its image has so many bytes.
    fn memory_to_hibernate(&self, image_bytes: u64) -> u64 {
        image_bytes
    }
    /// Before a wake where [`Workload::wake_blocker`] names something: tries to put that right.
    fn prepare_wake(&mut self) -> impl Future<Output = Result<(), WakeFailure>> + Send;
    /// Wakes it, or begins to.
    fn wake(&mut self, cause: &WakeCause, operations: &mut Operations) -> Wake;
    /// Whether a warm one still has all that it sleeps with. Where not, it is ended, to be made again from its image. True for any other.
    fn confirm_asleep(&mut self) -> bool;
    /// What others hold for it was lost: hands it over again.
    fn park_again(&mut self);
    /// When to try again what keeps it from being reached while it sleeps.
    fn retry_at(&self) -> Option<Instant>;
    /// Tries that. How it ended, where it cannot sleep on.
    fn retry(&mut self) -> impl Future<Output = Option<Exit>> + Send;
    /// Whether its wake is refused until somebody asks: its clients are refused as well then.
    fn refuse_clients(&mut self, refuse: bool);
    /// Removes the image that it slept with: it runs, or has ended.
    fn discard(&mut self);
    /// Keeps that image for inspection, so that it is never used again.
    fn quarantine(&mut self);

    // What it is, for others.

    /// What its use is judged by; none where that cannot be read.
    fn observe(&self) -> Option<Observation>;
    /// Whether observing or describing it may block for long.
    fn blocks_when_observed(&self) -> bool;
    /// What is in the way of its wake, and what to do.
    fn wake_blocker(&self) -> Option<String>;
    /// Why it has not ended though it was killed.
    fn end_blocker(&self) -> Option<Text>;
    /// Adds to its status what the task does not know.
    fn describe(&self, status: &mut AppStatus);
    /// Adds to what is said of it. `runs`: it is to be examined for what keeps it from sleeping.
    fn explain(&self, runs: bool, explanation: &mut Explanation);
    /// Adds what it costs.
    fn measure(&self, stats: &mut Stats);
    /// Its images, oldest first.
    fn images(&self) -> Result<Vec<AppImage>, ApiError>;
    /// Removes those that nothing uses.
    fn remove_images(&mut self) -> Result<Vec<AppImage>, ApiError>;
    /// Its image, where it is warm.
    fn exportable(&self) -> io::Result<Option<Exportable>>;
    /// Where commands run; none: it has no such place now.
    fn place(&self) -> Option<Self::Place>;
}

/// What an earlier worker left of an app.
#[derive(Debug, Default)]
pub(crate) struct Adoption {
    /// For the state machine; none: nothing that ran or slept.
    pub(crate) found: Option<Found>,
    /// Something that it waits for has happened since it fell asleep.
    pub(crate) awaited: Option<Text>,
    /// It runs, or stands still, with memory that is not its own: it must be killed. Why.
    pub(crate) lost: Option<Text>,
}

impl Adoption {
    /// Nothing more is known than this.
    pub(crate) fn found(found: Found) -> Self {
        Self { found: Some(found), ..Self::default() }
    }
}

/// Something that happened to a workload.
#[derive(Debug)]
pub(crate) enum Happening<O> {
    /// Something that it waits for in its sleep happened, or seems to have.
    Awaited,
    /// An operation has ended.
    Ended(Arc<Operation>, O),
    /// What the state machine is to be told.
    Event(Event),
    /// It has ended.
    Exited,
}

/// What came of an operation.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) event: Event,
    /// For the history of sleeps or of wakes; none where nothing was tried.
    pub(crate) entry: Option<Entry>,
    /// Whose fault it was, where it could not be started.
    pub(crate) fault: Option<StartFault>,
}

impl From<Event> for Report {
    fn from(event: Event) -> Self {
        Self { event, entry: None, fault: None }
    }
}

impl Report {
    /// With its line in the history.
    pub(crate) fn with_entry(event: Event, entry: Entry) -> Self {
        Self { event, entry: Some(entry), fault: None }
    }
}

/// How a wake went.
#[derive(Debug)]
pub(crate) enum Wake {
    /// It is under way: its outcome comes as [`Happening::Ended`].
    UnderWay,
    /// It is over: [`Event::Woken`] or [`Event::WakeFailed`].
    Ended(Report),
}

impl Wake {
    /// A wake that failed before anything was tried.
    pub(crate) fn failed(failure: WakeFailure) -> Self {
        Self::Ended(Event::WakeFailed(failure).into())
    }
}

/// Whose fault it was that an app could not be started, for the answer to whoever asked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StartFault {
    pub(crate) kind: ErrorKind,
    /// Where its program cannot be run: the exit status that a shell gives for this.
    pub(crate) exit_status: Option<i32>,
}

impl StartFault {
    /// Nothing has failed yet.
    pub(crate) const fn none() -> Self {
        Self { kind: ErrorKind::Internal, exit_status: None }
    }
}

/// The image of a warm app. It stays readable when the app wakes meanwhile, but then no longer fits its files.
#[derive(Debug)]
pub(crate) struct Exportable {
    /// Open for reading.
    pub(crate) image: File,
    /// Its length.
    pub(crate) bytes: u64,
    /// The sleep that it was made in: another one shows that the app was awake in between.
    pub(crate) generation: u64,
    /// Files that keep it on this machine.
    pub(crate) stays: Vec<String>,
    /// What is not in it, in words.
    pub(crate) left_out: Vec<String>,
}
