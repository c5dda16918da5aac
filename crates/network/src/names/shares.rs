//! Limits on the concurrent work of the name server: queries that it forwards to an upstream server, and TCP connections.
//!
//! One app holds at most `each` shares, all apps together hold at most `all`, whatever apps do and however many there are.
//! While all are taken, an app that asks for one gets the oldest share of the app that holds the most, if that app still
//! holds more than the asking one afterwards. The work under a share that is taken away is dropped: its query gets no answer, or its
//! connection is closed, and the resolver asks again.
//!
//! So the numbers of shares of apps that want more than they can get differ by at most one, and no app loses its last
//! share. An app with fewer than `n` shares is refused only while at least `all / n` apps hold shares.
//!
//! Invariants: `count` is the number of entries of `held`; no map in `held` is empty.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

/// All shares of one kind.
#[derive(Debug)]
pub(super) struct Shares {
    all: usize,
    each: usize,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    /// By app, then by number. A sender never sends: dropped, it says that the share is taken away.
    held: HashMap<u32, BTreeMap<u64, oneshot::Sender<Infallible>>>,
    count: usize,
    next_number: u64,
}

/// Given back when it is dropped.
#[derive(Debug)]
pub(super) struct Share {
    shares: Arc<Shares>,
    app: u32,
    number: u64,
    taken_away: oneshot::Receiver<Infallible>,
}

impl Shares {
    /// At most `all` shares, and at most `each` for one app.
    pub(super) fn new([all, each]: [usize; 2]) -> Arc<Self> {
        Arc::new(Self { all, each, table: Mutex::default() })
    }

