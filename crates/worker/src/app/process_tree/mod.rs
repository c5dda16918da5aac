//! A sandboxed process tree: the workload that there is today.
//!
//! ```text
//!              ┌─▶ sandbox (start, signal, kill)
//! ProcessTree ─┼─▶ engine  (sleep, hibernate, wake, resume), on threads of their own
//!              └─▶ keeper  (park)
//!       ▲ Message: what came of it
//! ```
//! Long operations run on threads of their own and come back as [`Message`]s.

mod adopt;
mod adopt_error;
mod boot_image;
mod connection_resets;
mod describe;
mod exit;
mod export;
mod freezer;
mod hibernate;
mod hold;
mod images;
mod infer_phase;
mod kill;
mod notifying_journal;
mod parked;
mod resume;
mod sandbox_handle;
mod sandbox_spec;
mod sleep;
mod sleep_state;
mod start;
mod start_error;
mod target;
mod texts;
mod usage;
mod wake;
mod wake_labels;

pub(crate) use boot_image::{adopts_boot_image, has_boot_image};
pub(crate) use parked::prefix as parked_prefix;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc;
use torpor_api::ApiError;
use torpor_api::view::{AppImage, AppStatus, Explanation, Stats};
use torpor_api::worker::AppRecord;
use torpor_engine::{Abort, Attempt, WaitHistory};
use torpor_lifecycle::{Event, Exit, Millis, Observation, SleepCause, Text, WakeFailure};
use torpor_sandbox::Sandbox;

use super::deadlines::Operations;
use super::operation::{Ended, Kind, Operation};
use super::workload::{Adoption, Exportable, Happening, Report, Wake, Workload};
use crate::app_files::{AppFiles, app_number};
use crate::cached::CachedImage;
use crate::journal::{Owner, PhaseFile};
use crate::logs::{Log, Reading};
use crate::probes::Deferred;
use crate::shared::Shared;
use boot_image::SandboxRetry;
use connection_resets::ConnectionResets;
use hibernate::Hibernated;
use kill::KillAttempts;
use resume::Resumed;
use sleep_state::{SleepState, WarmApp};
use start::StartOutcome;

/// An app's processes, or what they are brought back from.
pub(crate) struct ProcessTree {
    record: Arc<AppRecord>,
    files: AppFiles,
    shared: Arc<Shared>,
    log: Arc<Log>,
    journal: Arc<PhaseFile>,
    run: Run,
    sleep: Sleep,
    /// What is being woken from warm, if that fails.
    resuming: Option<Box<WarmApp>>,
    /// Set while it is warm without a sandbox; `run.sandbox` and `sleep.state` are none then.
    sandbox_retry: Option<SandboxRetry>,
    /// Closes connections to it while it cannot be woken.
    connection_resets: Option<ConnectionResets>,
    /// Stops the sleep or the hibernation under way.
    abort: Option<Abort>,
    memories: WaitHistory,
    /// Why its memory could not be brought back, until the task has been told.
    lost: Option<Text>,
    generation: u64,
    refill_buffer: Vec<u8>,
    sender: mpsc::UnboundedSender<Message>,
    messages: mpsc::UnboundedReceiver<Message>,
}

/// What is held of the sandbox that it runs or sleeps in.
#[derive(Default)]
struct Run {
    sandbox: Option<Arc<Sandbox>>,
    /// Readable when the sandbox's init has ended.
    init: Option<AsyncFd<OwnedFd>>,
    /// Its output, which is being read into its log.
    output: Option<Reading>,
    /// What has come of killing the sandbox.
    kill_attempts: KillAttempts,
}

/// What is held of it while it sleeps.
struct Sleep {
    state: Option<SleepState>,
    /// When its image was written.
    since: SystemTime,
    /// Its image, as one that may lie in the page cache.
    cached_image: Option<CachedImage>,
    /// Words for each of its wake sources.
    labels: Vec<String>,
    /// Readable when something that it waits for has happened.
    watch: Option<AsyncFd<OwnedFd>>,
    /// Listeners that were told to wait for data.
    deferred: Vec<Deferred>,
}

