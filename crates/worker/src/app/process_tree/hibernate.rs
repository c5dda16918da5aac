//! From dozing to warm: the app's processes are ended, and only their image is left.

use std::io;
use std::sync::Arc;
use std::time::SystemTime;

use torpor_engine::{
    Abort, Asleep, HibernateError, HibernateOutcome, HibernateRequest, Pagers, Recovered, SandboxHandle, SleepError,
    Timings, Warm, Watch, hibernate,
};
use torpor_lifecycle::{Event, Retry, Text, WakeCause};
use torpor_sandbox::Sandbox;
use torpor_store::{Image, Owner};

use super::adopt_error::AdoptError;
use super::freezer::SandboxFreezer;
use super::lazy::{LazyPagers, LazyWake};
use super::learned::Learned;
use super::notifying_journal::NotifyingJournal;
use super::parked::KeeperParking;
use super::sandbox_handle::sandbox_handle;
use super::sleep_state::{SleepState, WarmApp};
use super::target::with_target;
use super::texts::{chain, text, why_not};
use super::{Message, Outcome, ProcessTree, usage};
use crate::app::abort_on_panic::AbortOnPanic;
use crate::app::deadlines::Operations;
use crate::app::history::Entry;
use crate::app::operation::{Ended, Kind, Operation};
use crate::app::workload::Report;
use crate::clock;
use crate::shared::Shared;
use crate::space;

/// What an image takes beside memory, about.
const DESCRIPTION_BYTES: u64 = 256 << 10;

/// What became of an app that was to go warm, with what was known of it while it dozed.
pub(crate) struct Hibernated {
    asleep: Box<Asleep>,
    hibernated: HibernateOutcome,
    /// It is awake, and this brings the rest of its memory.
    lazy: Option<Arc<LazyWake>>,
}

/// Everything that going warm needs, to be carried to its thread.
struct HibernateJob {
    operation: Arc<Operation>,
    sandbox: Arc<Sandbox>,
    home: SandboxHandle,
    shared: Arc<Shared>,
    id: String,
    owner: Owner,
    journal: NotifyingJournal,
    image: Image,
    abort: Abort,
    asleep: Box<Asleep>,
    learned: Arc<Learned>,
    /// A part of its memory may stay missing.
    lazy: Option<LazyPagers>,
}

impl HibernateJob {
    fn run(self) -> Hibernated {
        // Once its memory is back it can only run on.
        if let Err(reason) = self.has_room() {
            let result = Err(HibernateError::Dozing(vec![reason]));
            let hibernated = HibernateOutcome { result, timings: Timings::begin(), memories: None, is_lazy: false };
            return Hibernated { asleep: self.asleep, hibernated, lazy: None };
        }
        let freezer = SandboxFreezer::of(&self.sandbox);
        let parking = KeeperParking { shared: &self.shared, id: &self.id };
        let pids = self.sandbox.cgroup().processes().unwrap_or_default();
        let expected = self.learned.expected(&pids);
        let request = HibernateRequest {
            home: &self.home,
            image: self.image.clone(),
            abort: &self.abort,
            parking: &parking,
            expected: &expected,
            pagers: self.lazy.as_ref().map(|pagers| pagers as &dyn Pagers),
        };
        let faults = &self.shared.faults;
        let hibernated = with_target(self.owner, &self.operation, &freezer, &self.journal, faults, |target| {
            hibernate(target, &self.asleep, &request)
        });
        let runs = hibernated.is_lazy && matches!(hibernated.result, Err(HibernateError::Awake(_)));
        let mut lazy = self.lazy.and_then(LazyPagers::into_wake);
        match &lazy {
            Some(wake) if runs => wake.thawed(),
            Some(wake) => wake.stop(),
            None => {}
        }
        lazy = lazy.filter(|_| runs);
        Hibernated { asleep: self.asleep, hibernated, lazy }
    }

    /// Whether the disk has room for its complete image: what is in its dozing image, and the memory that has stayed. Or why not.
    fn has_room(&self) -> Result<(), String> {
        let kept = self.sandbox.cgroup().processes().map_err(io::Error::other).and_then(|pids| usage::usage(&pids));
        let kept_bytes = kept.map(|usage| usage.private_bytes + usage.shmem_bytes);
        let kept_bytes = kept_bytes.map_err(|error| format!("its memory cannot be measured: {error}"))?;
        let bytes = self.asleep.image_bytes + kept_bytes + DESCRIPTION_BYTES;
        self.image.has_room(bytes).map_err(|error| match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                format!("its image needs about {} KiB, and {}: {error}", bytes >> 10, space::NO_ROOM)
            }
            _ => format!("its image cannot be written: {error}"),
        })
    }
}

