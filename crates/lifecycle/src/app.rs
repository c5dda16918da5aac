//! One app: its state, and where its events go.

use std::mem;
use std::time::Duration;

use crate::action::{Action, Note, Refusal};
use crate::event::{Event, Exit, Found, SleepCause, Text, Ticket, WakeCause};
use crate::phase::{Asleep, Awake, Ending, HibernateStage, Next, Phase, StartedBy, StopReason, Warmed};
use crate::policy::Policy;
use crate::time::Millis;
use crate::watch::{Use, Watch};

/// One app's life-cycle.
///
/// Beside the phase there is only what outlives phases: what was ordered or happened during an operation and waits for
/// its outcome (`stop`, `exited`), who waits (`waiting`), and the memory that policies need.
#[derive(Clone, Debug)]
pub struct App {
    pub(crate) policy: Policy,
    pub(crate) phase: Phase,
    pub(crate) since: Millis,
    /// The latest time seen; events with an earlier one are taken as happening then.
    pub(crate) now: Millis,
    pub(crate) pinned: bool,
    pub(crate) exec_sessions: u32,
    pub(crate) waiting: Vec<Waiting>,
    /// An order to end that waits for the operation under way. Only in operations.
    pub(crate) stop: Option<Stop>,
    /// An end that waits for the outcome of the operation under way. Only in operations.
    pub(crate) exited: Option<Exit>,
    /// From the commit of a capture until the image is given up.
    pub(crate) holds_image: bool,
    pub(crate) used: (Millis, Use),
    pub(crate) refused: Option<Refused>,
    /// The last hibernating that was refused, if none has succeeded since.
    pub(crate) deep_refused: Option<Refused>,
    pub(crate) started_at: Option<Millis>,
    /// Unasked ends in a row, for the delay of the next restart.
    pub(crate) failures: u32,
    pub(crate) last_exit: Option<(Exit, Millis)>,
    pub(crate) counts: Counts,
    /// The timer that the owner was last told to set and that has not rung.
    armed: Option<Millis>,
    out: Vec<Action>,
}

/// What happened how often.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Sleeps completed.
    pub sleeps: u64,
    /// Of these, the ones that went on to warm.
    pub warm_sleeps: u64,
    /// Captures aborted by traffic.
    pub aborted_sleeps: u64,
    /// Wakes completed.
    pub wakes: u64,
    /// Automatic restarts since the last start by request.
    pub restarts: u32,
}

/// Someone who waits for an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Waiting {
    pub(crate) ticket: Ticket,
    pub(crate) goal: Goal,
}

/// What is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Goal {
    Awake,
    Exec,
    Asleep,
    Warm,
    Ended,
}

impl Goal {
    /// It waits for a sleep, of whatever depth.
    pub(crate) fn is_sleep(self) -> bool {
        matches!(self, Self::Asleep | Self::Warm)
    }
}

/// An order to end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stop {
    pub(crate) grace: Duration,
    pub(crate) next: Next,
}

/// A capture or hibernating that was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    pub(crate) reasons: Vec<Text>,
    /// The next attempt by itself; none: pointless.
    pub(crate) again_at: Option<Millis>,
    /// In a row.
    pub(crate) times: u32,
}

impl App {
    /// An app that is not running, known from `now` on.
    pub fn new(policy: Policy, pinned: bool, now: Millis) -> Self {
        Self {
            policy,
            phase: Phase::Stopped { why: StopReason::NotStarted },
            since: now,
            now,
            pinned,
            exec_sessions: 0,
            waiting: Vec::new(),
            stop: None,
            exited: None,
            holds_image: false,
            used: (now, Use::Unwatched),
            refused: None,
            deep_refused: None,
            started_at: None,
            failures: 0,
            last_exit: None,
            counts: Counts::default(),
            armed: None,
            out: Vec::new(),
        }
    }

    /// What is known from before this daemon: how often it slept, and how it last ended.
    #[must_use]
    pub fn with_past(mut self, counts: Counts, last_exit: Option<(Exit, Millis)>) -> Self {
        self.counts = counts;
        self.last_exit = last_exit;
        self
    }

    /// Takes one event and says what to do, in order.
    pub fn handle(&mut self, event: Event, now: Millis) -> Vec<Action> {
        self.now = self.now.max(now);
        match event {
            Event::Request(ticket, request) => self.request(ticket, request),
            Event::Pinned(pinned) => self.pin(pinned),
            Event::ExecEnded => self.exec_ended(),
            Event::Packet(source) => self.activate(WakeCause::Packet(source)),
            Event::TimerFired => self.timer_fired(),
            Event::Observed(seen) => self.observed(seen),
            Event::Hibernate(cause) => self.hibernate_for(cause),
            Event::Adopted(found) => self.adopted(found),
            outcome => self.outcome(outcome),
        }
        self.arm();
        debug_assert!(self.phase.is_operation() || (self.stop.is_none() && self.exited.is_none()));
        mem::take(&mut self.out)
    }

