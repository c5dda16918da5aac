//! From dozing to warm: the app's processes are ended, and only their image is left.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use torpor_engine::{
    Abort, Asleep, HibernateError, HibernateOutcome, HibernateRequest, Ids, SandboxHandle, SleepError, Target, Timings,
    hibernate,
};
use torpor_lifecycle::{Event, Retry, SleepCause, WakeCause};
use torpor_sandbox::{ID_COUNT, Sandbox};

use crate::app::Outcome;
use crate::app::abort_on_panic::AbortOnPanic;
use crate::app::adoption::AdoptError;
use crate::app::deadlines::CurrentOperation;
use crate::app::operation::{Commits, Kind, Operation, Steps};
use crate::app::process_tree::freezer::SandboxFreezer;
use crate::app::process_tree::operate::{NotifyingJournal, chain, text, why_not};
use crate::app::process_tree::parked::{self, KeeperParking};
use crate::app::process_tree::sleep_state::{SleepState, WarmApp};
use crate::app::process_tree::usage;
use crate::app::task::Task;
use crate::clock;
use crate::shared::Shared;
use crate::space;

/// What an image takes beside memory, about.
const DESCRIPTION_BYTES: u64 = 256 << 10;

/// What became of an app that was to go warm, with what was known of it while it dozed.
pub(crate) struct Hibernated {
    asleep: Box<Asleep>,
    hibernated: HibernateOutcome,
}

/// Everything that going warm needs, to be carried to its thread.
struct HibernateJob {
    operation: Arc<Operation>,
    sandbox: Arc<Sandbox>,
    home: SandboxHandle,
    shared: Arc<Shared>,
    id: String,
    app: u64,
    journal: NotifyingJournal,
    image: std::path::PathBuf,
    generation: u64,
    abort: Abort,
    asleep: Box<Asleep>,
}

/// Where an app's processes live, for the engine.
pub(crate) fn home(sandbox: &Sandbox) -> io::Result<SandboxHandle> {
    Ok(SandboxHandle {
        init: sandbox.pidfd().try_clone_to_owned()?,
        init_pid: sandbox.init_pid(),
        init_start_ticks: sandbox.init_start_ticks(),
        initial: sandbox.initial_inside(),
        cgroup: sandbox.cgroup().core().to_owned(),
        tasks: sandbox.cgroup().tasks_files(),
        user_namespace: sandbox.ids().map(|ids| Ids { first: ids.base, count: ID_COUNT }),
        time_namespace: sandbox.has_time_namespace(),
    })
}

impl HibernateJob {
    fn run(self) -> Hibernated {
        // Once its memory is back it can only run on.
        if let Err(reason) = self.has_room() {
            let result = Err(HibernateError::Dozing(vec![reason]));
            let hibernated = HibernateOutcome { result, timings: Timings::begin(), memories: None };
            return Hibernated { asleep: self.asleep, hibernated };
        }
        let freezer = SandboxFreezer::of(&self.sandbox);
        let target = Target {
            app: self.app,
            boot: self.shared.boot,
            freezer: &freezer,
            journal: &Commits { operation: &self.operation, journal: &self.journal },
            faults: &Steps { operation: &self.operation, faults: &self.shared.faults },
        };
        let parking = KeeperParking { shared: &self.shared, id: &self.id };
        let request = HibernateRequest {
            home: &self.home,
            image: self.image,
            generation: self.generation,
            abort: &self.abort,
            parking: &parking,
        };
        let hibernated = hibernate(&target, &self.asleep, &request);
        Hibernated { asleep: self.asleep, hibernated }
    }

