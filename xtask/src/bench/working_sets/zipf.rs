//! A series of keys of which few are frequent and most are rare.

/// Keys with the numbers below `count`, the same series each time. Key number k of a hidden order has a share of about 1/k (Zipf's law with
/// the exponent 1). The frequent ones are not neighbours.
#[derive(Debug)]
pub(super) struct Zipf {
    count: u32,
    state: u64,
}

/// A prime, so that multiples of it reach all keys if their count is no multiple of it.
const STEP: u64 = 7919;

impl Zipf {
    pub(super) const fn new(count: u32, seed: u64) -> Self {
        Self { count, state: seed }
    }

    /// The next `N` keys.
    pub(super) fn take<const N: usize>(&mut self) -> [u32; N] {
        std::array::from_fn(|_| self.key())
    }

    fn key(&mut self) -> u32 {
        // splitmix64.
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let share = ((x ^ (x >> 31)) >> 11) as f64 / (1_u64 << 53) as f64;
        // The inverse of the distribution function ln(k) / ln(count).
        let rank = (f64::from(self.count).powf(share) as u64 - 1).min(u64::from(self.count) - 1);
        (rank * STEP % u64::from(self.count)) as u32
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn few_keys_are_frequent_and_the_series_repeats() {
        let mut counts: BTreeMap<u32, u32> = BTreeMap::new();
        let mut keys = Zipf::new(80_000, 1);
        for key in keys.take::<10_000>() {
            assert!(key < 80_000);
            *counts.entry(key).or_default() += 1;
        }
        // ln 2 / ln 80,000 of all, and ln 1.5 / ln 80,000.
        assert!((500..740).contains(&counts[&0]), "{}", counts[&0]);
        assert!((270..450).contains(&counts[&7919]), "{}", counts[&7919]);
        assert!(counts.len() > 4000, "{} different keys", counts.len());
        assert_eq!(Zipf::new(80_000, 1).take::<50>(), Zipf::new(80_000, 1).take::<50>());
        assert_ne!(Zipf::new(80_000, 1).take::<50>(), Zipf::new(80_000, 2).take::<50>());
    }

    #[test]
    fn one_key_is_enough() {
        assert_eq!(Zipf::new(1, 7).take::<3>(), [0; 3]);
    }
}
