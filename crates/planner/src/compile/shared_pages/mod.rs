//! Pages that processes share copy-on-write: who fills them, and who inherits them.
//!
//! A page is shared if several processes have it at the same address from the same place in the image. Before a process
//! forks a child, it fills what the child, or one that the child makes, shares with itself or with those whom it makes later.
//! So each page is read once, by the last common maker of all who have it, and is the same frame in all of them, as after
//! the program's own forks. Who has inherited what is not its own drops it.
//!
//! Such pages lie in *carriers*: mappings as wide as all the areas of the same kind that overlap, and writable. A process's
//! area becomes a part of the carrier that it has inherited. Where areas of different kinds overlap in different processes, one
//! kind is carried; the pages of the others are read by each process for itself. What a program has moved since its fork is
//! inherited at its old address and moved again ([`moved`]).

mod moved;

use std::collections::{BTreeSet, HashMap};
use std::hash::{Hash, Hasher};
use std::ops::Range;
use std::rc::Rc;

use torpor_image::Content;
use torpor_image::tree::{Area, Backing, LiveProcess, MemoryId, PathState, Process, Tree};

use super::build::{Builder, Steps};
use super::mapping::Mapped;
use super::order::{Node, Order};
use super::page_reads::read;
use super::runs::{Run, common, in_several, one_each, outside, places, ranges, set, union, without};
use crate::staged::{Access, Staged};

pub(super) use self::moved::Move;

/// Carriers are readable and writable.
pub(super) const PROTECTION: u32 = 3;

/// What kind of memory an area is: of the same kind are areas that one mapping could be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source<'t> {
    Anonymous {
        grows_down: bool,
        no_reserve: bool,
    },
    /// A private mapping of a file, and where in it address 0 would be.
    File(&'t PathState, u64),
    /// A private mapping of shared memory.
    Memory(MemoryId, u64),
}

impl Hash for Source<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        match self {
            Self::Anonymous { .. } => {}
            Self::File(path, origin) => (&path.path, origin).hash(state),
            Self::Memory(memory, origin) => (memory, origin).hash(state),
        }
    }
}

impl<'t> Source<'t> {
    /// Of an area as if it were at `start`; `None` for areas whose pages are not inherited copy-on-write.
    fn of(life: &'t LiveProcess, area: &'t Area, start: u64) -> Option<Self> {
        let origin = |offset: u64| offset.wrapping_sub(start);
        match area.backing {
            Backing::Anonymous { grows_down, droppable: false, no_reserve } => {
                Some(Self::Anonymous { grows_down, no_reserve })
            }
            Backing::File { file, offset, shared: false, .. } => {
                Some(Self::File(life.space.files.get(file as usize)?, origin(offset)))
            }
            Backing::Shared { memory, offset, shared: false, .. } => Some(Self::Memory(memory, origin(offset))),
            _ => None,
        }
    }
}

/// A mapping that is inherited.
#[derive(Debug)]
struct Carrier<'t> {
    start: u64,
    end: u64,
    source: Source<'t>,
}

/// What a process has when it forks, or begins to build its memory.
#[derive(Clone, Debug, Default)]
struct Has {
    /// Carriers, by their places.
    carriers: BTreeSet<usize>,
    /// Pages in them.
    runs: Vec<Run>,
}

/// What is shared in a tree.
#[derive(Debug, Default)]
pub(super) struct SharedPages<'t> {
    /// By ascending address, without overlap.
    carriers: Vec<Carrier<'t>>,
    /// What each process has that another has, too, where it inherits it. Nothing if nothing is shared.
    own: Vec<Vec<Run>>,
    /// What each process moves to its place behind that.
    moved: Vec<Vec<Move>>,
    /// By the maker's child: what it maps and fills before.
    before: Vec<Has>,
    /// What each node has when it has made all whom it makes.
    has: Vec<Rc<Has>>,
}

/// What a process keeps of what it has inherited.
#[derive(Debug, Default)]
pub(super) struct Kept {
    /// Places of areas that are there.
    pub(super) areas: BTreeSet<usize>,
    /// Those of them that are somewhere else, and are moved before anything else is done.
    pub(super) moves: Vec<Move>,
    /// What is not to stay mapped.
    pub(super) unmapped: Vec<Range<u64>>,
    /// Where the process has pages, or none, of its own.
    pub(super) stale: Vec<Range<u64>>,
    /// Pages that are there.
    runs: Vec<Run>,
}

