//! Areas that a program has moved (`mremap`) since it forked: their pages are at other addresses than those who share them have
//! them at.
//!
//! Such an area is inherited where the others have it, as if it had not been moved yet, and its process moves it before it
//! builds anything else. That is done only where one move does it: at least half of what the area holds is shared at one distance,
//! and nothing that the process inherits lies in the way. Otherwise its pages are read by the process for itself: that costs
//! memory, and nothing else.

use std::collections::BTreeMap;
use std::ops::Range;

use torpor_image::PAGE;
use torpor_image::tree::{Backing, Life, Process, Tree};

use super::super::memory::{HIGHEST, LOWEST};
use super::runs::{Run, common, outside, ranges, set, without};
use super::{Source, of_area};

/// An area that is inherited somewhere else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct Move {
    /// Its place in the list of areas.
    pub(super) area: usize,
    /// Where it is inherited.
    pub(in super::super) from: u64,
    /// Where it belongs.
    pub(in super::super) to: u64,
    pub(in super::super) bytes: u64,
}

impl Move {
    pub(super) const fn source(&self) -> Range<u64> {
        self.from..self.from + self.bytes
    }

    pub(super) const fn target(&self) -> Range<u64> {
        self.to..self.to + self.bytes
    }
}

/// The move of an area, if it is moved.
pub(super) fn of(moves: &[Move], area: usize) -> Option<&Move> {
    moves.iter().find(|found| found.area == area)
}

/// An area that shares nothing with others at its address.
struct Candidate {
    process: usize,
    area: usize,
    place: Range<u64>,
    runs: Vec<Run>,
}

/// What is shared at other addresses, by the place in the image.
struct Known {
    run: Run,
    /// The candidate that it is of; `None`: several have it at its address.
    of: Option<usize>,
}

/// Finds the moves of each process. `several`: pages that are shared at one address.
pub(super) fn find(tree: &Tree, several: &[Run]) -> Vec<Vec<Move>> {
    let mut moves = vec![Vec::new(); tree.processes.len()];
    // A list of runs for lookups is ascending by distance, as `several` is.
    let candidates: Vec<Candidate> =
        tree.processes.iter().enumerate().flat_map(|(n, process)| candidates(n, process, several)).collect();
    if candidates.is_empty() {
        return moves;
    }
    let of_candidates =
        candidates.iter().enumerate().flat_map(|(n, found)| found.runs.iter().map(move |run| (Some(n), run)));
    let all = several.iter().map(|run| (None, run)).chain(of_candidates);
    let mut known: Vec<Known> = all.map(|(of, run)| Known { run: *run, of }).collect();
    known.sort_by_key(|known| known.run.offset());
    let longest = known.iter().map(|known| known.run.bytes()).max().unwrap_or(0);
    // How much lower than at its place a candidate is inherited.
    let mut lowered = vec![0_u64; candidates.len()];
    for (n, candidate) in candidates.iter().enumerate() {
        let mut found: BTreeMap<u64, Vec<Run>> = BTreeMap::new();
        for run in &candidate.runs {
            let (start, end) = (run.offset(), run.offset() + run.bytes());
            let first = known.partition_point(|known| known.run.offset().saturating_add(longest) <= start);
            for other in known[first..].iter().take_while(|known| known.run.offset() < end) {
                let earlier = other.of.is_none_or(|of| of < n && candidates[of].process != candidate.process);
                let both = start.max(other.run.offset())..end.min(other.run.offset() + other.run.bytes());
                if earlier && both.start < both.end {
                    let distance = other.run.distance.wrapping_sub(other.of.map_or(0, |of| lowered[of]));
                    let part = Run::new(run.distance.wrapping_add(both.start), both.end - both.start, both.start);
                    found.entry(run.distance.wrapping_sub(distance)).or_default().push(part);
                }
            }
        }
        let bytes = |runs: &[Run]| runs.iter().map(|run| run.bytes()).sum::<u64>();
        // Several may have the same page there.
        let found = found.into_iter().map(|(by, parts)| (by, bytes(&set(parts))));
        let Some((by, shared)) = found.max_by_key(|(_, shared)| *shared) else { continue };
        let place = &candidate.place;
        let wanted = Move {
            area: candidate.area,
            from: place.start.wrapping_sub(by),
            to: place.start,
            bytes: place.end - place.start,
        };
        let process = &tree.processes[candidate.process];
        let others = &mut moves[candidate.process];
        if by != 0
            && shared >= bytes(&candidate.runs) / 2
            && process.alive().is_some_and(|life| is_possible(&wanted, life, others, several))
        {
            lowered[n] = by;
            others.push(wanted);
        }
    }
    moves
}

