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
//! disk (`engine::sleep::events`). Held up in another call, its app stands still until that returns: only the thread that traces it can let
//! it go.
//!
//! So no app is lost for a disk that hangs, and nothing begins for one while an earlier thread may still act on its files.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tokio::task::JoinSet;
use torpor_lifecycle::{Event, StartFailure, Text, WakeFailure};
use torpor_sandbox::cgroup::Cgroup;

use super::operation::{Kind, Operation};
use super::process_tree::operate::chain;
use super::process_tree::sleep_state::SleepState;
use super::task::Task;
use crate::shared::Shared;

/// How long an operation that was given up may take to end at the most; never longer than it was allowed to take at all.
const GRACE: Duration = Duration::from_secs(15);
/// What is read or written of images in a second at the least: large ones are given more time.
const BYTES_PER_SECOND: u64 = 16 << 20;

/// The operation of a task, and when to look at it.
#[derive(Debug, Default)]
pub(super) struct CurrentOperation {
    operation: Option<Arc<Operation>>,
    check_at: Option<Instant>,
    /// Given up, and its thread has not come back.
    held_up: Option<Arc<Operation>>,
    /// It is overdue, and could not be given up or does not end nevertheless.
    stuck: bool,
}

impl CurrentOperation {
    /// When the one that is under way is to be looked at.
    pub(super) const fn check_at(&self) -> Option<Instant> {
        self.check_at
    }

    /// It is overdue, and nobody knows when it ends.
    pub(super) const fn is_stuck(&self) -> bool {
        self.stuck
    }

    /// What is still held up of an operation that was given up.
    pub(super) fn held_up(&self) -> Option<Text> {
        self.held_up
            .as_ref()
            .map(|held| format!("an earlier attempt was given up and is held up: {}", held.words()).into())
    }

    /// The outcome of `operation` has come; why it was given up, if it was. None: somebody else was told already.
    pub(super) fn ended(&mut self, operation: &Arc<Operation>) -> Option<Option<Text>> {
        if self.held_up.as_ref().is_some_and(|held| Arc::ptr_eq(held, operation)) {
            self.held_up = None;
            return None;
        }
        (self.operation, self.check_at, self.stuck) = (None, None, false);
        Some(operation.is_cancelled().then(|| operation.words().into()))
    }
}

/// Tells that an operation has not ended in its time.
fn tell(shared: &Shared, app: &str, operation: &Operation, words: &str) {
    let message = format!("{}{words}", operation.words());
    tracing::error!(app, "{message}");
    shared.events.emit(app, "overdue", message, std::collections::BTreeMap::new());
}

impl Task {
    /// An operation begins, which handles so many bytes of an image.
    pub(super) fn begin_operation(&mut self, kind: Kind, bytes: u64) -> Arc<Operation> {
        let deadlines = &self.shared.config.deadlines;
        let allowed = match kind {
            Kind::Start => deadlines.start,
            Kind::Sleep | Kind::Hibernate => deadlines.sleep,
            Kind::Wake | Kind::Refill => deadlines.wake,
        };
        let operation = Operation::begin(kind, allowed + Duration::from_secs(bytes / BYTES_PER_SECOND));
        self.operation.check_at = Some(operation.deadline());
        self.operation.operation = Some(operation.clone());
        operation
    }

    /// The operation under way should have ended.
    pub(super) async fn overdue(&mut self) {
        let Some(operation) = self.operation.operation.clone() else {
            self.operation.check_at = None;
            return;
        };
        if self.operation.stuck || !operation.is_cancelled() {
            return self.give_up(&operation);
        }
        // The second time.
        self.operation.check_at = None;
        match operation.kind {
            Kind::Wake => {
                let Some(resuming) = self.resuming.take() else { return };
                self.operation.operation = None;
                self.operation.held_up = Some(operation.clone());
                self.hold(SleepState::Warm(resuming.app), SystemTime::now());
                self.tell(Event::WakeFailed(WakeFailure::Passing(operation.words().into()))).await;
            }
            Kind::Start => {
                self.operation.operation = None;
                self.operation.held_up = Some(operation.clone());
                self.tell(Event::StartFailed(StartFailure { reason: operation.words().into(), status: None })).await;
            }
            Kind::Sleep | Kind::Hibernate | Kind::Refill => self.operation.stuck = true,
        }
    }

    /// For a wake from dozing, whose outcome the task itself waits for: tells when its deadline passes, until what this gives is dropped.
    pub(super) fn watch_refill(&self, bytes: u64) -> (Arc<Operation>, JoinSet<()>) {
        let allowed = self.shared.config.deadlines.wake + Duration::from_secs(bytes / BYTES_PER_SECOND);
        let operation = Operation::begin(Kind::Refill, allowed);
        let (shared, name, watched) = (self.shared.clone(), self.record.spec.name.clone(), operation.clone());
        let mut watching = JoinSet::new();
        watching.spawn(async move {
            tokio::time::sleep_until(watched.deadline().into()).await;
            tell(&shared, &name, &watched, "; it sleeps until the call returns, or the daemon is restarted");
        });
        (operation, watching)
    }

    fn give_up(&mut self, operation: &Operation) {
        let name = self.record.spec.name.clone();
        let given_up = operation.cancel();
        let words = if given_up { "; it is given up" } else { "; it is past the point of giving up" };
        tell(&self.shared, &name, operation, words);
        if !given_up {
            (self.operation.stuck, self.operation.check_at) = (true, None);
            return;
        }
        self.operation.check_at = Some(Instant::now() + GRACE.min(operation.allowed));
        if let Some(abort) = &self.abort {
            abort.ask();
        }
        let (shared, id, sandbox) = (self.shared.clone(), self.record.id.clone(), self.sandbox.clone());
        let kind = operation.kind;
        // On a thread of its own: what is killed may take long to end.
        tokio::task::spawn_blocking(move || {
            let ended = match (kind, sandbox) {
                // Its commit was refused, so it has none but half-built processes.
                (Kind::Wake, Some(sandbox)) => sandbox.end_processes().map_err(|error| chain(&error)),
                (Kind::Start, _) => {
                    let group = Cgroup::at(shared.launcher.hierarchies(), &shared.config.instance, &id);
                    group.kill().map_err(|error| chain(&error))
                }
                _ => Ok(()),
            };
            if let Err(error) = ended {
                tracing::error!(app = name, %error, "ending what was given up");
            }
        });
    }
}
