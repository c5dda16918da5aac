//! From warm to running: the app's processes are built again from their image, on a thread of its own.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::oneshot;
use torpor_engine::{
    Parked, RestoreStep, ResumeError, ResumeOutcome, ResumeRequest, SandboxHandle, Target, Timings, Warm, resume,
};
use torpor_lifecycle::{Event, WakeCause, WakeFailure};
use torpor_sandbox::Sandbox;

use super::parked;
use crate::app::Outcome;
use crate::app::abort_on_panic::AbortOnPanic;
use crate::app::operation::{Commits, Kind, Operation, Steps};
use crate::app::process_tree::freezer::SandboxFreezer;
use crate::app::process_tree::hibernate::home;
use crate::app::process_tree::operate::{chain, text};
use crate::app::process_tree::sleep_state::{SleepState, WarmApp};
use crate::app::task::Task;
use crate::journal::PhaseFile;
use crate::shared::Shared;

/// An app that is being woken: what holds it if that fails.
pub(crate) struct Resuming {
    pub(crate) app: Box<WarmApp>,
    cause: String,
    /// Its place among those that wake at the same time, given back when this is dropped.
    pub(crate) permit: Option<oneshot::Sender<()>>,
    /// How long it waited for that.
    pub(crate) waited: Option<Duration>,
}

/// What became of it.
pub(crate) struct Resumed {
    operation: Arc<Operation>,
    result: Result<ResumeOutcome, ResumeError>,
    timings: Option<Timings<RestoreStep>>,
}

/// Everything that it needs, to be carried to its thread.
struct ResumeJob {
    operation: Arc<Operation>,
    sandbox: Arc<Sandbox>,
    home: SandboxHandle,
    shared: Arc<Shared>,
    journal: Arc<PhaseFile>,
    id: String,
    app: u64,
    image: PathBuf,
    generation: u64,
    /// Its open files, where they are at hand.
    held: Option<Parked>,
    /// Its limit of processes.
    processes: Option<u32>,
}

impl ResumeJob {
    fn run(mut self) -> Resumed {
        let freezer = match SandboxFreezer::building(&self.sandbox, self.processes) {
            Ok(freezer) => freezer,
            Err(error) => {
                let result = Err(ResumeError::Sandbox("lifting its limit of processes", io::Error::other(error)));
                return Resumed { operation: self.operation, result, timings: None };
            }
        };
        let target = Target {
            app: self.app,
            boot: self.shared.boot,
            freezer: &freezer,
            journal: &Commits { operation: &self.operation, journal: &*self.journal },
            faults: &Steps { operation: &self.operation, faults: &self.shared.faults },
        };
        let held = self.held.take();
        let (shared, id) = (&self.shared, &self.id);
        let given = Box::new(|| held.map_or_else(|| parked::parked_files(shared, id), Ok).map_err(io::Error::other));
        let request = ResumeRequest { home: &self.home, image: &self.image, generation: self.generation, given };
        let (result, timings) = resume(&target, request);
        drop(freezer);
        Resumed { operation: self.operation, result, timings: Some(timings) }
    }
}

impl Task {
    /// Begins to build its processes again; gives the outcome only where it cannot begin.
    pub(crate) fn resume(&mut self, mut app: Box<WarmApp>, cause: &WakeCause) -> Option<Event> {
        let Some(sandbox) = self.sandbox.clone() else {
            self.asleep = Some(SleepState::Warm(app));
            return Some(Event::WakeFailed(WakeFailure::Passing(text("it has no sandbox"))));
        };
        self.watch = None;
        self.connection_resets = None;
        let sockets = crate::probes::Sockets::Parked { files: &app.sockets, init: sandbox.init_pid() };
        crate::probes::undefer(&std::mem::take(&mut self.deferred), &sockets);
        let home = match home(&sandbox) {
            Ok(home) => home,
            Err(error) => {
                self.hold(SleepState::Warm(app), SystemTime::now());
                return Some(Event::WakeFailed(WakeFailure::Passing(text(error))));
            }
        };
        let held = app.take_files();
        let Warm { image, generation, image_bytes, .. } = &app.warm;
        let job = ResumeJob {
            operation: self.begin_operation(Kind::Wake, *image_bytes),
            sandbox,
            home,
            shared: self.shared.clone(),
            journal: self.journal.clone(),
            id: self.record.id.clone(),
            app: self.app_number(),
            image: image.clone(),
            generation: *generation,
            held,
            processes: self.record.spec.limits.processes,
        };
        self.resuming = Some(Resuming { app, cause: cause.to_string(), permit: None, waited: None });
        let outcomes = self.outcomes();
        // A pooled thread: it makes those of its own that it needs.
        tokio::task::spawn_blocking(move || {
            let _abort = AbortOnPanic;
            let _ = outcomes.send(Outcome::Resumed(Box::new(job.run())));
        });
        None
    }

    /// Building its processes has ended.
    pub(crate) async fn resumed(&mut self, Resumed { operation, result, timings }: Resumed) {
        let Some(given_up) = self.operation.ended(&operation) else {
            tracing::warn!(app = self.record.spec.name, "a wake that was given up has come to its end");
            return;
        };
        let Some(Resuming { app, cause, permit: _, waited }) = self.resuming.take() else { return };
        let failure = result.as_ref().err().map(|error| given_up.unwrap_or_else(|| chain(error)));
        if let Some(timings) = timings {
            self.wakes.add(cause, &timings, failure.as_ref().map(ToString::to_string));
            if let Some(waited) = waited {
                self.wakes.waited(waited);
            }
        }
        let event = match result {
            Ok(resumed) => {
                self.finish_resume(resumed);
                Event::Woken
            }
            Err(error)
                if error.is_awake() && self.sandbox.as_ref().is_some_and(|sandbox| sandbox.cgroup().thaw().is_ok()) =>
            {
                // Its memory is complete and it is thawed: a detail failed behind that.
                tracing::warn!(app = self.record.spec.name, reason = %chain(&error), "after waking");
                self.finish_resume(ResumeOutcome::default());
                Event::Woken
            }
            Err(error) => {
                let reason = failure.unwrap_or_else(|| chain(&error));
                self.hold(SleepState::Warm(app), SystemTime::now());
                Event::WakeFailed(match () {
                    () if error.is_lost() => WakeFailure::Damaged(reason),
                    () if error.is_refusal() => WakeFailure::Refused(reason),
                    () => WakeFailure::Passing(reason),
                })
            }
        };
        self.tell(event).await;
    }

    /// The small things after a wake, off the path to the first answer: but first of all its files are its own again.
    fn finish_resume(&mut self, mut resumed: ResumeOutcome) {
        self.cached_image = None;
        tokio::task::block_in_place(|| self.forget_parked());
        if let Err(error) = tokio::task::block_in_place(|| resumed.settle()) {
            tracing::warn!(app = self.record.spec.name, error = %chain(&error), "after waking");
        }
        self.memories = resumed.memories;
        if self.sandbox.as_ref().is_some_and(|sandbox| !sandbox.labels().is_empty()) {
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
