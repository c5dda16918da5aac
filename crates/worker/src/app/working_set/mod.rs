//! Which pages an app needs first when it wakes, learned from its wakes (Picocenter, section 4; FaaSnap's loading set).
//!
//! A wake shows which pages the program touched while they were missing. The next sleep puts them at the front of its image, and the next wake
//! places them before the program runs. They then raise no fault, so that wake shows nothing of them; of the others, it shows only those that
//! were touched before the pager came to them. *Sampled* wakes show more: a part of the set is staged, and each page of it is placed when it is
//! touched. They take longer, so there are few, and the part is small: one of [`SLICES`] slices of the set in turn, and then all of it. The first
//! [`FIRST_SAMPLED`] wakes of each cause are sampled, then one in [`LEAST_SAMPLED`]. Where one showed that the set was wrong, all of it is
//! staged after [`SAMPLED`] wakes. The [policy](WorkingSetPolicy) says how many of the wakes that showed a page must have touched it for it to be in the
//! set. Pages that are not in the set are remembered as long as the policy looks back.
//!
//! A program that needs many other pages each time waits longer for each of them than it would for all its memory: a fault costs as much as
//! [`FAULT_PAGES`] pages that are read together. Where [`FULL_AFTER`] wakes of a cause in a row were so, those that follow are *full*: all memory comes before the
//! program runs. One in [`FULL_AGAIN`] is not, and shows whether that is still right.
//!
//! What an app touches depends on what it wakes for. A page belongs to the causes that it was touched for; one with several belongs to every
//! wake. This module is pure: its user translates process ids as the app sees them, which outlive its sleeps, to those of the machine.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use serde::{Deserialize, Serialize};
use torpor_api::working_set::WorkingSetPolicy;
use torpor_engine::Sample;

/// One wake in this many is sampled where the set was wrong.
const SAMPLED: u32 = 8;
/// The same where it was right. Together, sampled wakes then take a few percent of the time of all wakes.
const LEAST_SAMPLED: u32 = 32;
/// Slices of a set. A sampled wake stages one of them, in turn, or all.
const SLICES: u32 = 8;
/// A set was right if at most one in so many of its pages was not needed, and as few were missing.
const RIGHT: u64 = 4;
/// A fault takes as long as some 50 pages that are read together with all others; of the pages that faults bring, some would be read in any case.
const FAULT_PAGES: u64 = 32;
/// Wakes of a cause in a row that would have been faster with all memory; then they are full.
const FULL_AFTER: u8 = 2;
/// One in this many of those is not.
const FULL_AGAIN: u32 = 32;
/// The first wakes of a cause are all sampled.
const FIRST_SAMPLED: u32 = 2;
/// Pages in a block: those that come with a touched one ([`WorkingSetPolicy::Present`]).
const BLOCK_PAGES: u64 = torpor_engine::BLOCK_PAGES;
/// Causes that are told apart; a bit each. The one that was seen longest ago makes room.
const MOST_CAUSES: usize = 16;
/// Pages of all sets of an app at most, 64 MiB.
const MOST_PAGES: usize = 1 << 14;
/// Pages of a set whose order does not matter, 32 MiB: all that comes before the program runs.
const TOGETHER: usize = 1 << 13;
const PAGE: u64 = 4096;
/// Behind the highest address of user memory.
const MOST_ADDRESS: u64 = 1 << 56;

/// Pages with one address behind the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    /// Process, by the id that the app sees.
    pub(crate) pid: i32,
    /// The address of the first.
    pub(crate) start: u64,
    /// How many.
    pub(crate) pages: u32,
}

/// What a wake has shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Observed<'a> {
    /// Why it woke, in words.
    pub(crate) cause: &'a str,
    /// It was sampled.
    pub(crate) is_sampled: bool,
    /// It shows all that the program needed: its recording was not cut short.
    pub(crate) is_whole: bool,
    /// All that was expected was staged, or is not there any more. Else `staged` says what was.
    pub(crate) is_all_staged: bool,
    /// What was staged.
    pub(crate) staged: &'a [Run],
    /// What was touched, in order.
    pub(crate) touched: &'a [Run],
    /// Faults.
    pub(crate) faults: u64,
    /// Pages that were missing when the program began to run.
    pub(crate) missing: u64,
}

/// How memory is to come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// All of it before the program runs.
    Full,
    /// What is in the set, but for what is to be sampled.
    Lazy(Option<Sample>),
}

/// A cause, and the pages that it needs: processes and addresses.
pub(crate) type Group = (String, Vec<(i32, Range<u64>)>);

