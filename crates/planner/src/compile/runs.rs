//! Sets of pages, each known by its address and its place in the image: pure.
//!
//! A set is a list of runs in their order, none of which touches another of the same distance. Of two pages in it, both may
//! be at one address; in what a process has they are not.

use std::ops::Range;

/// Pages at the addresses `start..end`, stored in the image `distance` below their addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Run {
    pub(super) distance: u64,
    pub(super) start: u64,
    pub(super) end: u64,
}

impl Run {
    pub(super) const fn new(start: u64, bytes: u64, offset: u64) -> Self {
        Self { distance: start.wrapping_sub(offset), start, end: start.saturating_add(bytes) }
    }

    /// Where in the image it begins.
    pub(super) const fn offset(self) -> u64 {
        self.start.wrapping_sub(self.distance)
    }

    pub(super) const fn bytes(self) -> u64 {
        self.end - self.start
    }
}

/// A set of any runs.
pub(super) fn set(mut runs: Vec<Run>) -> Vec<Run> {
    runs.retain(|run| run.start < run.end);
    runs.sort_unstable();
    let mut out: Vec<Run> = Vec::with_capacity(runs.len());
    for run in runs {
        match out.last_mut().filter(|last| last.distance == run.distance && run.start <= last.end) {
            Some(last) => last.end = last.end.max(run.end),
            None => out.push(run),
        }
    }
    out
}

/// What is in one of them.
pub(super) fn union(a: &[Run], b: &[Run]) -> Vec<Run> {
    set([a, b].concat())
}

/// What is in both.
pub(super) fn common(a: &[Run], b: &[Run]) -> Vec<Run> {
    let (mut n, mut m) = (0, 0);
    let mut out = Vec::new();
    while let (Some(x), Some(y)) = (a.get(n), b.get(m)) {
        if x.distance == y.distance {
            let run = Run { start: x.start.max(y.start), end: x.end.min(y.end), ..*x };
            if run.start < run.end {
                out.push(run);
            }
        }
        if (x.distance, x.end) < (y.distance, y.end) { n += 1 } else { m += 1 }
    }
    out
}

/// Whether anything is in both; `all` may be much larger.
pub(super) fn any_common(runs: &[Run], all: &[Run]) -> bool {
    runs.iter().any(|run| {
        let first = all.partition_point(|other| (other.distance, other.end) <= (run.distance, run.start));
        all.get(first).is_some_and(|other| other.distance == run.distance && other.start < run.end)
    })
}

/// What is in at least two of them.
pub(super) fn in_several(sets: &[Vec<Run>]) -> Vec<Run> {
    let edges = |run: &Run| [(run.distance, run.start, 1), (run.distance, run.end, -1)];
    let mut edges: Vec<(u64, u64, i32)> = sets.iter().flatten().flat_map(edges).collect();
    edges.sort_unstable();
    let (mut depth, mut begun, mut out) = (0, 0, Vec::new());
    for (distance, at, change) in edges {
        let before = depth;
        depth += change;
        match (before >= 2, depth >= 2) {
            (false, true) => begun = at,
            (true, false) => out.push(Run { distance, start: begun, end: at }),
            _ => {}
        }
    }
    set(out)
}

/// The addresses of the runs, ascending and apart.
pub(super) fn places(runs: &[Run]) -> Vec<Range<u64>> {
    ranges(runs.iter().map(|run| run.start..run.end).collect())
}

/// Ranges, ascending and apart.
pub(super) fn ranges(mut all: Vec<Range<u64>>) -> Vec<Range<u64>> {
    all.sort_unstable_by_key(|range| range.start);
    let mut out: Vec<Range<u64>> = Vec::with_capacity(all.len());
    for range in all {
        match out.last_mut().filter(|last| range.start <= last.end) {
            Some(last) => last.end = last.end.max(range.end),
            None => out.push(range),
        }
    }
    out
}

/// The parts of `range` that touch none of `places`, which ascend.
pub(super) fn without(range: &Range<u64>, places: &[Range<u64>]) -> Vec<Range<u64>> {
    let first = places.partition_point(|place| place.end <= range.start);
    let (mut start, mut out) = (range.start, Vec::new());
    for place in places[first..].iter().take_while(|place| place.start < range.end) {
        if place.start > start {
            out.push(start..place.start);
        }
        start = start.max(place.end);
    }
    if start < range.end {
        out.push(start..range.end);
    }
    out
}

/// What is at none of these addresses, which ascend.
pub(super) fn outside(runs: &[Run], places: &[Range<u64>]) -> Vec<Run> {
    let part = |run: &Run, range: Range<u64>| Run { start: range.start, end: range.end, ..*run };
    let parts = |run: &Run| {
        let run = *run;
        without(&(run.start..run.end), places).into_iter().map(move |range| part(&run, range))
    };
    set(runs.iter().flat_map(parts).collect())
}

/// One page of those at each address.
pub(super) fn one_each(mut runs: Vec<Run>) -> Vec<Run> {
    runs.sort_unstable_by_key(|run| run.start);
    let mut end = 0;
    for run in &mut runs {
        run.start = run.start.max(end).min(run.end);
        end = end.max(run.end);
    }
    set(runs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(distance: u64, start: u64, end: u64) -> Run {
        Run { distance, start, end }
    }

    #[test]
    fn sets_are_put_together() {
        let a = set(vec![run(1, 20, 30), run(0, 5, 8), run(1, 10, 20), run(0, 3, 3)]);
        assert_eq!(a, [run(0, 5, 8), run(1, 10, 30)]);
        let b = [run(0, 8, 9), run(1, 15, 16), run(1, 25, 40), run(2, 0, 99)];
        assert_eq!(union(&a, &b), [run(0, 5, 9), run(1, 10, 40), run(2, 0, 99)]);
        assert_eq!(common(&a, &b), [run(1, 15, 16), run(1, 25, 30)]);
        assert_eq!(common(&b, &a), common(&a, &b));
        assert!(any_common(&a, &b) && any_common(&b, &a) && any_common(&[run(1, 39, 41)], &b));
        assert!(!any_common(&a, &[run(0, 8, 9), run(1, 5, 10), run(1, 30, 31)]) && !any_common(&[], &b));
    }

    #[test]
    fn what_several_have_is_found() {
        let sets = [vec![run(0, 0, 10)], vec![run(0, 5, 20), run(7, 5, 9)], vec![run(0, 10, 12)], vec![run(7, 0, 5)]];
        assert_eq!(in_several(&sets), [run(0, 5, 12)]);
    }

    #[test]
    fn addresses_are_taken_out() {
        assert_eq!(places(&[run(0, 5, 9), run(1, 0, 2), run(2, 8, 12)]), [0..2, 5..12]);
        assert_eq!(without(&(0..10), &[1..3, 3..4, 9..20]), [0..1, 4..9]);
        assert_eq!(
            outside(&[run(0, 0, 10), run(3, 2, 6)], &[4..5, 8..20]),
            [run(0, 0, 4), run(0, 5, 8), run(3, 2, 4), run(3, 5, 6)]
        );
        assert_eq!(one_each(vec![run(0, 0, 10), run(1, 5, 8), run(2, 9, 12)]), [run(0, 0, 10), run(2, 10, 12)]);
    }
}
