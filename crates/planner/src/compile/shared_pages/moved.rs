//! Areas that a program has moved (`mremap`) since it forked: their pages are at other addresses than those who share them have
//! them at.
//!
//! Such an area is inherited where the others have it, as if it had not been moved yet, and its process moves it before it
//! builds anything else. That is done only where one move does it: at least half of what the area holds is shared at one distance,
//! and nothing that the process inherits lies in the way. Otherwise its pages are read by the process for itself: that costs
//! memory, and nothing else.
//!
//! An image may name one stored page any number of times, so nothing here compares each area or run with each other one, and
//! what is kept for one place of the image is bounded ([`MOST_PIECES`], [`MOST_DISTANCES`]).

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use torpor_image::tree::{Backing, LiveProcess, Process, Tree};
use torpor_image::{PAGE, REGION_PAGES};

use super::super::addresses::{HIGHEST, LOWEST};
use super::super::runs::{Run, any_common, outside, ranges, set, without};
use super::{Source, of_area};

/// Shared pages are looked up by pieces of the image of this size, bytes.
const PIECE_BYTES: u64 = REGION_PAGES as u64 * PAGE;
/// What is known of one piece of the image at most.
const MOST_PIECES: usize = 1024;
/// Distances that are tried for one area.
const MOST_DISTANCES: usize = 8;

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

/// The move of an area, if it is moved. Moves of a process are in the order of its areas.
pub(super) fn of(moves: &[Move], area: usize) -> Option<&Move> {
    let at = moves.binary_search_by_key(&area, |found| found.area).ok()?;
    Some(&moves[at])
}

/// Where the moved areas are inherited, ascending.
pub(super) fn sources(moves: &[Move]) -> Vec<Range<u64>> {
    ranges(moves.iter().map(Move::source).collect())
}

/// An area that shares nothing with others at its address.
struct Candidate {
    process: usize,
    area: usize,
    place: Range<u64>,
    runs: Vec<Run>,
}

/// What is shared at other addresses.
#[derive(Default)]
struct Known {
    /// By the number of the piece of the image: parts of it, and the distance at which they are inherited.
    pieces: HashMap<u64, Vec<(Range<u64>, u64)>>,
}

/// A run in pieces: the number of each, and the part of the image.
fn pieces(run: &Run) -> impl Iterator<Item = (u64, Range<u64>)> {
    let (start, end) = (run.offset(), run.offset().saturating_add(run.bytes()));
    (start / PIECE_BYTES..end.div_ceil(PIECE_BYTES))
        .map(move |piece| (piece, start.max(piece * PIECE_BYTES)..end.min((piece + 1) * PIECE_BYTES)))
}

impl Known {
    /// Adds a run that is inherited `lowered` below its address.
    fn add(&mut self, run: &Run, lowered: u64) {
        for (piece, part) in pieces(run) {
            let known = self.pieces.entry(piece).or_default();
            let one = (part, run.distance.wrapping_sub(lowered));
            if known.len() < MOST_PIECES && !known.contains(&one) {
                known.push(one);
            }
        }
    }

    /// By how much a candidate would be moved, and what of it is shared then.
    fn shared(&self, candidate: &Candidate) -> BTreeMap<u64, Vec<Run>> {
        let mut found: BTreeMap<u64, Vec<Run>> = BTreeMap::new();
        for run in &candidate.runs {
            for (piece, part) in pieces(run) {
                for (known, distance) in self.pieces.get(&piece).into_iter().flatten() {
                    let both = part.start.max(known.start)..part.end.min(known.end);
                    let by = run.distance.wrapping_sub(*distance);
                    if both.start < both.end && (found.len() < MOST_DISTANCES || found.contains_key(&by)) {
                        let start = run.distance.wrapping_add(both.start);
                        found.entry(by).or_default().push(Run::new(start, both.end - both.start, both.start));
                    }
                }
            }
        }
        found
    }
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
    let mut known = Known::default();
    several.iter().for_each(|run| known.add(run, 0));
    for of_process in candidates.chunk_by(|one, next| one.process == next.process) {
        let process = of_process[0].process;
        let Some(life) = tree.processes[process].alive() else { continue };
        let mut ground = Taken::default();
        // How much lower than at its place each is inherited.
        let mut lowered = Vec::with_capacity(of_process.len());
        for candidate in of_process {
            let wanted = wanted(candidate, &known).filter(|wanted| is_possible(wanted, life, &ground, several));
            lowered.push(wanted.as_ref().map_or(0, |wanted| wanted.to.wrapping_sub(wanted.from)));
            if let Some(wanted) = wanted {
                ground.add(&wanted);
                moves[process].push(wanted);
            }
        }
        // Only others inherit it there.
        for (candidate, lowered) in of_process.iter().zip(lowered) {
            candidate.runs.iter().for_each(|run| known.add(run, lowered));
        }
    }
    moves
}