    /// A share for this app; `None` if it holds too many.
    pub(super) fn take(self: &Arc<Self>, app: u32) -> Option<Share> {
        let mut table = self.table();
        let own = table.held.get(&app).map_or(0, BTreeMap::len);
        if own >= self.each || (table.count >= self.all && !table.take_away(own)) {
            return None;
        }
        let number = table.next_number;
        table.next_number += 1;
        table.count += 1;
        let (sender, taken_away) = oneshot::channel();
        table.held.entry(app).or_default().insert(number, sender);
        Some(Share { shares: self.clone(), app, number, taken_away })
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    /// Takes away the oldest share of the app that holds the most, for one that holds `own`.
    fn take_away(&mut self, own: usize) -> bool {
        // Of equal ones, the app with the oldest share.
        let most = self.held.values_mut().max_by_key(|held| (held.len(), Reverse(held.keys().next().copied())));
        match most {
            Some(held) if held.len() > own + 1 => {
                self.count -= usize::from(held.pop_first().is_some());
                true
            }
            _ => false,
        }
    }
}

impl Share {
    /// Does this work as long as the share is held; `None` if it was taken away.
    pub(super) async fn hold<T>(mut self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            _ = &mut self.taken_away => None,
            done = work => Some(done),
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut table = self.shares.table();
        let Some(held) = table.held.get_mut(&self.app) else { return };
        // It may have been taken away.
        let given_back = usize::from(held.remove(&self.number).is_some());
        if held.is_empty() {
            table.held.remove(&self.app);
        }
        table.count -= given_back;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tokio::sync::oneshot::error::TryRecvError;

    use super::*;

    fn is_held(share: &mut Share) -> bool {
        match share.taken_away.try_recv() {
            Err(TryRecvError::Empty) => true,
            Err(TryRecvError::Closed) => false,
            Ok(never) => match never {},
        }
    }

    fn counts(held: &mut [(u32, Share)]) -> BTreeMap<u32, usize> {
        let mut counts = BTreeMap::new();
        for (app, share) in held {
            *counts.entry(*app).or_default() += usize::from(is_held(share));
        }
        counts
    }

    #[test]
    fn one_app_leaves_room_for_others() {
        let shares = Shares::new([5, 3]);
        let mut held: Vec<_> = (0..3).map(|_| shares.take(1).unwrap()).collect();
        assert!(shares.take(1).is_none());
        held.extend([shares.take(2).unwrap(), shares.take(3).unwrap()]);
        held.push(shares.take(2).expect("the first app holds most"));
        assert_eq!(held.iter_mut().map(is_held).collect::<Vec<_>>(), [false, true, true, true, true, true]);
        assert!(shares.take(2).is_none() && shares.take(1).is_none(), "nobody holds two more than they");
        held.remove(1);
        assert!(shares.take(1).is_some());
        drop(held);
        assert!(shares.table().held.is_empty());
        assert_eq!(shares.table().count, 0);
    }

    /// However many take all they can get, another app finds room.
    #[test]
    fn many_apps_together_leave_room_for_another() {
        let shares = Shares::new([512, 64]);
        let mut greedy = Vec::new();
        for _ in 0..64 {
            greedy.extend((0..100).filter_map(|app| Some((app, shares.take(app)?))));
        }
        let by_app = counts(&mut greedy);
        assert_eq!((by_app.len(), by_app.values().sum::<usize>()), (100, 512));
        assert!(by_app.values().all(|count| [5, 6].contains(count)), "{by_app:?}");
        let mut small: Vec<_> = (0..5).map(|_| (200, shares.take(200).expect("it holds little"))).collect();
        assert_eq!(counts(&mut small), BTreeMap::from([(200, 5)]));
        assert_eq!(counts(&mut greedy).values().sum::<usize>(), 507);
        assert_eq!(shares.table().count, 512);
    }

    #[test]
    fn work_ends_with_its_share() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let shares = Shares::new([2, 2]);
            let (first, second) = (shares.take(1).unwrap(), shares.take(1).unwrap());
            let (dropped, seen) = oneshot::channel::<Infallible>();
            let work = tokio::spawn(first.hold(async move {
                let _dropped = dropped;
                std::future::pending::<()>().await;
            }));
            tokio::task::yield_now().await;
            let other = shares.take(2).unwrap();
            assert_eq!(work.await.unwrap(), None);
            assert!(seen.await.is_err(), "it is dropped");
            assert_eq!(second.hold(async { 7 }).await, Some(7));
            assert_eq!(shares.table().count, 1);
            drop(other);
            assert_eq!(shares.table().count, 0);
        });
    }

    #[derive(Clone, Debug)]
    enum Step {
        Take(u32),
        GiveBack(prop::sample::Index),
    }

    proptest! {
        #[test]
        fn bounds_hold_and_nobody_is_refused_for_who_holds_more(steps in proptest::collection::vec(prop_oneof![
            3 => (0..6_u32).prop_map(Step::Take),
            1 => any::<prop::sample::Index>().prop_map(Step::GiveBack),
        ], 0..120)) {
            let shares = Shares::new([8, 4]);
            let mut held: Vec<(u32, Share)> = Vec::new();
            for step in steps {
                match step {
                    Step::Take(app) => {
                        let before = counts(&mut held);
                        let own = before.get(&app).copied().unwrap_or(0);
                        match shares.take(app) {
                            Some(share) => held.push((app, share)),
                            None => prop_assert!(own == 4 || before.values().all(|count| *count <= own + 1), "{before:?}"),
                        }
                        let after = counts(&mut held);
                        prop_assert!(before.iter().all(|(app, count)| *count == 0 || after[app] > 0), "{before:?} {after:?}");
                    }
                    Step::GiveBack(at) if !held.is_empty() => drop(held.swap_remove(at.index(held.len()))),
                    Step::GiveBack(_) => {}
                }
                let now = counts(&mut held);
                prop_assert!(now.values().all(|count| *count <= 4));
                prop_assert!(now.values().sum::<usize>() <= 8);
                prop_assert_eq!(now.values().sum::<usize>(), shares.table().count);
            }
        }
    }
}
