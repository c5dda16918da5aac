//! From warm to running: the app's processes are built again from their image, on a thread of its own.

use std::io;
use std::sync::Arc;
use std::time::SystemTime;

use torpor_engine::{Parked, RestoreStep, ResumeError, ResumeOutcome, ResumeRequest, SandboxHandle, Timings, resume};
use torpor_lifecycle::{Event, WakeCause, WakeFailure};
use torpor_sandbox::Sandbox;
use torpor_store::{Image, Owner};

use super::freezer::SandboxFreezer;
use super::lazy::{LazyPagers, LazyWake};
use super::learned::Learned;
use super::sandbox_handle::sandbox_handle;
use super::sleep_state::{SleepState, WarmApp};
use super::target::with_target;
use super::texts::{chain, text};
use super::{Message, Outcome, ProcessTree, parked};
use crate::app::abort_on_panic::AbortOnPanic;
use crate::app::deadlines::Operations;
use crate::app::history::Entry;
use crate::app::operation::{Ended, Kind, Operation};
use crate::app::workload::{Report, Wake};
use crate::journal::PhaseFile;
use crate::shared::Shared;

/// What became of it.
pub(crate) struct Resumed {
    result: Result<ResumeOutcome, ResumeError>,
    timings: Option<Timings<RestoreStep>>,
    /// What brings the rest of its memory.
    lazy: Option<Arc<LazyWake>>,
}

/// It has not run, or another wake took its place.
fn stop(lazy: Option<Arc<LazyWake>>) {
    if let Some(lazy) = lazy {
        tokio::task::block_in_place(|| lazy.stop());
    }
}

/// Everything that it needs, to be carried to its thread.
struct ResumeJob {
    operation: Arc<Operation>,
    sandbox: Arc<Sandbox>,
    home: SandboxHandle,
    shared: Arc<Shared>,
    journal: Arc<PhaseFile>,
    id: String,
    owner: Owner,
    image: Image,
    /// Its open files, where they are at hand.
    held: Option<Parked>,
    /// Its limit of processes.
    processes: Option<u32>,
    /// Why it wakes.
    cause: String,
    /// It may run before all of its memory is back.
    lazy: Option<LazyPagers>,
    learned: Arc<Learned>,
}

impl ResumeJob {
    fn run(mut self) -> Resumed {
        let freezer = match SandboxFreezer::building(&self.sandbox, self.processes) {
            Ok(freezer) => freezer,
            Err(error) => {
                let result = Err(ResumeError::Sandbox("lifting its limit of processes", io::Error::other(error)));
                return Resumed { result, timings: None, lazy: None };
            }
        };
        let held = self.held.take();
        let (shared, id) = (&self.shared, &self.id);
        let given = Box::new(|| held.map_or_else(|| parked::parked_files(shared, id), Ok).map_err(io::Error::other));
        let give_up = Box::new(|| {
            if let Err(error) = parked::drop_files(shared, id) {
                tracing::warn!(id, error = %chain(&error), "giving up its parked files");
            }
        });
        let lazy = self.lazy.as_ref().and_then(|pagers| self.learned.way(&self.cause, pagers));
        let request = ResumeRequest { home: &self.home, image: &self.image, given, give_up, lazy };
        let faults = &shared.faults;
        let (result, timings) = with_target(self.owner, &self.operation, &freezer, &*self.journal, faults, |target| {
            resume(target, request)
        });
        drop(freezer);
        if self.lazy.is_some() && result.as_ref().is_ok_and(|resumed| !resumed.is_lazy()) {
            self.learned.pass(&self.cause);
        }
        let lazy = self.lazy.and_then(LazyPagers::into_wake);
        let runs = result.as_ref().map_or_else(ResumeError::is_awake, |_| true);
        if let (Some(lazy), true) = (&lazy, runs) {
            lazy.thawed();
        }
        Resumed { result, timings: Some(timings), lazy }
    }
}

