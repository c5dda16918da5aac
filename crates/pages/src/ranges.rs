//! Ranges of addresses.

use std::ops::Range;

/// The same addresses in order and without overlap.
pub fn merged(ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    joined(ranges, 0)
}

/// The same addresses in order and without overlap. Ranges with at most `gap` addresses between them are one, which includes these.
pub fn joined(mut ranges: Vec<Range<u64>>, gap: u64) -> Vec<Range<u64>> {
    ranges.sort_unstable_by_key(|range| range.start);
    ranges.dedup_by(|next, range| {
        let is_one = next.start.saturating_sub(range.end) <= gap;
        if is_one {
            range.end = range.end.max(next.end);
        }
        is_one
    });
    ranges
}

/// Whether a place is in one of `ranges`, which ascend.
pub fn contains(ranges: &[Range<u64>], place: u64) -> bool {
    let behind = ranges.partition_point(|range| range.start <= place);
    behind.checked_sub(1).is_some_and(|last| place < ranges[last].end)
}

/// Whether one of `ranges`, which are in order and without overlap, has an address of `range`.
pub fn overlaps(ranges: &[Range<u64>], range: &Range<u64>) -> bool {
    let behind = ranges.partition_point(|one| one.end <= range.start);
    ranges.get(behind).is_some_and(|one| one.start < range.end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_touch_are_one() {
        let ranges = merged(vec![9..12, 1..3, 3..5, 2..4, 10..11]);
        assert_eq!(ranges, [1..5, 9..12]);
        let found = [0..1, 0..2, 4..5, 5..9, 8..10, 12..20].map(|range| overlaps(&ranges, &range));
        assert_eq!(found, [false, true, true, false, true, false]);
    }
}
