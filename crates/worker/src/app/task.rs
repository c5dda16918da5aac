//! The task itself: what it holds, what it waits for, and how it performs actions.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{mpsc, oneshot, watch};
use torpor_api::ApiError;
use torpor_api::view::{AppImage, AppStatus, Explanation, Stats};
use torpor_api::worker::AppRecord;
use torpor_engine::{Abort, WaitHistory};
use torpor_lifecycle::{Action, App, Event, Exit, Millis, Note, Phase, Refusal, Request, StopReason, Ticket};
use torpor_sandbox::Sandbox;

use super::abort_on_panic::AbortOnPanic;
use super::accounting::Accounting;
use super::adoption::AdoptionRetry;
use super::deadlines::CurrentOperation;
use super::history::History;
use super::history_file::HistoryFile;
use super::process_tree::boot_image::SandboxRetry;
use super::process_tree::connection_resets::ConnectionResets;
use super::process_tree::kill::KillAttempts;
use super::process_tree::resume::Resuming;
use super::process_tree::sleep_state::SleepState;
use super::process_tree::start::Fault;
use super::transfer::Exportable;
use super::wake_queue::QueuedWake;
use super::{AppFiles, Outcome, app_number};
use crate::cached::CachedImage;
use crate::clock;
use crate::journal::{Owner, PhaseFile};
use crate::logs::{Log, Reading};
use crate::shared::Shared;
use crate::wakes::Permit;

/// Orders that may wait for one app's task.
const MAILBOX: usize = 256;

/// How an app ends that is killed while it has no sandbox.
const SIGKILL: i32 = 9;

/// Something asked of an app.
pub(crate) enum Order {
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
    /// The sandbox, to run a command in; `None` when it has none.
    Sandbox(oneshot::Sender<Option<Arc<Sandbox>>>),
    /// Remove the sandbox of a warm app and leave its image to the next daemon, or say why not. Nothing else follows.
    PutAway(oneshot::Sender<Result<(), String>>),
    /// Go warm if it can, for memory is short. The sender is dropped when that has come to its end, or is not to be.
    Hibernate(oneshot::Sender<()>),
    /// End the task; the app is stopped.
    End(oneshot::Sender<()>),
}

/// The way to an app's task.
#[derive(Clone, Debug)]
pub(crate) struct AppHandle {
    pub(crate) record: Arc<AppRecord>,
    pub(crate) files: AppFiles,
    pub(crate) log: Arc<Log>,
    /// Whose fault it was that it could not be started the last time.
    pub(crate) start_failure: Arc<Mutex<Fault>>,
    pub(crate) orders: mpsc::Sender<Order>,
    pub(crate) busy: Arc<Busy>,
}

/// Since when a task has been at something, for those who wait for its answer.
#[derive(Debug, Default)]
pub(crate) struct Busy(Mutex<Option<Millis>>);

impl Busy {
    fn set(&self, since: Option<Millis>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = since;
    }

