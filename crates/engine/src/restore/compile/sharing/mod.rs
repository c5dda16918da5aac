//! Pages that processes share copy-on-write: who fills them, and who inherits them.
//!
//! A page is shared if several processes have it at the same address from the same place in the image. Before a process
//! forks a child, it fills what the child, or one that the child makes, shares with itself or with those whom it makes later.
//! So each page is read once, by the last common maker of all who have it, and is the same frame in all of them, as after
//! the program's own forks. Who has inherited what is not its own drops it.
//!
//! Such pages lie in *carriers*: mappings as wide as all the areas of the same kind that overlap, and writable. A process's
//! area becomes a part of the carrier that it has inherited. Where areas of different kinds overlap in different processes, one
//! kind is carried; the pages of the others are read by each process for itself, and so are those that a program has moved
//! to another address since its fork.

mod runs;

use std::collections::BTreeSet;
use std::ops::Range;

use torpor_image::Content;
use torpor_image::tree::{Area, Backing, Life, MemoryId, PathState, Process, Tree};

use self::runs::{common, in_several, one_each, outside, places, ranges, set, union, without};
use super::super::staged::{Access, Staged};
use super::build::{Builder, Steps};
use super::memory;
use super::order::{Node, Order};

pub(super) use self::runs::Run;

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

impl<'t> Source<'t> {
    /// `None` for areas whose pages are not inherited copy-on-write.
    fn of(life: &'t Life, area: &'t Area) -> Option<Self> {
        let origin = |offset: u64| offset.wrapping_sub(area.start);
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
pub(super) struct Sharing<'t> {
    /// By ascending address, without overlap.
    carriers: Vec<Carrier<'t>>,
    /// What each process has that another has, too. Nothing if nothing is shared.
    own: Vec<Vec<Run>>,
    /// By the maker's child: what it maps and fills before.
    before: Vec<Has>,
    /// What each node has when it has made all whom it makes.
    has: Vec<Has>,
}

/// What a process keeps of what it has inherited.
#[derive(Debug, Default)]
pub(super) struct Kept {
    /// Places of areas that are there.
    pub(super) areas: BTreeSet<usize>,
    /// What is not to stay mapped.
    pub(super) unmapped: Vec<Range<u64>>,
    /// Where the process has pages, or none, of its own.
    pub(super) stale: Vec<Range<u64>>,
    /// Pages that are there.
    runs: Vec<Run>,
}

impl<'t> Sharing<'t> {
    pub(super) fn of(tree: &'t Tree, order: &Order) -> Self {
        let stored = |process: &Process| set(process.alive().into_iter().flat_map(stored).collect());
        let mut own: Vec<Vec<Run>> = tree.processes.iter().map(stored).collect();
        let several = in_several(&own);
        if several.is_empty() {
            return Self::default();
        }
        own.iter_mut().for_each(|runs| *runs = common(runs, &several));
        let carriers = carriers(tree, &mut own);
        let nodes = own.len() + order.helpers.len();
        let mut sharing = Self { carriers, own, before: vec![Has::default(); nodes], has: Vec::new() };
        sharing.has = vec![Has::default(); nodes];
        sharing.hand_down(order);
        sharing
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
            let made: Vec<Node> = early.into_iter().chain(late).map(|birth| birth.node).collect();
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
                later = union(&later, needed);
            }
            let mut has = std::mem::take(&mut self.has[maker]);
            for (node, wanted) in made.iter().zip(wanted.into_iter().rev()) {
                let child = self.place(*node);
                self.before[child] = self.fill(&mut has, child, &wanted);
                self.has[child] = has.clone();
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
            let mapped = memory::Mapped { start: carrier.start, end: carrier.end, protection: PROTECTION };
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
        memory::read(&fills.runs, staged.image(), builder, steps);
    }

    /// What process `n`, which is to become `life`, keeps.
    pub(super) fn kept(&self, n: usize, life: &Life) -> Kept {
        let Some(has) = self.has.get(n).filter(|has| !has.carriers.is_empty()) else { return Kept::default() };
        let carriers = || has.carriers.iter().filter_map(|place| self.carriers.get(*place));
        let runs = common(self.own(n), &has.runs);
        let held = places(&runs);
        let mut kept = Kept::default();
        let mut own = Vec::new();
        let mut there = Vec::new();
        for (place, area) in life.space.areas.iter().enumerate() {
            let source = Source::of(life, area);
            let covers = |carrier: &&Carrier<'_>| {
                carrier.start <= area.start && area.end <= carrier.end && Some(carrier.source) == source
            };
            // Without such a page it is better made anew.
            if carriers().any(|carrier| covers(&carrier)) && overlaps(area.start..area.end, &held) {
                kept.areas.insert(place);
                there.push(area.start..area.end);
                // Zeros in anonymous memory are not written.
                let nothing = |content| content == Content::Zero && matches!(area.backing, Backing::Anonymous { .. });
                let written = area.pages.iter().filter(|region| !nothing(region.content));
                own.extend(written.map(|region| region.start..region.start + region.bytes()));
            }
        }
        let (own, there) = (ranges(own), ranges(there));
        let all = ranges(carriers().map(|carrier| carrier.start..carrier.end).collect());
        kept.unmapped = all.iter().flat_map(|range| without(range, &there)).collect();
        // Its own pages are written over what is there.
        let inherited = outside(&has.runs, &kept.unmapped);
        kept.stale = places(&outside(&inherited, &own));
        kept.runs = outside(&runs, &kept.unmapped);
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

/// The stored pages of a process's areas whose pages forks share.
fn stored(life: &Life) -> impl Iterator<Item = Run> {
    let areas = life.space.areas.iter().filter(|area| Source::of(life, area).is_some());
    areas.flat_map(|area| &area.pages).filter_map(|region| match region.content {
        Content::Stored { offset, .. } => Some(Run::new(region.start, region.bytes(), offset)),
        Content::Zero => None,
    })
}

/// Finds the carriers; what none of them carries is taken out of `own`.
fn carriers<'t>(tree: &'t Tree, own: &mut [Vec<Run>]) -> Vec<Carrier<'t>> {
    /// An area with shared pages.
    struct Sharer<'t> {
        process: usize,
        carrier: Carrier<'t>,
        bytes: u64,
    }
    let mut sharers = Vec::new();
    for (process, (life, own)) in tree.processes.iter().map(Process::alive).zip(own.iter()).enumerate() {
        let (Some(life), held) = (life, places(own)) else { continue };
        for area in &life.space.areas {
            let Some(source) = Source::of(life, area) else { continue };
            let whole = area.start..area.end;
            let bytes =
                whole.end - whole.start - without(&whole, &held).iter().map(|gap| gap.end - gap.start).sum::<u64>();
            if bytes > 0 {
                sharers.push(Sharer { process, carrier: Carrier { start: area.start, end: area.end, source }, bytes });
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
        for Sharer { carrier, bytes, .. } in &sharers[first..last] {
            match kinds.iter_mut().find(|(source, _)| *source == carrier.source) {
                Some((_, sum)) => *sum += bytes,
                None => kinds.push((carrier.source, *bytes)),
            }
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
