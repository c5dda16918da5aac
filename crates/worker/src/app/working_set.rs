//! Which pages an app needs first when it wakes, learned from its wakes (Picocenter, section 4; FaaSnap's loading set).
//!
//! A wake shows which pages the program touched while they were missing. The next sleep puts them at the front of its image, and the next wake
//! places them before the program runs. They then raise no fault, so that wake shows nothing of them; of the others, it shows only those that
//! were touched before the pager came to them. *Sampled* wakes show all: the set is staged, and each page is placed when it is touched. They
//! take longer, so there are few: the first [`FIRST_SAMPLED`] of each cause, then one in [`SAMPLED`], and up to one in [`LEAST_SAMPLED`] while they show
//! what is known already. The [policy](WorkingSetPolicy) says how many of these wakes must have touched a page for it to be in the set. Pages
//! that are not in the set are remembered as long as the policy looks back.
//!
//! What an app touches depends on what it wakes for. A page belongs to the causes that it was touched for; one with several belongs to every
//! wake. This module is pure: its user translates process ids as the app sees them, which outlive its sleeps, to those of the machine.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use serde::{Deserialize, Serialize};
use torpor_api::working_set::WorkingSetPolicy;

/// One wake in this many is sampled.
const SAMPLED: u32 = 8;
/// The same where the set was right several times. Together, sampled wakes then take a few percent of the time of all wakes.
const LEAST_SAMPLED: u32 = 64;
/// A set was right if at most one in so many of its pages was not needed, and as few were missing.
const RIGHT: u64 = 4;
/// The first wakes of a cause are all sampled.
const FIRST_SAMPLED: u32 = 2;
/// Pages in a block: those that come with a touched one ([`WorkingSetPolicy::Present`]).
const BLOCK_PAGES: u64 = torpor_engine::BLOCK_PAGES;
/// Causes that are told apart; a bit each. The one that was seen longest ago makes room.
const MOST_CAUSES: usize = 16;
/// Pages of all sets of an app at most, 64 MiB.
const MOST_PAGES: usize = 1 << 14;
/// Pages of a set whose order does not matter, 16 MiB: all that comes before the program runs.
const TOGETHER: usize = 1 << 12;
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
    /// What was touched, in order.
    pub(crate) touched: &'a [Run],
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
    /// Of the expected, touched and not touched; known of sampled wakes.
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
    /// Whether a wake for this cause is to be sampled.
    pub(crate) fn is_sample_due(&self, cause: &str, policy: WorkingSetPolicy) -> bool {
        let has_set = !matches!(policy, WorkingSetPolicy::None | WorkingSetPolicy::All);
        let known = self.causes.iter().find(|known| known.name == cause);
        has_set
            && known.is_none_or(|cause| {
                cause.sampled < FIRST_SAMPLED || cause.unsampled.saturating_add(1) >= cause.interval
            })
    }

    /// Wakes that were observed, and pages of all sets.
    pub(crate) fn counts(&self) -> (u32, usize) {
        (self.wakes, self.pages.len())
    }

    /// How the set did last.
    pub(crate) const fn last(&self) -> Option<Score> {
        self.last
    }

    /// Learns from a wake.
    pub(crate) fn observe(&mut self, observed: &Observed<'_>, policy: WorkingSetPolicy) {
        let Observed { cause, is_sampled, is_whole, touched } = *observed;
        self.wakes = self.wakes.saturating_add(1);
        let n = self.place(cause);
        let bit = 1 << n;
        let concerns = |known: &Known| known.causes & bit != 0 || known.causes.count_ones() > 1;
        let is_expected = |known: &Known| concerns(known) && is_member(policy, known.touches);
        let expected = self.pages.iter().filter(|(_, known)| is_expected(known)).map(|(page, _)| *page);
        let expected: BTreeSet<(i32, u64)> = expected.collect();
        for (page, known) in &mut self.pages {
            // What was in place before the program ran shows nothing, unless the wake was sampled; nor does what only other causes need.
            let shows = if expected.contains(page) { is_sampled && is_whole } else { !is_sampled || is_whole };
            if known.causes & bit != 0 && shows {
                known.touches <<= 1;
            }
        }
        let (mut hits, mut misses, mut seen) = (0, 0, BTreeSet::new());
        for page in touched.iter().flat_map(|run| pages_of(run, policy)).filter(|page| seen.insert(*page)) {
            *(if expected.contains(&page) { &mut hits } else { &mut misses }) += 1;
            let order = self.next_order;
            self.next_order = order.saturating_add(1);
            let has_room = self.pages.len() < MOST_PAGES;
            match self.pages.get_mut(&page) {
                Some(known) => {
                    known.causes |= bit;
                    known.touches |= 1;
                    if is_sampled && is_whole {
                        known.order = order;
                    }
                }
                None if has_room => {
                    self.pages.insert(page, Known { order, causes: bit, touches: 1 });
                }
                None => {}
            }
        }
        let expected = expected.len() as u64;
        let unused = expected.saturating_sub(hits);
        self.last = Some(Score { expected, misses, sampled: (is_sampled && is_whole).then_some((hits, unused)) });
        let cause = &mut self.causes[n];
        if is_sampled {
            // What needs more than can be recorded is not recorded again and again.
            let is_right = !is_whole || unused.max(misses).saturating_mul(RIGHT) <= expected;
            cause.interval = if is_right { cause.interval.saturating_mul(2).min(LEAST_SAMPLED) } else { SAMPLED };
            (cause.sampled, cause.unsampled) = (cause.sampled.saturating_add(1), 0);
        } else {
            cause.unsampled = cause.unsampled.saturating_add(1);
        }
        self.pages.retain(|_, known| is_remembered(policy, known.touches));
    }

    /// A wake for this cause brought all memory back before the program ran, and shows nothing.
    pub(crate) fn pass(&mut self, cause: &str) {
        let n = self.place(cause);
        self.causes[n].unsampled = self.causes[n].unsampled.saturating_add(1);
    }

    /// The place of a cause.
    fn place(&mut self, cause: &str) -> usize {
        let found = self.causes.iter().position(|known| known.name == cause);
        let n = found.unwrap_or_else(|| {
            let new = Cause { name: cause.to_owned(), last: 0, sampled: 0, unsampled: 0, interval: SAMPLED };
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

/// Process and number of each page that counts as touched.
fn pages_of(run: &Run, policy: WorkingSetPolicy) -> impl Iterator<Item = (i32, u64)> + use<> {
    let Run { pid, start, pages } = *run;
    let (first, end) = (start / PAGE, start / PAGE + u64::from(pages));
    let range = match policy {
        WorkingSetPolicy::Present => first / BLOCK_PAGES * BLOCK_PAGES..end.next_multiple_of(BLOCK_PAGES),
        _ => first..end,
    };
    range.map(move |page| (pid, page))
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
mod tests {
    use super::*;

    fn run(page: u64, pages: u32) -> Run {
        Run { pid: 2, start: page * PAGE, pages }
    }

    fn ordinary<'a>(cause: &'a str, touched: &'a [Run]) -> Observed<'a> {
        Observed { cause, is_sampled: false, is_whole: true, touched }
    }

    fn one(range: Range<u64>) -> Vec<Range<u64>> {
        std::iter::once(range).collect()
    }

    fn pages(groups: &[Group]) -> Vec<(&str, Vec<Range<u64>>)> {
        let in_pages = |range: &Range<u64>| range.start / PAGE..range.end / PAGE;
        groups
            .iter()
            .map(|(cause, runs)| (cause.as_str(), runs.iter().map(|(_, range)| in_pages(range)).collect()))
            .collect()
    }

    const POLICY: WorkingSetPolicy = WorkingSetPolicy::Of { k: 1, n: 2 };

    impl WorkingSets {
        fn woken(&mut self, cause: &str, touched: &[Run]) {
            self.observe(&ordinary(cause, touched), POLICY);
        }

        fn sampled(&mut self, touched: &[Run], policy: WorkingSetPolicy) -> Score {
            self.observe(&Observed { cause: "tcp 80", is_sampled: true, is_whole: true, touched }, policy);
            self.last.unwrap()
        }

        fn of_tcp(&self, policy: WorkingSetPolicy) -> Vec<Range<u64>> {
            let groups = self.groups(policy);
            pages(&groups).into_iter().find(|(cause, _)| *cause == "tcp 80").map(|(_, runs)| runs).unwrap_or_default()
        }
    }

    #[test]
    fn pages_come_in_the_order_of_their_touches_and_by_cause() {
        let mut sets = WorkingSets::default();
        assert!(sets.groups(POLICY).is_empty());
        sets.woken("tcp 80", &[run(50, 2), run(10, 1), run(52, 1)]);
        assert_eq!(pages(&sets.groups(POLICY)), [("", vec![]), ("tcp 80", vec![10..11, 50..53])]);
        let (together, mut large) = (TOGETHER as u64, WorkingSets::default());
        large.woken("tcp 80", &[run(100 + together, 1), run(100, TOGETHER as u32), run(7, 2)]);
        assert_eq!(
            large.of_tcp(POLICY),
            [100..99 + together, 100 + together..101 + together, 7..9, 99 + together..100 + together]
        );
        sets.woken("timer", &[run(10, 1), run(7, 1)]);
        assert_eq!(pages(&sets.groups(POLICY)), [("", one(10..11)), ("tcp 80", one(50..53)), ("timer", one(7..8))]);
        assert_eq!(sets.last(), Some(Score { expected: 0, misses: 2, sampled: None }));
    }

    #[test]
    fn sampled_wakes_find_pages_that_are_no_longer_needed() {
        let mut sets = WorkingSets::default();
        let due = |sets: &WorkingSets| sets.is_sample_due("tcp 80", POLICY);
        assert!(due(&sets) && !sets.is_sample_due("tcp 80", WorkingSetPolicy::None));
        sets.sampled(&[run(1, 8), run(100, 8)], POLICY);
        let needed = [run(102, 1), run(3, 1)];
        assert!(due(&sets));
        let score = sets.sampled(&needed, POLICY);
        assert_eq!(score, Score { expected: 16, misses: 0, sampled: Some((2, 14)) });
        // Then every eighth.
        for _ in 0..SAMPLED - 1 {
            assert!(!due(&sets));
            sets.woken("tcp 80", &[]);
        }
        assert!(due(&sets));
        sets.sampled(&needed, POLICY);
        assert_eq!(sets.of_tcp(POLICY), [3..4, 102..103]);
        // Another cause shows nothing of them.
        for _ in 0..5 {
            sets.observe(&Observed { cause: "timer", is_sampled: true, is_whole: true, touched: &[] }, POLICY);
        }
        assert_eq!(sets.counts(), (5 + 2 + SAMPLED, 2));
    }

    #[test]
    fn a_cause_that_needs_nothing_leaves_what_others_share() {
        let mut sets = WorkingSets::default();
        for cause in ["tcp 80", "udp 53", "stop", "stop", "stop"] {
            let touched = if cause == "stop" { vec![] } else { vec![run(1, 8)] };
            sets.observe(&Observed { cause, is_sampled: true, is_whole: true, touched: &touched }, POLICY);
        }
        assert_eq!(pages(&sets.groups(POLICY)), [("", one(1..9))]);
    }

    #[test]
    fn a_recording_that_was_cut_short_shows_only_what_was_touched() {
        let mut sets = WorkingSets::default();
        let cut = |sets: &mut WorkingSets, touched: &[Run]| {
            sets.observe(&Observed { cause: "tcp 80", is_sampled: true, is_whole: false, touched }, POLICY);
        };
        sets.sampled(&[run(1, 8)], POLICY);
        for _ in 0..3 {
            cut(&mut sets, &[run(1, 1), run(20, 1)]);
        }
        assert_eq!(sets.of_tcp(POLICY), [1..9, 20..21]);
        assert!(!sets.is_sample_due("tcp 80", POLICY), "it is not recorded again and again");
    }

    #[test]
    fn wakes_that_show_nothing_count() {
        let mut sets = WorkingSets::default();
        for _ in 0..2 {
            sets.sampled(&[run(1, 8)], POLICY);
        }
        assert!(!sets.is_sample_due("tcp 80", POLICY));
        (0..2 * SAMPLED).for_each(|_| sets.pass("tcp 80"));
        assert!(sets.is_sample_due("tcp 80", POLICY));
    }

    #[test]
    fn a_set_that_is_right_is_sampled_more_rarely() {
        let mut sets = WorkingSets::default();
        let until_due = |sets: &mut WorkingSets, touched: &[Run]| {
            let mut wakes = 0;
            while !sets.is_sample_due("tcp 80", POLICY) {
                sets.woken("tcp 80", &[]);
                wakes += 1;
            }
            sets.sampled(touched, POLICY);
            wakes + 1
        };
        let same = [run(1, 8)];
        let intervals: Vec<u32> = (0..7).map(|_| until_due(&mut sets, &same)).collect();
        assert_eq!(intervals, [1, 1, 16, 32, 64, 64, 64]);
        // The program needs other pages: that is looked at soon.
        until_due(&mut sets, &[run(50, 8)]);
        assert_eq!(until_due(&mut sets, &same), SAMPLED);
    }

    #[test]
    fn a_policy_decides_which_pages_are_in_the_set() {
        use WorkingSetPolicy::{All, None, Of, Present, Union};
        let last = Of { k: 1, n: 1 };
        let after = |policy, wakes: &[&[Run]]| {
            let mut sets = WorkingSets::default();
            for touched in wakes {
                sets.sampled(touched, policy);
            }
            sets.of_tcp(policy)
        };
        let wakes: [&[Run]; 3] = [&[run(1, 1), run(20, 1)], &[run(1, 1)], &[run(9, 1)]];
        assert_eq!(after(last, &wakes), one(9..10));
        assert_eq!(after(Of { k: 2, n: 3 }, &wakes), one(1..2));
        assert_eq!(after(Of { k: 1, n: 3 }, &wakes), [1..2, 9..10, 20..21]);
        assert_eq!(after(Of { k: 2, n: 3 }, &[&[run(1, 1)], &[], &[run(1, 1)]]), one(1..2));
        assert_eq!(after(Union, &wakes), [1..2, 9..10, 20..21]);
        assert_eq!(after(Present, &wakes), one(0..16));
        assert_eq!((after(None, &wakes), after(All, &wakes)), (vec![], vec![]));
    }

    #[test]
    fn causes_and_pages_are_bounded_and_survive_their_file() {
        let mut sets = WorkingSets::default();
        for n in 0..40_u64 {
            sets.woken(&format!("tcp {n}"), &[run(n, 1)]);
        }
        assert_eq!((sets.causes.len(), sets.counts().1), (MOST_CAUSES, MOST_CAUSES));
        sets.woken("timer", &[run(1 << 20, MOST_PAGES as u32 + 5)]);
        assert_eq!(sets.counts().1, MOST_PAGES);
        let text = serde_json::to_vec(&sets).unwrap();
        assert_eq!(serde_json::from_slice::<WorkingSets>(&text).unwrap(), sets);
    }
}
