//! Who may be connected over TCP without having shown the token.
//!
//! ```text
//! accepted ──▶ visitor ──token──▶ authenticated (at most AUTHENTICATED)
//!                 │
//!                 └─▶ dismissed: after TOKEN_TIME, or when newer visitors take its room
//! ```
//! A visitor costs a descriptor and little else, but their number is bounded, in all and for each peer. The newest is always
//! let in: in its place the oldest visitor of the same peer goes, or the oldest one of the peer that has most. Whoever has
//! the token sends it at once, so it is not among the oldest; whoever holds connections open without it only loses them.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

/// Visitors at the same time.
pub(crate) const VISITORS: usize = 128;
/// Visitors of one peer: an IPv4 address, or a network of 64 bits.
const VISITORS_PER_PEER: usize = 16;
/// Connections that have shown the token, at the same time.
pub(crate) const AUTHENTICATED: usize = 1024;
/// How long a connection may take until its first request with the token is there.
pub(crate) const TOKEN_TIME: Duration = Duration::from_secs(10);

/// All visitors of a listener.
#[derive(Debug)]
pub(crate) struct Visitors {
    waiting: Mutex<Queue>,
    authenticated: Arc<Semaphore>,
}

/// One connection.
#[derive(Debug)]
pub(crate) struct Visitor {
    id: u64,
    all: Arc<Visitors>,
    deadline: Instant,
    dismissed: Arc<Notify>,
    place: OnceLock<OwnedSemaphorePermit>,
}

impl Visitors {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { waiting: Mutex::default(), authenticated: Arc::new(Semaphore::new(AUTHENTICATED)) })
    }

    /// Lets a connection in; another may have to go for it.
    pub(crate) fn admit(self: &Arc<Self>, peer: IpAddr) -> Arc<Visitor> {
        let (dismissed, deadline) = (Arc::new(Notify::new()), Instant::now() + TOKEN_TIME);
        let (id, gone) = self.queue().enter(peer, dismissed.clone());
        if let Some(gone) = gone {
            gone.notify_one();
        }
        Arc::new(Visitor { id, all: self.clone(), deadline, dismissed, place: OnceLock::new() })
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Visitor {
    /// It has shown the token; `false`: there is no room for another one that has.
    pub(crate) fn authenticate(&self) -> bool {
        if self.place.get().is_some() {
            return true;
        }
        let Ok(place) = self.all.authenticated.clone().try_acquire_owned() else { return false };
        // Requests of one connection come one after the other.
        let _ = self.place.set(place);
        self.all.queue().leave(self.id);
        true
    }

    /// Resolves when it has to go; never once it has shown the token.
    pub(crate) async fn dismissed(&self) {
        tokio::select! {
            () = self.dismissed.notified() => {}
            () = tokio::time::sleep_until(self.deadline) => {}
        }
        if self.place.get().is_some() {
            std::future::pending::<()>().await;
        }
    }
}

impl Drop for Visitor {
    fn drop(&mut self) {
        self.all.queue().leave(self.id);
    }
}

/// Visitors in the order in which they came, with what tells each that it has to go.
#[derive(Debug, Default)]
struct Queue {
    next: u64,
    waiting: VecDeque<(u64, IpAddr, Arc<Notify>)>,
}

impl Queue {
    /// Its number, and who has to go for it.
    fn enter(&mut self, peer: IpAddr, notify: Arc<Notify>) -> (u64, Option<Arc<Notify>>) {
        let peer = group(peer);
        let from = |peer| move |(_, other, _): &(u64, IpAddr, Arc<Notify>)| *other == peer;
        let gone = if self.waiting.iter().filter(|entry| from(peer)(entry)).count() >= VISITORS_PER_PEER {
            self.waiting.iter().position(from(peer))
        } else if self.waiting.len() >= VISITORS {
            let mut counts: HashMap<IpAddr, usize> = HashMap::new();
            for (_, peer, _) in &self.waiting {
                *counts.entry(*peer).or_default() += 1;
            }
            let most = counts.values().copied().max();
            self.waiting.iter().position(|(_, peer, _)| counts.get(peer).copied() == most)
        } else {
            None
        };
        let gone = gone.and_then(|at| self.waiting.remove(at)).map(|(_, _, notify)| notify);
        self.next += 1;
        self.waiting.push_back((self.next, peer, notify));
        (self.next, gone)
    }

    fn leave(&mut self, id: u64) {
        self.waiting.retain(|(waiting, _, _)| *waiting != id);
    }
}

/// What counts as one peer.
fn group(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V4(ip) => ip.into(),
        IpAddr::V6(ip) => Ipv6Addr::from(u128::from(ip) >> 64 << 64).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn enter(queue: &mut Queue, peer: &str) -> (u64, Option<Arc<Notify>>) {
        queue.enter(peer.parse().unwrap(), Arc::default())
    }

    fn ids(queue: &Queue) -> Vec<u64> {
        queue.waiting.iter().map(|(id, _, _)| *id).collect()
    }

    #[test]
    fn a_peer_with_too_many_loses_its_oldest() {
        let mut queue = Queue::default();
        let (other, _) = enter(&mut queue, "192.0.2.1");
        for n in 0..VISITORS_PER_PEER as u64 {
            // One network of 64 bits is one peer.
            let (id, gone) = enter(&mut queue, &format!("2001:db8::{n:x}"));
            assert_eq!((id, gone.is_none()), (n + 2, true));
        }
        let (_, gone) = enter(&mut queue, "2001:db8::ffff");
        assert!(gone.is_some() && ids(&queue).contains(&other) && !ids(&queue).contains(&2));
        queue.leave(other);
        assert_eq!(queue.waiting.len(), VISITORS_PER_PEER);
    }

    #[test]
    fn with_too_many_in_all_the_peer_with_most_loses_one() {
        let mut queue = Queue::default();
        let (single, _) = enter(&mut queue, "192.0.2.1");
        let (first, _) = enter(&mut queue, "192.0.2.2");
        enter(&mut queue, "::ffff:192.0.2.2");
        for n in 0..VISITORS - 3 {
            assert!(enter(&mut queue, &format!("198.51.{}.{}", n / 200, n % 200)).1.is_none());
        }
        assert!(enter(&mut queue, "203.0.113.1").1.is_some());
        assert!(!ids(&queue).contains(&first) && ids(&queue).contains(&single));
        assert!(enter(&mut queue, "203.0.113.2").1.is_some());
        assert!(!ids(&queue).contains(&single), "where all have one, the oldest goes");
        assert_eq!(queue.waiting.len(), VISITORS);
    }
}
