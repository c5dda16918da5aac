#![allow(clippy::single_range_in_vec_init, reason = "lists of ranges")]

use torpor_image::tree::{AddressSpace, End};
use torpor_image::{Header, PAGE, Region};

use super::*;

const BASE: u64 = 0x10_0000;

/// Some process's life.
fn golden() -> LiveProcess {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../image/tests/fixtures/complete-3.image");
    let image = std::fs::read(path).unwrap();
    let header = Header::decode(&image, image.len() as u64).unwrap();
    let state = &image[header.state_offset() as usize..header.plan_offset() as usize];
    let tree = Tree::read(state, &header).unwrap();
    tree.processes.iter().find_map(|process| process.alive().cloned()).unwrap()
}

/// A process with an area of so many pages, of which these are stored (page, place in the image, both in pages).
fn process(pid: i32, parent: i32, pages: u64, stored: &[(u64, u64)], file: Option<u32>) -> Process {
    let region = |&(page, offset): &(u64, u64)| Region {
        start: BASE + page * PAGE,
        pages: 1,
        writable: true,
        content: Content::Stored { offset: offset * PAGE, checksum: 0 },
    };
    let anonymous = Backing::Anonymous { grows_down: false, droppable: false, no_reserve: false };
    let of_file = |file| Backing::File { file, offset: 0, shared: false, may_write: false };
    let area = Area {
        start: BASE,
        end: BASE + pages * PAGE,
        protection: PROTECTION,
        backing: file.map_or(anonymous, of_file),
        advice: Default::default(),
        key: 0,
        pages: stored.iter().map(region).collect(),
    };
    let space = AddressSpace { areas: vec![area], files: vec![PathState::default()], ..Default::default() };
    let life = LiveProcess { space, ..golden() };
    Process { pid, parent, group: 1, session: 1, end: End::Alive(Box::new(life)) }
}

/// The area of a process, elsewhere.
fn moved(mut process: Process, start: u64) -> Process {
    let End::Alive(life) = &mut process.end else { panic!("it has ended") };
    let area = &mut life.space.areas[0];
    let by = start.wrapping_sub(area.start);
    area.start = start;
    area.end = area.end.wrapping_add(by);
    area.pages.iter_mut().for_each(|region| region.start = region.start.wrapping_add(by));
    process
}

fn shared_pages<'t>(tree: &'t Tree) -> SharedPages<'t> {
    SharedPages::of(tree, &Order::of(tree).unwrap())
}

fn tree(processes: Vec<Process>) -> Tree {
    Tree { processes, ..Tree::default() }
}

/// Pages and places in the image.
fn pages(runs: &[Run]) -> Vec<(u64, u64)> {
    let each = |run: &Run| {
        let run = *run;
        (run.start..run.end)
            .step_by(PAGE as usize)
            .map(move |at| ((at - BASE) / PAGE, at.wrapping_sub(run.distance) / PAGE))
    };
    let mut all: Vec<(u64, u64)> = runs.iter().flat_map(each).collect();
    all.sort_unstable();
    all
}

fn kept(shared: &SharedPages<'_>, tree: &Tree, n: usize) -> Kept {
    shared.kept(n, tree.processes[n].alive().unwrap())
}

#[test]
fn nothing_is_done_where_nothing_is_shared() {
    let tree = tree(vec![process(1, 0, 9, &[(0, 10), (1, 11)], None), process(2, 1, 9, &[(0, 20)], None)]);
    let found = shared_pages(&tree);
    assert!(found.carriers.is_empty() && found.before.is_empty());
    assert!(kept(&found, &tree, 1).areas.is_empty());
}