impl ProcessTree {
    pub(super) fn begin_hibernate(&mut self, operations: &mut Operations) {
        let (Some(SleepState::Dozing(_)), Some(sandbox)) = (&self.sleep.state, self.run.sandbox.clone()) else {
            return self.report(not_begun(text("it does not doze"), Retry::Later));
        };
        if !sandbox.labels().is_empty() {
            let reason =
                "its AppArmor profile or SELinux context would be lost ([security] in the daemon's configuration)";
            return self.report(not_begun(text(reason), Retry::Pointless));
        }
        let (home, abort) = match sandbox_handle(&sandbox).and_then(|home| Ok((home, Abort::new()?))) {
            Ok(made) => made,
            Err(error) => return self.report(not_begun(text(error), Retry::Later)),
        };
        let Some(SleepState::Dozing(asleep)) = self.sleep.state.take() else { return };
        self.sleep.dozes = None;
        // The image describes its listeners as the program has made them. Wherever it sleeps then, they are set anew.
        crate::probes::undefer(&std::mem::take(&mut self.sleep.deferred), &crate::probes::Sockets::OfProcesses);
        // The engine watches from here on.
        self.sleep.watch = None;
        self.abort = Some(abort.clone());
        let image = asleep.image.clone();
        let lazy = self.sleep.contexts_held.then(|| LazyPagers::new(self, &sandbox, image, ""));
        let generation = self.generation;
        self.generation += 1;
        let operation = operations.begin(Kind::Hibernate, asleep.image_bytes);
        let job = HibernateJob {
            operation: operation.clone(),
            sandbox,
            home,
            shared: self.shared.clone(),
            id: self.record.id.clone(),
            owner: self.owner(),
            journal: NotifyingJournal { file: self.journal.clone(), sender: self.sender.clone() },
            image: self.files.images.image(generation),
            abort,
            asleep,
            learned: self.learned.clone(),
            lazy,
        };
        // A thread of its own: tracing belongs to a thread, and it blocks.
        let name = format!("hibernate-{}", self.record.spec.name);
        let (jobs, job_of_thread) = std::sync::mpsc::channel::<HibernateJob>();
        let sender = self.sender.clone();
        let spawned = std::thread::Builder::new().name(name).spawn(move || {
            let _abort = AbortOnPanic;
            if let Ok(job) = job_of_thread.recv() {
                let _ = sender.send(Message::Ended(operation, Box::new(Outcome::Hibernated(job.run()))));
            }
        });
        match spawned {
            // The thread waits for just this.
            Ok(_) => drop(jobs.send(job)),
            Err(error) => {
                self.abort = None;
                operations.forget();
                self.hold(SleepState::Dozing(job.asleep), SystemTime::now());
                self.report(not_begun(text(error), Retry::Later));
            }
        }
    }

    /// Going warm has ended.
    pub(super) fn hibernated(&mut self, hibernated: Hibernated, ended: Ended) -> Report {
        let Hibernated { asleep, hibernated, lazy } = hibernated;
        self.abort = None;
        let HibernateOutcome { result, timings, memories, is_lazy: _ } = hibernated;
        let entry = Entry::new(&timings, result.as_ref().err().map(|error| why_not(error).to_string()));
        let old_image = asleep.image.clone();
        let event = match result {
            Ok(warm) => {
                for warning in &warm.warnings {
                    tracing::info!(app = self.record.spec.name, %warning, "what a reboot would not bring back");
                }
                let event = self.hold_warm(warm, asleep.watch);
                self.remove_image(&old_image);
                event
            }
            Err(HibernateError::Dozing(reasons)) => {
                self.hold(SleepState::Dozing(asleep), self.sleep.since);
                let reasons = ended.given_up().into_iter().chain(reasons.into_iter().map(Into::into)).collect();
                Event::HibernateRefused { reasons, retry: Retry::Later, dozes: true }
            }
            Err(HibernateError::Awake(error)) => {
                if let Some(memories) = memories {
                    self.memories = memories;
                }
                self.sleep.cached_image = None;
                self.lazy.clone_from(&lazy);
                self.forget_parked();
                if lazy.is_none() {
                    self.remove_image(&old_image);
                }
                self.runs_lazily(lazy);
                awake_instead(error, ended)
            }
            Err(HibernateError::Lost(error)) => {
                // Frozen, with a part of its memory: never run it so.
                let reason = chain(&error);
                self.lost = Some(reason.clone());
                Event::HibernateFailed(reason)
            }
            Err(error) => {
                // Behind the commit: the image is whole, and what is left of its processes is ended by the next attempt.
                tracing::error!(app = self.record.spec.name, error = %chain(&error), "ending its processes");
                self.end_again(asleep.watch)
            }
        };
        Report::with_entry(event, entry)
    }

    fn hold_warm(&mut self, warm: Warm, watch: Watch) -> Event {
        let next_timer = warm.wake_at.map(clock::millis);
        self.hold(SleepState::Warm(Box::new(WarmApp::new(warm, watch))), SystemTime::now());
        Event::Hibernated { next_timer }
    }

    /// Its image is complete and its processes are not all ended: tries that again, as a new worker would.
    fn end_again(&mut self, watch: Watch) -> Event {
        match tokio::task::block_in_place(|| self.recovered()) {
            Ok((Recovered::Warm(warm), _)) => self.hold_warm(warm, watch),
            // There is nothing left to wake then.
            Ok(_) => Event::HibernateFailed(text("its processes were not ended; it runs on")),
            Err(AdoptError::Lost(reason) | AdoptError::Unknown(reason)) => {
                // The image may be right, and is kept.
                self.quarantine_images();
                self.lost = Some(reason.clone());
                Event::HibernateFailed(reason)
            }
        }
    }

    fn remove_image(&self, image: &Image) {
        if let Err(error) = image.remove() {
            tracing::warn!(app = self.record.spec.name, image = %image.path().display(), %error, "removing an old image");
        }
    }
}

/// What the machine is told where nothing was touched: it dozes on.
fn not_begun(reason: Text, retry: Retry) -> Event {
    Event::HibernateRefused { reasons: vec![reason], retry, dozes: true }
}

/// What the machine is told where it runs instead.
fn awake_instead(error: SleepError, ended: Ended) -> Event {
    let refused = |reason| Event::HibernateRefused { reasons: vec![reason], retry: Retry::Later, dozes: false };
    match (error, ended.given_up()) {
        (SleepError::Aborted(_) | SleepError::Failed { .. }, Some(given_up)) => refused(given_up),
        (SleepError::Aborted(by), _) => Event::HibernateAborted(WakeCause::Packet(by.into())),
        (error, _) => refused(why_not(&error)),
    }
}
