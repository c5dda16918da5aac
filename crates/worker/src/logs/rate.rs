//! How much an app may write to its log: a token bucket. Pure.

use std::time::Instant;

/// So many seconds' worth may be written at once after a pause.
const BURST_SECONDS: u64 = 10;

/// Bytes that may be written.
#[derive(Debug)]
pub(super) struct Budget {
    /// 0: without limit.
    bytes_per_second: u64,
    left: u64,
    at: Instant,
}

impl Budget {
    pub(super) fn new(bytes_per_second: u64, now: Instant) -> Self {
        Self { bytes_per_second, left: bytes_per_second.saturating_mul(BURST_SECONDS), at: now }
    }

    /// Adds what the time since the last call brings.
    pub(super) fn refill(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.at).as_micros();
        let earned = passed * u128::from(self.bytes_per_second) / 1_000_000;
        if earned == 0 {
            return;
        }
        self.at = now;
        let most = self.bytes_per_second.saturating_mul(BURST_SECONDS);
        self.left = self.left.saturating_add(u64::try_from(earned).unwrap_or(u64::MAX)).min(most);
    }

    /// Takes `bytes`, if there are so many.
    pub(super) fn spend(&mut self, bytes: usize) -> bool {
        if self.bytes_per_second == 0 {
            return true;
        }
        let left = self.left.checked_sub(bytes as u64);
        self.left = left.unwrap_or(self.left);
        left.is_some()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_burst_and_then_the_rate() {
        let begin = Instant::now();
        let mut budget = Budget::new(1000, begin);
        assert!(budget.spend(9_999) && !budget.spend(2) && budget.spend(1));
        budget.refill(begin + Duration::from_micros(500));
        assert!(!budget.spend(1));
        // Small steps are not lost.
        budget.refill(begin + Duration::from_micros(1000));
        assert!(budget.spend(1) && !budget.spend(1));
        budget.refill(begin + Duration::from_millis(501));
        assert!(!budget.spend(501) && budget.spend(500));
        budget.refill(begin + Duration::from_secs(3600));
        assert!(budget.spend(10_000) && !budget.spend(1));
    }

    #[test]
    fn zero_is_no_limit() {
        let mut budget = Budget::new(0, Instant::now());
        assert!(budget.spend(usize::MAX) && budget.spend(usize::MAX));
    }
}