    /// Since when; none: it waits for something to do.
    pub(crate) fn since(&self) -> Option<Millis> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The state of one app's task.
pub(crate) struct Task {
    pub(crate) record: Arc<AppRecord>,
    pub(crate) files: AppFiles,
    pub(crate) shared: Arc<Shared>,
    pub(crate) log: Arc<Log>,
    pub(crate) start_failure: Arc<Mutex<Fault>>,
    pub(crate) app: App,
    pub(crate) journal: Arc<PhaseFile>,
    pub(crate) sandbox: Option<Arc<Sandbox>>,
    /// Readable when the sandbox's init has ended.
    pub(crate) init: Option<AsyncFd<OwnedFd>>,
    pub(crate) asleep: Option<SleepState>,
    /// When its image was written.
    pub(crate) asleep_since: std::time::SystemTime,
    /// Its image, as one that may lie in the page cache; set while it dozes.
    pub(crate) cached_image: Option<CachedImage>,
    /// Words for each of its wake sources.
    pub(crate) labels: Vec<String>,
    /// Readable when something that it waits for has happened; set while it dozes.
    pub(crate) watch: Option<AsyncFd<OwnedFd>>,
    /// Listeners that were told to wait for data.
    pub(crate) deferred: Vec<crate::probes::Deferred>,
    pub(crate) abort: Option<Abort>,
    /// Its operation, and when it should have ended.
    pub(super) operation: CurrentOperation,
    /// What has come of killing its sandbox.
    pub(super) kill_attempts: KillAttempts,
    /// Its image waits for the next daemon: nothing happens to it any more.
    pub(super) put_away: bool,
    /// What is being woken from warm.
    pub(super) resuming: Option<Resuming>,
    /// Set while it is warm without a sandbox; `sandbox`, `init` and `asleep` are none then.
    pub(super) sandbox_retry: Option<SandboxRetry>,
    /// Set while it cannot be adopted; nothing of it is held then, and the machine has heard of nothing.
    pub(super) adoption_retry: Option<AdoptionRetry>,
    pub(crate) memories: WaitHistory,
    /// Why its memory could not be brought back, until the machine has been told.
    pub(crate) lost: Option<torpor_lifecycle::Text>,
    pub(crate) generation: u64,
    pub(crate) sleeps: History,
    pub(crate) wakes: History,
    pub(crate) refill_buffer: Vec<u8>,
    /// Its output, which is being read into its log.
    pub(crate) output: Option<Reading>,
    pub(crate) sleep_cause: String,
    /// Its wake, while that waits for others.
    pub(super) queued: Option<Box<QueuedWake>>,
    /// When it was used last before it fell asleep.
    pub(super) used_before: Millis,
    /// Somebody has asked for its end: the one that is coming, or the last.
    pub(super) stop_requested: bool,
    /// Closes connections to it while it cannot be woken.
    pub(super) connection_resets: Option<ConnectionResets>,
    /// What the worker knows of its sleep.
    pub(super) known: Accounting,
    /// Changes when the keeper was lost.
    keeper_losses: watch::Receiver<u64>,
    /// True when the worker ends, and with it the task.
    ending: watch::Receiver<bool>,
    outcomes: mpsc::UnboundedSender<Outcome>,
    tickets: HashMap<Ticket, oneshot::Sender<Result<(), Refusal>>>,
    next_ticket: u64,
    timer: Option<Millis>,
    busy: Arc<Busy>,
}

/// What the task was woken by.
enum Happening {
    Order(Option<Order>),
    Outcome(Outcome),
    Watch,
    Exit,
    Timer,
    Turn(Permit),
    KeeperLost,
    Overdue,
    RetrySandbox,
    RetryAdoption,
    /// The worker ends.
    Ending,
}

/// Starts the task of an app.
pub(crate) fn spawn(record: AppRecord, files: AppFiles, shared: Arc<Shared>) -> io::Result<AppHandle> {
    files.create()?;
    let past = HistoryFile::read(&files);
    let log = Arc::new(Log::new(&files.data, shared.config.logs, past.dropped_lines()));
    let owner = Owner { app: app_number(&record.id), boot: shared.boot };
    let journal = Arc::new(PhaseFile::open(&files.phase(), owner)?);
    let (orders, mailbox) = mpsc::channel(MAILBOX);
    let (outcomes, results) = mpsc::unbounded_channel();
    let record = Arc::new(record);
    let start_failure = Arc::new(Mutex::new(Fault::none()));
    let handle = AppHandle {
        record: record.clone(),
        files: files.clone(),
        log: log.clone(),
        start_failure: start_failure.clone(),
        orders: orders.clone(),
        busy: Arc::default(),
    };
    let app = App::new(super::process_tree::start::policy(&record.spec), record.pinned, clock::now());
    let app = app.with_past(past.counts(), past.last_exit());
    let stop_requested = past.stop_requested();
    let (sleeps, wakes) = past.histories();
    let keeper_losses = shared.keeper_life.losses();
    let ending = shared.ending.subscribe();
    let task = Task {
        app,
        record,
        files,
        shared,
        log,
        start_failure,
        journal,
        sandbox: None,
        init: None,
        asleep: None,
        asleep_since: std::time::SystemTime::UNIX_EPOCH,
        cached_image: None,
        labels: Vec::new(),
        watch: None,
        deferred: Vec::new(),
        abort: None,
        operation: CurrentOperation::default(),
        kill_attempts: KillAttempts::default(),
        put_away: false,
        resuming: None,
        sandbox_retry: None,
        adoption_retry: None,
        memories: WaitHistory::default(),
        lost: None,
        generation: 1,
        sleeps,
        wakes,
        refill_buffer: Vec::new(),
        output: None,
        sleep_cause: String::new(),
        queued: None,
        used_before: Millis(0),
        stop_requested,
        connection_resets: None,
        known: Accounting::new(orders.downgrade()),
        keeper_losses,
        ending,
        outcomes,
        tickets: HashMap::new(),
        next_ticket: 0,
        timer: None,
        busy: handle.busy.clone(),
    };
    tokio::spawn(task.run(mailbox, results));
    Ok(handle)
}

impl Task {
    async fn run(mut self, mut mailbox: mpsc::Receiver<Order>, mut results: mpsc::UnboundedReceiver<Outcome>) {
        let _abort = AbortOnPanic;
        // What is done is in a box: a task that waits, as most do, has no room for it.
        if *self.ending.borrow() {
            return;
        }
        self.busy.set(Some(clock::now()));
        Box::pin(self.try_adopt()).await;
        loop {
            self.busy.set(None);
            let happening = self.next(&mut mailbox, &mut results).await;
            self.busy.set(Some(clock::now()));
            match happening {
                Happening::Order(Some(Order::End(done))) => {
                    // Whoever asked may have gone; the task ends all the same.
                    let _ = done.send(());
                    return;
                }
                Happening::Order(None) | Happening::Ending => return,
                happening => Box::pin(self.act(happening)).await,
            }
        }
    }

