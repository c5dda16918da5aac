//! Steps that make AIO contexts (`io_setup(2)`), each with its ring at its old address, which is the context's id.
//!
//! The kernel alone chooses where a new ring goes. So this is done while the address space holds next to nothing: what is
//! free is filled with memory that nobody can touch, but for one gap of the ring's size, and from there the ring is moved to
//! its place, which changes the id. A kernel that makes rings of another size for so many places fails at one of the two.
//!
//! Where the next answer goes is the kernel's secret. It comes to its old value by empty reads, whose answers are taken up to
//! the old head; over those that then wait, the old ones are written.

use std::ops::Range;

use torpor_image::PAGE;
use torpor_image::tree::{Area, Backing, IO_EVENT_BYTES, LiveProcess, io_event_address, io_event_runs, io_events};
use torpor_linux::restorer::CODE_BYTES;
use torpor_linux::uapi::memory::{MAP_ANONYMOUS, MAP_FIXED_NOREPLACE, MAP_NORESERVE, MAP_PRIVATE};

use super::addresses::{HIGHEST, LOWEST, MREMAP_MAYMOVE_FIXED, ScratchArea};
use super::build::{Argument, Builder, Steps};
use super::kernel::is_kernel;
use super::shared_pages::Kept;
use crate::calls;
use crate::staged::Staged;

/// Where the gap is looked for: where the kernel looks first or at last, whichever way it looks and wherever it begins.
const GAP: u64 = 0x5000_0000_0000;
/// Empty reads of one call at most.
const BATCH: u32 = 128;

/// A context.
struct Context<'a> {
    start: u64,
    bytes: u64,
    head: u32,
    waiting: &'a [u8],
}

impl<'a> Context<'a> {
    fn of(area: &'a Area) -> Option<Self> {
        match &area.backing {
            Backing::Aio { head, waiting } => {
                Some(Self { start: area.start, bytes: area.end - area.start, head: *head, waiting })
            }
            _ => None,
        }
    }

    fn range(&self) -> Range<u64> {
        self.start..self.start + self.bytes
    }

    fn places(&self) -> u32 {
        u32::try_from(io_events(self.bytes)).unwrap_or(u32::MAX)
    }

    fn answers(&self) -> u32 {
        (self.waiting.len() as u64 / IO_EVENT_BYTES) as u32
    }

    /// The smallest number of requests for which the kernel makes a ring of this size. It doubles the number, adds two, and
    /// has a header as large as an answer; for few requests it makes a ring for its processors.
    fn requests(&self) -> u64 {
        let before = self.bytes - PAGE;
        let most = before / IO_EVENT_BYTES;
        if most < 3 { 1 } else { (most - 3) / 2 + 1 }
    }
}

/// Steps that make all contexts. Nothing is mapped yet but the kernel's areas, the blob, and what is inherited.
pub(super) fn contexts(
    life: &LiveProcess,
    staged: &Staged<'_>,
    room: ScratchArea,
    kept: &Kept,
    builder: &mut Builder,
    steps: &mut Steps,
) {
    let contexts: Vec<Context<'_>> = life.space.areas.iter().filter_map(Context::of).collect();
    if contexts.is_empty() {
        return;
    }
    let there = |n: usize, area: &Area| is_kernel(area) || kept.areas.contains(&n);
    let there = life.space.areas.iter().enumerate().filter(|(n, area)| there(*n, area));
    let blob = room.address..room.end;
    let mut taken: Vec<Range<u64>> = there.map(|(_, area)| area.start..area.end).chain([blob]).collect();
    // Memory that nobody can touch takes nothing, but counts where address space is limited.
    let flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE;
    let fill = |hole: &Range<u64>, steps: &mut Steps| {
        let (start, bytes) = (Argument::Value(hole.start), Argument::Value(hole.end - hole.start));
        steps.exact(calls::MMAP, hole.start, &[start, bytes, 0_u64.into(), flags.into(), (-1).into(), 0_u64.into()]);
    };
    let empty = |hole: &Range<u64>, steps: &mut Steps| {
        steps.call(calls::MUNMAP, &[hole.start.into(), (hole.end - hole.start).into()]);
    };
    holes(&mut taken).iter().for_each(|hole| fill(hole, steps));
    let mut avoid: Vec<Range<u64>> = taken.iter().cloned().chain(contexts.iter().map(Context::range)).collect();
    let widest = contexts.iter().map(|context| context.bytes).max().unwrap_or(0);
    let gap = gap(&mut avoid, widest);
    for context in &contexts {
        let meanwhile = gap..gap + context.bytes;
        empty(&meanwhile, steps);
        let id = builder.numbers(&[0]);
        steps.call(calls::IO_SETUP, &[context.requests().into(), id]);
        let (start, bytes) = (Argument::Value(context.start), Argument::Value(context.bytes));
        let arguments = [gap.into(), bytes, bytes, MREMAP_MAYMOVE_FIXED.into(), start];
        steps.exact(calls::MREMAP, context.start, &arguments);
        // It is a context by that id.
        steps.call(calls::IO_SUBMIT, &[start, 0_u64.into(), 0_u64.into()]);
        fill(&meanwhile, steps);
        answers(context, staged, builder, steps);
        taken.push(context.range());
    }
    holes(&mut taken).iter().for_each(|hole| empty(hole, steps));
}