impl<'t> SharedPages<'t> {
    pub(super) fn of(tree: &'t Tree, order: &Order) -> Self {
        let all = |moved: &[Vec<Move>]| -> Vec<Vec<Run>> {
            let moves = |n: usize| moved.get(n).map_or(&[][..], Vec::as_slice);
            let runs =
                |(n, process): (usize, &Process)| process.alive().map_or_else(Vec::new, |life| stored(life, moves(n)));
            tree.processes.iter().enumerate().map(runs).collect()
        };
        let mut own = all(&[]);
        let mut several = in_several(&own);
        let moved = moved::find(tree, &several);
        if moved.iter().any(|moves| !moves.is_empty()) {
            own = all(&moved);
            several = in_several(&own);
        }
        if several.is_empty() {
            return Self::default();
        }
        own.iter_mut().for_each(|runs| *runs = common(runs, &several));
        let carriers = carriers(tree, &moved, &mut own);
        let nodes = own.len() + order.helpers.len();
        let mut shared = Self { carriers, own, moved, before: vec![Has::default(); nodes], has: Vec::new() };
        shared.has = vec![Rc::default(); nodes];
        shared.hand_down(order);
        shared
    }

    /// The place of a node in `before` and `has`.
    const fn place(&self, node: Node) -> usize {
        match node {
            Node::Process(n) => n,
            Node::Helper(h) => self.own.len() + h,
        }
    }

    fn own(&self, place: usize) -> &[Run] {
        self.own.get(place).map_or(&[], Vec::as_slice)
    }

    /// Finds what is filled when, from the first process down.
    fn hand_down(&mut self, order: &Order) {
        let mut makers = vec![(Node::Process(0), Vec::new())];
        let mut n = 0;
        while let Some((maker, _)) = makers.get(n) {
            let (early, late) = order.births(*maker);
            let made: Vec<Node> = early.iter().chain(late).map(|birth| birth.node).collect();
            makers.extend(made.iter().map(|node| (*node, Vec::new())));
            makers[n].1 = made;
            n += 1;
        }
        // What is needed by a node and by all whom it makes, directly or not.
        let mut below: Vec<Vec<Run>> = (0..self.has.len()).map(|place| self.own(place).to_vec()).collect();
        for (maker, made) in makers.iter().rev() {
            let all = made.iter().flat_map(|node| below[self.place(*node)].iter().copied());
            let all = set(all.chain(below[self.place(*maker)].iter().copied()).collect());
            below[self.place(*maker)] = all;
        }
        for (maker, made) in &makers {
            let maker = self.place(*maker);
            let mut later = self.own(maker).to_vec();
            let mut wanted: Vec<Vec<Run>> = Vec::with_capacity(made.len());
            for node in made.iter().rev() {
                let needed = &below[self.place(*node)];
                wanted.push(common(needed, &later));
                if !needed.is_empty() {
                    later = union(&later, needed);
                }
            }
            // Children for whom nothing is filled have the same, and there may be many.
            let mut has = Rc::clone(&self.has[maker]);
            for (node, wanted) in made.iter().zip(wanted.into_iter().rev()) {
                let child = self.place(*node);
                if !wanted.is_empty() {
                    self.before[child] = self.fill(Rc::make_mut(&mut has), child, &wanted);
                }
                self.has[child] = Rc::clone(&has);
            }
            self.has[maker] = has;
        }
    }

    /// What a maker that has `has` fills for a child, or those whom it makes, who share `wanted` with others. At one address
    /// there can be but one page: the child's own goes first, then what is there already.
    fn fill(&self, has: &mut Has, child: usize, wanted: &[Run]) -> Has {
        let own = self.own(child);
        let mut taken = places(&common(own, &has.runs));
        let mut missing = outside(&common(own, wanted), &taken);
        let there = common(&has.runs, wanted);
        let more = |taken: Vec<Range<u64>>, runs: &[Run]| ranges([taken, places(runs)].concat());
        taken = more(taken, &missing);
        taken = more(taken, &there);
        missing = union(&missing, &one_each(outside(wanted, &taken)));
        has.runs = union(&outside(&has.runs, &places(&missing)), &missing);
        let mut carriers = BTreeSet::new();
        for run in &missing {
            let first = self.carriers.partition_point(|carrier| carrier.end <= run.start);
            let all = self.carriers.iter().enumerate().skip(first);
            carriers.extend(all.take_while(|(_, carrier)| carrier.start < run.end).map(|(place, _)| place));
        }
        carriers.retain(|carrier| has.carriers.insert(*carrier));
        Has { carriers, runs: missing }
    }

