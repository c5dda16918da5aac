use super::*;

fn run(page: u64, pages: u32) -> Run {
    Run { pid: 2, start: page * PAGE, pages }
}

fn ordinary<'a>(cause: &'a str, touched: &'a [Run]) -> Observed<'a> {
    Observed {
        cause,
        is_sampled: false,
        is_whole: true,
        is_all_staged: false,
        staged: &[],
        touched,
        faults: 0,
        missing: 1 << 20,
    }
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

    /// With all pages staged.
    fn sampled(&mut self, cause: &str, touched: &[Run], policy: WorkingSetPolicy) -> Score {
        let staged = [run(0, 1 << 10)];
        let all = Observed { is_sampled: true, is_all_staged: true, staged: &staged, ..ordinary(cause, touched) };
        self.observe(&all, policy);
        self.last.unwrap()
    }

    fn staged(&mut self, cause: &str, staged: &[Run], touched: &[Run], policy: WorkingSetPolicy) -> Score {
        self.observe(&Observed { is_sampled: true, staged, ..ordinary(cause, touched) }, policy);
        self.last.unwrap()
    }

    fn is_sample_due(&self, cause: &str) -> bool {
        matches!(self.way(cause, POLICY, true), Way::Lazy(Some(_)))
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
    let due = |sets: &WorkingSets| sets.is_sample_due("tcp 80");
    assert!(due(&sets) && sets.way("tcp 80", WorkingSetPolicy::None, true) == Way::Lazy(None));
    sets.sampled("tcp 80", &[run(1, 8), run(100, 8)], POLICY);
    let needed = [run(102, 1), run(3, 1)];
    assert!(due(&sets));
    let score = sets.sampled("tcp 80", &needed, POLICY);
    assert_eq!(score, Score { expected: 16, misses: 0, sampled: Some((2, 14)) });
    // Then every eighth.
    for _ in 0..SAMPLED - 1 {
        assert!(!due(&sets));
        sets.woken("tcp 80", &[]);
    }
    assert!(due(&sets));
    sets.sampled("tcp 80", &needed, POLICY);
    assert_eq!(sets.of_tcp(POLICY), [3..4, 102..103]);
    // Another cause shows nothing of them.
    for _ in 0..5 {
        sets.sampled("timer", &[], POLICY);
    }
    assert_eq!(sets.counts(), (5 + 2 + SAMPLED, 2));
}

#[test]
fn a_cause_that_needs_nothing_leaves_what_others_share() {
    let mut sets = WorkingSets::default();
    for cause in ["tcp 80", "udp 53", "stop", "stop", "stop"] {
        let touched = if cause == "stop" { vec![] } else { vec![run(1, 8)] };
        sets.sampled(cause, &touched, POLICY);
    }
    assert_eq!(pages(&sets.groups(POLICY)), [("", one(1..9))]);
}

#[test]
fn a_recording_that_was_cut_short_shows_only_what_was_touched() {
    let mut sets = WorkingSets::default();
    let cut = |sets: &mut WorkingSets, touched: &[Run]| {
        let staged = [run(1, 8)];
        let cut = Observed { is_sampled: true, is_whole: false, staged: &staged, ..ordinary("tcp 80", touched) };
        sets.observe(&cut, POLICY);
    };
    sets.sampled("tcp 80", &[run(1, 8)], POLICY);
    for _ in 0..3 {
        cut(&mut sets, &[run(1, 1), run(20, 1)]);
    }
    assert_eq!(sets.of_tcp(POLICY), [1..9, 20..21]);
    assert!(!sets.is_sample_due("tcp 80"), "it is not recorded again and again");
}

#[test]
fn wakes_that_show_nothing_count() {
    let mut sets = WorkingSets::default();
    for _ in 0..2 {
        sets.sampled("tcp 80", &[run(1, 8)], POLICY);
    }
    assert!(!sets.is_sample_due("tcp 80"));
    (0..4 * SAMPLED).for_each(|_| _ = sets.pass("tcp 80"));
    assert!(sets.is_sample_due("tcp 80"));
}

#[test]
fn a_set_that_is_right_is_sampled_more_rarely() {
    let mut sets = WorkingSets::default();
    let until_due = |sets: &mut WorkingSets, touched: &[Run]| {
        let mut wakes = 0;
        while !sets.is_sample_due("tcp 80") {
            sets.woken("tcp 80", &[]);
            wakes += 1;
        }
        sets.sampled("tcp 80", touched, POLICY);
        wakes + 1
    };
    let same = [run(1, 8)];
    let intervals: Vec<u32> = (0..5).map(|_| until_due(&mut sets, &same)).collect();
    assert_eq!(intervals, [1, 1, 32, 32, 32]);
    // The program needs other pages: that is looked at soon.
    until_due(&mut sets, &[run(50, 8)]);
    assert_eq!(until_due(&mut sets, &same), SAMPLED);
}

#[test]
fn a_slice_after_the_other_is_staged_until_one_is_wrong() {
    let mut sets = WorkingSets::default();
    let slice = |sets: &WorkingSets| match sets.way("tcp 80", POLICY, true) {
        Way::Lazy(sample) => sample,
        Way::Full => None,
    };
    let needed = [run(1, 16)];
    assert_eq!(slice(&sets), Some(Sample::WHOLE));
    sets.staged("tcp 80", &[], &needed, POLICY);
    for n in 0..SLICES {
        assert_eq!(slice(&sets), Some(Sample { slice: n, slices: SLICES }));
        let staged = [run(u64::from(2 * n) + 1, 2)];
        let score = sets.staged("tcp 80", &staged, &staged, POLICY);
        assert_eq!(score, Score { expected: 16, misses: 0, sampled: Some((2, 0)) });
        while slice(&sets).is_none() {
            sets.woken("tcp 80", &[]);
        }
    }
    // Then all of it, and another round. Nothing is needed any more: two more wakes show that of the whole set.
    assert_eq!(slice(&sets), Some(Sample::WHOLE));
    sets.sampled("tcp 80", &needed, POLICY);
    for left in [16, 14, 0] {
        while slice(&sets).is_none() {
            sets.woken("tcp 80", &[]);
        }
        match slice(&sets) {
            Some(Sample::WHOLE) => sets.sampled("tcp 80", &[], POLICY),
            _ => sets.staged("tcp 80", &[run(1, 2)], &[], POLICY),
        };
        assert_eq!(sets.counts().1, left);
    }
}

#[test]
fn pages_that_are_not_there_any_more_leave_the_set() {
    let mut sets = WorkingSets::default();
    sets.sampled("tcp 80", &[run(1, 8), run(100, 8)], POLICY);
    // Of these, no image has the last ones: nobody stages them.
    for _ in 0..4 {
        sets.staged("tcp 80", &[run(1, 8)], &[run(1, 8)], POLICY);
    }
    assert_eq!(sets.counts().1, 16, "slices do not show it");
    let there = [run(1, 8)];
    let whole = Observed { is_sampled: true, is_all_staged: true, staged: &there, ..ordinary("tcp 80", &there) };
    (0..2).for_each(|_| sets.observe(&whole, POLICY));
    assert_eq!(sets.of_tcp(POLICY), one(1..9));
}

#[test]
fn a_slice_without_pages_proves_nothing() {
    let mut sets = WorkingSets::default();
    sets.sampled("tcp 80", &[run(1, 8)], POLICY);
    sets.staged("tcp 80", &[run(1, 8)], &[], POLICY);
    let interval = sets.causes[0].interval;
    assert_eq!(interval, SAMPLED);
    sets.staged("tcp 80", &[run(500, 8)], &[], POLICY);
    assert_eq!(sets.causes[0].interval, interval);
    // Where a sample was due and the wake brought all memory, the next one stages the whole set.
    sets.causes[0] = Cause { sampled: 3, unsampled: SAMPLED, ..Cause::new("tcp 80") };
    assert!(matches!(sets.way("tcp 80", POLICY, true), Way::Lazy(Some(Sample { slices: SLICES, .. }))));
    sets.pass("tcp 80");
    assert_eq!(sets.way("tcp 80", POLICY, true), Way::Lazy(Some(Sample::WHOLE)));
}

#[test]
fn a_program_that_becomes_regular_again_is_lazy_again() {
    let mut sets = WorkingSets::default();
    let mut fresh = 0;
    // Other pages each time: more than there is room for.
    for _ in 0..10 {
        fresh += 4096;
        let touched = [run(fresh, 4096)];
        sets.observe(&Observed { faults: 4096, missing: 10_000, ..ordinary("tcp 80", &touched) }, POLICY);
    }
    assert_eq!(sets.way("tcp 80", POLICY, true), Way::Full);
    // Then the same ones: two probes learn them, and the third finds them in place.
    let same = [run(1 << 30, 4096)];
    for n in 0..3 {
        while sets.way("tcp 80", POLICY, true) == Way::Full {
            sets.pass("tcp 80");
        }
        let is_known = sets.of_tcp(POLICY).contains(&(1 << 30..(1 << 30) + 4096));
        let faults = if is_known { 0 } else { 4096 };
        sets.observe(
            &Observed { faults, missing: 10_000, ..ordinary("tcp 80", if is_known { &[] } else { &same }) },
            POLICY,
        );
        assert!(n < 2 || is_known);
    }
    assert_ne!(sets.way("tcp 80", POLICY, true), Way::Full);
    sets.causes[0].slow = FULL_AFTER;
    assert_eq!(sets.way("tcp 80", POLICY, true), Way::Full);
    assert_ne!(sets.way("tcp 80", POLICY, false), Way::Full);
}

#[test]
fn what_waits_long_for_many_pages_gets_all_memory_first() {
    let mut sets = WorkingSets::default();
    sets.sampled("tcp 80", &[run(1, 8)], POLICY);
    sets.sampled("tcp 80", &[run(1, 8)], POLICY);
    let mut faults = |faults: u64| {
        let way = sets.way("tcp 80", POLICY, true);
        match way {
            Way::Full => _ = sets.pass("tcp 80"),
            Way::Lazy(_) => sets.observe(&Observed { faults, missing: 3200, ..ordinary("tcp 80", &[]) }, POLICY),
        }
        way
    };
    // One such wake is none, and a few faults are not enough.
    for some in [101, 100, 101, 101] {
        assert_eq!(faults(some), Way::Lazy(None));
    }
    let ways: Vec<Way> = (0..2 * FULL_AGAIN).map(|_| faults(101)).collect();
    let lazy = ways.iter().filter(|way| **way != Way::Full).count();
    assert_eq!((ways[0], lazy), (Way::Full, 2), "one in so many shows whether that is still right");
    while faults(3) == Way::Full {}
    assert_ne!(faults(3), Way::Full);
}

#[test]
fn a_policy_decides_which_pages_are_in_the_set() {
    use WorkingSetPolicy::{All, None, Of, Present, Union};
    let last = Of { k: 1, n: 1 };
    let after = |policy, wakes: &[&[Run]]| {
        let mut sets = WorkingSets::default();
        for touched in wakes {
            sets.sampled("tcp 80", touched, policy);
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
