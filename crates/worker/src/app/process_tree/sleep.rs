//! Falling asleep: the app's memory goes into an image, its processes stay.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use torpor_engine::{
    Abort, Attempt, Expected, LazyProgram, MissingPart, Request, SleepError, Step, Timings, WaitHistory, fall_asleep,
};
use torpor_image::lazy_size;
use torpor_lifecycle::{Event, Retry, SleepCause, WakeCause};
use torpor_sandbox::Sandbox;
use torpor_store::{Image, Owner};

use super::after_sleep::AfterSleep;
use super::freezer::SandboxFreezer;
use super::lazy::{LazySleep, LazyWake, SoFar};
use super::learned::Learned;
use super::notifying_journal::NotifyingJournal;
use super::sleep_state::SleepState;
use super::target::with_target;
use super::texts::{chain, text, why_not};
use super::{Message, Outcome, ProcessTree};
use crate::app::abort_on_panic::AbortOnPanic;
use crate::app::deadlines::Operations;
use crate::app::history::Entry;
use crate::app::operation::{Ended, Kind, Operation};
use crate::app::workload::Report;
use crate::clock;
use crate::shared::Shared;

impl ProcessTree {
    pub(super) fn begin_sleep(&mut self, cause: SleepCause, operations: &mut Operations) {
        let refused = |error| Event::CaptureRefused { reasons: vec![error], retry: Retry::Later };
        let Some(sandbox) = self.run.sandbox.clone() else {
            return self.report(refused(text("it has no processes")));
        };
        let abort = match Abort::new() {
            Ok(abort) => abort,
            Err(error) => return self.report(refused(text(error))),
        };
        self.abort = Some(abort.clone());
        let generation = self.generation;
        self.generation += 1;
        let operation = operations.begin(Kind::Sleep, 0);
        let job = SleepJob {
            operation: operation.clone(),
            sandbox,
            shared: self.shared.clone(),
            owner: self.owner(),
            journal: NotifyingJournal { file: self.journal.clone(), sender: self.sender.clone() },
            image: self.files.images.image(generation),
            timers_over: self.timers_over(),
            single_sockets: self.looks_at_single_sockets(),
            abort,
            memories: self.memories.clone(),
            lazy: self.lazy.clone(),
            learned: self.learned.clone(),
            on_command: cause == SleepCause::Command,
        };
        // A thread of its own: tracing belongs to a thread, and it blocks.
        let name = format!("sleep-{}", self.record.spec.name);
        let sender = self.sender.clone();
        let held = Arc::new(());
        let dozes = Arc::downgrade(&held);
        self.sleep.dozes = Some(held);
        let spawned = std::thread::Builder::new().name(name).spawn(move || {
            let _abort = AbortOnPanic;
            let attempt = job.run();
            let after = attempt.result.as_ref().map_or_else(|_| AfterSleep::default(), AfterSleep::of);
            let _ = sender.send(Message::Ended(operation, Box::new(Outcome::Slept(attempt))));
            // It sleeps, and may even be awake again.
            after.run(&dozes, &sender);
        });
        if let Err(error) = spawned {
            operations.forget();
            self.report(refused(text(error)));
        }
    }

    fn timers_over(&self) -> Duration {
        let idle = &self.record.spec.idle;
        idle.timers_over.unwrap_or(idle.after).0
    }

    /// Falling asleep has ended.
    pub(super) fn slept(&mut self, attempt: Attempt, ended: Ended) -> Report {
        let Attempt { result, timings, memories } = attempt;
        self.abort = None;
        if let Some(memories) = memories {
            self.memories = memories;
        }
        // Its contexts are closed: whatever became of the sleep, nothing is missing any more.
        self.lazy.take_if(|lazy| lazy.is_over());
        match result {
            Ok(asleep) => {
                let entry = Entry::new(&timings, None);
                let next_timer = asleep.wake_at.map(clock::millis);
                self.hold(SleepState::Dozing(Box::new(asleep)), SystemTime::now());
                Report::with_entry(Event::Dozed { next_timer }, entry)
            }
            Err(error) => {
                let entry = Entry::new(&timings, Some(why_not(&error).to_string()));
                let committed = timings.steps().iter().any(|(step, _)| *step == Step::Committed);
                Report::with_entry(self.not_asleep(error, committed, ended), entry)
            }
        }
    }

