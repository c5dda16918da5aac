//! The task of one app: the loop that waits for what happens, tells the state machine, and performs what that decides.
//!
//! Nothing else touches an app. Each part of what the task keeps is a struct of its own, in the file that uses it.

mod accounting;
mod adoption;
mod answers;
mod history_file;
mod order;
mod perform;
#[cfg(test)]
mod tests;
mod view;
mod wake_queue;

pub(crate) use order::{AppHandle, Order};
pub(crate) use view::port_words;

use std::io;
use std::sync::{Arc, Mutex};

use tokio::sync::{mpsc, watch};
use torpor_api::worker::AppRecord;
use torpor_lifecycle::{App, Event, Millis, Policy, WakeFailure};

use super::abort_on_panic::AbortOnPanic;
use super::deadlines::{Operations, Overdue};
use super::operation::{Ended, Kind};
use super::workload::{Happening, Report, StartFault, Workload};
use crate::app_files::AppFiles;
use crate::clock;
use crate::logs::Log;
use crate::services::Services;
use crate::wakes::Permit;
use accounting::Accounting;
use adoption::AdoptionRetry;
use answers::Answers;
use history_file::{HistoryFile, Past};
use order::Busy;
use wake_queue::WakeQueue;

/// Orders that may wait for one app's task.
const MAILBOX: usize = 256;

/// The state of one app's task.
struct Task<W: Workload> {
    record: Arc<AppRecord>,
    files: AppFiles,
    log: Arc<Log>,
    services: Arc<Services>,
    /// What it drives.
    workload: W,
    /// What decides.
    app: App,
    /// The operation under way, and when it should have ended.
    operations: Operations,
    past: Past,
    wakes: WakeQueue,
    accounting: Accounting<W::Place>,
    answers: Answers,
    /// Set while it cannot be adopted; nothing of it is held then, and the machine has heard of nothing.
    adoption_retry: Option<AdoptionRetry>,
    /// Its image waits for the next daemon: nothing happens to it any more.
    put_away: bool,
    timer: Option<Millis>,
    signals: Signals,
    start_failure: Arc<Mutex<StartFault>>,
    busy: Arc<Busy>,
}

/// What the worker tells all tasks. Both senders live as long as the worker.
struct Signals {
    /// Changes when the keeper was lost.
    keeper_losses: watch::Receiver<u64>,
    /// True when the worker ends, and with it the task.
    ending: watch::Receiver<bool>,
}

/// What the task was woken by.
enum Wakeup<W: Workload> {
    Order(Option<Order<W::Place>>),
    Workload(Happening<W::Outcome>),
    Timer,
    Turn(Permit),
    KeeperLost,
    Overdue,
    Retry,
    RetryAdoption,
    /// The worker ends.
    Ending,
}

/// An app whose task begins, and what its workload is made with.
pub(crate) struct Beginning {
    pub(crate) record: Arc<AppRecord>,
    pub(crate) files: AppFiles,
    pub(crate) log: Arc<Log>,
    pub(crate) past: HistoryFile,
}

impl Beginning {
    /// Makes the app's directories and opens what is remembered of it.
    pub(crate) fn new(record: AppRecord, files: AppFiles, logs: crate::config::LogConfig) -> io::Result<Self> {
        files.create()?;
        let past = HistoryFile::read(&files);
        let log = Arc::new(Log::new(&files.data, logs, past.dropped_lines()));
        Ok(Self { record: Arc::new(record), files, log, past })
    }
}

/// Starts the task of an app around its workload.
pub(crate) fn spawn<W: Workload>(
    beginning: Beginning,
    services: Arc<Services>,
    policy: Policy,
    workload: W,
) -> AppHandle<W::Place> {
    let Beginning { record, files, log, past } = beginning;
    let (orders, mailbox) = mpsc::channel(MAILBOX);
    let handle = AppHandle {
        record: record.clone(),
        files: files.clone(),
        log: log.clone(),
        start_failure: Arc::new(Mutex::new(StartFault::none())),
        orders: orders.clone(),
        busy: Arc::default(),
    };
    let app = App::new(policy, record.pinned, clock::now()).with_past(past.counts(), past.last_exit());
    let signals = Signals { keeper_losses: services.keeper_life.losses(), ending: services.ending.subscribe() };
    let task = Task {
        operations: Operations::new(record.clone(), services.clone()),
        record,
        files,
        log,
        services,
        workload,
        app,
        past: Past::from(past),
        wakes: WakeQueue::default(),
        accounting: Accounting::new(orders.downgrade()),
        answers: Answers::default(),
        adoption_retry: None,
        put_away: false,
        timer: None,
        signals,
        start_failure: handle.start_failure.clone(),
        busy: handle.busy.clone(),
    };
    tokio::spawn(task.run(mailbox));
    handle
}

impl<W: Workload> Task<W> {
    async fn run(mut self, mut mailbox: mpsc::Receiver<Order<W::Place>>) {
        let _abort = AbortOnPanic;
        // What is done is in a box: a task that waits, as most do, has no room for it.
        if *self.signals.ending.borrow() {
            return;
        }
        self.busy.set(Some(clock::now()));
        Box::pin(self.try_adopt()).await;
        loop {
            self.busy.set(None);
            let wakeup = self.next(&mut mailbox).await;
            self.busy.set(Some(clock::now()));
            match wakeup {
                Wakeup::Order(Some(Order::End(done))) => {
                    // Whoever asked may have gone; the task ends all the same.
                    let _ = done.send(());
                    return;
                }
                Wakeup::Order(None) | Wakeup::Ending => return,
                wakeup => Box::pin(self.act(wakeup)).await,
            }
        }
    }