    /// Whether the disk has room for its complete image: what is in its dozing image, and the memory that has stayed. Or why not.
    fn has_room(&self) -> Result<(), String> {
        let kept = self.sandbox.cgroup().processes().map_err(io::Error::other).and_then(|pids| usage::usage(&pids));
        let kept_bytes = kept.map(|usage| usage.private_bytes + usage.shmem_bytes);
        let kept_bytes = kept_bytes.map_err(|error| format!("its memory cannot be measured: {error}"))?;
        let bytes = self.asleep.image_bytes + kept_bytes + DESCRIPTION_BYTES;
        let mut part = self.image.clone().into_os_string();
        part.push(".part");
        space::has_room(Path::new(&part), bytes).map_err(|error| match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                format!("its image needs about {} KiB, and {}: {error}", bytes >> 10, space::NO_ROOM)
            }
            _ => format!("its image cannot be written: {error}"),
        })
    }
}

impl Task {
    pub(crate) fn begin_hibernate(&mut self, cause: SleepCause) {
        let outcomes = self.outcomes();
        let refused = |reason: String| {
            let event = Event::HibernateRefused { reasons: vec![reason.into()], retry: Retry::Later, dozes: true };
            // The task itself receives it.
            let _ = outcomes.send(Outcome::Event(event));
        };
        let (Some(SleepState::Dozing(_)), Some(sandbox)) = (&self.asleep, self.sandbox.clone()) else {
            return refused("it does not doze".to_owned());
        };
        if !sandbox.labels().is_empty() {
            let reason =
                "its AppArmor profile or SELinux context would be lost ([security] in the daemon's configuration)";
            let event = Event::HibernateRefused { reasons: vec![text(reason)], retry: Retry::Pointless, dozes: true };
            // The task itself receives it.
            let _ = outcomes.send(Outcome::Event(event));
            return;
        }
        let (home, abort) = match home(&sandbox).and_then(|home| Ok((home, Abort::new()?))) {
            Ok(made) => made,
            Err(error) => return refused(error.to_string()),
        };
        let Some(SleepState::Dozing(asleep)) = self.asleep.take() else { return };
        // The image describes its listeners as the program has made them. Wherever it sleeps then, they are set anew.
        crate::probes::undefer(&std::mem::take(&mut self.deferred), &crate::probes::Sockets::OfProcesses);
        self.sleep_cause = cause.to_string();
        // The engine watches from here on.
        self.watch = None;
        self.abort = Some(abort.clone());
        let generation = self.generation;
        self.generation += 1;
        let operation = self.begin_operation(Kind::Hibernate, asleep.image_bytes);
        let job = HibernateJob {
            operation: operation.clone(),
            sandbox,
            home,
            shared: self.shared.clone(),
            id: self.record.id.clone(),
            app: self.app_number(),
            journal: NotifyingJournal { file: self.journal.clone(), outcomes: outcomes.clone() },
            image: self.files.image(generation),
            generation,
            abort,
            asleep,
        };
        // A thread of its own: tracing belongs to a thread, and it blocks.
        let name = format!("hibernate-{}", self.record.spec.name);
        let (jobs, job_of_thread) = std::sync::mpsc::channel::<HibernateJob>();
        let sender = outcomes.clone();
        let spawned = std::thread::Builder::new().name(name).spawn(move || {
            let _abort = AbortOnPanic;
            if let Ok(job) = job_of_thread.recv() {
                let _ = sender.send(Outcome::Hibernated(operation, Box::new(job.run())));
            }
        });
        match spawned {
            // The thread waits for just this.
            Ok(_) => drop(jobs.send(job)),
            Err(error) => {
                self.abort = None;
                self.operation = CurrentOperation::default();
                self.hold(SleepState::Dozing(job.asleep), SystemTime::now());
                refused(error.to_string());
            }
        }
    }

