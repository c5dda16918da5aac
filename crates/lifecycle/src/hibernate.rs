//! From dozing to warm: when by itself, aborts, what arrives in between, failures.

use crate::action::{Action, Note, Refusal};
use crate::app::{App, Goal, Refused};
use crate::event::{Retry, SleepCause, Text, WakeCause};
use crate::phase::{Asleep, HibernateStage, Phase, Warmed};
use crate::policy::CAPTURE_RETRY;
use crate::time::{Millis, words};

impl Refused {
    /// A refusal now, after an earlier one in a row.
    pub(crate) fn after(earlier: Option<&Self>, reasons: Vec<Text>, retry: Retry, now: Millis) -> Self {
        let times = earlier.map_or(0, |refused| refused.times);
        let again_at = match retry {
            Retry::Later => Some(now + CAPTURE_RETRY.delay(times)),
            Retry::Pointless => None,
        };
        Self { reasons, again_at, times: times.saturating_add(1) }
    }

    /// It still holds at `now`.
    fn holds(&self, now: Millis) -> bool {
        self.again_at.is_none_or(|at| now < at)
    }
}

impl App {
    /// When it goes warm if nothing happens; none if something other than time keeps it at dozing, or it does not doze.
    pub fn warm_at(&self) -> Option<Millis> {
        let Phase::Dozing(asleep) = &self.phase else { return None };
        let warm_after = self.policy.warm_after.filter(|_| self.policy.sleep && asleep.retry.is_none())?;
        let again_at = match &self.deep_refused {
            Some(refused) => refused.again_at?,
            None => Millis::default(),
        };
        Some((asleep.since + warm_after).max(again_at))
    }

    /// What keeps it at dozing, beside time, a line each; empty if nothing does or it does not doze.
    pub(crate) fn keeps_dozing(&self) -> Vec<String> {
        let Phase::Dozing(asleep) = &self.phase else { return Vec::new() };
        let mut found = Vec::new();
        if !self.policy.sleep {
            found.push("its idle policy: it goes warm only on command or when memory is short".to_owned());
        } else if self.policy.warm_after.is_none() {
            found.push("its policy, `warm_after`: it goes warm only on command or when memory is short".to_owned());
        }
        if let Some(retry) = &asleep.retry {
            found.push(format!("it is to be awake ({}), and waking it is tried again", retry.cause));
        }
        if let Some(Refused { reasons, again_at, .. }) = self.deep_refused.as_ref().filter(|it| it.holds(self.now)) {
            let reasons = reasons.join("; ");
            found.push(match again_at {
                Some(at) => {
                    format!(
                        "it could not go warm, next attempt in {} at the earliest: {reasons}",
                        words(at.since(self.now))
                    )
                }
                None => format!("it cannot go warm until the app is restarted (`torpor restart`): {reasons}"),
            });
        }
        found
    }

    /// From when on it goes warm where [`Event::Hibernate`](crate::Event::Hibernate) says so; none while it does not, whatever time
    /// passes.
    pub fn hibernates_from(&self) -> Option<Millis> {
        let Phase::Dozing(asleep) = &self.phase else { return None };
        if asleep.retry.is_some() {
            return None;
        }
        match &self.deep_refused {
            Some(refused) => refused.again_at.map(|at| at.max(asleep.since)),
            None => Some(asleep.since),
        }
    }

    /// The machine wants memory. What was refused a moment ago is not tried again for it.
    pub(crate) fn hibernate_for(&mut self, cause: SleepCause) {
        let Phase::Dozing(asleep) = &self.phase else { return };
        if self.hibernates_from().is_some_and(|from| from <= self.now) {
            let asleep = asleep.clone();
            self.begin_hibernate(cause, asleep);
        }
    }

    pub(crate) fn begin_hibernate(&mut self, cause: SleepCause, asleep: Asleep) {
        debug_assert!(!self.pinned && self.exec_sessions == 0 && asleep.retry.is_none());
        self.enter(Phase::Hibernating { cause, asleep, stage: HibernateStage::Abortable });
        self.act(Action::BeginDeepen { cause });
        self.emit(Note::GoingWarm(cause));
    }