    /// Steps of a maker before it makes `child`.
    pub(super) fn before(&self, child: Node, staged: &Staged<'_>, builder: &mut Builder, steps: &mut Steps) {
        let Some(fills) = self.before.get(self.place(child)) else { return };
        for carrier in fills.carriers.iter().filter_map(|place| self.carriers.get(*place)) {
            let mapped = Mapped { start: carrier.start, end: carrier.end, protection: PROTECTION };
            let at = |origin: u64| origin.wrapping_add(carrier.start);
            match carrier.source {
                Source::Anonymous { grows_down, no_reserve } => mapped.anonymous(grows_down, no_reserve, steps),
                Source::File(path, origin) => {
                    let fd = staged.path(path, Access::Read);
                    mapped.private(fd, at(origin), steps);
                }
                Source::Memory(memory, origin) => mapped.private(staged.memory(memory), at(origin), steps),
            }
        }
        read(&fills.runs, staged.pages(), builder, steps);
    }

    /// What process `n`, which is to become `life`, keeps.
    pub(super) fn kept(&self, n: usize, life: &LiveProcess) -> Kept {
        let Some(has) = self.has.get(n).filter(|has| !has.carriers.is_empty()) else { return Kept::default() };
        let inherited: Vec<&Carrier<'_>> = has.carriers.iter().filter_map(|place| self.carriers.get(*place)).collect();
        let runs = common(self.own(n), &has.runs);
        let held = places(&runs);
        let moves = self.moved.get(n).map_or(&[][..], Vec::as_slice);
        let sources = moved::sources(moves);
        let mut kept = Kept::default();
        // Its own pages, and areas that stay in their places.
        let (mut own, mut there) = (Vec::new(), Vec::new());
        for (place, area) in life.space.areas.iter().enumerate() {
            let found = moved::of(moves, place);
            let start = found.map_or(area.start, |found| found.from);
            let whole = start..start + (area.end - area.start);
            if found.is_none() && overlaps(whole.clone(), &sources) {
                // It came there when what was there had gone.
                continue;
            }
            let source = Source::of(life, area, start);
            let first = inherited.partition_point(|carrier| carrier.end <= whole.start);
            let covered = inherited.get(first).is_some_and(|carrier| {
                carrier.start <= whole.start && whole.end <= carrier.end && Some(carrier.source) == source
            });
            // Without such a page it is better made anew.
            if covered && overlaps(whole.clone(), &held) {
                kept.areas.insert(place);
                kept.moves.extend(found.cloned());
                if found.is_none() {
                    there.push(whole);
                }
                // Zeros in anonymous memory are not written.
                let nothing = |content| content == Content::Zero && area.backing.is_zeros();
                let written = area.pages.iter().filter(|region| !nothing(region.content));
                let at = |address: u64| address - area.start + start;
                own.extend(written.map(|region| at(region.start)..at(region.start + region.bytes())));
            }
        }
        let own = ranges(own);
        let targets = kept.moves.iter().map(Move::target);
        let taken = ranges(there.into_iter().chain(targets).chain(kept.moves.iter().map(Move::source)).collect());
        let all = ranges(inherited.iter().map(|carrier| carrier.start..carrier.end).collect());
        kept.unmapped = all.iter().flat_map(|range| without(range, &taken)).collect();
        // Its own pages are written over what is there.
        let left = |runs: &[Run]| moved::not_covered(&outside(runs, &kept.unmapped), &kept.moves);
        let stale = places(&outside(&left(&has.runs), &own));
        let runs = left(&runs);
        kept.stale = moved::ranges_after(&stale, &kept.moves);
        kept.runs = moved::runs_after(&runs, &kept.moves);
        kept
    }
}

