//! The store against a model, and after kills, cut power and damage.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use std::{env, fs, io};

use proptest::prelude::*;
use torpor_clef::{LogError, Note, Store, StoreError};
use torpor_lua::{State, Step, Task, Value, Windows};
use torpor_testkit::disk::Disk;
use torpor_testkit::wait::eventually_ok;

const MEMORY: usize = 4 << 20;
/// Counts, and has some more memory for each answer, so that there is something to store.
const COUNTER: &str = "local n, all = 0, {}; while true do n = n + wait(n); all[n % 50] = ('x'):rep(n % 3000) end";

/// A window that this test alone uses.
fn windows(window: u32) -> Arc<Windows> {
    Arc::new(Windows::reserve(window, 1).unwrap())
}

fn count(state: &mut State, add: i64) -> i64 {
    match state.answer(Task(1), &[Value::Integer(add)]) {
        Some(Step::Waits(values)) => match values.as_slice() {
            [Value::Integer(n)] => *n,
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

fn begun(windows: &Arc<Windows>, window: u32) -> State {
    let mut state = State::new(windows, window, MEMORY, 1).unwrap();
    state.run("counter", COUNTER, &[]);
    state
}

/// Wakes a key, adds to its count, and stores it as a host would. Returns the count.
fn add(store: &mut Store, windows: &Arc<Windows>, window: u32, key: &[u8], add: i64) -> i64 {
    let found = store.load(key).unwrap();
    let mut state = match &found {
        Some(found) => State::restore(windows, &found.images).unwrap(),
        None => begun(windows, window),
    };
    let n = count(&mut state, add);
    // It is noted beside the state as well, and the key is due then.
    let note = Note { due: n as u64, bytes: n.to_string().into_bytes() };
    match found.map(|found| found.chain).filter(|chain| !chain.wants_whole(state.image().as_bytes().len())) {
        // The store finds the chain by itself, too.
        Some(chain) => assert!(
            store.put_changes(key, &note, &state.changes(), Some(&chain).filter(|_| n % 2 == 0)).unwrap().is_some()
        ),
        None => drop(store.put(key, &note, &state.image(), None).unwrap()),
    }
    n
}

fn stored(store: &Store, windows: &Arc<Windows>, key: &[u8]) -> Option<i64> {
    let found = store.load(key).unwrap()?;
    let n = count(&mut State::restore(windows, &found.images).unwrap(), 0);
    let note = Note { due: n as u64, bytes: n.to_string().into_bytes() };
    assert_eq!((&note, Some(&note)), (&found.note, store.note(key).unwrap().as_ref()));
    Some(n)
}

#[derive(Clone, Debug)]
enum Do {
    Add(u8, i64),
    Remove(u8),
    Commit,
    Reopen,
    Collect,
}

fn steps() -> impl Strategy<Value = Vec<Do>> {
    let one = prop_oneof![
        12 => (0_u8..6, 1_i64..50).prop_map(|(key, add)| Do::Add(key, add)),
        1 => (0_u8..6).prop_map(Do::Remove),
        2 => Just(Do::Commit),
        1 => Just(Do::Reopen),
        1 => Just(Do::Collect),
    ];
    proptest::collection::vec(one, 1..120)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(12) })]

    #[test]
    fn it_has_what_was_stored(steps in steps()) {
        let windows = windows(40);
        let folder = tempfile::tempdir().unwrap();
        let mut store = Store::open(folder.path()).unwrap();
        let mut known: BTreeMap<u8, i64> = BTreeMap::new();
        // What a crash may lose, and what not.
        let mut committed = known.clone();
        for step in steps {
            match step {
                Do::Add(key, some) => {
                    let expected = known.get(&key).copied().unwrap_or(0) + some;
                    prop_assert_eq!(add(&mut store, &windows, 40, &[key], some), expected);
                    known.insert(key, expected);
                }
                Do::Remove(key) => prop_assert_eq!(store.remove(&[key]).unwrap(), known.remove(&key).is_some()),
                Do::Commit => {
                    store.commit().unwrap();
                    committed = known.clone();
                }
                Do::Reopen => {
                    // As after a crash.
                    drop(store);
                    store = reopened(folder.path());
                    known = committed.clone();
                }
                Do::Collect => {
                    store.collect().unwrap();
                    // It commits only where there is something to collect.
                    store.commit().unwrap();
                    committed = known.clone();
                }
            }
            prop_assert_eq!(store.len(), known.len());
            let next = known.iter().map(|(key, n)| (*n as u64, vec![*key])).min();
            prop_assert_eq!(store.next_due().map(|(due, _)| due), next.map(|(due, _)| due));
            prop_assert_eq!(store.keys().flatten().collect::<BTreeSet<u8>>(), known.keys().copied().collect());
        }
        for key in 0..6 {
            prop_assert_eq!(stored(&store, &windows, &[key]), known.get(&key).copied());
        }
    }
}