    async fn act(&mut self, happening: Happening) {
        match happening {
            Happening::Watch => self.watch_fired().await,
            Happening::Exit => self.exited().await,
            Happening::KeeperLost => tokio::task::block_in_place(|| self.keeper_lost()),
            Happening::Overdue => self.overdue().await,
            Happening::RetrySandbox => self.retry_sandbox().await,
            Happening::RetryAdoption => self.try_adopt().await,
            Happening::Outcome(outcome) => self.outcome(outcome).await,
            Happening::Turn(permit) => self.wake_in_turn(permit).await,
            Happening::Timer => {
                self.timer = None;
                self.tell(Event::TimerFired).await;
            }
            Happening::Order(Some(order)) => self.order(order).await,
            Happening::Order(None) | Happening::Ending => {}
        }
    }

    async fn next(
        &mut self,
        mailbox: &mut mpsc::Receiver<Order>,
        results: &mut mpsc::UnboundedReceiver<Outcome>,
    ) -> Happening {
        if self.put_away {
            return tokio::select! {
                biased;
                Ok(_) = self.ending.wait_for(|ending| *ending) => Happening::Ending,
                order = mailbox.recv() => Happening::Order(order),
            };
        }
        let timer = self.timer;
        let timer = async move {
            match timer {
                Some(at) => tokio::time::sleep(clock::until(at)).await,
                None => std::future::pending().await,
            }
        };
        let overdue = at(self.operation.check_at());
        let house = at(self.sandbox_retry_at());
        let adopt = at(self.adopt_at());
        // While its processes are built, that has an outcome first: what holds it is not to be taken away meanwhile.
        let settled = self.resuming.is_none();
        tokio::select! {
            biased;
            // Its sender lives as long as the worker.
            Ok(_) = self.ending.wait_for(|ending| *ending) => Happening::Ending,
            () = readable(self.watch.as_ref()) => Happening::Watch,
            Some(outcome) = results.recv() => Happening::Outcome(outcome),
            () = readable(self.init.as_ref()), if settled => Happening::Exit,
            Some(permit) = turn(self.queued.as_deref_mut()) => Happening::Turn(permit),
            order = mailbox.recv() => Happening::Order(order),
            // Its sender lives as long as the worker.
            Ok(()) = self.keeper_losses.changed(), if settled => Happening::KeeperLost,
            () = overdue => Happening::Overdue,
            () = house => Happening::RetrySandbox,
            () = adopt => Happening::RetryAdoption,
            () = timer => Happening::Timer,
        }
    }

    /// Where long operations send what came of them.
    pub(crate) fn outcomes(&self) -> mpsc::UnboundedSender<Outcome> {
        self.outcomes.clone()
    }