impl Kept {
    /// What of these runs is not there.
    pub(super) fn missing(&self, runs: Vec<Run>) -> Vec<Run> {
        if self.runs.is_empty() { runs } else { outside(&runs, &places(&self.runs)) }
    }
}

fn overlaps(range: Range<u64>, places: &[Range<u64>]) -> bool {
    let first = places.partition_point(|place| place.end <= range.start);
    places.get(first).is_some_and(|place| place.start < range.end)
}

/// The stored pages of a process's areas whose pages forks share, where it inherits them.
fn stored(life: &LiveProcess, moves: &[Move]) -> Vec<Run> {
    let areas = life.space.areas.iter().enumerate().filter(|(_, area)| Source::of(life, area, area.start).is_some());
    set(areas.flat_map(|(n, area)| of_area(area, moved::of(moves, n).map_or(area.start, |found| found.from))).collect())
}

/// The stored pages of an area as if it were at `start`.
fn of_area(area: &Area, start: u64) -> impl Iterator<Item = Run> {
    area.pages.iter().filter_map(move |region| match region.content {
        Content::Stored { offset, .. } => Some(Run::new(region.start - area.start + start, region.bytes(), offset)),
        Content::Zero => None,
    })
}

/// Finds the carriers; what none of them carries is taken out of `own`.
fn carriers<'t>(tree: &'t Tree, moved: &[Vec<Move>], own: &mut [Vec<Run>]) -> Vec<Carrier<'t>> {
    /// An area with shared pages.
    struct Sharer<'t> {
        process: usize,
        carrier: Carrier<'t>,
        bytes: u64,
    }
    let mut sharers = Vec::new();
    for (process, (life, own)) in tree.processes.iter().map(Process::alive).zip(own.iter()).enumerate() {
        let (Some(life), held) = (life, places(own)) else { continue };
        let moves = moved.get(process).map_or(&[][..], Vec::as_slice);
        let sources = moved::sources(moves);
        for (n, area) in life.space.areas.iter().enumerate() {
            let found = moved::of(moves, n);
            let start = found.map_or(area.start, |found| found.from);
            let whole = start..start + (area.end - area.start);
            let gone = found.is_none() && overlaps(whole.clone(), &sources);
            let Some(source) = Source::of(life, area, start).filter(|_| !gone) else { continue };
            let bytes =
                whole.end - whole.start - without(&whole, &held).iter().map(|gap| gap.end - gap.start).sum::<u64>();
            if bytes > 0 {
                sharers.push(Sharer {
                    process,
                    carrier: Carrier { start: whole.start, end: whole.end, source },
                    bytes,
                });
            }
        }
    }
    sharers.sort_by_key(|sharer| sharer.carrier.start);
    let mut carriers: Vec<Carrier<'t>> = Vec::new();
    let mut first = 0;
    while first < sharers.len() {
        // All that hang together by overlap.
        let (mut end, mut last) = (0, first);
        while let Some(next) = sharers.get(last).filter(|next| last == first || next.carrier.start < end) {
            end = end.max(next.carrier.end);
            last += 1;
        }
        let mut kinds: Vec<(Source<'t>, u64)> = Vec::new();
        let mut of_kind: HashMap<Source<'t>, usize> = HashMap::new();
        for Sharer { carrier, bytes, .. } in &sharers[first..last] {
            let kind = *of_kind.entry(carrier.source).or_insert_with(|| {
                kinds.push((carrier.source, 0));
                kinds.len() - 1
            });
            kinds[kind].1 += bytes;
        }
        let chosen = kinds.iter().max_by_key(|(_, bytes)| *bytes).map(|(source, _)| *source);
        for Sharer { process, carrier, .. } in sharers[first..last].iter() {
            let Carrier { start, end, source } = *carrier;
            if Some(source) != chosen {
                let area = Range { start, end };
                own[*process] = outside(&own[*process], std::slice::from_ref(&area));
                continue;
            }
            match carriers.last_mut().filter(|last| last.source == source && start < last.end) {
                Some(last) => last.end = last.end.max(end),
                None => carriers.push(Carrier { start, end, source }),
            }
        }
        first = last;
    }
    carriers
}

#[cfg(test)]
mod tests;
