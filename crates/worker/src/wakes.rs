//! Wakes that nobody asked for by name (by packets and timers): how many at the same time, and in which order.
//!
//! Somebody who touches every port of the machine would otherwise wake all apps at once, and those that are in use would wait
//! with the others. Beyond [`Wakes::new`]'s bound a wake waits for its turn: the app that was used last goes first, but one
//! that has waited for [`PATIENCE`] before all that have not. Commands do not wait, and take nobody's turn.
//!
//! Invariant: `free` places and the permits that are out add up to the bound; nobody waits while a place is free.
//! Lock order: `queue` is the only lock; nothing is sent while it is held.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use torpor_lifecycle::Millis;

/// After so long a wake goes before those of apps that were used later.
const PATIENCE: Duration = Duration::from_secs(2);

/// What makes an app go before others: compared in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Heat {
    /// When it was used last.
    pub(crate) last_used: Millis,
    /// How often it has woken.
    pub(crate) wakes: u64,
}

/// All wakes of a worker that wait, or are under way with a permit.
#[derive(Debug)]
pub(crate) struct Wakes {
    queue: Mutex<Queue<oneshot::Sender<Permit>>>,
}

/// Leave to wake one app now; given to the next when it is dropped.
#[derive(Debug)]
pub(crate) struct Permit {
    wakes: Arc<Wakes>,
}

/// A place in the queue; given up when it is dropped.
#[derive(Debug)]
pub(crate) struct Waiting {
    wakes: Arc<Wakes>,
    id: u64,
    turn: oneshot::Receiver<Permit>,
}

/// When an app may wake.
#[derive(Debug)]
pub(crate) enum Turn {
    /// Now.
    Now(Permit),
    /// When others have woken.
    Later(Waiting),
}

impl Wakes {
    /// At most `at_once` (not zero) at the same time.
    pub(crate) fn new(at_once: usize) -> Arc<Self> {
        Arc::new(Self { queue: Mutex::new(Queue::new(at_once.max(1))) })
    }

    /// Asks for a turn.
    pub(crate) fn ask(self: &Arc<Self>, heat: Heat) -> Turn {
        let (sender, turn) = oneshot::channel();
        match self.queue().enter(heat, Instant::now(), sender) {
            Entered::Now => Turn::Now(Permit { wakes: self.clone() }),
            Entered::Later(id) => Turn::Later(Waiting { wakes: self.clone(), id, turn }),
        }
    }

    fn queue(&self) -> MutexGuard<'_, Queue<oneshot::Sender<Permit>>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let next = self.wakes.queue().release(Instant::now());
        if let Some(next) = next {
            // Where nobody is there to take it, dropping it passes it on.
            drop(next.send(Self { wakes: self.wakes.clone() }));
        }
    }
}

impl Waiting {
    /// The permit, once it is this app's turn. May be cancelled and called again.
    pub(crate) async fn turn(&mut self) -> Option<Permit> {
        (&mut self.turn).await.ok()
    }

    /// How many wait, this one included.
    pub(crate) fn length(&self) -> usize {
        self.wakes.queue().waiting.len()
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.wakes.queue().leave(self.id);
    }
}

/// The decisions, without clock and channels.
#[derive(Debug)]
struct Queue<T> {
    free: usize,
    next: u64,
    /// By the order in which they came.
    waiting: BTreeMap<u64, (Heat, Instant, T)>,
}

#[derive(Debug, PartialEq, Eq)]
enum Entered {
    Now,
    Later(u64),
}

impl<T> Queue<T> {
    fn new(at_once: usize) -> Self {
        Self { free: at_once, next: 0, waiting: BTreeMap::new() }
    }

    fn enter(&mut self, heat: Heat, now: Instant, who: T) -> Entered {
        if self.free > 0 {
            self.free -= 1;
            return Entered::Now;
        }
        self.next += 1;
        self.waiting.insert(self.next, (heat, now, who));
        Entered::Later(self.next)
    }

    /// One has woken: whose turn it is now.
    fn release(&mut self, now: Instant) -> Option<T> {
        let first = self.waiting.first_key_value();
        let overdue = first.filter(|(_, (_, since, _))| now.saturating_duration_since(*since) >= PATIENCE);
        let hottest = || self.waiting.iter().max_by_key(|(id, (heat, ..))| (*heat, std::cmp::Reverse(**id)));
        let next = overdue.or_else(hottest).map(|(id, _)| *id);
        let who = next.and_then(|id| self.waiting.remove(&id)).map(|(_, _, who)| who);
        if who.is_none() {
            self.free += 1;
        }
        who
    }

    fn leave(&mut self, id: u64) {
        self.waiting.remove(&id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heat(last_used: u64, wakes: u64) -> Heat {
        Heat { last_used: Millis(last_used), wakes }
    }

    #[test]
    fn the_app_that_was_used_last_goes_first() {
        let (mut queue, now) = (Queue::new(2), Instant::now());
        assert_eq!(queue.enter(heat(1, 0), now, "a"), Entered::Now);
        assert_eq!(queue.enter(heat(1, 0), now, "b"), Entered::Now);
        for (who, heat) in [("cold", heat(1, 9)), ("warm", heat(2, 1)), ("often", heat(2, 5)), ("hot", heat(3, 0))] {
            assert!(matches!(queue.enter(heat, now, who), Entered::Later(_)));
        }
        let order: Vec<_> = (0..6).map(|_| queue.release(now)).collect();
        assert_eq!(order, [Some("hot"), Some("often"), Some("warm"), Some("cold"), None, None]);
        assert_eq!(queue.enter(heat(1, 0), now, "c"), Entered::Now);
    }

    #[test]
    fn who_has_waited_long_goes_before_all_others() {
        let (mut queue, start) = (Queue::new(1), Instant::now());
        queue.enter(heat(1, 0), start, "running");
        queue.enter(heat(1, 0), start, "cold");
        queue.enter(heat(2, 0), start, "left");
        queue.enter(heat(9, 0), start + PATIENCE / 2, "hot");
        queue.leave(2);
        let late = start + PATIENCE;
        assert_eq!([queue.release(late), queue.release(late), queue.release(late)], [Some("cold"), Some("hot"), None]);
    }

    #[test]
    fn a_permit_that_nobody_takes_is_passed_on() {
        let wakes = Wakes::new(1);
        let Turn::Now(permit) = wakes.ask(heat(1, 0)) else { panic!("a place was free") };
        let Turn::Later(gone) = wakes.ask(heat(9, 0)) else { panic!("no place is free") };
        let Turn::Later(mut stays) = wakes.ask(heat(2, 0)) else { panic!("no place is free") };
        assert_eq!(stays.length(), 2);
        drop(gone);
        drop(permit);
        let permit = stays.turn.try_recv().unwrap();
        // One that is given and not taken before its place is given up.
        let Turn::Later(gone) = wakes.ask(heat(9, 0)) else { panic!("no place is free") };
        drop(permit);
        drop(gone);
        assert!(matches!(wakes.ask(heat(1, 0)), Turn::Now(_)));
    }
}
