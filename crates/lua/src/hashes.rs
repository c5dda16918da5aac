//! What has changed of a state, where the kernel does not tell which pages were written to (in a sandbox that allows no userfaultfd, say): pages whose
//! hash is another. That takes a quarter of a microsecond for each page of the state.

use std::hash::{BuildHasher, RandomState};
use std::sync::OnceLock;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::shadows::Runs;
use crate::windows::PAGE;

/// Hashes of pages, as they were when that was last asked; empty where the kernel tells.
#[derive(Debug, Default)]
pub(crate) struct PageHashes(Vec<Option<u64>>);

/// Of this process, so that no program can choose pages with the same hash.
fn seed() -> u64 {
    static SEED: OnceLock<u64> = OnceLock::new();
    *SEED.get_or_init(|| RandomState::new().hash_one("pages"))
}

impl PageHashes {
    /// Runs of pages that have changed since this was last asked: all of them for the first time. `pages` are those of the state, none for one that is
    /// not taken.
    pub(crate) fn take<'a>(&mut self, pages: impl Iterator<Item = Option<&'a [u8; PAGE]>>) -> Runs {
        let mut runs: Runs = Vec::new();
        let mut count = 0;
        for (number, page) in pages.enumerate() {
            count = number + 1;
            let hash = page.map(|bytes| xxh3_64_with_seed(bytes, seed()));
            if self.0.len() < count {
                self.0.push(None);
            }
            let is_changed = hash.is_some() && hash != self.0[number];
            self.0[number] = hash;
            if is_changed {
                match runs.last_mut() {
                    Some((first, some)) if *first + *some == number => *some += 1,
                    _ => runs.push((number, 1)),
                }
            }
        }
        self.0.truncate(count);
        runs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_change_is_told_once() {
        let (zero, one) = ([0; PAGE], [1; PAGE]);
        let mut hashes = PageHashes::default();
        let mut take = |pages: &[Option<&[u8; PAGE]>]| hashes.take(pages.iter().copied());
        assert_eq!(take(&[Some(&zero), Some(&zero), None, Some(&one)]), [(0, 2), (3, 1)]);
        assert_eq!(take(&[Some(&zero), Some(&zero), None, Some(&one)]), []);
        assert_eq!(take(&[Some(&zero), Some(&one), Some(&one), None]), [(1, 2)]);
        // What was given back and is taken again counts, though it is the same.
        assert_eq!(take(&[Some(&zero), Some(&one), Some(&one), Some(&one), Some(&zero)]), [(3, 2)]);
        assert_eq!(take(&[Some(&zero)]), []);
        assert_eq!(take(&[Some(&zero), Some(&one)]), [(1, 1)]);
    }
}