    /// What the machine is told of a sleep that failed.
    fn not_asleep(&mut self, error: SleepError, committed: bool, ended: Ended) -> Event {
        let refused = |reason| Event::CaptureRefused { reasons: vec![reason], retry: Retry::Later };
        match (error, ended.given_up()) {
            (SleepError::Aborted(_) | SleepError::Failed { .. }, Some(given_up)) if !committed => refused(given_up),
            (SleepError::Aborted(by), _) => Event::CaptureAborted(WakeCause::Packet(by.into())),
            (SleepError::Refused(why), _) => refused(why.into()),
            // It was brought back from the image and runs: there is nothing left to wake.
            (error @ SleepError::Failed { .. }, _) if committed => Event::DropFailed(chain(&error)),
            (error @ SleepError::Failed { .. }, _) => refused(why_not(&error)),
            (error @ SleepError::Lost(_), _) => {
                let reason = chain(&error);
                self.lost = Some(reason.clone());
                Event::DropFailed(reason)
            }
        }
    }
}

/// Everything that falling asleep needs, to be carried to its thread.
struct SleepJob {
    operation: Arc<Operation>,
    sandbox: Arc<Sandbox>,
    shared: Arc<Shared>,
    owner: Owner,
    journal: NotifyingJournal,
    image: Image,
    timers_over: Duration,
    single_sockets: bool,
    abort: Abort,
    memories: WaitHistory,
    /// What still brings back its memory, maybe.
    lazy: Option<Arc<LazyWake>>,
    learned: Arc<Learned>,
    /// Somebody waits for the outcome.
    on_command: bool,
}

/// A sleep on command that is given up is tried again for so long, after such pauses. What gives it up is often over at once:
/// a request under way, or a thread that our own stopping took out of a call. `send(2)` on a full socket returns what it has
/// sent so far when it is interrupted; the call that follows has sent nothing yet, and goes on as if nothing had been.
const PATIENCE: Duration = Duration::from_millis(150);
const PAUSE: Duration = Duration::from_millis(10);

/// Less is brought back quickly.
fn pays(missing: &[MissingPart]) -> bool {
    missing.iter().map(MissingPart::bytes).sum::<u64>() >= lazy_size::least_bytes()
}

impl SleepJob {
    fn run(mut self) -> Attempt {
        let mut begun = None;
        loop {
            let Some(lazy) = self.lazily() else {
                let result = Err(SleepError::Aborted("a part of its memory is not back yet".to_owned()));
                return Attempt { result, timings: Timings::begin(), memories: Some(self.memories) };
            };
            let begun = *begun.get_or_insert_with(Instant::now);
            let pids = self.sandbox.cgroup().processes().unwrap_or_default();
            let expected = self.learned.expected(&pids);
            let mut attempt = self.attempt(&expected, lazy.as_ref());
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

    /// Its pager, where it sleeps while pages are missing; otherwise waits until they are back. None where that was given up, or cannot be.
    fn lazily(&self) -> Option<Option<LazySleep>> {
        let Some(wake) = self.lazy.as_ref().filter(|wake| !wake.has_ended()) else {
            return self.lazy.as_ref().is_none_or(|wake| wake.is_back()).then_some(None);
        };
        if wake.is_awaited() {
            // It comes soon, or must.
            return wake.wait(&self.abort).then_some(None);
        }
        match wake.ask() {
            Ok(SoFar { missing: Some(missing), served }) if pays(&missing) => {
                wake.learn(&served);
                return Some(Some(LazySleep { wake: wake.clone(), sandbox: self.sandbox.clone() }));
            }
            Ok(_) => {}
            Err(error) => tracing::debug!(%error, "asking what is missing"),
        }
        wake.go_on();
        wake.wait(&self.abort).then_some(None)
    }

    fn attempt(&self, expected: &[Expected], lazy: Option<&LazySleep>) -> Attempt {
        let freezer = SandboxFreezer::of(&self.sandbox);
        let request = Request {
            image: self.image.clone(),
            timers_over: self.timers_over,
            single_sockets: self.single_sockets,
            abort: &self.abort,
            memories: &self.memories,
            expected,
            lazy: lazy.map(|lazy| lazy as &dyn LazyProgram),
        };
        let faults = &self.shared.faults;
        with_target(self.owner, &self.operation, &freezer, &self.journal, faults, |target| {
            fall_asleep(target, &request)
        })
    }
}