#[test]
fn the_last_common_maker_fills() {
    // 1 makes 2, which makes 3 and 4: they share page 0, all share page 1, and 1 and 2 page 2.
    let tree = tree(vec![
        process(1, 0, 9, &[(0, 5), (1, 11), (2, 12)], None),
        process(2, 1, 9, &[(0, 6), (1, 11), (2, 12)], None),
        process(3, 2, 9, &[(0, 30), (1, 11)], None),
        process(4, 2, 9, &[(0, 30), (1, 11), (3, 8)], None),
    ]);
    let found = shared_pages(&tree);
    assert_eq!(pages(&found.before[1].runs), [(1, 11), (2, 12)]);
    assert_eq!(pages(&found.before[2].runs), [(0, 30)]);
    assert!(found.before[3].runs.is_empty());
    assert_eq!((found.before[1].carriers.len(), found.before[2].carriers.len()), (1, 0));
    // Page 0 is written over by 2; page 2 is none of 3's.
    assert_eq!(pages(&kept(&found, &tree, 1).runs), [(1, 11), (2, 12)]);
    let third = kept(&found, &tree, 2);
    assert_eq!(pages(&third.runs), [(0, 30), (1, 11)]);
    assert_eq!(third.stale, [BASE + 2 * PAGE..BASE + 3 * PAGE]);
    let run = |page: u64, offset: u64| Run::new(BASE + page * PAGE, PAGE, offset * PAGE);
    assert_eq!(pages(&kept(&found, &tree, 3).missing(vec![run(0, 30), run(1, 11), run(3, 8)])), [(3, 8)]);
}

#[test]
fn what_changes_between_forks_is_filled_between_them() {
    let tree = tree(vec![
        process(1, 0, 2, &[(0, 30)], None),
        process(2, 1, 2, &[(0, 10)], None),
        process(3, 1, 2, &[(0, 10)], None),
        process(4, 1, 2, &[(0, 30)], None),
    ]);
    let found = shared_pages(&tree);
    assert_eq!(pages(&found.before[1].runs), [(0, 10)]);
    assert!(found.before[2].runs.is_empty());
    assert_eq!(pages(&found.before[3].runs), [(0, 30)]);
    assert!((0..4).all(|n| kept(&found, &tree, n).runs.len() == 1));
}

#[test]
fn areas_are_parts_of_what_carries_them_or_go() {
    let mut all = vec![
        process(1, 0, 4, &[(0, 10)], None),
        process(2, 1, 9, &[(0, 10), (8, 20)], None),
        process(3, 1, 2, &[], None),
        process(4, 1, 4, &[(0, 10)], Some(0)),
    ];
    let found = tree(std::mem::take(&mut all));
    let shared = shared_pages(&found);
    let [carrier] = &shared.carriers[..] else { panic!("{:?}", shared.carriers) };
    assert_eq!((carrier.start, carrier.end), (BASE, BASE + 9 * PAGE));
    assert_eq!(kept(&shared, &found, 0).unmapped, [BASE + 4 * PAGE..BASE + 9 * PAGE]);
    assert!(kept(&shared, &found, 1).unmapped.is_empty());
    // The third shares nothing, and the fourth has a file there.
    for n in [2, 3] {
        let kept = kept(&shared, &found, n);
        assert!(kept.areas.is_empty() && kept.runs.is_empty() && kept.stale.is_empty());
        assert_eq!(kept.unmapped, [BASE..BASE + 9 * PAGE]);
    }
}

