//! Waiting for a turn to wake: what of [`crate::wakes`] concerns one app.
//!
//! While its wake waits, an app is `Waking` to its state machine, and asleep in every other respect: its watch and image are in
//! place, so whatever happens to it finds what it would find without the queue. Whoever asks for it by a command does not wait.

use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use torpor_lifecycle::{App, Event, Millis, WakeCause, WakeFailure};

use super::Task;
use crate::app::workload::{Report, Wake, Workload};
use crate::wakes::{Heat, Permit, Turn, Waiting};

/// A wake that takes longer does not keep others from theirs. Processes are built under the app's own CPU quota, so an app decides
/// how long its wake takes; the bound on wakes at the same time is only meant to keep many short ones from slowing each other down.
const LONGEST_TURN: Duration = Duration::from_millis(200);

/// The wake of an app: none, one that waits for its turn, or one that is under way.
#[derive(Debug, Default)]
pub(super) struct WakeQueue {
    /// In a box: most apps wait for no turn.
    queued: Option<Box<QueuedWake>>,
    under_way: Option<WakeUnderWay>,
    /// When the app was used last before it fell asleep.
    used_before: Millis,
}

/// A wake that waits.
#[derive(Debug)]
struct QueuedWake {
    cause: WakeCause,
    since: Instant,
    waiting: Waiting,
}

/// A wake whose outcome comes later.
#[derive(Debug)]
struct WakeUnderWay {
    cause: String,
    /// Its place among those that wake at the same time, given back when this is dropped.
    _permit: Option<oneshot::Sender<()>>,
    /// How long it waited for that.
    waited: Option<Duration>,
}

impl WakeQueue {
    /// In words, for `explain`; none: it waits for no turn.
    pub(super) fn words(&self) -> Option<String> {
        let queued = self.queued.as_ref()?;
        let (waited, others) = (queued.since.elapsed().as_millis(), queued.waiting.length().saturating_sub(1));
        Some(format!("waiting for its turn to wake for {waited} ms, with {others} others"))
    }

    /// The permit, once it is its turn; never, where it waits for none. May be cancelled and called again.
    pub(super) async fn turn(&mut self) -> Option<Permit> {
        match &mut self.queued {
            Some(queued) => queued.waiting.turn().await,
            None => std::future::pending().await,
        }
    }

    pub(super) const fn is_queued(&self) -> bool {
        self.queued.is_some()
    }

    pub(super) const fn is_under_way(&self) -> bool {
        self.under_way.is_some()
    }

    /// Gives up its place in the queue; whether it had one.
    pub(super) fn leave(&mut self) -> bool {
        self.queued.take().is_some()
    }

    /// The wake under way has ended, and its permit is given back: its cause, and how long it waited.
    pub(super) fn end(&mut self) -> Option<(String, Option<Duration>)> {
        self.under_way.take().map(|wake| (wake.cause, wake.waited))
    }

    /// It sleeps from now on. What wakes it is a use, too, but not one to judge it by.
    pub(super) fn fell_asleep(&mut self, app: &App) {
        self.used_before = app.last_used();
    }
}

impl<W: Workload> Task<W> {
    /// Wakes it now, or when it is its turn.
    pub(super) fn begin_wake(&mut self, cause: &WakeCause) -> Option<Event> {
        if !matches!(cause, WakeCause::Packet(_) | WakeCause::Timer) {
            return self.wake(cause, None, None);
        }
        let heat = Heat { last_used: self.wakes.used_before, wakes: self.app.counts().wakes };
        match self.services.wakes.ask(heat) {
            Turn::Now(permit) => self.wake(cause, Some(lend(permit)), None),
            Turn::Later(waiting) => {
                let queued = QueuedWake { cause: cause.clone(), since: Instant::now(), waiting };
                self.wakes.queued = Some(Box::new(queued));
                None
            }
        }
    }

    /// Wakes it: what came of it, unless that comes later. The permit is given back with the outcome, or when that takes so long that
    /// others should not wait for it.
    fn wake(
        &mut self,
        cause: &WakeCause,
        permit: Option<oneshot::Sender<()>>,
        waited: Option<Duration>,
    ) -> Option<Event> {
        if let Some(reason) = self.operations.held_up() {
            return Some(Event::WakeFailed(WakeFailure::Passing(reason)));
        }
        match self.workload.wake(cause, &mut self.operations) {
            Wake::UnderWay => {
                self.wakes.under_way = Some(WakeUnderWay { cause: cause.to_string(), _permit: permit, waited });
                None
            }
            Wake::Ended(Report { event, entry, .. }) => {
                if let Some(entry) = entry {
                    self.past.add_wake(cause.to_string(), entry, waited);
                    if matches!(event, Event::WakeFailed(_)) {
                        self.wakes.fell_asleep(&self.app);
                    }
                }
                Some(event)
            }
        }
    }

    /// It is its turn.
    pub(super) async fn wake_in_turn(&mut self, permit: Permit) {
        let held = lend(permit);
        self.wake_queued(Some(held)).await;
    }

    /// Somebody has asked for it by name: it does not wait any longer.
    pub(super) async fn wake_at_once(&mut self) {
        self.wake_queued(None).await;
    }

    async fn wake_queued(&mut self, permit: Option<oneshot::Sender<()>>) {
        let Some(queued) = self.wakes.queued.take() else { return };
        if let Some(event) = self.wake(&queued.cause, permit, Some(queued.since.elapsed())) {
            self.tell(event).await;
        }
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