/// How well the set did in a wake, in pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Score {
    /// Expected.
    pub(crate) expected: u64,
    /// Touched without being expected.
    pub(crate) misses: u64,
    /// Of the expected ones that were staged, touched and not touched; known of sampled wakes.
    pub(crate) sampled: Option<(u64, u64)>,
}

/// What is known of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Known {
    /// Place in the order of first touches.
    order: u32,
    /// Bits of the causes.
    causes: u16,
    /// For each of the last wakes that showed it, the latest in the lowest bit: whether it was touched.
    touches: u8,
}

/// Why an app wakes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Cause {
    /// In words.
    name: String,
    /// The wake at which it was seen last, counted from the first of the app.
    last: u32,
    /// Sampled wakes.
    sampled: u32,
    /// Wakes since the last sampled one.
    unsampled: u32,
    /// One in this many is sampled.
    interval: u32,
    /// The last sampled wake showed that the set was wrong: the next one stages all of it.
    #[serde(default)]
    is_wrong: bool,
    /// Wakes in a row that would have been faster with all memory, [`FULL_AFTER`] at most.
    #[serde(default)]
    slow: u8,
}

/// The sets of an app.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Stored", into = "Stored")]
pub(crate) struct WorkingSets {
    /// Their places are the bits.
    causes: Vec<Cause>,
    /// By process and number of the page.
    pages: BTreeMap<(i32, u64), Known>,
    /// Wakes that were observed.
    wakes: u32,
    next_order: u32,
    last: Option<Score>,
}

/// As it is kept in a file.
#[derive(Clone, Serialize, Deserialize)]
struct Stored {
    causes: Vec<Cause>,
    /// Process, number of the page, its order, causes, and touches.
    pages: Vec<(i32, u64, u32, u16, u8)>,
    wakes: u32,
    next_order: u32,
    last: Option<Score>,
}

impl WorkingSets {
    /// How the next wake for this cause is to be. It is full only where it may be, or the policy says so.
    pub(crate) fn way(&self, cause: &str, policy: WorkingSetPolicy, may_be_full: bool) -> Way {
        match policy {
            WorkingSetPolicy::All => return Way::Full,
            WorkingSetPolicy::None => return Way::Lazy(None),
            _ => {}
        }
        let Some(cause) = self.causes.iter().find(|known| known.name == cause) else {
            return Way::Lazy(Some(Sample::WHOLE));
        };
        if cause.slow >= FULL_AFTER && may_be_full {
            let is_probe = cause.unsampled.saturating_add(1).is_multiple_of(FULL_AGAIN);
            return if is_probe { Way::Lazy(None) } else { Way::Full };
        }
        Way::Lazy(cause.is_sample_due().then(|| cause.sample()))
    }

    /// Wakes that were observed, and pages of all sets.
    pub(crate) fn counts(&self) -> (u32, usize) {
        (self.wakes, self.pages.len())
    }

    /// Causes whose wakes are full.
    pub(crate) fn full_causes(&self) -> impl Iterator<Item = &str> {
        self.causes.iter().filter(|cause| cause.slow >= FULL_AFTER).map(|cause| cause.name.as_str())
    }

    /// How the set did last.
    pub(crate) const fn last(&self) -> Option<Score> {
        self.last
    }