    /// Going warm has ended.
    pub(crate) async fn hibernated(
        &mut self,
        operation: &Arc<Operation>,
        Hibernated { asleep, hibernated }: Hibernated,
    ) {
        let given_up = self.operation.ended(operation).flatten();
        self.abort = None;
        let HibernateOutcome { result, timings, memories } = hibernated;
        let cause = std::mem::take(&mut self.sleep_cause);
        self.sleeps.add(cause, &timings, result.as_ref().err().map(|error| why_not(error).to_string()));
        let old_image = asleep.image.clone();
        match result {
            Ok(warm) => {
                for warning in &warm.warnings {
                    tracing::info!(app = self.record.spec.name, %warning, "what a reboot would not bring back");
                }
                let next_timer = warm.wake_at.map(clock::millis);
                let watch = asleep.watch;
                self.hold(SleepState::Warm(Box::new(WarmApp::new(warm, watch))), SystemTime::now());
                self.remove_image(&old_image);
                self.tell(Event::Hibernated { next_timer }).await;
                let _housed_again_otherwise = self.check_parked();
            }
            Err(HibernateError::Dozing(reasons)) => {
                self.hold(SleepState::Dozing(asleep), self.asleep_since);
                let reasons = given_up.into_iter().chain(reasons.into_iter().map(Into::into)).collect();
                self.tell(Event::HibernateRefused { reasons, retry: Retry::Later, dozes: true }).await;
            }
            Err(HibernateError::Awake(error)) => {
                if let Some(memories) = memories {
                    self.memories = memories;
                }
                self.cached_image = None;
                self.forget_parked();
                self.remove_image(&old_image);
                match error {
                    SleepError::Aborted(_) | SleepError::Failed { .. } if given_up.is_some() => {
                        let reasons = given_up.into_iter().collect();
                        self.tell(Event::HibernateRefused { reasons, retry: Retry::Later, dozes: false }).await;
                    }
                    SleepError::Aborted(by) => {
                        self.tell(Event::HibernateAborted(WakeCause::Packet(by.into()))).await;
                    }
                    error => {
                        let reasons = vec![why_not(&error)];
                        self.tell(Event::HibernateRefused { reasons, retry: Retry::Later, dozes: false }).await;
                    }
                }
            }
            Err(HibernateError::Lost(error)) => {
                // Frozen, with a part of its memory: never run it so.
                let reason = chain(&error);
                self.lost = Some(reason.clone());
                self.tell(Event::HibernateFailed(reason)).await;
            }
            Err(error) => {
                // Behind the commit: the image is whole, and what is left of its processes is ended by the next attempt.
                tracing::error!(app = self.record.spec.name, error = %chain(&error), "ending its processes");
                self.end_again(asleep.watch).await;
            }
        }
    }

    /// Its image is complete and its processes are not all ended: tries that again, as a new worker would.
    async fn end_again(&mut self, watch: torpor_engine::Watch) {
        match tokio::task::block_in_place(|| self.recovered()) {
            Ok((torpor_engine::Recovered::Warm(warm), _)) => {
                let next_timer = warm.wake_at.map(clock::millis);
                self.hold(SleepState::Warm(Box::new(WarmApp::new(warm, watch))), SystemTime::now());
                self.tell(Event::Hibernated { next_timer }).await;
                let _housed_again_otherwise = self.check_parked();
            }
            // There is nothing left to wake then.
            Ok(_) => self.tell(Event::HibernateFailed(text("its processes were not ended; it runs on"))).await,
            Err(AdoptError::Lost(reason) | AdoptError::Unknown(reason)) => {
                // The image may be right, and is kept.
                self.quarantine_images();
                self.lost = Some(reason.clone());
                self.tell(Event::HibernateFailed(reason)).await;
            }
        }
    }

    /// Its program runs: what is parked of it is given up.
    pub(crate) fn forget_parked(&self) {
        for dropped in
            [parked::drop_files(&self.shared, &self.record.id), parked::drop_watch(&self.shared, &self.record.id)]
        {
            if let Err(error) = dropped {
                let name = &self.record.spec.name;
                tracing::warn!(app = name, error = %chain(&error), "forgetting its parked descriptors");
            }
        }
    }

    fn remove_image(&self, image: &Path) {
        match std::fs::remove_file(image) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(app = self.record.spec.name, image = %image.display(), %error, "removing an old image");
            }
            _ => {}
        }
    }
}