fn candidates(process: usize, of: &Process, several: &[Run]) -> Vec<Candidate> {
    let Some(life) = of.alive() else { return Vec::new() };
    let moves = |area: &torpor_image::tree::Area| !matches!(area.backing, Backing::Anonymous { grows_down: true, .. });
    let areas = life
        .space
        .areas
        .iter()
        .enumerate()
        .filter(|(_, area)| moves(area) && Source::of(life, area, area.start).is_some());
    let candidates = areas.map(|(n, area)| Candidate {
        process,
        area: n,
        place: area.start..area.end,
        runs: set(of_area(area, area.start).collect()),
    });
    candidates.filter(|found| !found.runs.is_empty() && common(&found.runs, several).is_empty()).collect()
}

fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

/// Nothing is in the way of a move: neither what is inherited elsewhere, nor another move.
fn is_possible(wanted: &Move, life: &Life, others: &[Move], several: &[Run]) -> bool {
    let within = wanted.from >= LOWEST && wanted.from.checked_add(wanted.bytes).is_some_and(|end| end <= HIGHEST);
    if !within || !wanted.from.is_multiple_of(PAGE) || overlap(&wanted.source(), &wanted.target()) {
        return false;
    }
    let free = others.iter().all(|other| {
        !overlap(&wanted.source(), &other.source())
            && !overlap(&wanted.source(), &other.target())
            && !overlap(&wanted.target(), &other.source())
    });
    let inherits = |area: &torpor_image::tree::Area| {
        let runs = set(of_area(area, area.start).collect());
        Source::of(life, area, area.start).is_some() && !common(&runs, several).is_empty()
    };
    let there = life.space.areas.iter().filter(|area| overlap(&(area.start..area.end), &wanted.source()));
    free && !there.into_iter().any(inherits)
}

/// What these ranges are when everything has been moved.
pub(super) fn ranges_after(places: &[Range<u64>], moves: &[Move]) -> Vec<Range<u64>> {
    let parts = places.iter().flat_map(|range| split(range, moves));
    ranges(parts.map(|(part, by)| part.start.wrapping_add(by)..part.end.wrapping_add(by)).collect())
}

/// What these runs are when everything has been moved.
pub(super) fn runs_after(runs: &[Run], moves: &[Move]) -> Vec<Run> {
    let moved = |run: &Run| {
        let run = *run;
        split(&(run.start..run.end), moves).into_iter().map(move |(part, by)| Run {
            distance: run.distance.wrapping_add(by),
            start: part.start.wrapping_add(by),
            end: part.end.wrapping_add(by),
        })
    };
    set(runs.iter().flat_map(moved).collect())
}

/// A range in parts, each with how far it is moved.
fn split(range: &Range<u64>, moves: &[Move]) -> Vec<(Range<u64>, u64)> {
    let sources = ranges(moves.iter().map(Move::source).collect());
    let stays = without(range, &sources).into_iter().map(|part| (part, 0));
    let inside = moves.iter().filter_map(|found| {
        let part = range.start.max(found.from)..range.end.min(found.from + found.bytes);
        (part.start < part.end).then(|| (part, found.to.wrapping_sub(found.from)))
    });
    stays.chain(inside).collect()
}

/// Runs without those that moves put something else in the place of.
pub(super) fn not_covered(runs: &[Run], moves: &[Move]) -> Vec<Run> {
    outside(runs, &ranges(moves.iter().map(Move::target).collect()))
}