    /// Learns from a wake.
    pub(crate) fn observe(&mut self, observed: &Observed<'_>, policy: WorkingSetPolicy) {
        let Observed { cause, is_sampled, is_whole, is_all_staged, staged, touched, faults, missing } = *observed;
        self.wakes = self.wakes.saturating_add(1);
        let n = self.place(cause);
        let bit = 1 << n;
        let concerns = |known: &Known| known.causes & bit != 0 || known.causes.count_ones() > 1;
        let is_expected = |known: &Known| concerns(known) && is_member(policy, known.touches);
        let expected = self.pages.iter().filter(|(_, known)| is_expected(known)).map(|(page, _)| *page);
        let expected: BTreeSet<(i32, u64)> = expected.collect();
        let staged = staged.iter().flat_map(Run::pages).filter(|page| is_whole && expected.contains(page));
        let staged: BTreeSet<(i32, u64)> = staged.collect();
        for (page, known) in &mut self.pages {
            // What was in place before the program ran shows nothing; nor does what only other causes need. What is expected and
            // neither in place nor staged is not there any more: that is known where nothing was in place.
            let shows = match expected.contains(page) {
                true => staged.contains(page) || is_whole && is_all_staged,
                false => !is_sampled || is_whole,
            };
            if known.causes & bit != 0 && shows {
                known.touches <<= 1;
            }
        }
        let (mut hits, mut misses, mut seen) = (0, 0, BTreeSet::new());
        for page in touched.iter().flat_map(|run| run.touched(policy)).filter(|page| seen.insert(*page)) {
            hits += u64::from(staged.contains(&page));
            misses += u64::from(!expected.contains(&page));
            let order = self.next_order;
            self.next_order = order.saturating_add(1);
            let has_room = self.pages.len() < MOST_PAGES;
            match self.pages.get_mut(&page) {
                Some(known) => {
                    known.causes |= bit;
                    known.touches |= 1;
                    if is_whole && is_all_staged {
                        known.order = order;
                    }
                }
                None if has_room => {
                    self.pages.insert(page, Known { order, causes: bit, touches: 1 });
                }
                None => {}
            }
        }
        let (expected, staged) = (expected.len() as u64, staged.len() as u64);
        let judged = if is_whole && is_all_staged { expected } else { staged };
        let unused = judged.saturating_sub(hits);
        let is_full = self.pages.len() >= MOST_PAGES;
        self.last = Some(Score { expected, misses, sampled: (is_sampled && is_whole).then_some((hits, unused)) });
        let cause = &mut self.causes[n];
        if is_sampled {
            if is_whole {
                // Nothing was expected of the first.
                cause.is_wrong = expected > 0 && (is_full || unused * RIGHT > judged || misses * RIGHT > expected);
            }
            if cause.is_wrong && is_whole {
                cause.interval = SAMPLED;
            } else if !is_whole || judged > 0 || expected == 0 {
                // What needs more than can be recorded is not recorded again and again. Where the slice had nothing, nothing is known.
                cause.interval = cause.interval.saturating_mul(2).min(LEAST_SAMPLED);
            }
            (cause.sampled, cause.unsampled) = (cause.sampled.saturating_add(1), 0);
        } else {
            let is_slow = faults.saturating_mul(FAULT_PAGES) > missing;
            cause.slow = if is_slow { FULL_AFTER.min(cause.slow.saturating_add(1)) } else { 0 };
            cause.unsampled = cause.unsampled.saturating_add(1);
            if is_slow && is_full {
                // They were of no use, and without room nothing could be learned once the program needs the same pages again.
                self.pages.values_mut().for_each(|known| known.causes &= !bit);
                self.pages.retain(|_, known| known.causes != 0);
            }
        }
        self.pages.retain(|_, known| is_remembered(policy, known.touches));
    }

    /// A wake for this cause brought all memory back before the program ran, and shows nothing. Gives how many wakes were not sampled in a row.
    pub(crate) fn pass(&mut self, cause: &str) -> u32 {
        let n = self.place(cause);
        let cause = &mut self.causes[n];
        // A slice may have left too little to be lazy.
        cause.is_wrong |= cause.slow < FULL_AFTER && cause.is_sample_due();
        cause.unsampled = cause.unsampled.saturating_add(1);
        cause.unsampled
    }

    /// Wakes are never full: what is known of their faults says nothing.
    pub(crate) fn forget_slow(&mut self) {
        self.causes.iter_mut().for_each(|cause| cause.slow = 0);
    }

    /// The place of a cause.
    fn place(&mut self, cause: &str) -> usize {
        let found = self.causes.iter().position(|known| known.name == cause);
        let n = found.unwrap_or_else(|| {
            let new = Cause::new(cause);
            if self.causes.len() < MOST_CAUSES {
                self.causes.push(new);
                return self.causes.len() - 1;
            }
            let oldest = (0..self.causes.len()).min_by_key(|n| self.causes[*n].last).unwrap_or(0);
            self.causes[oldest] = new;
            self.pages.values_mut().for_each(|known| known.causes &= !(1 << oldest));
            self.pages.retain(|_, known| known.causes != 0);
            oldest
        });
        self.causes[n].last = self.wakes;
        n
    }