/// The move by which a candidate shares most, if that is at least half of what it holds.
fn wanted(candidate: &Candidate, known: &Known) -> Option<Move> {
    let bytes = |runs: &[Run]| runs.iter().map(|run| run.bytes()).sum::<u64>();
    // Several may have the same page there.
    let shared = known.shared(candidate).into_iter().map(|(by, parts)| (by, bytes(&set(parts))));
    let (by, shared) = shared.max_by_key(|(_, shared)| *shared)?;
    let place = &candidate.place;
    (by != 0 && shared >= bytes(&candidate.runs) / 2).then(|| Move {
        area: candidate.area,
        from: place.start.wrapping_sub(by),
        to: place.start,
        bytes: place.end - place.start,
    })
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
    candidates.filter(|found| !found.runs.is_empty() && !any_common(&found.runs, several)).collect()
}

fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

/// Ranges without overlap.
#[derive(Default)]
struct Apart(BTreeMap<u64, u64>);

impl Apart {
    fn touches(&self, range: &Range<u64>) -> bool {
        self.0.range(..range.end).next_back().is_some_and(|(_, end)| *end > range.start)
    }
}

/// What the moves of a process take.
#[derive(Default)]
struct Taken {
    sources: Apart,
    targets: Apart,
}

impl Taken {
    fn add(&mut self, taken: &Move) {
        self.sources.0.insert(taken.source().start, taken.source().end);
        self.targets.0.insert(taken.target().start, taken.target().end);
    }
}

/// Nothing is in the way of a move: neither what is inherited elsewhere, nor another move.
fn is_possible(wanted: &Move, life: &LiveProcess, others: &Taken, several: &[Run]) -> bool {
    let within = wanted.from >= LOWEST && wanted.from.checked_add(wanted.bytes).is_some_and(|end| end <= HIGHEST);
    if !within || !wanted.from.is_multiple_of(PAGE) || overlap(&wanted.source(), &wanted.target()) {
        return false;
    }
    let free = !others.sources.touches(&wanted.source())
        && !others.targets.touches(&wanted.source())
        && !others.sources.touches(&wanted.target());
    let inherits = |area: &torpor_image::tree::Area| {
        let runs = set(of_area(area, area.start).collect());
        Source::of(life, area, area.start).is_some() && any_common(&runs, several)
    };
    let first = life.space.areas.partition_point(|area| area.end <= wanted.from);
    let there = life.space.areas[first..].iter().take_while(|area| area.start < wanted.source().end);
    free && !there.into_iter().any(inherits)
}

/// What these ranges are when everything has been moved.
pub(super) fn ranges_after(places: &[Range<u64>], moves: &[Move]) -> Vec<Range<u64>> {
    let moves = BySource::of(moves);
    let parts = places.iter().flat_map(|range| moves.split(range));
    ranges(parts.map(|(part, by)| part.start.wrapping_add(by)..part.end.wrapping_add(by)).collect())
}

/// What these runs are when everything has been moved.
pub(super) fn runs_after(runs: &[Run], moves: &[Move]) -> Vec<Run> {
    let moves = BySource::of(moves);
    let moved = |run: &Run| {
        let run = *run;
        moves.split(&(run.start..run.end)).into_iter().map(move |(part, by)| Run {
            distance: run.distance.wrapping_add(by),
            start: part.start.wrapping_add(by),
            end: part.end.wrapping_add(by),
        })
    };
    set(runs.iter().flat_map(moved).collect())
}

/// Moves by ascending source.
struct BySource<'a> {
    moves: Vec<&'a Move>,
    sources: Vec<Range<u64>>,
}

impl<'a> BySource<'a> {
    fn of(moves: &'a [Move]) -> Self {
        let mut sorted: Vec<&Move> = moves.iter().collect();
        sorted.sort_unstable_by_key(|found| found.from);
        Self { moves: sorted, sources: sources(moves) }
    }

    /// A range in parts, each with how far it is moved.
    fn split(&self, range: &Range<u64>) -> Vec<(Range<u64>, u64)> {
        let stays = without(range, &self.sources).into_iter().map(|part| (part, 0));
        let first = self.moves.partition_point(|found| found.source().end <= range.start);
        let inside = self.moves[first..].iter().take_while(|found| found.from < range.end).map(|found| {
            let part = range.start.max(found.from)..range.end.min(found.source().end);
            (part, found.to.wrapping_sub(found.from))
        });
        stays.chain(inside).collect()
    }
}

/// Runs without those that moves put something else in the place of.
pub(super) fn not_covered(runs: &[Run], moves: &[Move]) -> Vec<Run> {
    outside(runs, &ranges(moves.iter().map(Move::target).collect()))
}
