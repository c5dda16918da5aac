//! Starting and ending: spawns, orders to end, exits, the restart policy.

use std::mem;

use crate::action::{Action, Note, Refusal};
use crate::app::{App, Goal, Stop};
use crate::event::{Exit, StartFailure, WakeCause};
use crate::phase::{Ending, Next, Phase, StartedBy, StopReason};
use crate::policy::{KILL_AGAIN, RAN_WELL, RESTART_DELAY, RestartPolicy};
use crate::watch::Use;

impl App {
    pub(crate) fn spawn(&mut self, by: StartedBy) {
        self.enter(Phase::Starting { by });
        self.act(Action::Spawn);
    }

    pub(crate) fn started(&mut self) {
        self.started_at = Some(self.now);
        self.used = (self.now, Use::Start);
        self.refused = None;
        self.deep_refused = None;
        self.emit(Note::Started);
        self.run();
    }

    pub(crate) fn start_failed(&mut self, StartFailure { reason, status }: StartFailure) {
        let Phase::Starting { by } = self.phase else { return };
        self.exited = None;
        if let Some(status) = status {
            self.last_exit = Some((Exit::NotRun(status, reason.clone()), self.now));
        }
        self.emit(Note::StartFailed(reason.clone()));
        if let Some(stop) = self.stop.take() {
            self.answer(|goal| goal == Goal::Ended, &Ok(()));
            self.answer(Goal::is_sleep, &Err(Refusal::BeingStopped));
            return match stop.next {
                Next::Start => self.spawn(StartedBy::Request),
                Next::Stay | Next::Lost(_) => self.enter(Phase::Stopped { why: StopReason::Asked }),
            };
        }
        let refusal = Refusal::StartFailed(reason.clone());
        self.refuse_wakers(&refusal);
        self.answer(Goal::is_sleep, &Err(refusal));
        match by {
            StartedBy::Request => self.enter(Phase::Stopped { why: StopReason::StartFailed(reason) }),
            StartedBy::Policy => self.back_off(),
        }
    }

    /// Asks it to end.
    pub(crate) fn terminate(&mut self, stop: Stop) {
        self.act(Action::Terminate);
        self.emit(Note::Stopping);
        let ending = Ending::Asked { kill_at: self.now + stop.grace };
        self.enter(Phase::Stopping { ending, next: stop.next });
    }

    pub(crate) fn kill(&mut self, next: Next) {
        self.act(Action::Kill);
        self.enter(Phase::Stopping { ending: Ending::Killed { again_at: self.now + KILL_AGAIN }, next });
    }

    /// It ended during an operation, whose outcome is awaited: two operations never overlap.
    pub(crate) fn exited_midway(&mut self, exit: Exit) {
        self.exited = Some(exit);
        match &self.phase {
            Phase::Capturing { cause } => {
                let cause = *cause;
                self.act(Action::AbortCapture);
                self.enter(Phase::Aborting { cause, by: WakeCause::Recovery });
            }
            Phase::Hibernating { .. } => self.abort_hibernate(WakeCause::Recovery),
            _ => {}
        }
    }

    /// It has ended, and no operation is under way.
    pub(crate) fn ended(&mut self, exit: Exit) {
        let next = match (self.stop.take(), &self.phase) {
            (Some(stop), _) => Some(stop.next),
            (None, Phase::Stopping { next, .. }) => Some(next.clone()),
            (None, _) => None,
        };
        let exit = if let Some(Next::Lost(reason)) = &next { Exit::Lost(reason.clone()) } else { exit };
        if mem::take(&mut self.holds_image) {
            // Old memory is never put onto newer files.
            self.act(Action::DiscardImage);
        }
        self.last_exit = Some((exit.clone(), self.now));
        self.emit(Note::Exited(exit.clone()));
        self.answer(Goal::is_sleep, &Err(Refusal::Ended(exit.clone())));
        self.answer(|goal| goal == Goal::Ended, &Ok(()));
        match next {
            Some(Next::Stay) => self.enter(Phase::Stopped { why: StopReason::Asked }),
            Some(Next::Start) => {
                self.counts.restarts = 0;
                self.failures = 0;
                self.spawn(StartedBy::Request);
            }
            Some(Next::Lost(_)) | None => self.ended_unasked(exit),
        }
    }

    fn ended_unasked(&mut self, exit: Exit) {
        self.refuse_wakers(&Refusal::Ended(exit.clone()));
        if self.started_at.is_some_and(|at| self.now.since(at) >= RAN_WELL) {
            self.failures = 0;
        }
        let again = match self.policy.restart {
            RestartPolicy::No => false,
            RestartPolicy::OnFailure => exit != Exit::Status(0),
            RestartPolicy::Always => true,
        };
        if again {
            self.back_off();
        } else {
            self.enter(Phase::Stopped { why: StopReason::Ended(exit) });
        }
    }

    fn back_off(&mut self) {
        let delay = RESTART_DELAY.delay(self.failures);
        self.failures = self.failures.saturating_add(1);
        self.emit(Note::Restarting(delay));
        self.enter(Phase::Backoff { until: self.now + delay });
    }
}