    /// The sets: one for every wake, whose cause is empty, and for each cause the pages that it needs besides, in the order in which they
    /// were touched, [`TOGETHER`] at a time: these are in the order of their addresses, so that neighbours are placed by one call.
    pub(crate) fn groups(&self, policy: WorkingSetPolicy) -> Vec<Group> {
        let of = |is_in: &dyn Fn(u16) -> bool| {
            let is_in = |known: &Known| is_in(known.causes) && is_member(policy, known.touches);
            let pages = self.pages.iter().filter(|(_, known)| is_in(known));
            let mut pages: Vec<(u32, i32, u64)> =
                pages.map(|((pid, page), known)| (known.order, *pid, *page)).collect();
            pages.sort_unstable();
            pages.chunks_mut(TOGETHER).for_each(|some| some.sort_unstable_by_key(|(_, pid, page)| (*pid, *page)));
            let mut runs: Vec<(i32, Range<u64>)> = Vec::new();
            for (_, pid, page) in pages {
                let start = page * PAGE;
                match runs.last_mut() {
                    Some((last, range)) if *last == pid && range.end == start => range.end += PAGE,
                    _ => runs.push((pid, start..start + PAGE)),
                }
            }
            runs
        };
        if !self.pages.values().any(|known| is_member(policy, known.touches)) {
            return Vec::new();
        }
        let common = (String::new(), of(&|causes| causes.count_ones() > 1));
        let own = self.causes.iter().enumerate().map(|(n, cause)| (cause.name.clone(), of(&|causes| causes == 1 << n)));
        std::iter::once(common).chain(own.filter(|(_, runs)| !runs.is_empty())).collect()
    }
}

/// Whether a page with these touches is in the set.
fn is_member(policy: WorkingSetPolicy, touches: u8) -> bool {
    match policy {
        WorkingSetPolicy::Of { k, n } => (touches & latest(n)).count_ones() >= u32::from(k),
        WorkingSetPolicy::Union => true,
        WorkingSetPolicy::Present => touches & latest(2) != 0,
        WorkingSetPolicy::None | WorkingSetPolicy::All => false,
    }
}

/// Whether a page with these touches may come to be in the set.
fn is_remembered(policy: WorkingSetPolicy, touches: u8) -> bool {
    match policy {
        WorkingSetPolicy::Of { n, .. } => touches & latest(n) != 0,
        _ => is_member(policy, touches),
    }
}

/// The bits of the latest `n` wakes.
const fn latest(n: u8) -> u8 {
    if n >= 8 { u8::MAX } else { (1 << n) - 1 }
}

impl Run {
    /// Process and number of each page.
    fn pages(&self) -> impl Iterator<Item = (i32, u64)> + use<> {
        let Self { pid, start, pages } = *self;
        (start / PAGE..start / PAGE + u64::from(pages)).map(move |page| (pid, page))
    }

    /// Those that count as touched.
    fn touched(&self, policy: WorkingSetPolicy) -> impl Iterator<Item = (i32, u64)> + use<> {
        let Self { pid, start, pages } = *self;
        let (first, end) = (start / PAGE, start / PAGE + u64::from(pages));
        let range = match policy {
            WorkingSetPolicy::Present => first / BLOCK_PAGES * BLOCK_PAGES..end.next_multiple_of(BLOCK_PAGES),
            _ => first..end,
        };
        range.map(move |page| (pid, page))
    }
}

impl Cause {
    fn new(name: &str) -> Self {
        let name = name.to_owned();
        Self { name, last: 0, sampled: 0, unsampled: 0, interval: SAMPLED, is_wrong: false, slow: 0 }
    }

    fn is_sample_due(&self) -> bool {
        self.sampled < FIRST_SAMPLED || self.unsampled.saturating_add(1) >= self.interval
    }

    /// One slice after the other, then all of it, which shows what is not there any more.
    fn sample(&self) -> Sample {
        match self.sampled % (SLICES + 1) {
            0 => Sample::WHOLE,
            _ if self.is_wrong => Sample::WHOLE,
            n => Sample { slice: n - 1, slices: SLICES },
        }
    }
}

impl From<Stored> for WorkingSets {
    fn from(stored: Stored) -> Self {
        let Stored { mut causes, pages, wakes, next_order, last } = stored;
        causes.truncate(MOST_CAUSES);
        let pages = pages.into_iter().take(MOST_PAGES);
        let known = |(pid, page, order, causes, touches)| ((pid, page), Known { order, causes, touches });
        let pages = pages.filter(|(_, page, ..)| *page < MOST_ADDRESS / PAGE).map(known).collect();
        Self { causes, pages, wakes, next_order, last }
    }
}

impl From<WorkingSets> for Stored {
    fn from(sets: WorkingSets) -> Self {
        let WorkingSets { causes, pages, wakes, next_order, last } = sets;
        let stored = |((pid, page), Known { order, causes, touches })| (pid, page, order, causes, touches);
        let pages = pages.into_iter().map(stored).collect();
        Self { causes, pages, wakes, next_order, last }
    }
}

#[cfg(test)]
mod tests;