/// Opens a store that was dropped. A child that another test starts has its lock, too, from its fork until its exec.
fn reopened(folder: &Path) -> Store {
    let open = || match Store::open(folder) {
        Err(StoreError::Log(LogError::Used(_))) => Err("it is locked"),
        opened => Ok(opened.unwrap()),
    };
    eventually_ok("the store is unlocked", Duration::from_secs(10), open).unwrap()
}

/// Segments of a log.
fn segments(folder: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

#[test]
fn space_comes_back() {
    let windows = windows(41);
    let folder = tempfile::tempdir().unwrap();
    let mut store = Store::open(folder.path()).unwrap();
    let big = "local s = ...; local keep = {}; for i = 1, 400 do keep[i] = s .. i .. ('z'):rep(9000) end; while true do wait(s) end";
    let mut expected = BTreeMap::new();
    for round in 0..16_i64 {
        for key in 0..4_u8 {
            let mut state = State::new(&windows, 41, 8 << 20, 1).unwrap();
            state.run("big", big, &[Value::Integer(round * 10 + i64::from(key))]);
            store.put(&[key], &Note::default(), &state.image(), None).unwrap();
            expected.insert(key, round * 10 + i64::from(key));
        }
        // One that is never stored again keeps its place.
        if round == 0 {
            add(&mut store, &windows, 41, b"old", 7);
            add(&mut store, &windows, 41, b"gone", 1);
        }
        store.commit().unwrap();
    }
    store.remove(b"gone").unwrap();
    assert!(segments(folder.path()).len() > 3, "{:?}", store.bytes());
    while store.collect().unwrap() {}
    let (all, needed) = store.bytes();
    assert!(segments(folder.path()).len() <= 2 && all < 150 << 20 && needed < 40 << 20, "{all} {needed}");
    assert!(matches!(Store::open(folder.path()), Err(StoreError::Log(LogError::Used(_)))));
    for again in [false, true] {
        if again {
            drop(store);
            store = reopened(folder.path());
        }
        assert_eq!(stored(&store, &windows, b"old"), Some(7));
        assert_eq!(stored(&store, &windows, b"gone"), None);
        for (key, value) in &expected {
            // Read, and then mapped.
            for _ in 0..2 {
                let mut state = store.restore(&[*key], &windows).unwrap().unwrap().state;
                assert_eq!(state.answer(Task(1), &[]), Some(Step::Waits(vec![Value::Integer(*value)])));
            }
        }
    }
}

#[test]
fn what_was_not_committed_is_cut_off_and_damage_is_told() {
    let windows = windows(42);
    let folder = tempfile::tempdir().unwrap();
    let mut store = Store::open(folder.path()).unwrap();
    for n in 1..=5 {
        add(&mut store, &windows, 42, b"a", 1);
        add(&mut store, &windows, 42, b"b", n);
        store.commit().unwrap();
    }
    let path = segments(folder.path()).remove(0);
    let whole = fs::read(&path).unwrap();
    let end = whole.iter().rposition(|byte| *byte != 0).unwrap();
    let counts = |bytes: &[u8]| {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(path.file_name().unwrap()), bytes).unwrap();
        let store = Store::open(folder.path())?;
        Ok::<_, StoreError>((stored(&store, &windows, b"a"), stored(&store, &windows, b"b")))
    };
    assert_eq!(counts(&whole).unwrap(), (Some(5), Some(15)));
    // The last commit did not reach the disk, or not all of it.
    for cut in [end - 1, end - 100, end - 3000] {
        let mut torn = whole.clone();
        torn[cut..=end].fill(0);
        assert_eq!(counts(&torn).unwrap(), (Some(4), Some(10)), "cut at {cut} of {end}");
    }
    // Behind what is broken is something that was committed later.
    let mut damaged = whole;
    damaged[6000] ^= 1;
    let error = counts(&damaged).unwrap_err();
    assert!(matches!(error, StoreError::Log(LogError::Damaged { .. })), "{error}");
    // Found only when it is read.
    fs::File::options().write(true).open(&path).unwrap().write_all_at(&[0xff], end as u64 - 3001).unwrap();
    assert!(matches!(store.load(b"b"), Err(StoreError::Log(LogError::Damaged { .. }))));
}

