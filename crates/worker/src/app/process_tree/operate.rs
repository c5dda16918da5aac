//! Sleeping, waking and ending: what the machine decides, done to processes and images.

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use torpor_api::spec::WakeOn;
use torpor_engine::{
    Abort, Asleep, Attempt, Journal, Phase, Request, SleepError, Source, Step, Target, fall_asleep, wake,
};
use torpor_lifecycle::{Event, Exit, Observation, Retry, SleepCause, Text, WakeCause, WakeFailure};
use torpor_sandbox::{ExitStatus, Sandbox};

use crate::app::Outcome;
use crate::app::abort_on_panic::AbortOnPanic;
use crate::app::deadlines::CurrentOperation;
use crate::app::operation::{Commits, Kind, Operation, Steps};
use crate::app::process_tree::freezer::SandboxFreezer;
use crate::app::process_tree::kill::KillAttempts;
use crate::app::process_tree::sleep_state::SleepState;
use crate::app::process_tree::usage;
use crate::app::task::Task;
use crate::clock;
use crate::journal::{Owner, PhaseFile};
use crate::shared::Shared;

/// A buffer for waking that is kept between wakes; a larger one is given back.
const KEPT_BUFFER_BYTES: usize = 1 << 20;

/// The journal, which also tells the task of commits.
pub(crate) struct NotifyingJournal {
    pub(crate) file: Arc<PhaseFile>,
    pub(crate) outcomes: tokio::sync::mpsc::UnboundedSender<Outcome>,
}

impl Journal for NotifyingJournal {
    fn record(&self, phase: Phase) -> io::Result<()> {
        self.file.record(phase)?;
        let committed = match phase {
            Phase::Dropping { .. } => Event::CaptureCommitted,
            Phase::Ending { .. } => Event::HibernateCommitted,
            Phase::Awake | Phase::Dozing { .. } | Phase::Warm { .. } => return Ok(()),
        };
        // The task lives as long as an operation of its own runs.
        let _ = self.outcomes.send(Outcome::Event(committed));
        Ok(())
    }
}

pub(crate) fn text(words: impl std::fmt::Display) -> Text {
    words.to_string().into()
}