    async fn act(&mut self, wakeup: Wakeup<W>) {
        match wakeup {
            Wakeup::Workload(happening) => self.happened(happening).await,
            Wakeup::KeeperLost => tokio::task::block_in_place(|| self.workload.park_again()),
            Wakeup::Overdue => self.overdue().await,
            Wakeup::Retry => self.retry().await,
            Wakeup::RetryAdoption => self.try_adopt().await,
            Wakeup::Turn(permit) => self.wake_in_turn(permit).await,
            Wakeup::Timer => {
                self.timer = None;
                self.tell(Event::TimerFired).await;
            }
            Wakeup::Order(Some(order)) => self.order(order).await,
            Wakeup::Order(None) | Wakeup::Ending => {}
        }
    }

    async fn next(&mut self, mailbox: &mut mpsc::Receiver<Order<W::Place>>) -> Wakeup<W> {
        let Signals { keeper_losses, ending } = &mut self.signals;
        if self.put_away {
            return tokio::select! {
                biased;
                Ok(_) = ending.wait_for(|ending| *ending) => Wakeup::Ending,
                order = mailbox.recv() => Wakeup::Order(order),
            };
        }
        let timer = self.timer;
        let timer = async move {
            match timer {
                Some(at) => tokio::time::sleep(clock::until(at)).await,
                None => std::future::pending().await,
            }
        };
        let overdue = at(self.operations.check_at());
        let retry = at(self.workload.retry_at());
        let adopt = at(self.adoption_retry.as_ref().map(AdoptionRetry::again_at));
        // A wake under way has an outcome first: what it is made from is not to be taken away meanwhile.
        let settled = !self.wakes.is_under_way();
        tokio::select! {
            biased;
            Ok(_) = ending.wait_for(|ending| *ending) => Wakeup::Ending,
            happening = self.workload.next() => Wakeup::Workload(happening),
            Some(permit) = self.wakes.turn() => Wakeup::Turn(permit),
            order = mailbox.recv() => Wakeup::Order(order),
            Ok(()) = keeper_losses.changed(), if settled => Wakeup::KeeperLost,
            () = overdue => Wakeup::Overdue,
            () = retry => Wakeup::Retry,
            () = adopt => Wakeup::RetryAdoption,
            () = timer => Wakeup::Timer,
        }
    }

    async fn happened(&mut self, happening: Happening<W::Outcome>) {
        match happening {
            Happening::Awaited => {
                if let Some(event) = self.workload.awaited() {
                    self.tell(event).await;
                }
            }
            Happening::Event(event) => self.tell(event).await,
            Happening::Exited => self.exited().await,
            Happening::Ended(operation, outcome) => {
                let ended = self.operations.ended(&operation);
                self.ended(operation.kind, ended, outcome).await;
            }
        }
    }

    /// An operation has ended: its line in the history comes before what the machine makes of it.
    async fn ended(&mut self, kind: Kind, ended: Ended, outcome: W::Outcome) {
        // The permit of a wake goes to the next one now.
        let wake = if kind == Kind::Wake && ended != Ended::Abandoned { self.wakes.end() } else { None };
        let Some(report) = self.workload.ended(outcome, ended).await else { return };
        let Report { event, entry, fault } = report;
        match (kind, wake, entry) {
            (Kind::Wake, Some((cause, waited)), Some(entry)) => self.past.add_wake(cause, entry, waited),
            (Kind::Sleep | Kind::Hibernate, _, Some(entry)) => self.past.add_sleep(entry),
            _ => {}
        }
        if let Some(fault) = fault {
            *self.start_failure.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = fault;
        }
        if is_asleep_after(&event) {
            self.wakes.fell_asleep(&self.app);
        }
        let hibernated = matches!(event, Event::Hibernated { .. });
        self.tell(event).await;
        if hibernated {
            // Where not, it ends and is made again.
            let _ = self.workload.confirm_asleep();
        }
    }

    /// It has ended.
    async fn exited(&mut self) {
        let sleeps_on = self.wakes.is_queued() || matches!(self.app.phase(), torpor_lifecycle::Phase::Warm(_));
        let Some(exit) = self.workload.exited(sleeps_on).await else {
            self.wakes.fell_asleep(&self.app);
            return;
        };
        self.tell(Event::Exited(exit)).await;
        if self.wakes.leave() {
            let gone = WakeFailure::Passing("its processes have ended".into());
            self.tell(Event::WakeFailed(gone)).await;
        }
    }

    /// What keeps it from being reached while it sleeps may be gone.
    async fn retry(&mut self) {
        match self.workload.retry().await {
            Some(exit) => self.tell(Event::Exited(exit)).await,
            None => self.wakes.fell_asleep(&self.app),
        }
    }

    /// The operation under way should have ended.
    async fn overdue(&mut self) {
        match self.operations.overdue() {
            Overdue::Waited => {}
            Overdue::GivenUp(kind) => self.workload.give_up(kind),
            Overdue::Abandoned(kind, reason) => {
                self.workload.abandon(kind);
                let event = if kind == Kind::Wake {
                    self.wakes.end();
                    self.wakes.fell_asleep(&self.app);
                    Event::WakeFailed(WakeFailure::Passing(reason))
                } else {
                    Event::StartFailed(reason.into())
                };
                self.tell(event).await;
            }
        }
    }
}

/// Whether an operation that ended with this event has left the app asleep.
const fn is_asleep_after(event: &Event) -> bool {
    matches!(
        event,
        Event::Dozed { .. }
            | Event::Hibernated { .. }
            | Event::HibernateRefused { dozes: true, .. }
            | Event::WakeFailed(_)
    )
}

/// Waits until then; for ever where there is no such time.
async fn at(time: Option<std::time::Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time.into()).await,
        None => std::future::pending().await,
    }
}