    /// Where it is.
    pub fn phase(&self) -> &Phase {
        &self.phase
    }

    /// Since when it is there.
    pub fn since(&self) -> Millis {
        self.since
    }

    /// Kept awake by a pin.
    pub fn pinned(&self) -> bool {
        self.pinned
    }

    /// Exec sessions granted and not ended.
    pub fn exec_sessions(&self) -> u32 {
        self.exec_sessions
    }

    /// How it ended the last time, and when.
    pub fn last_exit(&self) -> Option<&(Exit, Millis)> {
        self.last_exit.as_ref()
    }

    /// What happened how often.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// The outcomes of operations, and ends: what only some phases can expect.
    fn outcome(&mut self, event: Event) {
        if !self.expects(&event) {
            return self.unexpected(&event);
        }
        match event {
            Event::CaptureAborted(_)
            | Event::CaptureRefused { .. }
            | Event::Dozed { .. }
            | Event::DropFailed(_)
            | Event::Hibernated { .. }
            | Event::HibernateAborted(_)
            | Event::HibernateRefused { .. }
            | Event::HibernateFailed(_)
            | Event::Woken
                if self.exited.is_some() =>
            {
                self.run();
            }
            Event::Started => self.started(),
            Event::StartFailed(failure) => self.start_failed(failure),
            Event::CaptureCommitted => self.committed(),
            Event::CaptureAborted(by) => self.capture_aborted(by),
            Event::CaptureRefused { reasons, retry } => self.capture_refused(reasons, retry),
            Event::Dozed { next_timer } => self.dozed(next_timer),
            Event::DropFailed(reason) => self.drop_failed(reason),
            Event::HibernateCommitted => self.hibernate_committed(),
            Event::Hibernated { next_timer } => self.hibernated(next_timer),
            Event::HibernateAborted(by) => self.hibernate_aborted(by),
            Event::HibernateRefused { reasons, retry, dozes } => self.hibernate_refused(reasons, retry, dozes),
            Event::HibernateFailed(reason) => self.hibernate_failed(reason),
            Event::Woken => self.woken(),
            Event::WakeFailed(failure) => self.wake_failed(failure),
            Event::Exited(exit) if self.phase.is_operation() => self.exited_midway(exit),
            Event::Exited(exit) => self.ended(exit),
            event => self.unexpected(&event),
        }
    }

    /// When somebody used it last, as far as that is known.
    pub const fn last_used(&self) -> Millis {
        self.used.0
    }

    /// Whether an outcome can come in this phase.
    fn expects(&self, event: &Event) -> bool {
        match &self.phase {
            _ if matches!(event, Event::Exited(_)) && self.exited.is_some() => false,
            Phase::Stopped { .. } | Phase::Backoff { .. } => false,
            _ if matches!(event, Event::Exited(_)) => true,
            Phase::Starting { .. } => matches!(event, Event::Started | Event::StartFailed(_)),
            Phase::Capturing { .. } | Phase::Aborting { .. } => {
                matches!(event, Event::CaptureCommitted | Event::CaptureAborted(_) | Event::CaptureRefused { .. })
            }
            Phase::Dropping { .. } => matches!(event, Event::Dozed { .. } | Event::DropFailed(_)),
            Phase::Hibernating { stage: HibernateStage::Committed { .. }, .. } => {
                matches!(event, Event::Hibernated { .. } | Event::HibernateFailed(_))
            }
            Phase::Hibernating { .. } => {
                matches!(
                    event,
                    Event::HibernateCommitted
                        | Event::HibernateAborted(_)
                        | Event::HibernateRefused { .. }
                        | Event::HibernateFailed(_)
                )
            }
            Phase::Waking { .. } => matches!(event, Event::Woken | Event::WakeFailed(_)),
            Phase::Running(_) | Phase::Dozing(_) | Phase::Warm(_) | Phase::Stopping { .. } => false,
        }
    }

    /// The timer rang: whatever is due in this phase is done; nothing, if it rang early or late.
    fn timer_fired(&mut self) {
        self.armed = None;
        let due = self.deadline().is_some_and(|at| at <= self.now);
        match &self.phase {
            _ if !due => {}
            Phase::Running(_) => self.look(),
            Phase::Dozing(asleep) | Phase::Warm(asleep) => {
                let asleep = asleep.clone();
                if asleep.deadline().is_some_and(|at| at <= self.now) {
                    let cause = asleep.retry.as_ref().map_or(WakeCause::Timer, |retry| retry.cause.clone());
                    self.begin_wake(cause, asleep);
                } else {
                    self.begin_hibernate(SleepCause::Dozed(self.now.since(asleep.since)), asleep);
                }
            }
            Phase::Stopping { ending, next } => {
                let (ending, next) = (*ending, next.clone());
                if matches!(ending, Ending::Asked { .. }) {
                    self.emit(Note::Killed);
                }
                self.kill(next);
            }
            Phase::Backoff { .. } => {
                self.counts.restarts = self.counts.restarts.saturating_add(1);
                self.spawn(StartedBy::Policy);
            }
            _ => {}
        }
    }