#[test]
fn moved_areas_are_inherited_where_the_others_have_them() {
    const AWAY: u64 = BASE + 100 * PAGE;
    let whole = &[(0, 10), (1, 11), (2, 12), (3, 13)];
    let mut fourth = moved(process(4, 1, 4, &[(0, 10), (1, 11), (2, 12), (3, 33)], None), AWAY);
    // Something else is where it was.
    let End::Alive(life) = &mut fourth.end else { panic!("it has ended") };
    let End::Alive(other) = process(9, 1, 2, &[(0, 40)], None).end else { panic!("it has ended") };
    life.space.areas.insert(0, other.space.areas[0].clone());
    let tree = tree(vec![
        moved(process(1, 0, 4, whole, None), AWAY + 50 * PAGE),
        process(2, 1, 4, whole, None),
        process(3, 1, 4, whole, None),
        fourth,
        // Another page elsewhere is nothing that one move could do.
        moved(process(5, 1, 4, &[(0, 50), (1, 51), (2, 52), (3, 10)], None), AWAY),
        // Too near for the kernel to move it.
        moved(process(6, 1, 4, whole, None), BASE + 2 * PAGE),
    ]);
    let found = shared_pages(&tree);
    assert_eq!(pages(&found.before[1].runs), [(0, 10), (1, 11), (2, 12), (3, 13)]);
    assert!((2..6).all(|n| found.before[n].runs.is_empty()));
    let first = kept(&found, &tree, 0);
    assert_eq!(first.moves, [Move { area: 0, from: BASE, to: AWAY + 50 * PAGE, bytes: 4 * PAGE }]);
    assert_eq!(pages(&first.runs), [(150, 10), (151, 11), (152, 12), (153, 13)]);
    let third = kept(&found, &tree, 2);
    assert!(third.moves.is_empty() && third.areas.contains(&0));
    let fourth = kept(&found, &tree, 3);
    assert_eq!(fourth.moves, [Move { area: 1, from: BASE, to: AWAY, bytes: 4 * PAGE }]);
    assert_eq!(pages(&fourth.runs), [(100, 10), (101, 11), (102, 12)]);
    assert!(!fourth.areas.contains(&0), "{fourth:?}");
    assert!(fourth.unmapped.is_empty() && fourth.stale.is_empty(), "{fourth:?}");
    for n in [4, 5] {
        let alone = kept(&found, &tree, n);
        assert!(alone.moves.is_empty() && alone.areas.is_empty() && alone.runs.is_empty(), "{n}: {alone:?}");
        assert_eq!(alone.unmapped, [BASE..BASE + 4 * PAGE]);
    }
}

/// Sizes that take minutes, or all memory, where each region is compared with each other one.
#[test]
fn one_page_that_is_named_very_often_takes_no_more_than_its_names() {
    let copies = |count: u64| (0..count).map(|n| (n, 10)).collect::<Vec<_>>();
    let alone = tree(vec![process(1, 0, 200_000, &copies(200_000), None)]);
    assert!(shared_pages(&alone).carriers.is_empty());
    let away = BASE + (1 << 20) * PAGE;
    let first = process(1, 0, 20_000, &copies(20_000), None);
    let two = tree(vec![first, moved(process(2, 1, 20_000, &copies(20_000), None), away)]);
    let found = shared_pages(&two);
    // What lies beyond the bound is read by each for itself.
    assert!(found.carriers.is_empty() && kept(&found, &two, 1).moves.is_empty());
}

#[test]
fn very_many_areas_that_were_moved_take_no_more_than_their_number() {
    const COUNT: u64 = 40_000;
    let many = |pid, parent, start: u64| {
        let mut process = process(pid, parent, 1, &[(0, 10)], None);
        let End::Alive(life) = &mut process.end else { panic!("it has ended") };
        let area = life.space.areas[0].clone();
        let at = |n: u64| {
            let mut area = area.clone();
            (area.start, area.end) = (start + 2 * n * PAGE, start + (2 * n + 1) * PAGE);
            area.pages[0].start = area.start;
            area.pages[0].content = Content::Stored { offset: 2 * n * PAGE, checksum: 0 };
            area
        };
        life.space.areas = (0..COUNT).map(at).collect();
        process
    };
    let away = BASE + 4 * COUNT * PAGE;
    let tree = tree(vec![many(1, 0, BASE), many(2, 1, away)]);
    let found = shared_pages(&tree);
    let second = kept(&found, &tree, 1);
    assert_eq!((second.areas.len() as u64, second.moves.len() as u64), (COUNT, COUNT));
    assert!(second.unmapped.is_empty() && second.stale.is_empty());
}
