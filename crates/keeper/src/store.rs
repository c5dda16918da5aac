//! What the keeper holds: a table with bounds. Pure: `D` is a descriptor, or in tests anything.
//!
//! Keys that agree up to their second `/` belong together: `app/7/files` and `app/7/watch` are one app's, which has a share
//! of the descriptors. The last ones are kept for apps that hold few, and for puts of few ([`check_fds`]).
//!
//! Invariants: `fds` and `blob_bytes` are the sums over all entries; no bound of [`crate::limits`] is exceeded;
//! a refused change leaves the table as it was. Every entry has a stamp of its own, never used again.

use std::collections::BTreeMap;
use std::ops::Bound;

use crate::limits::{ALL_BLOBS_BYTES, APP_SHARE, BLOB_BYTES, FDS_PER_KEY, KEYS, RESERVE, SMALL_APP, SMALL_PUT};
use crate::protocol::{Refusal, check_key};

/// What the keys of one app have in common, with the `/` at its end; `None`: the key belongs to no app.
pub(crate) fn group(key: &str) -> Option<&str> {
    key.match_indices('/').nth(1).map(|(end, _)| &key[..=end])
}

/// Whether `fds` descriptors may be put where `all` are held, `own` of them by other entries of the app, and `limit` may be.
pub(crate) fn check_fds(fds: usize, all: usize, own: usize, limit: usize) -> Result<(), Refusal> {
    if fds > FDS_PER_KEY {
        return Err(Refusal::FdsPerKey { count: fds as u64 });
    }
    let kept = match fds {
        ..=SMALL_PUT => 0,
        _ if own + fds <= SMALL_APP => limit / RESERVE,
        _ => limit / RESERVE * 2,
    };
    if all + fds > limit - kept {
        return Err(Refusal::Fds { held: all as u64, asked: fds as u64, limit: (limit - kept) as u64 });
    }
    let share = limit / APP_SHARE;
    if fds > SMALL_PUT && own + fds > share {
        return Err(Refusal::Share { held: own as u64, asked: fds as u64, limit: share as u64 });
    }
    Ok(())
}

/// One key's blob and descriptors.
#[derive(Debug)]
pub(crate) struct Held<D> {
    pub(crate) stamp: u64,
    pub(crate) blob: Box<[u8]>,
    pub(crate) fds: Vec<D>,
}

/// All keys.
#[derive(Debug)]
pub(crate) struct Store<D> {
    entries: BTreeMap<Box<str>, Held<D>>,
    fds: usize,
    blob_bytes: usize,
    fds_limit: usize,
    next_stamp: u64,
}

impl<D> Store<D> {
    /// An empty table for at most `fds_limit` descriptors.
    pub(crate) fn new(fds_limit: usize) -> Self {
        Self { entries: BTreeMap::new(), fds: 0, blob_bytes: 0, fds_limit, next_stamp: 1 }
    }