impl ProcessTree {
    /// Begins to build its processes again; gives the outcome only where it cannot begin.
    pub(super) fn resume(&mut self, mut app: Box<WarmApp>, cause: &WakeCause, operations: &mut Operations) -> Wake {
        let Some(sandbox) = self.run.sandbox.clone() else {
            self.sleep.state = Some(SleepState::Warm(app));
            return Wake::failed(WakeFailure::Passing(text("it has no sandbox")));
        };
        self.sleep.watch = None;
        self.connection_resets = None;
        let sockets = crate::probes::Sockets::Parked { files: &app.sockets, init: sandbox.init_pid() };
        crate::probes::undefer(&std::mem::take(&mut self.sleep.deferred), &sockets);
        let home = match sandbox_handle(&sandbox) {
            Ok(home) => home,
            Err(error) => {
                self.hold(SleepState::Warm(app), SystemTime::now());
                return Wake::failed(WakeFailure::Passing(text(error)));
            }
        };
        let held = app.take_files();
        let (image, cause) = (app.warm.image.clone(), cause.to_string());
        let lazy = self.sleep.contexts_held.then(|| LazyPagers::new(self, &sandbox, image, &cause));
        let operation = operations.begin(Kind::Wake, app.warm.image_bytes);
        let job = ResumeJob {
            operation: operation.clone(),
            sandbox,
            home,
            shared: self.shared.clone(),
            journal: self.journal.clone(),
            id: self.record.id.clone(),
            owner: self.owner(),
            image: app.warm.image.clone(),
            held,
            processes: self.record.spec.limits.processes,
            cause,
            lazy,
            learned: self.learned.clone(),
        };
        self.resuming = Some(app);
        let sender = self.sender.clone();
        // A pooled thread: it makes those of its own that it needs.
        tokio::task::spawn_blocking(move || {
            let _abort = AbortOnPanic;
            let _ = sender.send(Message::Ended(operation, Box::new(Outcome::Resumed(job.run()))));
        });
        Wake::UnderWay
    }

    /// Building its processes has ended.
    pub(super) fn resumed(&mut self, resumed: Resumed, ended: Ended) -> Option<Report> {
        let Resumed { result, timings, lazy } = resumed;
        if ended == Ended::Abandoned {
            tracing::warn!(app = self.record.spec.name, "a wake that was given up has come to its end");
            stop(lazy);
            return None;
        }
        let app = self.resuming.take()?;
        let failure = result.as_ref().err().map(|error| ended.given_up().unwrap_or_else(|| chain(error)));
        let entry = timings.map(|timings| Entry::new(&timings, failure.as_ref().map(ToString::to_string)));
        let event = match result {
            Ok(resumed) => {
                let lazy = lazy.filter(|_| resumed.is_lazy());
                self.lazy.clone_from(&lazy);
                self.finish_resume(resumed);
                self.runs_lazily(lazy);
                Event::Woken
            }
            Err(error)
                if error.is_awake()
                    && self.run.sandbox.as_ref().is_some_and(|sandbox| sandbox.cgroup().thaw().is_ok()) =>
            {
                // Its memory is complete and it is thawed: a detail failed behind that.
                tracing::warn!(app = self.record.spec.name, reason = %chain(&error), "after waking");
                self.lazy.clone_from(&lazy);
                self.finish_resume(ResumeOutcome::default());
                self.runs_lazily(lazy);
                Event::Woken
            }
            Err(error) => {
                let reason = failure.unwrap_or_else(|| chain(&error));
                let was_lazy = lazy.is_some();
                stop(lazy);
                self.hold(SleepState::Warm(app), SystemTime::now());
                // The next attempt does without.
                self.sleep.contexts_held &= !was_lazy && !error.is_of_pager();
                Event::WakeFailed(match () {
                    () if error.is_lost() => WakeFailure::Damaged(self.lost_because(&reason)),
                    () if error.is_refusal() => WakeFailure::Refused(reason),
                    () => WakeFailure::Passing(reason),
                })
            }
        };
        Some(Report { event, entry, fault: None })
    }

    /// The small things after a wake, off the path to the first answer. Its parked files were given up before it ran, unless the wake failed just then.
    fn finish_resume(&mut self, mut resumed: ResumeOutcome) {
        self.sleep.cached_image = None;
        tokio::task::block_in_place(|| self.forget_parked());
        if let Err(error) = tokio::task::block_in_place(|| resumed.settle()) {
            tracing::warn!(app = self.record.spec.name, error = %chain(&error), "after waking");
        }
        self.memories = resumed.memories;
        if self.run.sandbox.as_ref().is_some_and(|sandbox| !sandbox.labels().is_empty()) {
            // It went warm before the daemon was told of labels, or came from another machine.
            tracing::warn!(
                app = self.record.spec.name,
                "runs without its AppArmor profile or SELinux context until a restart"
            );
        }
        for warning in resumed.warnings {
            tracing::warn!(app = self.record.spec.name, %warning, "after waking");
        }
    }
}
