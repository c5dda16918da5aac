//! Falling asleep and waking: captures, aborts, what arrives in between, failures.

use crate::action::{Action, Note, Refusal};
use crate::app::{App, Goal, Refused};
use crate::event::{Retry, SleepCause, Text, WakeCause, WakeFailure};
use crate::phase::{Asleep, Next, Phase, WakeRetry};
use crate::policy::{WAKE_RETRY, WakeBlocked};
use crate::time::Millis;
use crate::watch::Use;

impl App {
    /// Nobody uses it.
    pub(crate) fn fall_asleep_idle(&mut self) {
        self.begin_capture(SleepCause::Idle(self.now.since(self.used.0)));
    }

    pub(crate) fn begin_capture(&mut self, cause: SleepCause) {
        debug_assert!(matches!(self.phase, Phase::Running(_)) && !self.pinned && self.exec_sessions == 0);
        self.enter(Phase::Capturing { cause });
        self.act(Action::BeginCapture { cause });
        self.emit(Note::FallingAsleep(cause));
    }

    /// Something needs it awake. Safe in every phase: where it is awake, or becomes so anyway, nothing is to be done.
    pub(crate) fn activate(&mut self, cause: WakeCause) {
        self.note_use(&cause);
        match &mut self.phase {
            Phase::Running(_) => self.plan_look(),
            Phase::Capturing { cause: sleep } => {
                let cause_of_sleep = *sleep;
                self.act(Action::AbortCapture);
                self.enter(Phase::Aborting { cause: cause_of_sleep, by: cause });
            }
            Phase::Dropping { wake, .. } => {
                wake.get_or_insert(cause);
            }
            Phase::Hibernating { .. } => self.abort_hibernate(cause),
            Phase::Dozing(asleep) | Phase::Warm(asleep) => {
                // What failed a moment ago is not hurried by every packet, but by people.
                if asleep.retry.is_none() || !matches!(cause, WakeCause::Packet(_)) {
                    let asleep = asleep.clone();
                    self.begin_wake(cause, asleep);
                }
            }
            Phase::Stopped { .. }
            | Phase::Starting { .. }
            | Phase::Aborting { .. }
            | Phase::Waking { .. }
            | Phase::Stopping { .. }
            | Phase::Backoff { .. } => {}
        }
    }

    /// A wake by someone who uses it; a timer's is none, so it may sleep again soon.
    fn note_use(&mut self, cause: &WakeCause) {
        match cause {
            WakeCause::Packet(_) => self.used = (self.now, Use::Packets),
            WakeCause::Command => self.used = (self.now, Use::Command),
            WakeCause::Exec => self.used = (self.now, Use::Exec),
            WakeCause::Timer | WakeCause::Pin | WakeCause::Stop | WakeCause::Recovery => {}
        }
    }

    /// The image is durable: from here on there is no way back but a wake.
    pub(crate) fn committed(&mut self) {
        self.holds_image = true;
        match &self.phase {
            Phase::Capturing { cause } => self.enter(Phase::Dropping { cause: *cause, wake: None }),
            Phase::Aborting { cause, by } => self.enter(Phase::Dropping { cause: *cause, wake: Some(by.clone()) }),
            _ => {}
        }
    }

    pub(crate) fn capture_aborted(&mut self, by: WakeCause) {
        // Who asked first is named; without a request the engine says what it saw.
        let by = if let Phase::Aborting { by, .. } = &self.phase { by.clone() } else { by };
        if matches!(by, WakeCause::Packet(_)) {
            self.counts.aborted_sleeps += 1;
        }
        self.note_use(&by);
        self.emit(Note::SleepAborted(by.clone()));
        self.answer(Goal::is_sleep, &Err(Refusal::SleepAborted(by)));
        self.run();
    }

    pub(crate) fn capture_refused(&mut self, reasons: Vec<Text>, retry: Retry) {
        self.remember_refusal(reasons, retry);
        self.run();
    }

    /// The last refusal counts for `explain` and for the next attempt; the app goes on as it can.
    fn remember_refusal(&mut self, reasons: Vec<Text>, retry: Retry) {
        self.emit(Note::SleepRefused(reasons.clone(), retry));
        self.answer(Goal::is_sleep, &Err(Refusal::SleepRefused(reasons.clone())));
        self.refused = Some(Refused::after(self.refused.as_ref(), reasons, retry, self.now));
    }

    pub(crate) fn dozed(&mut self, next_timer: Option<Millis>) {
        let Phase::Dropping { cause, wake } = &self.phase else { return };
        let (cause, wake) = (*cause, wake.clone());
        self.counts.sleeps += 1;
        self.refused = None;
        self.emit(Note::Dozing);
        self.answer(|goal| goal == Goal::Asleep, &Ok(()));
        let asleep = Asleep { since: self.now, cause, warm: None, next_timer, retry: None };
        match wake {
            Some(wake) => {
                self.answer(|goal| goal == Goal::Warm, &Err(Refusal::SleepAborted(wake.clone())));
                self.begin_wake(wake, asleep);
            }
            None if self.waiting.iter().any(|waiting| waiting.goal == Goal::Warm) => {
                self.deep_refused = None;
                self.begin_hibernate(SleepCause::Command, asleep);
            }
            None => self.enter(Phase::Dozing(asleep)),
        }
    }