    /// When something is to be done by itself.
    fn deadline(&self) -> Option<Millis> {
        match &self.phase {
            Phase::Running(awake) => awake.look_at,
            Phase::Dozing(asleep) => asleep.deadline().into_iter().chain(self.warm_at()).min(),
            Phase::Warm(asleep) => asleep.deadline(),
            Phase::Stopping { ending, .. } => Some(ending.deadline()),
            Phase::Backoff { until } => Some(*until),
            Phase::Stopped { .. }
            | Phase::Starting { .. }
            | Phase::Capturing { .. }
            | Phase::Aborting { .. }
            | Phase::Dropping { .. }
            | Phase::Hibernating { .. }
            | Phase::Waking { .. } => None,
        }
    }

    /// Tells the owner of a changed deadline.
    fn arm(&mut self) {
        let wanted = self.deadline().map(|at| at.max(self.now));
        if wanted != self.armed {
            self.armed = wanted;
            self.act(wanted.map_or(Action::ClearTimer, Action::SetTimer));
        }
    }

    /// A new daemon says what it found.
    fn adopted(&mut self, found: Found) {
        if self.phase != (Phase::Stopped { why: StopReason::NotStarted }) {
            return self.unexpected(&Event::Adopted(found));
        }
        self.used = (self.now, Use::Unwatched);
        if !matches!(found, Found::Gone(_)) {
            self.emit(Note::Adopted);
        }
        let cause = SleepCause::Adopted;
        let asleep = Asleep { since: self.now, cause, warm: None, next_timer: None, retry: None };
        match found {
            Found::Running => {
                // What a wake that was confirmed left behind.
                self.act(Action::DiscardImage);
                self.run();
            }
            Found::Dozing { next_timer } | Found::Warm { next_timer } | Found::Stored { next_timer } => {
                self.holds_image = true;
                let warm = (!matches!(found, Found::Dozing { .. })).then_some(Warmed { since: self.now, cause });
                self.enter(Asleep { next_timer, warm, ..asleep }.phase());
                if self.pinned {
                    self.activate(WakeCause::Pin);
                }
            }
            Found::MidCapture => {
                self.enter(Phase::Aborting { cause, by: WakeCause::Recovery });
                self.act(Action::AbortCapture);
            }
            Found::MidDropOrWake => {
                self.holds_image = true;
                self.begin_wake(WakeCause::Recovery, asleep);
            }
            Found::Gone(exit) => {
                self.holds_image = true;
                self.ended(exit);
            }
        }
    }

    /// An operation has come to its end: runs on, unless it has ended or is to end.
    pub(crate) fn run(&mut self) {
        if let Some(exit) = self.exited.take() {
            return self.ended(exit);
        }
        if let Some(stop) = self.stop.take() {
            return self.terminate(stop);
        }
        self.enter(Phase::Running(Awake { since: self.now, look_at: None, watch: Watch::default() }));
        self.answer(|goal| goal == Goal::Awake, &Ok(()));
        let before = self.waiting.len();
        self.answer(|goal| goal == Goal::Exec, &Ok(()));
        let granted = u32::try_from(before - self.waiting.len()).unwrap_or(u32::MAX);
        self.exec_sessions = self.exec_sessions.saturating_add(granted);
        self.sleep_if_asked();
        self.watch();
    }

    pub(crate) fn enter(&mut self, phase: Phase) {
        self.phase = phase;
        self.since = self.now;
    }

    pub(crate) fn act(&mut self, action: Action) {
        self.out.push(action);
    }

    pub(crate) fn emit(&mut self, note: Note) {
        self.act(Action::Emit(note));
    }

    /// Answers all who wait for what `which` picks.
    pub(crate) fn answer(&mut self, which: impl Fn(Goal) -> bool, result: &Result<(), Refusal>) {
        let out = &mut self.out;
        self.waiting.retain(|waiting| {
            let answered = which(waiting.goal);
            if answered {
                out.push(Action::Reply(waiting.ticket, result.clone()));
            }
            !answered
        });
    }

    pub(crate) fn unexpected(&mut self, event: &Event) {
        self.act(Action::Unexpected { phase: self.phase.name(), event: format!("{event:?}") });
    }
}