    pub(crate) fn keys(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn fds(&self) -> usize {
        self.fds
    }

    pub(crate) fn fds_limit(&self) -> usize {
        self.fds_limit
    }

    pub(crate) fn blob_bytes(&self) -> usize {
        self.blob_bytes
    }

    /// Whether an entry of this shape may be put, while `staged` descriptors of other puts under way are held too.
    ///
    /// The old entry of the same key counts until it is replaced: both are open for a moment.
    pub(crate) fn check(&self, key: &str, blob_bytes: usize, fds: usize, staged: usize) -> Result<(), Refusal> {
        check_key(key)?;
        if blob_bytes > BLOB_BYTES {
            return Err(Refusal::Blob { bytes: blob_bytes as u64 });
        }
        check_fds(fds, self.fds + staged, self.held_beside(key), self.fds_limit)?;
        if self.blob_bytes + blob_bytes > ALL_BLOBS_BYTES {
            return Err(Refusal::Blobs { held: self.blob_bytes as u64, asked: blob_bytes as u64 });
        }
        if self.entries.len() >= KEYS && !self.entries.contains_key(key) {
            return Err(Refusal::Keys);
        }
        Ok(())
    }

    /// Descriptors of the other entries of the app that `key` belongs to.
    fn held_beside(&self, key: &str) -> usize {
        let Some(group) = group(key) else { return 0 };
        self.range(group, None).filter(|(other, _)| *other != key).map(|(_, held)| held.fds.len()).sum()
    }

    /// Puts an entry; gives back the one it replaces, for the caller to close.
    pub(crate) fn put(&mut self, key: &str, blob: Box<[u8]>, fds: Vec<D>) -> Result<Option<Held<D>>, Refusal> {
        self.check(key, blob.len(), fds.len(), 0)?;
        self.fds += fds.len();
        self.blob_bytes += blob.len();
        let held = Held { stamp: self.next_stamp, blob, fds };
        self.next_stamp += 1;
        let old = match self.entries.get_mut(key) {
            Some(entry) => Some(std::mem::replace(entry, held)),
            None => self.entries.insert(key.into(), held),
        };
        if let Some(old) = &old {
            self.subtract(old);
        }
        Ok(old)
    }

    pub(crate) fn get(&self, key: &str) -> Option<&Held<D>> {
        self.entries.get(key)
    }

    /// Takes an entry out.
    pub(crate) fn remove(&mut self, key: &str) -> Option<Held<D>> {
        let held = self.entries.remove(key)?;
        self.subtract(&held);
        Some(held)
    }

    /// Takes out every entry whose key begins with `prefix`.
    pub(crate) fn remove_prefix(&mut self, prefix: &str) -> Vec<Held<D>> {
        let keys: Vec<Box<str>> = self.range(prefix, None).map(|(key, _)| key.into()).collect();
        keys.iter().filter_map(|key| self.remove(key)).collect()
    }

    /// Entries whose key begins with `prefix` and comes after `after`, in order.
    pub(crate) fn range<'s>(
        &'s self,
        prefix: &'s str,
        after: Option<&str>,
    ) -> impl Iterator<Item = (&'s str, &'s Held<D>)> {
        let from = match after {
            Some(after) if after >= prefix => Bound::Excluded(after),
            _ => Bound::Included(prefix),
        };
        self.entries
            .range::<str, _>((from, Bound::Unbounded))
            .take_while(move |(key, _)| key.starts_with(prefix))
            .map(|(key, held)| (&**key, held))
    }