pub(crate) fn chain(error: &(dyn std::error::Error + 'static)) -> Text {
    torpor_api::error::chain(error).into()
}

/// An app's number in images.
pub(crate) fn app_number(id: &str) -> u64 {
    u64::from_str_radix(id, 16).unwrap_or_default()
}

/// Why it did not go to sleep; a full disk first, and what to do about it.
pub(crate) fn why_not(error: &(dyn std::error::Error + 'static)) -> Text {
    let mut source = Some(error);
    while let Some(cause) = source {
        let kind = cause.downcast_ref::<io::Error>().map(io::Error::kind);
        if matches!(kind, Some(io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)) {
            return text(format!("{}: {}", crate::space::NO_ROOM, chain(error)));
        }
        source = cause.source();
    }
    chain(error)
}

impl Task {
    pub(crate) fn app_number(&self) -> u64 {
        app_number(&self.record.id)
    }

    /// Whose phases and images are the app's.
    pub(crate) fn owner(&self) -> Owner {
        Owner { app: self.app_number(), boot: self.shared.boot }
    }

    pub(crate) fn begin_capture(&mut self, cause: SleepCause) {
        self.sleep_cause = cause.to_string();
        let outcomes = self.outcomes();
        let Some(sandbox) = self.sandbox.clone() else {
            let refused = Event::CaptureRefused { reasons: vec![text("it has no processes")], retry: Retry::Later };
            let _ = outcomes.send(Outcome::Event(refused));
            return;
        };
        let abort = match Abort::new() {
            Ok(abort) => abort,
            Err(error) => {
                let refused = Event::CaptureRefused { reasons: vec![text(error)], retry: Retry::Later };
                let _ = outcomes.send(Outcome::Event(refused));
                return;
            }
        };
        self.abort = Some(abort.clone());
        let generation = self.generation;
        self.generation += 1;
        let operation = self.begin_operation(Kind::Sleep, 0);
        let job = SleepJob {
            operation: operation.clone(),
            sandbox,
            shared: self.shared.clone(),
            app: self.app_number(),
            journal: NotifyingJournal { file: self.journal.clone(), outcomes: outcomes.clone() },
            image: self.files.image(generation),
            generation,
            timers_over: self.timers_over(),
            single_sockets: self.looks_at_single_sockets(),
            abort,
            memories: self.memories.clone(),
            on_command: cause == SleepCause::Command,
        };
        // A thread of its own: tracing belongs to a thread, and it blocks.
        let name = format!("sleep-{}", self.record.spec.name);
        let spawned = std::thread::Builder::new().name(name).spawn(move || {
            let _abort = AbortOnPanic;
            let _ = outcomes.send(Outcome::Slept(operation, Box::new(job.run())));
        });
        if let Err(error) = spawned {
            self.operation = CurrentOperation::default();
            let refused = Event::CaptureRefused { reasons: vec![text(error)], retry: Retry::Later };
            let _ = self.outcomes().send(Outcome::Event(refused));
        }
    }

    fn timers_over(&self) -> Duration {
        let idle = &self.record.spec.idle;
        idle.timers_over.unwrap_or(idle.after).0
    }

    pub(crate) fn looks_at_single_sockets(&self) -> bool {
        let idle = &self.record.spec.idle;
        idle.wake_on == WakeOn::Data || !idle.ignore.is_empty()
    }

    pub(crate) async fn outcome(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Event(event) => self.tell(event).await,
            Outcome::Spawned(operation, result) => self.spawned(&operation, *result).await,
            Outcome::Slept(operation, attempt) => self.slept(&operation, *attempt).await,
            Outcome::Hibernated(operation, went) => self.hibernated(&operation, *went).await,
            Outcome::Killed(sandbox, held) => self.killed(&sandbox, held),
            Outcome::Resumed(built) => self.resumed(*built).await,
        }
    }

    async fn slept(&mut self, operation: &Arc<Operation>, Attempt { result, timings, memories }: Attempt) {
        let given_up = self.operation.ended(operation).flatten();
        self.abort = None;
        if let Some(memories) = memories {
            self.memories = memories;
        }
        let cause = std::mem::take(&mut self.sleep_cause);
        match result {
            Ok(asleep) => {
                self.sleeps.add(cause, &timings, None);
                let next_timer = asleep.wake_at.map(clock::millis);
                self.hold(SleepState::Dozing(Box::new(asleep)), SystemTime::now());
                self.tell(Event::Dozed { next_timer }).await;
            }
            Err(error) => {
                self.sleeps.add(cause, &timings, Some(why_not(&error).to_string()));
                let committed = timings.steps().iter().any(|(step, _)| *step == Step::Committed);
                match error {
                    SleepError::Aborted(_) | SleepError::Failed { .. } if !committed && given_up.is_some() => {
                        let reasons = given_up.into_iter().collect();
                        self.tell(Event::CaptureRefused { reasons, retry: Retry::Later }).await;
                    }
                    SleepError::Aborted(by) => {
                        self.tell(Event::CaptureAborted(WakeCause::Packet(by.into()))).await;
                    }
                    SleepError::Refused(why) => {
                        let reasons = vec![why.into()];
                        self.tell(Event::CaptureRefused { reasons, retry: Retry::Later }).await;
                    }
                    // It was brought back from the image and runs: there is nothing left to wake.
                    SleepError::Failed { .. } if committed => self.tell(Event::DropFailed(chain(&error))).await,
                    SleepError::Failed { .. } => {
                        let reasons = vec![why_not(&error)];
                        self.tell(Event::CaptureRefused { reasons, retry: Retry::Later }).await;
                    }
                    SleepError::Lost(_) => {
                        let reason = chain(&error);
                        self.lost = Some(reason.clone());
                        self.tell(Event::DropFailed(reason)).await;
                    }
                }
            }
        }
    }

    /// Keeps what waking takes, and parks what must outlive us. It fell asleep at `since`.
    pub(crate) fn hold(&mut self, asleep: SleepState, since: SystemTime) {
        // It asks the keeper, and reads what may be much.
        tokio::task::block_in_place(|| self.hold_here(asleep, since));
    }

    fn hold_here(&mut self, mut asleep: SleepState, since: SystemTime) {
        let init = self.sandbox.as_ref().map_or(0, |sandbox| sandbox.init_pid());
        match &asleep {
            SleepState::Dozing(asleep) => {
                self.labels =
                    crate::app::process_tree::wake_labels::labels(asleep.watch.sources()).unwrap_or_else(|error| {
                        tracing::debug!(app = self.record.spec.name, %error, "naming what wakes it");
                        Vec::new()
                    });
            }
            // Those from when it dozed are better, where there are any.
            SleepState::Warm(app) if self.labels.len() != app.watch.sources().len() => {
                self.labels =
                    crate::app::process_tree::wake_labels::labels_without_processes(init, app.watch.sources());
            }
            SleepState::Warm(_) => {}
        }
        if let SleepState::Warm(app) = &mut asleep {
            match crate::app::process_tree::parked::parked_files(&self.shared, &self.record.id) {
                Ok(parked) => {
                    if self.looks_at_single_sockets() {
                        app.pick_sockets(&parked);
                    }
                    app.hold_files(parked);
                }
                // Every event wakes it then, which asks for them again.
                Err(error) => {
                    tracing::warn!(app = self.record.spec.name, error = %chain(&error), "fetching its open files");
                }
            }
        }
        if self.record.spec.idle.wake_on == WakeOn::Data && self.deferred.is_empty() {
            self.deferred = crate::probes::listeners(asleep.watch(), &asleep.sockets(init));
        }
        let park =
            crate::app::process_tree::parked::park_watch(&self.shared, &self.record.id, asleep.watch(), &self.deferred);
        match park {
            Ok(()) => crate::probes::defer(&self.deferred, &asleep.sockets(init)),
            Err(error) => {
                // It sleeps on; a new worker would wake it for safety.
                tracing::warn!(app = self.record.spec.name, error = %chain(&error), "parking its descriptors");
                self.deferred.clear();
            }
        }
        let watch = asleep.watch().as_fd().try_clone_to_owned();
        match watch.and_then(torpor_linux::readable::register) {
            Ok(watch) => self.watch = Some(watch),
            Err(error) => {
                tracing::error!(app = self.record.spec.name, %error, "watching its descriptors; waking it");
                let _ = self.outcomes().send(Outcome::Event(Event::Packet(text("its descriptors cannot be watched"))));
            }
        }
        // One from before a wake that failed must not count twice.
        self.cached_image = None;
        let cached = self.shared.cached_images.enter(asleep.depth(), since, asleep.image(), asleep.image_bytes());
        self.cached_image = Some(cached);
        self.asleep_since = since;
        // What wakes it is a use, too, but not one to judge it by.
        self.used_before = self.app.last_used();
        self.asleep = Some(asleep);
    }

    /// Something that the app waits for has happened, or seems to have.
    pub(crate) async fn watch_fired(&mut self) {
        let Some(asleep) = &self.asleep else { return };
        let init = self.sandbox.as_ref().map_or(0, |sandbox| sandbox.init_pid());
        loop {
            match asleep.watch().fired() {
                Ok(None) => return,
                Ok(Some(source)) => {
                    let sockets = asleep.sockets(init);
                    let single = self.looks_at_single_sockets();
                    if !single || crate::probes::counts(&source, &sockets, &self.record.spec.idle) {
                        let words = self.words_for(asleep, &source);
                        self.tell(Event::Packet(words.into())).await;
                        return;
                    }
                }
                Err(error) => {
                    tracing::error!(app = self.record.spec.name, %error, "reading what happened; waking it");
                    self.tell(Event::Packet(text(error))).await;
                    return;
                }
            }
        }
    }

    /// What happened, in words.
    fn words_for(&self, asleep: &SleepState, source: &Source) -> String {
        let place = asleep.watch().sources().iter().position(|known| known == source);
        match place.and_then(|place| self.labels.get(place)) {
            Some(label) if ["tcp ", "udp ", "a connection "].iter().any(|kind| label.starts_with(kind)) => {
                format!("packet for {label}")
            }
            Some(label) => format!("an event on {label}"),
            None => format!("an event on {} of process {}", source.what, source.pid),
        }
    }

    /// Wakes it. From dozing that is done right here, and its outcome known.
    /// From warm it is built on a thread of its own, and the outcome comes later.
    pub(crate) fn wake(&mut self, cause: &WakeCause) -> Option<Event> {
        if let Some(reason) = self.lost.take() {
            return Some(Event::WakeFailed(WakeFailure::Damaged(reason)));
        }
        if let Some(reason) = self.operation.held_up() {
            return Some(Event::WakeFailed(WakeFailure::Passing(reason)));
        }
        let asleep = match self.asleep.take() {
            Some(SleepState::Dozing(asleep)) => asleep,
            Some(SleepState::Warm(app)) => return self.resume(app, cause),
            None => {
                // Its sandbox has gone while the wake waited for its turn, and cannot be made. Else a sleep that failed was
                // undone already: it runs.
                let failed = |reason| Event::WakeFailed(WakeFailure::Passing(reason));
                return Some(self.sandbox_retry_reason().map_or(Event::Woken, failed));
            }
        };
        Some(self.refill(asleep, cause))
    }

    /// Brings back the memory of one that dozes.
    fn refill(&mut self, asleep: Box<Asleep>, cause: &WakeCause) -> Event {
        let Some(sandbox) = self.sandbox.clone() else {
            return Event::WakeFailed(WakeFailure::Passing(text("it has no processes")));
        };
        self.watch = None;
        crate::probes::undefer(&std::mem::take(&mut self.deferred), &crate::probes::Sockets::OfProcesses);
        let app = self.app_number();
        let shared = self.shared.clone();
        let journal = self.journal.clone();
        let (operation, _watched) = self.watch_refill(asleep.image_bytes);
        let mut buffer = std::mem::take(&mut self.refill_buffer);
        let mut run = || {
            let target = Target {
                app,
                boot: shared.boot,
                freezer: &SandboxFreezer::of(&sandbox),
                journal: &*journal,
                faults: &Steps { operation: &operation, faults: &shared.faults },
            };
            wake(&target, &asleep, &mut buffer)
        };
        // However little it is, the disk that it is read from may hang: other tasks do not wait for this thread.
        let (result, timings) = tokio::task::block_in_place(&mut run);
        if buffer.capacity() <= KEPT_BUFFER_BYTES {
            self.refill_buffer = buffer;
        }
        match result {
            Ok(woken) => {
                self.wakes.add(cause.to_string(), &timings, None);
                self.finish_wake(woken);
                Event::Woken
            }
            Err(error) => {
                let reason = chain(&error);
                self.wakes.add(cause.to_string(), &timings, Some(reason.to_string()));
                let lost = error.is_lost();
                let runs = timings.steps().iter().any(|(step, _)| *step == Step::Awake);
                if runs && sandbox.cgroup().thaw().is_ok() {
                    // Its memory is complete and it is thawed: a detail failed behind that.
                    tracing::warn!(app = self.record.spec.name, %reason, "after waking");
                    return Event::Woken;
                }
                self.hold(SleepState::Dozing(asleep), SystemTime::now());
                Event::WakeFailed(if lost { WakeFailure::Damaged(reason) } else { WakeFailure::Passing(reason) })
            }
        }
    }

    /// The small things after a wake, off the path to the first answer.
    fn finish_wake(&mut self, woken: torpor_engine::Woken) {
        self.cached_image = None;
        let name = self.record.spec.name.clone();
        let shared = self.shared.clone();
        let id = self.record.id.clone();
        let finish = move || {
            let memories = woken.finish();
            if let Err(error) = crate::app::process_tree::parked::drop_watch(&shared, &id) {
                tracing::warn!(app = name, error = %chain(&error), "forgetting its parked descriptors");
            }
            memories
        };
        match tokio::task::block_in_place(finish) {
            Ok(memories) => self.memories = memories,
            Err(error) => tracing::warn!(app = self.record.spec.name, error = %chain(&error), "after waking"),
        }
    }

    pub(crate) fn discard_image(&mut self) {
        self.asleep = None;
        self.cached_image = None;
        self.watch = None;
        match tokio::task::block_in_place(|| self.files.clean_images(None, self.owner())) {
            Ok(_) => {}
            Err(error) => tracing::warn!(app = self.record.spec.name, %error, "removing its image"),
        }
    }

    pub(crate) fn quarantine_image(&mut self) {
        let Some(asleep) = self.asleep.take() else { return };
        self.cached_image = None;
        self.watch = None;
        let aside = asleep.image().with_extension("damaged");
        match tokio::task::block_in_place(|| fs::rename(asleep.image(), &aside)) {
            Ok(()) => tracing::warn!(app = self.record.spec.name, kept = %aside.display(), "damaged image"),
            Err(error) => tracing::warn!(app = self.record.spec.name, %error, "setting its damaged image aside"),
        }
    }

    pub(crate) fn terminate(&mut self) {
        if let Some(sandbox) = &self.sandbox {
            let signal = crate::app::process_tree::start::stop_signal(&self.record);
            if let Err(error) = sandbox.signal(signal) {
                tracing::warn!(app = self.record.spec.name, error = %chain(&error), "asking it to end");
            }
        }
    }

    /// Its init has ended: all its processes have.
    pub(crate) async fn exited(&mut self) {
        let Some(sandbox) = self.sandbox.take() else { return };
        self.kill_attempts = KillAttempts::default();
        let was_warm = self.is_warm();
        self.init = None;
        self.watch = None;
        self.asleep = None;
        self.cached_image = None;
        let limit = self.record.spec.limits.memory;
        let end = tokio::task::spawn_blocking(move || {
            let ooms = sandbox.cgroup().oom_kills().unwrap_or(0);
            let status = sandbox.exit_status();
            (ooms, status, sandbox.destroy())
        });
        let (ooms, status, destroyed) = match end.await {
            Ok(end) => end,
            // The daemon ends: the next one finds what is left.
            Err(error) if error.is_cancelled() => return,
            Err(error) => {
                tracing::error!(app = self.record.spec.name, %error, "taking down its sandbox");
                self.tell(Event::Exited(Exit::Unknown)).await;
                self.leave_queue().await;
                return;
            }
        };
        if let Err(error) = destroyed {
            tracing::error!(app = self.record.spec.name, error = %chain(&error), "taking down its sandbox");
        }
        self.after_exit().await;
        if was_warm && self.restore_sandbox().await.is_some() {
            // Its init was killed, and with it its sandbox: it had no processes that could have ended.
            tracing::warn!(app = self.record.spec.name, "its sandbox was gone and was made again");
            return;
        }
        let status = match status {
            Ok(status) => status,
            Err(error) => {
                tracing::warn!(app = self.record.spec.name, error = %chain(&error), "reading its exit status");
                None
            }
        };
        let exit = exit_of(status, ooms, limit.map(|limit| limit.0));
        self.tell(Event::Exited(exit)).await;
        self.leave_queue().await;
    }

    /// Looks at its processes. That waits for locks of their memory, which they may hold for long: other tasks do not wait for this
    /// thread. Where it has none, there is nothing to wait for.
    pub(crate) fn look<T>(&self, look: impl FnOnce(&Self) -> T) -> T {
        if self.sandbox.is_some() && !matches!(self.asleep, Some(SleepState::Warm(_))) {
            tokio::task::block_in_place(|| look(self))
        } else {
            look(self)
        }
    }

    pub(crate) fn observe(&self) -> Option<Observation> {
        let sandbox = self.sandbox.as_ref()?;
        let cpu_us = sandbox.cgroup().cpu_us().ok()?;
        let connections = usage::connections(sandbox.init_pid()).ok()?;
        let packets = self.shared.packets(self.record.index)?;
        Some(Observation { packets, cpu_us, connections })
    }
}

/// What an app's end was, from its initial process's status and the kills by its memory limit.
pub(crate) fn exit_of(status: Option<ExitStatus>, oom_kills: u64, limit_bytes: Option<u64>) -> Exit {
    const SIGKILL: i32 = 9;
    match status {
        Some(ExitStatus::Signaled(SIGKILL)) if oom_kills > 0 => Exit::MemoryLimit(limit_bytes.unwrap_or(0)),
        Some(ExitStatus::Exited(code)) => Exit::Status(code),
        Some(ExitStatus::Signaled(signal)) => Exit::Signal(signal),
        Some(ExitStatus::Unknown) | None => Exit::Unknown,
    }
}

/// Everything that falling asleep needs, to be carried to its thread.
struct SleepJob {
    operation: Arc<Operation>,
    sandbox: Arc<Sandbox>,
    shared: Arc<Shared>,
    app: u64,
    journal: NotifyingJournal,
    image: std::path::PathBuf,
    generation: u64,
    timers_over: Duration,
    single_sockets: bool,
    abort: Abort,
    memories: torpor_engine::WaitHistory,
    /// Somebody waits for the outcome.
    on_command: bool,
}

/// A sleep on command that is given up is tried again for so long, after such pauses. What gives it up is often over at once:
/// a request under way, or a thread that our own stopping took out of a call. `send(2)` on a full socket returns what it has
/// sent so far when it is interrupted; the call that follows has sent nothing yet, and goes on as if nothing had been.
const PATIENCE: Duration = Duration::from_millis(150);
const PAUSE: Duration = Duration::from_millis(10);

impl SleepJob {
    fn run(mut self) -> Attempt {
        let begun = Instant::now();
        loop {
            let mut attempt = self.attempt();
            let Err(error) = &attempt.result else { return attempt };
            if let Some(memories) = attempt.memories.take() {
                self.memories = memories;
            }
            let again = self.on_command && matches!(error, SleepError::Aborted(_)) && begun.elapsed() < PATIENCE;
            if !again || self.abort.asked_within(PAUSE) {
                return Attempt { memories: Some(self.memories), ..attempt };
            }
        }
    }

    fn attempt(&self) -> Attempt {
        let freezer = SandboxFreezer::of(&self.sandbox);
        let target = Target {
            app: self.app,
            boot: self.shared.boot,
            freezer: &freezer,
            journal: &Commits { operation: &self.operation, journal: &self.journal },
            faults: &Steps { operation: &self.operation, faults: &self.shared.faults },
        };
        let request = Request {
            image: self.image.clone(),
            generation: self.generation,
            timers_over: self.timers_over,
            single_sockets: self.single_sockets,
            abort: &self.abort,
            memories: &self.memories,
        };
        fall_asleep(&target, &request)
    }
}