/// What came of an operation.
pub(crate) enum Outcome {
    /// The sandbox stands and the program runs, or why not.
    Started(StartOutcome),
    /// Falling asleep has ended.
    Slept(Attempt),
    /// Going warm has ended.
    Hibernated(Hibernated),
    /// Building its processes has ended.
    Resumed(Resumed),
}

/// What its threads report.
enum Message {
    Ended(Arc<Operation>, Box<Outcome>),
    /// For the state machine.
    Event(Event),
    /// Killing this sandbox has ended; what holds it, where it has not.
    Killed(Arc<Sandbox>, Option<Text>),
}

impl ProcessTree {
    /// One of which nothing is known yet.
    pub(crate) fn new(record: Arc<AppRecord>, files: AppFiles, shared: Arc<Shared>, log: Arc<Log>) -> io::Result<Self> {
        let owner = Owner { app: app_number(&record.id), boot: shared.boot };
        let journal = Arc::new(PhaseFile::open(&files.phase(), owner)?);
        let (sender, messages) = mpsc::unbounded_channel();
        Ok(Self {
            record,
            files,
            shared,
            log,
            journal,
            run: Run::default(),
            sleep: Sleep {
                state: None,
                since: SystemTime::UNIX_EPOCH,
                cached_image: None,
                labels: Vec::new(),
                watch: None,
                deferred: Vec::new(),
            },
            resuming: None,
            sandbox_retry: None,
            connection_resets: None,
            abort: None,
            memories: WaitHistory::default(),
            lost: None,
            generation: 1,
            refill_buffer: Vec::new(),
            sender,
            messages,
        })
    }

    /// Whose phases and images are the app's.
    fn owner(&self) -> Owner {
        Owner { app: app_number(&self.record.id), boot: self.shared.boot }
    }

    /// Reports an event to the task, behind what its threads have reported.
    fn report(&self, event: Event) {
        // The receiver is our own.
        let _ = self.sender.send(Message::Event(event));
    }
}

impl Workload for ProcessTree {
    type Place = Arc<Sandbox>;
    type Outcome = Box<Outcome>;

    async fn adopt(&mut self) -> Result<Adoption, Text> {
        self.find().await
    }

    fn release(&mut self) {
        (self.sleep.watch, self.run.init, self.run.sandbox, self.sleep.state) = (None, None, None, None);
        (self.run.output, self.sleep.cached_image) = (None, None);
        self.sleep.deferred.clear();
    }

    async fn end_unadopted(&mut self, reason: &Text) -> Result<(), Text> {
        self.destroy_leftovers().await?;
        self.after_exit().await;
        self.lose_images(&format!("it was stopped while it could not be adopted: {reason}"));
        Ok(())
    }

    async fn adopt_import(&mut self) -> Result<Option<Millis>, String> {
        match self.try_restore_sandbox().await {
            Ok(Some(next_timer)) => Ok(next_timer),
            Ok(None) => Err("it has no image".to_owned()),
            Err(error) => Err(error.reason().to_string()),
        }
    }

    fn start(&mut self, operations: &mut Operations) {
        self.begin_start(operations);
    }

    fn terminate(&mut self) {
        self.signal_stop();
    }

    fn kill(&mut self) -> Option<Exit> {
        if self.run.sandbox.is_none() {
            self.sandbox_retry = None;
            return Some(Exit::Signal(exit::SIGKILL));
        }
        self.kill_sandbox();
        None
    }

    async fn exited(&mut self, sleeps_on: bool) -> Option<Exit> {
        self.clean_up_exited(sleeps_on).await
    }

    async fn put_away(&mut self) -> Result<(), String> {
        self.remove_sandbox().await
    }

    async fn next(&mut self) -> Happening<Box<Outcome>> {
        loop {
            // While its processes are built, that has an outcome first: what holds it is not to be taken away meanwhile.
            let settled = self.resuming.is_none();
            let message = tokio::select! {
                biased;
                () = readable(self.sleep.watch.as_ref()) => return Happening::Awaited,
                Some(message) = self.messages.recv() => message,
                () = readable(self.run.init.as_ref()), if settled => return Happening::Exited,
            };
            match message {
                Message::Ended(operation, outcome) => return Happening::Ended(operation, outcome),
                Message::Event(event) => return Happening::Event(event),
                Message::Killed(sandbox, held) => self.killed(&sandbox, held),
            }
        }
    }

