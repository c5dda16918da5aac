//! Connections over TCP, and how many of them may be open without having shown the token.
//!
//! ```text
//! accepted ──▶ unauthenticated ──token──▶ authenticated (at most AUTHENTICATED)
//!                 │
//!                 └─▶ evicted: after TOKEN_TIME, or when newer connections take its place
//! ```
//! An unauthenticated connection costs a descriptor and little else, but their number is bounded, in all and for each peer. The newest
//! is always admitted: in its place the oldest one of the same peer is evicted, or the oldest one of the peer that has most. A client
//! that has the token sends it at once, so its connection is not among the oldest.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

/// Unauthenticated connections at the same time.
pub(crate) const UNAUTHENTICATED: usize = 128;
/// Those of one peer: an IPv4 address, or a network of 64 bits.
const UNAUTHENTICATED_PER_PEER: usize = 16;
/// Connections that have shown the token, at the same time.
pub(crate) const AUTHENTICATED: usize = 1024;
/// How long a connection may take until its first request with the token is there.
pub(crate) const TOKEN_TIME: Duration = Duration::from_secs(10);

/// All connections of a listener.
#[derive(Debug)]
pub(crate) struct TcpClients {
    waiting: Mutex<Queue>,
    authenticated: Arc<Semaphore>,
}

/// One connection.
#[derive(Debug)]
pub(crate) struct TcpClient {
    id: u64,
    all: Arc<TcpClients>,
    deadline: Instant,
    evicted: Arc<Notify>,
    place: OnceLock<OwnedSemaphorePermit>,
}

impl TcpClients {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { waiting: Mutex::default(), authenticated: Arc::new(Semaphore::new(AUTHENTICATED)) })
    }

    /// Admits a connection; another one may be evicted for it.
    pub(crate) fn admit(self: &Arc<Self>, peer: IpAddr) -> Arc<TcpClient> {
        let (evicted, deadline) = (Arc::new(Notify::new()), Instant::now() + TOKEN_TIME);
        let (id, gone) = self.queue().enter(peer, evicted.clone());
        if let Some(gone) = gone {
            gone.notify_one();
        }
        Arc::new(TcpClient { id, all: self.clone(), deadline, evicted, place: OnceLock::new() })
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TcpClient {
    /// It has shown the token; `false`: there are too many that have.
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

    /// Resolves when it is evicted; never once it has shown the token.
    pub(crate) async fn evicted(&self) {
        tokio::select! {
            () = self.evicted.notified() => {}
            () = tokio::time::sleep_until(self.deadline) => {}
        }
        if self.place.get().is_some() {
            std::future::pending::<()>().await;
        }
    }
}

impl Drop for TcpClient {
    fn drop(&mut self) {
        self.all.queue().leave(self.id);
    }
}

/// Unauthenticated connections in the order in which they came, with what tells each that it is evicted.
#[derive(Debug, Default)]
struct Queue {
    next: u64,
    waiting: VecDeque<(u64, IpAddr, Arc<Notify>)>,
}

impl Queue {
    /// Its number, and which one is evicted for it.
    fn enter(&mut self, peer: IpAddr, notify: Arc<Notify>) -> (u64, Option<Arc<Notify>>) {
        let peer = group(peer);
        let from = |peer| move |(_, other, _): &(u64, IpAddr, Arc<Notify>)| *other == peer;
        let gone = if self.waiting.iter().filter(|entry| from(peer)(entry)).count() >= UNAUTHENTICATED_PER_PEER {
            self.waiting.iter().position(from(peer))
        } else if self.waiting.len() >= UNAUTHENTICATED {
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
        for n in 0..UNAUTHENTICATED_PER_PEER as u64 {
            // One network of 64 bits is one peer.
            let (id, gone) = enter(&mut queue, &format!("2001:db8::{n:x}"));
            assert_eq!((id, gone.is_none()), (n + 2, true));
        }
        let (_, gone) = enter(&mut queue, "2001:db8::ffff");
        assert!(gone.is_some() && ids(&queue).contains(&other) && !ids(&queue).contains(&2));
        queue.leave(other);
        assert_eq!(queue.waiting.len(), UNAUTHENTICATED_PER_PEER);
    }

    #[test]
    fn with_too_many_in_all_the_peer_with_most_loses_one() {
        let mut queue = Queue::default();
        let (single, _) = enter(&mut queue, "192.0.2.1");
        let (first, _) = enter(&mut queue, "192.0.2.2");
        enter(&mut queue, "::ffff:192.0.2.2");
        for n in 0..UNAUTHENTICATED - 3 {
            assert!(enter(&mut queue, &format!("198.51.{}.{}", n / 200, n % 200)).1.is_none());
        }
        assert!(enter(&mut queue, "203.0.113.1").1.is_some());
        assert!(!ids(&queue).contains(&first) && ids(&queue).contains(&single));
        assert!(enter(&mut queue, "203.0.113.2").1.is_some());
        assert!(!ids(&queue).contains(&single), "where all have one, the oldest goes");
        assert_eq!(queue.waiting.len(), UNAUTHENTICATED);
    }
}
