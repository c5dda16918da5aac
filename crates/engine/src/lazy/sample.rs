//! What of a loading set comes before the program runs, and what is staged to see whether it is touched.

use std::ops::Range;

use torpor_image::{LoadingPart, PAGE, needed};

use super::LazyWay;

/// Bytes of the image that come together, or are staged together.
const PIECE_BYTES: u64 = 8 * PAGE;
/// Bytes of a loading set that come before the program runs. The rest comes next, in its order.
const MOST_LOADED: u64 = 32 << 20;

/// A part of a loading set: one of each `slices` pieces in a row.
///
/// What is staged raises a fault for each page that is touched, so a wake that stages a slice takes little longer than one that stages nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Less than `slices`.
    pub slice: u32,
    /// 1 or more.
    pub slices: u32,
}

impl Sample {
    /// All of it.
    pub const WHOLE: Self = Self { slice: 0, slices: 1 };

    /// Whether that is all of the set.
    pub(crate) fn is_whole(self) -> bool {
        self.slices <= 1
    }

    fn takes(self, offset: u64) -> bool {
        let (piece, slices) = (offset / PIECE_BYTES, u64::from(self.slices.max(1)));
        // Another one of each row: regions of a long run begin at every eighth piece, and are staged by where they begin.
        (piece + piece / slices) % slices == u64::from(self.slice)
    }
}

/// Ranges of an image, each list ascending.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Loading {
    /// What begins there comes before the program runs.
    pub(crate) first: Vec<Range<u64>>,
    /// What begins there is staged.
    pub(crate) staged: Vec<Range<u64>>,
}

impl Loading {
    /// Of an image with these parts.
    pub(crate) fn of(parts: &[LoadingPart], way: &LazyWay<'_>) -> Self {
        let needed = needed(parts, way.cause, MOST_LOADED);
        match way.sample {
            Some(sample) => divided(&needed, sample),
            None => Self { first: needed, staged: Vec::new() },
        }
    }
}

fn divided(ranges: &[Range<u64>], sample: Sample) -> Loading {
    let mut loading = Loading::default();
    for range in ranges {
        let mut start = range.start;
        while start < range.end {
            let end = range.end.min((start / PIECE_BYTES + 1) * PIECE_BYTES);
            let list = if sample.takes(start) { &mut loading.staged } else { &mut loading.first };
            match list.last_mut() {
                Some(last) if last.end == start => last.end = end,
                _ => list.push(start..end),
            }
            start = end;
        }
    }
    loading
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_piece_is_staged_by_one_slice() {
        let pages = |ranges: &[Range<u64>]| -> Vec<Range<u64>> {
            ranges.iter().map(|range| range.start / PAGE..range.end / PAGE).collect()
        };
        let ranges = [PAGE * 3..PAGE * 20, PAGE * 24..PAGE * 40];
        let of = |slice, slices| divided(&ranges, Sample { slice, slices });
        assert_eq!(pages(&of(0, 2).first), std::slice::from_ref(&(8..20)));
        assert_eq!(pages(&of(0, 2).staged), [3..8, 24..40]);
        assert_eq!((of(1, 2).first, of(1, 2).staged), (of(0, 2).staged, of(0, 2).first));
        assert_eq!(divided(&ranges, Sample::WHOLE), Loading { first: Vec::new(), staged: ranges.to_vec() });
        // Of a run in regions of 64 pages, each slice has as many.
        let begin = |region: u64| PAGE * 64 * region;
        for slice in 0..8 {
            let staged = (0..64).filter(|region| Sample { slice, slices: 8 }.takes(begin(*region))).count();
            assert_eq!(staged, 8);
        }
        // A slice that is not there, and a number of slices that cannot be, stage less or all, and never fail.
        assert_eq!(of(9, 2).staged, []);
        assert_eq!(of(0, 0).first, []);
    }
}