    /// Something needs it awake, or it has ended, in the middle of a hibernating.
    pub(crate) fn abort_hibernate(&mut self, by: WakeCause) {
        let Phase::Hibernating { stage, .. } = &mut self.phase else { return };
        match stage {
            HibernateStage::Abortable => {
                *stage = HibernateStage::Aborting(by);
                self.act(Action::AbortDeepen);
            }
            HibernateStage::Aborting(_) => {}
            HibernateStage::Committed { wake } => {
                wake.get_or_insert(by);
            }
        }
    }

    /// The image is durable: from here on there is no way back but a wake.
    pub(crate) fn hibernate_committed(&mut self) {
        if let Phase::Hibernating { stage, .. } = &mut self.phase {
            let wake = if let HibernateStage::Aborting(by) = stage { Some(by.clone()) } else { None };
            *stage = HibernateStage::Committed { wake };
        }
    }

    pub(crate) fn hibernated(&mut self, next_timer: Option<Millis>) {
        let Some((cause, asleep, wake)) = self.hibernating() else { return };
        self.counts.warm_sleeps += 1;
        self.deep_refused = None;
        self.emit(Note::Warm);
        self.answer(Goal::is_sleep, &Ok(()));
        let warm = Some(Warmed { since: self.now, cause });
        let asleep = Asleep { warm, next_timer, ..asleep };
        match wake {
            Some(wake) => self.begin_wake(wake, asleep),
            None => self.enter(Phase::Warm(asleep)),
        }
    }

    /// It runs: to users this is a wake, from the sleep that was to be hibernated.
    pub(crate) fn hibernate_aborted(&mut self, by: WakeCause) {
        let Some((_, asleep, wake)) = self.hibernating() else { return };
        // Who asked first is named; without a request the engine says what it saw.
        let by = wake.unwrap_or(by);
        self.answer(Goal::is_sleep, &Err(Refusal::SleepAborted(by.clone())));
        self.woken_by(by, asleep.since);
    }

    pub(crate) fn hibernate_refused(&mut self, reasons: Vec<Text>, retry: Retry, dozes: bool) {
        let Some((_, asleep, wake)) = self.hibernating() else { return };
        self.remember_deep_refusal(reasons, retry, dozes);
        match wake {
            Some(wake) if dozes => self.begin_wake(wake, asleep),
            None if dozes => self.enter(Phase::Dozing(asleep)),
            wake => self.woken_by(wake.unwrap_or(WakeCause::Recovery), asleep.since),
        }
    }

    /// What is left of it is unknown, but the image of its level is whole: wakes at once, from there.
    pub(crate) fn hibernate_failed(&mut self, reason: Text) {
        let Some((cause, asleep, wake)) = self.hibernating() else { return };
        let committed = matches!(&self.phase, Phase::Hibernating { stage: HibernateStage::Committed { .. }, .. });
        self.remember_deep_refusal(vec![reason], Retry::Later, false);
        let warm = committed.then_some(Warmed { since: self.now, cause });
        self.begin_wake(wake.unwrap_or(WakeCause::Recovery), Asleep { warm, next_timer: None, ..asleep });
    }

    /// The hibernating under way: why, of which sleep, and what wants it awake meanwhile.
    fn hibernating(&self) -> Option<(SleepCause, Asleep, Option<WakeCause>)> {
        let Phase::Hibernating { cause, asleep, stage } = &self.phase else { return None };
        let wake = match stage {
            HibernateStage::Abortable => None,
            HibernateStage::Aborting(by) => Some(by.clone()),
            HibernateStage::Committed { wake } => wake.clone(),
        };
        Some((*cause, asleep.clone(), wake))
    }

    /// The last refusal counts for `explain` and for the next attempt.
    fn remember_deep_refusal(&mut self, reasons: Vec<Text>, retry: Retry, dozes: bool) {
        self.emit(Note::WarmRefused(reasons.clone(), retry));
        let refusal = Err(Refusal::WarmRefused(reasons.clone()));
        self.answer(|goal| goal == Goal::Warm, &refusal);
        self.answer(|goal| goal == Goal::Asleep, if dozes { &Ok(()) } else { &refusal });
        self.deep_refused = Some(Refused::after(self.deep_refused.as_ref(), reasons, retry, self.now));
    }
}