    /// The memory that is left is unknown, but the image is whole: wakes at once.
    pub(crate) fn drop_failed(&mut self, reason: Text) {
        let Phase::Dropping { cause, wake } = &self.phase else { return };
        let (cause, wake) = (*cause, wake.clone().unwrap_or(WakeCause::Recovery));
        self.remember_refusal(vec![reason], Retry::Later);
        self.begin_wake(wake, Asleep { since: self.now, cause, warm: None, next_timer: None, retry: None });
    }

    pub(crate) fn begin_wake(&mut self, cause: WakeCause, asleep: Asleep) {
        self.act(Action::BeginWake { cause: cause.clone() });
        self.enter(Phase::Waking { cause, asleep });
    }

    pub(crate) fn woken(&mut self) {
        let Phase::Waking { cause, asleep } = &self.phase else { return };
        let (cause, since) = (cause.clone(), asleep.since);
        self.woken_by(cause, since);
    }

    /// It runs, after a sleep that began at `since`.
    pub(crate) fn woken_by(&mut self, cause: WakeCause, since: Millis) {
        let slept = self.now.since(since);
        self.counts.wakes += 1;
        self.holds_image = false;
        self.act(Action::DiscardImage);
        self.note_use(&cause);
        self.emit(Note::Woken(cause, slept));
        self.run();
    }

    pub(crate) fn wake_failed(&mut self, failure: WakeFailure) {
        let Phase::Waking { cause, asleep } = &self.phase else { return };
        let (cause, asleep) = (cause.clone(), asleep.clone());
        if let WakeFailure::Damaged(reason) = &failure {
            self.holds_image = false;
            self.act(Action::SetImageAside);
            self.emit(Note::Lost(reason.clone()));
        }
        if self.exited.is_some() {
            return self.run();
        }
        match (failure, self.stop.take()) {
            (WakeFailure::Damaged(_), Some(stop)) => self.kill(stop.next),
            (WakeFailure::Damaged(reason), None) => {
                self.refuse_wakers(&Refusal::Lost(reason.clone()));
                self.kill(Next::Lost(reason));
            }
            (WakeFailure::Passing(reason) | WakeFailure::Refused(reason), Some(stop)) => {
                self.emit(Note::WakeFailed(reason, None));
                self.kill(stop.next);
            }
            (WakeFailure::Passing(reason), None) => self.retry_wake(cause, asleep, reason),
            (WakeFailure::Refused(reason), None) => match self.policy.wake_blocked {
                WakeBlocked::Wait => self.stay_refused(cause, asleep, reason),
                WakeBlocked::Restart => {
                    // Those who wait for it get it when it has started.
                    self.emit(Note::GivenUp(reason));
                    self.kill(Next::Start);
                }
            },
        }
    }

    /// Sleeps on with its image, and nothing is tried before somebody asks.
    fn stay_refused(&mut self, cause: WakeCause, mut asleep: Asleep, reason: Text) {
        let failures = asleep.retry.as_ref().map_or(0, |retry| retry.failures).saturating_add(1);
        self.emit(Note::WakeRefused(reason.clone()));
        let refusal = Refusal::WakeRefused(reason.clone());
        self.refuse_wakers(&refusal);
        self.answer_sleepers(&asleep, &refusal);
        asleep.retry = Some(WakeRetry { at: None, cause, reason, failures });
        self.enter(asleep.phase());
    }

    /// Sleeps on, and tries again later: what woke it still waits.
    fn retry_wake(&mut self, cause: WakeCause, mut asleep: Asleep, reason: Text) {
        let failures = asleep.retry.as_ref().map_or(0, |retry| retry.failures);
        let delay = WAKE_RETRY.delay(failures);
        self.emit(Note::WakeFailed(reason.clone(), Some(delay)));
        let refusal = Refusal::WakeFailed(reason.clone());
        self.refuse_wakers(&refusal);
        self.answer_sleepers(&asleep, &refusal);
        asleep.retry =
            Some(WakeRetry { at: Some(self.now + delay), cause, reason, failures: failures.saturating_add(1) });
        self.enter(asleep.phase());
    }

    /// Its wake has failed: who waits for a sleep has it if it is as deep as that, and else will not get it.
    fn answer_sleepers(&mut self, asleep: &Asleep, refusal: &Refusal) {
        let warm = asleep.warm.is_some();
        self.answer(|goal| goal == Goal::Asleep || warm && goal == Goal::Warm, &Ok(()));
        self.answer(Goal::is_sleep, &Err(refusal.clone()));
    }

    /// Answers those who wait for a running app that they will not get it.
    pub(crate) fn refuse_wakers(&mut self, refusal: &Refusal) {
        self.answer(|goal| matches!(goal, Goal::Awake | Goal::Exec), &Err(refusal.clone()));
    }
}
