//! Waiting for a turn to wake: what of [`crate::wakes`] concerns one app.
//!
//! While its wake waits, an app is `Waking` to its state machine, and asleep in every other respect: its watch and image are in
//! place, so whatever happens to it finds what it would find without the queue. Whoever asks for it by a command does not wait.

use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use torpor_lifecycle::{Event, WakeCause, WakeFailure};

use super::process_tree::operate::text;
use super::process_tree::sleep_state::SleepState;
use super::task::Task;
use crate::wakes::{Heat, Permit, Turn, Waiting};

/// A wake that takes longer does not keep others from theirs. Processes are built under the app's own CPU quota, so an app decides
/// how long its wake takes; the bound on wakes at the same time is only meant to keep many short ones from slowing each other down.
const LONGEST_TURN: Duration = Duration::from_millis(200);

/// A wake that waits.
#[derive(Debug)]
pub(super) struct QueuedWake {
    cause: WakeCause,
    since: Instant,
    pub(super) waiting: Waiting,
}

impl QueuedWake {
    /// In words, for `explain`.
    pub(super) fn words(&self) -> String {
        let (waited, others) = (self.since.elapsed().as_millis(), self.waiting.length().saturating_sub(1));
        format!("waiting for its turn to wake for {waited} ms, with {others} others")
    }
}

impl Task {
    /// Wakes it now, or when it is its turn.
    pub(super) fn begin_wake(&mut self, cause: &WakeCause) -> Option<Event> {
        if !matches!(cause, WakeCause::Packet(_) | WakeCause::Timer) {
            return self.wake(cause);
        }
        let heat = Heat { last_used: self.used_before, wakes: self.app.counts().wakes };
        match self.shared.wakes.ask(heat) {
            Turn::Now(permit) => self.wake_with(permit, cause),
            Turn::Later(waiting) => {
                self.queued = Some(Box::new(QueuedWake { cause: cause.clone(), since: Instant::now(), waiting }));
                None
            }
        }
    }

    /// The permit is given back with the outcome, or when that takes so long that others should not wait for it.
    fn wake_with(&mut self, permit: Permit, cause: &WakeCause) -> Option<Event> {
        let held = lend(permit);
        let event = self.wake(cause);
        if event.is_none()
            && let Some(resuming) = &mut self.resuming
        {
            resuming.permit = Some(held);
        }
        event
    }

    /// It is its turn.
    pub(super) async fn wake_in_turn(&mut self, permit: Permit) {
        let Some(queued) = self.queued.take() else { return };
        let (waited, before) = (queued.since.elapsed(), self.wakes.added());
        let event = self.wake_with(permit, &queued.cause);
        self.waited(waited, before, event).await;
    }

    /// Somebody has asked for it by name: it does not wait any longer.
    pub(super) async fn wake_at_once(&mut self) {
        let Some(queued) = self.queued.take() else { return };
        let (waited, before) = (queued.since.elapsed(), self.wakes.added());
        let event = self.wake(&queued.cause);
        self.waited(waited, before, event).await;
    }

    /// Tells the machine what came of the wake, whose first phase was the waiting.
    async fn waited(&mut self, waited: Duration, before: u64, event: Option<Event>) {
        let Some(event) = event else {
            // From warm: that comes later.
            if let Some(resuming) = &mut self.resuming {
                resuming.waited = Some(waited);
            }
            return;
        };
        if self.wakes.added() > before {
            self.wakes.waited(waited);
        }
        self.tell(event).await;
    }

    /// Its processes have ended while it waited.
    pub(super) async fn leave_queue(&mut self) {
        if self.queued.take().is_some() {
            self.tell(Event::WakeFailed(WakeFailure::Passing(text("its processes have ended")))).await;
        }
    }

    /// Whether it is without processes.
    pub(super) fn is_warm(&self) -> bool {
        let waits = self.queued.is_some() && matches!(self.asleep, Some(SleepState::Warm(_)));
        waits || matches!(self.app.phase(), torpor_lifecycle::Phase::Warm(_))
    }
}

/// Gives the permit back when what is returned is dropped, or after [`LONGEST_TURN`].
fn lend(permit: Permit) -> oneshot::Sender<()> {
    let (held, ended) = oneshot::channel::<()>();
    tokio::spawn(async move {
        // Whichever comes first.
        let _ = tokio::time::timeout(LONGEST_TURN, ended).await;
        drop(permit);
    });
    held
}

#[cfg(test)]
mod tests {
    use torpor_lifecycle::Millis;

    use super::*;
    use crate::wakes::Wakes;

    #[tokio::test]
    async fn a_wake_that_does_not_end_gives_its_turn_to_the_next() {
        let heat = Heat { last_used: Millis(1), wakes: 0 };
        let wakes = Wakes::new(1);
        let Turn::Now(permit) = wakes.ask(heat) else { panic!("a place was free") };
        let Turn::Later(mut next) = wakes.ask(heat) else { panic!("no place is free") };
        let held = lend(permit);
        let turn = tokio::time::timeout(10 * LONGEST_TURN, next.turn()).await;
        assert!(matches!(turn, Ok(Some(_))));
        drop(held);
    }
}