/// Set for the process that is killed: where its store is.
const FOLDER: &str = "TORPOR_CLEF_FOLDER";
/// Windows of the tests in which one is killed.
const KILLED: u32 = 43;
const CUT_OFF: u32 = 44;

/// Counts for several keys, and says each count once it is durable.
fn count_for_ever(folder: &Path, window: u32) -> ! {
    let windows = windows(window);
    let mut store = Store::open(folder).unwrap();
    loop {
        let mut told = String::new();
        for key in 0..8_u8 {
            told.push_str(&format!("{key} {}\n", add(&mut store, &windows, window, &[key], 1)));
        }
        store.commit().unwrap();
        io::stdout().write_all(told.as_bytes()).unwrap();
        while store.collect().unwrap() {}
    }
}

/// Starts the process and notes what it tells of each key: `lines` lines. Gives it, and the lines that follow.
fn started(
    folder: &Path,
    test: &str,
    lines: usize,
    told: &mut BTreeMap<u8, i64>,
) -> (Child, impl Iterator<Item = String> + use<>) {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", "--nocapture", test]).env(FOLDER, folder).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    let mut told_lines = BufReader::new(child.stdout.take().unwrap()).lines().map(|line| line.unwrap());
    told_lines.by_ref().take(lines).for_each(|line| note(told, &line));
    (child, told_lines)
}

fn note(told: &mut BTreeMap<u8, i64>, line: &str) {
    let (key, count) = line.split_once(' ').unwrap_or_default();
    if let (Ok(key), Ok(count)) = (key.parse(), count.parse()) {
        told.insert(key, count);
    }
}

/// All that was told is there, and of what was stored together, all or nothing.
fn check_told(folder: &Path, told: &BTreeMap<u8, i64>, window: u32) {
    assert_eq!(told.len(), 8);
    let (windows, store) = (windows(window), Store::open(folder).unwrap());
    let mut counts = BTreeSet::new();
    for (key, count) in told {
        let found = stored(&store, &windows, &[*key]).unwrap();
        assert!(found >= *count, "key {key}: {found} is stored, {count} was told");
        counts.insert(found);
    }
    assert_eq!(counts.len(), 1, "a batch is there in part: {counts:?}");
}

#[test]
fn a_kill_loses_nothing_that_was_told() {
    if let Some(folder) = env::var_os(FOLDER) {
        count_for_ever(folder.as_ref(), KILLED);
    }
    let folder = tempfile::tempdir().unwrap();
    let mut told = BTreeMap::new();
    for round in 0..60 {
        // It is stopped at another place each time.
        let lines = 40 + round as usize * 7 % 61;
        let (mut child, later) = started(folder.path(), "a_kill_loses_nothing_that_was_told", lines, &mut told);
        std::thread::sleep(Duration::from_micros(round * 97 % 3000));
        child.kill().unwrap();
        child.wait().unwrap();
        later.for_each(|line| note(&mut told, &line));
        if round % 10 < 9 {
            check_told(folder.path(), &told, KILLED);
        }
    }
    check_told(folder.path(), &told, KILLED);
}

#[test]
fn a_power_cut_loses_nothing_that_was_told() {
    if let Some(folder) = env::var_os(FOLDER) {
        count_for_ever(folder.as_ref(), CUT_OFF);
    }
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("disk");
    for round in 0..6 {
        let disk = Disk::new(folder.path().join(format!("file{round}")), place.clone()).unwrap();
        let data = place.join("data");
        fs::create_dir(&data).unwrap();
        let mut told = BTreeMap::new();
        let (mut child, _later) = started(&data, "a_power_cut_loses_nothing_that_was_told", 40 + 30 * round, &mut told);
        // What it tells from now on counts no more: after this cut, unlike a real one, it runs on, and an fdatasync(2) that had begun may
        // succeed.
        disk.cut().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        disk.restore().unwrap();
        check_told(&data, &told, CUT_OFF);
        drop(disk);
        fs::remove_dir(&place).unwrap();
    }
}