/// Ranges between those that are taken, which become sorted.
fn holes(taken: &mut [Range<u64>]) -> Vec<Range<u64>> {
    taken.sort_unstable_by_key(|range| range.start);
    let ends = taken.iter().map(|range| range.start).chain([HIGHEST]);
    let starts = [LOWEST].into_iter().chain(taken.iter().map(|range| range.end));
    starts.zip(ends).map(|(start, end)| start..end).filter(|hole| hole.start < hole.end).collect()
}

/// Where so many bytes touch none of these.
fn gap(avoid: &mut [Range<u64>], bytes: u64) -> u64 {
    avoid.sort_unstable_by_key(|range| range.start);
    let mut start = GAP;
    for range in avoid.iter() {
        if range.start < start + bytes && start < range.end {
            start = range.end;
        }
    }
    start
}

/// Brings head and tail to where they were, and puts the answers back.
fn answers(context: &Context<'_>, staged: &Staged<'_>, builder: &mut Builder, steps: &mut Steps) {
    let (places, head, count) = (context.places(), context.head, context.answers());
    if head == 0 && count == 0 {
        return;
    }
    // A quarter of the places is free for requests whichever processor it runs on.
    let batch = BATCH.min(places / 4).max(1);
    // struct iocb: an empty read.
    let mut request = [0_u64; 8];
    request[2] = u64::from(staged.blob() as u32) << 32;
    let request = builder.numbers(&request);
    let list = builder.words(&vec![request; batch as usize]);
    let taken = builder.bytes(&vec![0; batch as usize * IO_EVENT_BYTES as usize]);
    let id = Argument::Value(context.start);
    for n in batches(head, batch) {
        steps.exact(calls::IO_SUBMIT, n, &[id, n.into(), list]);
        steps.exact(calls::IO_GETEVENTS, n, &[id, n.into(), n.into(), taken, 0_u64.into()]);
    }
    for n in batches(count, batch) {
        steps.exact(calls::IO_SUBMIT, n, &[id, n.into(), list]);
    }
    let tail = ((u64::from(head) + u64::from(count)) % u64::from(places)) as u32;
    let runs = io_event_runs(head, tail, places)
        .map(|(first, end)| (io_event_address(context.start, first), u64::from(end - first)));
    let words: Vec<u64> = runs.flat_map(|(address, n)| [address, n * IO_EVENT_BYTES]).collect();
    let (Argument::Data(stored), false) = (builder.bytes(context.waiting), words.is_empty()) else { return };
    let runs = words.len() as u64 / 2;
    let words = builder.numbers(&words);
    let at = CODE_BYTES as u64 + stored;
    let arguments = [staged.blob().into(), words, runs.into(), at.into(), 0_u64.into()];
    steps.exact(calls::PREADV, context.waiting.len() as u64, &arguments);
}

fn batches(count: u32, batch: u32) -> impl Iterator<Item = u64> {
    (0..count).step_by(batch as usize).map(move |done| u64::from((count - done).min(batch)))
}

/// What the program has forbidden itself in a ring.
pub(super) fn protect(area: &Area, steps: &mut Steps) {
    const READ_WRITE: u32 = 3;
    if area.protection != READ_WRITE && area.key == 0 {
        let bytes = area.end - area.start;
        steps.call(calls::MPROTECT, &[area.start.into(), bytes.into(), u64::from(area.protection).into()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn context(pages: u64) -> Context<'static> {
        Context { start: 0x1000, bytes: pages * PAGE, head: 0, waiting: &[] }
    }

    #[test]
    fn requests_make_a_ring_of_the_same_size() {
        // As the kernel counts (fs/aio.c).
        let pages = |requests: u64| (32 + 32 * (requests * 2 + 2)).div_ceil(PAGE);
        for size in [1, 2, 3, 33, 1000] {
            let requests = context(size).requests();
            assert_eq!(pages(requests), size);
            assert!(requests == 1 || pages(requests - 1) == size - 1);
        }
    }

    #[test]
    fn holes_are_what_is_between() {
        let mut taken = [0x9_0000..0xa_0000, 0x3_0000..0x4_0000, 0x4_0000..0x5_0000];
        let found = holes(&mut taken);
        assert_eq!(found, [LOWEST..0x3_0000, 0x5_0000..0x9_0000, 0xa_0000..HIGHEST]);
    }

    #[test]
    fn the_gap_touches_nothing() {
        assert_eq!(gap(&mut [], 4096), GAP);
        let mut taken = [GAP + 8192..GAP + 12288, GAP - 4096..GAP + 4096];
        assert_eq!(gap(&mut taken, 4096), GAP + 4096);
        assert_eq!(gap(&mut taken, 8192), GAP + 12288);
    }

    #[test]
    fn batches_add_up() {
        assert_eq!(batches(5, 2).collect::<Vec<_>>(), [2, 2, 1]);
        assert_eq!(batches(0, 2).count(), 0);
    }
}