    fn awaited(&mut self) -> Option<Event> {
        self.watch_fired()
    }

    async fn ended(&mut self, outcome: Box<Outcome>, ended: Ended) -> Option<Report> {
        match *outcome {
            Outcome::Started(result) => self.started(result, ended).await,
            Outcome::Slept(attempt) => Some(self.slept(attempt, ended)),
            Outcome::Hibernated(hibernated) => Some(self.hibernated(hibernated, ended)),
            Outcome::Resumed(resumed) => self.resumed(resumed, ended),
        }
    }

    fn give_up(&mut self, kind: Kind) {
        self.end_given_up(kind);
    }

    fn abandon(&mut self, kind: Kind) {
        if let (Kind::Wake, Some(app)) = (kind, self.resuming.take()) {
            self.hold(SleepState::Warm(app), SystemTime::now());
        }
    }

    fn sleep(&mut self, cause: SleepCause, operations: &mut Operations) {
        self.begin_sleep(cause, operations);
    }

    fn hibernate(&mut self, operations: &mut Operations) {
        self.begin_hibernate(operations);
    }

    fn abort(&mut self) {
        if let Some(abort) = &self.abort {
            abort.ask();
        }
    }

    async fn prepare_wake(&mut self) -> Result<(), WakeFailure> {
        self.restore_sandbox_for_wake().await
    }

    fn wake(&mut self, operations: &mut Operations) -> Wake {
        self.begin_wake(operations)
    }

    fn confirm_asleep(&mut self) -> bool {
        !matches!(self.sleep.state, Some(SleepState::Warm(_))) || self.check_parked()
    }

    fn park_again(&mut self) {
        self.keeper_lost();
    }

    fn retry_at(&self) -> Option<Instant> {
        self.sandbox_retry.as_ref().map(SandboxRetry::again_at)
    }

    async fn retry(&mut self) -> Option<Exit> {
        self.retry_sandbox().await
    }

    fn refuse_clients(&mut self, refuse: bool) {
        self.update_connection_resets(refuse);
    }

    fn discard(&mut self) {
        self.discard_image();
    }

    fn quarantine(&mut self) {
        self.quarantine_image();
    }

    fn observe(&self) -> Option<Observation> {
        self.observation()
    }

    fn blocks_when_observed(&self) -> bool {
        // Looking at processes waits for locks of their memory; where there are none, there is nothing to wait for.
        self.run.sandbox.is_some() && !matches!(self.sleep.state, Some(SleepState::Warm(_)))
    }

    fn wake_blocker(&self) -> Option<String> {
        self.sandbox_retry.as_ref().map(SandboxRetry::words)
    }

    fn end_blocker(&self) -> Option<Text> {
        self.run.kill_attempts.held().cloned()
    }

    fn describe(&self, status: &mut AppStatus) {
        self.describe_processes(status);
    }

    fn explain(&self, runs: bool, explanation: &mut Explanation) {
        self.explain_processes(runs, explanation);
    }

    fn measure(&self, stats: &mut Stats) {
        self.measure_processes(stats);
    }

    fn images(&self) -> Result<Vec<AppImage>, ApiError> {
        self.list_images()
    }

    fn remove_images(&mut self) -> Result<Vec<AppImage>, ApiError> {
        self.remove_unused_images()
    }

    fn exportable(&self) -> io::Result<Option<Exportable>> {
        self.export()
    }

    fn place(&self) -> Option<Arc<Sandbox>> {
        self.run.sandbox.clone()
    }
}

/// Waits until `fd` is readable; for ever if there is none. Its readiness is forgotten: whoever reads what is there has to
/// read all of it.
async fn readable(fd: Option<&AsyncFd<OwnedFd>>) {
    match fd {
        Some(fd) => match fd.ready(Interest::READABLE).await {
            Ok(mut guard) => guard.clear_ready(),
            Err(error) => {
                tracing::error!(%error, "waiting for a descriptor");
                std::future::pending().await
            }
        },
        None => std::future::pending().await,
    }
}

/// Reads a text as each kind of text is read: for fuzzing.
pub(crate) fn read_texts(text: &str) {
    usage::parse(text);
    wake_labels::parse(text);
}