    fn subtract(&mut self, held: &Held<D>) {
        self.fds -= held.fds.len();
        self.blob_bytes -= held.blob.len();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Step {
        Put(String, Vec<u8>, usize),
        Remove(String),
        RemovePrefix(String),
    }

    fn step() -> impl Strategy<Value = Step> {
        let key = "[ab]{1,3}";
        prop_oneof![
            4 => (key, proptest::collection::vec(any::<u8>(), 0..20), 0_usize..9).prop_map(|(k, b, n)| Step::Put(k, b, n)),
            2 => key.prop_map(Step::Remove),
            1 => "[ab]{0,2}".prop_map(Step::RemovePrefix),
        ]
    }

    proptest! {
        #[test]
        fn behaves_like_a_map_with_sums(steps in proptest::collection::vec(step(), 0..60)) {
            const LIMIT: usize = 40;
            let mut store: Store<u8> = Store::new(LIMIT);
            let mut model: BTreeMap<String, (Vec<u8>, usize)> = BTreeMap::new();
            for step in steps {
                match step {
                    Step::Put(key, blob, fds) => {
                        let held: usize = model.values().map(|(_, n)| n).sum();
                        let result = store.put(&key, blob.clone().into(), vec![0; fds]);
                        let most = if fds > SMALL_PUT { LIMIT - LIMIT / RESERVE } else { LIMIT };
                        if held + fds > most {
                            let refusal = Refusal::Fds { held: held as u64, asked: fds as u64, limit: most as u64 };
                            prop_assert_eq!(result.err(), Some(refusal));
                        } else if fds > LIMIT / APP_SHARE {
                            let limit = (LIMIT / APP_SHARE) as u64;
                            prop_assert_eq!(result.err(), Some(Refusal::Share { held: 0, asked: fds as u64, limit }));
                        } else {
                            let old = result.expect("within the bounds").map(|old| (old.blob.into_vec(), old.fds.len()));
                            prop_assert_eq!(old, model.insert(key, (blob, fds)));
                        }
                    }
                    Step::Remove(key) => {
                        prop_assert_eq!(store.remove(&key).is_some(), model.remove(&key).is_some());
                    }
                    Step::RemovePrefix(prefix) => {
                        let before = model.len();
                        model.retain(|key, _| !key.starts_with(&prefix));
                        prop_assert_eq!(store.remove_prefix(&prefix).len(), before - model.len());
                    }
                }
                prop_assert_eq!(store.keys(), model.len());
                prop_assert_eq!(store.fds(), model.values().map(|(_, n)| n).sum::<usize>());
                prop_assert_eq!(store.blob_bytes(), model.values().map(|(b, _)| b.len()).sum::<usize>());
                for prefix in ["", "a", "b", "ab"] {
                    let listed: Vec<&str> = store.range(prefix, None).map(|(key, _)| key).collect();
                    let wanted: Vec<&str> = model.keys().map(String::as_str).filter(|k| k.starts_with(prefix)).collect();
                    prop_assert_eq!(&listed, &wanted);
                    for after in ["a", "aa", "b", "bb"] {
                        let listed: Vec<&str> = store.range(prefix, Some(after)).map(|(key, _)| key).collect();
                        let wanted: Vec<&str> = wanted.iter().copied().filter(|k| *k > after).collect();
                        prop_assert_eq!(listed, wanted);
                    }
                }
            }
        }
    }

    /// Many apps that park all they can leave room for others.
    #[test]
    fn many_apps_together_leave_room_for_small_ones() {
        const LIMIT: usize = 1_600;
        let mut store: Store<u8> = Store::new(LIMIT);
        let mut fill = |name: &str, fds: usize| {
            let put = |n: &usize| store.put(&format!("app/{name}{n}/files"), Box::default(), vec![1; fds]).is_ok();
            (0..LIMIT).take_while(put).count()
        };
        // Each its share, an eighth; then what fits beside those.
        assert_eq!(fill("large", LIMIT / APP_SHARE), 7);
        assert_eq!(fill("medium", SMALL_APP + 1), 0);
        assert_eq!(fill("small", SMALL_APP), 3);
        assert_eq!(fill("smaller", SMALL_PUT + 1), 0);
        let refusal = Refusal::Fds { held: 1_496, asked: 5, limit: 1_500 };
        assert_eq!(store.check("app/x/files", 0, SMALL_PUT + 1, 0), Err(refusal));
        for n in 0..7 {
            store.put(&format!("app/large{n}/watch"), Box::default(), vec![1]).expect("what wakes it");
            store.put(&format!("app/large{n}/output"), Box::default(), vec![1; 2]).expect("its output");
        }
        // It is small only with all its entries.
        store.remove_prefix("app/small0/");
        store.put("app/y/watch", Box::default(), vec![1; 2]).expect("fits");
        assert!(matches!(store.check("app/y/files", 0, SMALL_APP - 1, 0), Err(Refusal::Fds { limit: 1_400, .. })));
        store.put("app/y/files", Box::default(), vec![1; 11]).expect("it has few");
    }

    #[test]
    fn every_bound_is_refused_and_changes_nothing() {
        let mut store: Store<u8> = Store::new(FDS_PER_KEY * 2);
        store.put("a", Box::from(&b"x"[..]), vec![1]).expect("fits");
        let big = vec![0; BLOB_BYTES + 1];
        assert_eq!(store.put("a", big.into(), vec![]).err(), Some(Refusal::Blob { bytes: BLOB_BYTES as u64 + 1 }));
        let many = vec![0; FDS_PER_KEY + 1];
        let count = FDS_PER_KEY as u64 + 1;
        assert_eq!(store.put("a", Box::default(), many).err(), Some(Refusal::FdsPerKey { count }));
        assert!(matches!(store.check("a", 0, 2, FDS_PER_KEY * 2 - 2), Err(Refusal::Fds { .. })));
        let share = FDS_PER_KEY * 2 / APP_SHARE;
        store.put("app/7/files", Box::default(), vec![1; share - 2]).expect("within its share");
        let refusal = Refusal::Share { held: share as u64 - 2, asked: 5, limit: share as u64 };
        assert_eq!(store.put("app/7/more", Box::default(), vec![1; 5]).err(), Some(refusal));
        store.put("app/7/watch", Box::default(), vec![1; SMALL_PUT]).expect("what wakes it always fits");
        store.put("app/8/files", Box::default(), vec![1; share]).expect("another app has its own");
        store.put("app/8/files", Box::default(), vec![1; share]).expect("in the place of the old one");
        store.remove_prefix("app/");
        for n in 0..(ALL_BLOBS_BYTES / BLOB_BYTES - 1) {
            store.put(&format!("blob{n}"), vec![0; BLOB_BYTES].into(), vec![]).expect("fits");
        }
        assert!(matches!(store.put("z", vec![0; BLOB_BYTES].into(), vec![]), Err(Refusal::Blobs { .. })));
        store.remove_prefix("blob");
        for n in 0..KEYS - 1 {
            store.put(&format!("k{n}"), Box::default(), vec![]).expect("fits");
        }
        assert_eq!(store.put("z", Box::default(), vec![]).err(), Some(Refusal::Keys));
        assert!(store.put("a", Box::from(&b"y"[..]), vec![2]).expect("replacing needs no new key").is_some());
        assert_eq!((store.keys(), store.fds(), store.blob_bytes()), (KEYS, 1, 1));
    }
}