    pub(super) async fn order(&mut self, order: Order) {
        match order {
            // Whoever asked may have hung up.
            Order::Request(_, answer) if self.put_away => drop(answer.send(Err(Refusal::BeingStopped))),
            Order::Pin(_) | Order::ExecEnded | Order::Hibernate(_) if self.put_away => {}
            Order::Request(request, answer) => {
                if let Some(refusal) = self.adopt_for(&request).await {
                    // Whoever asked may have hung up.
                    let _ = answer.send(Err(refusal));
                    return;
                }
                self.next_ticket += 1;
                let ticket = Ticket(self.next_ticket);
                self.tickets.insert(ticket, answer);
                let waits = matches!(request, Request::Sleep { .. });
                self.tell(Event::Request(ticket, request)).await;
                if !waits {
                    self.wake_at_once().await;
                }
            }
            Order::Pin(pinned) => {
                self.tell(Event::Pinned(pinned)).await;
                self.wake_at_once().await;
            }
            Order::ExecEnded => self.tell(Event::ExecEnded).await,
            // Whoever asks may have gone meanwhile; then nobody needs the answer.
            Order::NotStarted(answer) => {
                let phase = self.app.phase();
                let not_started = matches!(phase, Phase::Stopped { why: StopReason::NotStarted });
                let _ = answer.send(not_started && self.adoption_retry.is_none());
            }
            Order::Status(answer) => drop(answer.send(self.look(Self::status))),
            Order::Explain(answer) => drop(answer.send(self.look(Self::explain))),
            Order::Stats(answer) => drop(answer.send(self.look(Self::stats))),
            Order::Images(answer) => drop(answer.send(tokio::task::block_in_place(|| self.images()))),
            Order::RemoveImages(answer) => drop(answer.send(tokio::task::block_in_place(|| self.remove_images()))),
            Order::Export(answer) => drop(answer.send(self.exportable())),
            Order::AdoptImport(answer) => drop(answer.send(self.adopt_import().await)),
            Order::PutAway(answer) => drop(answer.send(self.put_away().await)),
            Order::Hibernate(done) => self.demote_for_memory(done).await,
            Order::Sandbox(answer) => drop(answer.send(self.sandbox.clone())),
            Order::End(_) => {}
        }
    }

    /// Tells the machine, and performs what it decides. What performing leads to at once is told in turn.
    pub(crate) async fn tell(&mut self, event: Event) {
        let mut events = std::collections::VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            for action in self.app.handle(event, clock::now()) {
                events.extend(self.perform(action).await);
            }
        }
        self.update_accounting();
    }

    /// Performs one action; gives the event that it leads to, if that is known at once.
    async fn perform(&mut self, action: Action) -> Option<Event> {
        match action {
            Action::Spawn => self.begin_start(),
            Action::BeginCapture { .. } | Action::BeginDeepen { .. } if self.operation.held_up().is_some() => {
                return self.operation.held_up().map(|why| Self::no_sleep(&action, why));
            }
            Action::BeginCapture { .. } | Action::BeginDeepen { .. } if self.shared.image_space.is_full() => {
                return Some(self.no_space(&action));
            }
            Action::BeginCapture { cause } => self.begin_capture(cause),
            Action::AbortCapture | Action::AbortDeepen => {
                if let Some(abort) = &self.abort {
                    abort.ask();
                }
            }
            Action::BeginDeepen { cause } => self.begin_hibernate(cause),
            Action::BeginWake { cause } => {
                if let Some(failed) = self.restore_sandbox_for_wake().await {
                    return Some(failed);
                }
                return self.begin_wake(&cause);
            }
            Action::Terminate => self.terminate(),
            Action::Kill if self.sandbox.is_none() => {
                self.sandbox_retry = None;
                return Some(Event::Exited(Exit::Signal(SIGKILL)));
            }
            Action::Kill => self.kill(),
            Action::DiscardImage => self.discard_image(),
            Action::SetImageAside => self.quarantine_image(),
            Action::Observe => return self.look(Self::observe).map(Event::Observed),
            Action::SetTimer(at) => self.timer = Some(at),
            Action::ClearTimer => self.timer = None,
            Action::Reply(ticket, answer) => {
                if let Some(waiting) = self.tickets.remove(&ticket) {
                    // Whoever asked may have hung up.
                    let _ = waiting.send(answer);
                }
            }
            Action::Emit(note) => self.emit(&note),
            Action::Unexpected { phase, event } => {
                tracing::error!(app = self.record.spec.name, phase, event, "event that cannot happen in this phase");
            }
        }
        None
    }

    fn emit(&mut self, note: &Note) {
        self.save_history(note);
        let mut fields = std::collections::BTreeMap::new();
        let last = match note {
            Note::Woken(..) => self.wakes.all().into_iter().next(),
            Note::Dozing => self.sleeps.all().into_iter().next(),
            _ => None,
        };
        if let Some(transition) = last {
            fields.insert("total_us".to_owned(), transition.total_us.into());
            if let Some(queued) = transition.phases.iter().find(|phase| phase.name == super::history::QUEUED) {
                fields.insert("queued_us".to_owned(), queued.us.into());
            }
        }
        self.shared.events.emit(&self.record.spec.name, note.kind(), note.to_string(), fields);
    }
}

/// Waits until then; for ever where there is no such time.
async fn at(time: Option<std::time::Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time.into()).await,
        None => std::future::pending().await,
    }
}

/// Waits for the turn to wake; for ever where nothing waits for one.
async fn turn(queued: Option<&mut QueuedWake>) -> Option<Permit> {
    match queued {
        Some(queued) => queued.waiting.turn().await,
        None => std::future::pending().await,
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
