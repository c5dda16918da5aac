//! Operations that do not end in their time, and what becomes of their apps.
//!
//! | what | at its deadline | where its thread is held up even then |
//! |---|---|---|
//! | a wake from dozing | it is said, and nothing is given up: see below | as long as its task waits, `ps` shows `not answering` |
//! | a wake from warm | its half-built processes are killed and its commit is refused | the app is warm as before, and each further attempt fails with this reason until the thread has come back |
//! | a start | what there is of its sandbox is killed | it counts as a start that failed, and each further attempt fails likewise |
//! | falling asleep, going warm | it is given up | `ps` shows `not answering`: its processes may stand still |
//! | any of them behind its commit | it is said | as above |
//!
//! A wake from dozing is not given up. The app's only processes are frozen with a part of their memory, and the rest is nowhere but in the
//! image whose reading is held up: to kill them would lose the app, and to thaw them would run it with memory missing. It goes on when
//! the call returns. The daemon may be restarted meanwhile, or killed: the journal still says `Dozing`, so the next one finds the app
//! asleep, with all that waits for it, and wakes it (`app::process_tree::adopt`).
//!
//! A capture that is held up while the image is synced, where most of its time goes, lets the app run at once: another thread waits for the
//! disk (`engine/src/sleep/events.rs`). Held up in another call, its app stands still until that returns: only the thread that traces it can let
//! it go.
//!
//! So no app is lost for a disk that hangs, and nothing begins for one while an earlier thread may still act on its files.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use torpor_api::worker::AppRecord;
use torpor_lifecycle::Text;

use super::operation::{Ended, Kind, Operation};
use crate::services::Services;

/// How long an operation that was given up may take to end at the most; never longer than it was allowed to take at all.
const GRACE: Duration = Duration::from_secs(15);
/// What is read or written of images in a second at the least: large ones are given more time.
const BYTES_PER_SECOND: u64 = 16 << 20;

/// The operation of an app's task, and when to look at it.
#[derive(Debug)]
pub(crate) struct Operations {
    record: Arc<AppRecord>,
    services: Arc<Services>,
    current: Option<Arc<Operation>>,
    check_at: Option<Instant>,
    /// Given up, and its thread has not come back.
    held_up: Option<Arc<Operation>>,
    /// It is overdue, and could not be given up or does not end nevertheless.
    stuck: bool,
}

/// What becomes of an operation that has not ended in its time.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Overdue {
    /// It goes on.
    Waited,
    /// It was given up, and should end soon.
    GivenUp(Kind),
    /// It was given up before, and has not ended: nobody waits for it any more, for this reason.
    Abandoned(Kind, Text),
}

impl Operations {
    /// No operation of this app is under way.
    pub(crate) const fn new(record: Arc<AppRecord>, services: Arc<Services>) -> Self {
        Self { record, services, current: None, check_at: None, held_up: None, stuck: false }
    }

    /// An operation begins, which handles so many bytes of an image.
    pub(crate) fn begin(&mut self, kind: Kind, bytes: u64) -> Arc<Operation> {
        let operation = Operation::begin(kind, self.allowed(kind, bytes));
        self.check_at = Some(operation.deadline());
        self.current = Some(operation.clone());
        operation
    }

    /// The one that began has no thread.
    pub(crate) fn forget(&mut self) {
        (self.current, self.check_at, self.stuck) = (None, None, false);
    }

    fn allowed(&self, kind: Kind, bytes: u64) -> Duration {
        let deadlines = &self.services.settings.deadlines;
        let allowed = match kind {
            Kind::Start => deadlines.start,
            Kind::Sleep | Kind::Hibernate => deadlines.sleep,
            Kind::Wake | Kind::Refill => deadlines.wake,
        };
        allowed + Duration::from_secs(bytes / BYTES_PER_SECOND)
    }

    /// For a wake from dozing, whose outcome the task itself waits for: tells when its deadline passes, until what this gives is dropped.
    pub(crate) fn watch_refill(&self, bytes: u64) -> (Arc<Operation>, JoinSet<()>) {
        let operation = Operation::begin(Kind::Refill, self.allowed(Kind::Refill, bytes));
        let (services, record, watched) = (self.services.clone(), self.record.clone(), operation.clone());
        let mut watching = JoinSet::new();
        watching.spawn(async move {
            tokio::time::sleep_until(watched.deadline().into()).await;
            tell(&services, &record, &watched, "; it sleeps until the call returns, or the daemon is restarted");
        });
        (operation, watching)
    }

    /// When the one that is under way is to be looked at.
    pub(crate) const fn check_at(&self) -> Option<Instant> {
        self.check_at
    }

    /// It is overdue, and nobody knows when it ends.
    pub(crate) const fn is_stuck(&self) -> bool {
        self.stuck
    }

    /// What is still held up of an operation that was given up.
    pub(crate) fn held_up(&self) -> Option<Text> {
        self.held_up
            .as_ref()
            .map(|held| format!("an earlier attempt was given up and is held up: {}", held.words()).into())
    }

    /// The outcome of `operation` has come.
    pub(crate) fn ended(&mut self, operation: &Arc<Operation>) -> Ended {
        if self.held_up.as_ref().is_some_and(|held| Arc::ptr_eq(held, operation)) {
            self.held_up = None;
            return Ended::Abandoned;
        }
        self.forget();
        if operation.is_cancelled() { Ended::GivenUp(operation.words().into()) } else { Ended::InTime }
    }

    /// The operation under way should have ended.
    pub(crate) fn overdue(&mut self) -> Overdue {
        let Some(operation) = self.current.clone() else {
            self.check_at = None;
            return Overdue::Waited;
        };
        if self.stuck || !operation.is_cancelled() {
            return self.give_up(&operation);
        }
        // The second time.
        self.check_at = None;
        match operation.kind {
            kind @ (Kind::Wake | Kind::Start) => {
                let reason = operation.words().into();
                self.current = None;
                self.held_up = Some(operation);
                Overdue::Abandoned(kind, reason)
            }
            Kind::Sleep | Kind::Hibernate | Kind::Refill => {
                self.stuck = true;
                Overdue::Waited
            }
        }
    }

    fn give_up(&mut self, operation: &Operation) -> Overdue {
        let given_up = operation.cancel();
        let words = if given_up { "; it is given up" } else { "; it is past the point of giving up" };
        tell(&self.services, &self.record, operation, words);
        if !given_up {
            (self.stuck, self.check_at) = (true, None);
            return Overdue::Waited;
        }
        self.check_at = Some(Instant::now() + GRACE.min(operation.allowed));
        Overdue::GivenUp(operation.kind)
    }
}

/// Tells that an operation has not ended in its time.
fn tell(services: &Services, record: &AppRecord, operation: &Operation, words: &str) {
    let message = format!("{}{words}", operation.words());
    let app = &record.spec.name;
    tracing::error!(app, "{message}");
    services.events.emit(app, "overdue", message, BTreeMap::new());
}
