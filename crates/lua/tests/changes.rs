//! Images of changes: what they lead to, how large they are, and which are refused.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use proptest::prelude::*;
use torpor_lua::{FileImage, FileImageError, Image, ImageError, State, StateError, Step, Value, WINDOW_BYTES, Windows};

const MEMORY: usize = 16 << 20;
/// Bytes of a page, of its lines, and before the runs of an image.
const PAGE: usize = 4096;
const LINE: usize = 64;
const HEADER: usize = 56;

const COUNTER: &str = "state = { n = 0 }; function message() state.n = state.n + 1; return state.n end";
const PROGRAM: &str = "
    cells, slots = {}, {}
    for i = 1, 5000 do cells[i] = i end
    function poke(i, v) cells[i] = v end
    function sweep(i, v) for n = i, #cells, 501 do cells[n] = v end end
    function make(i, v) slots[i % 40] = {('x'):rep(v * 50), i} end
    function large(i, v) slots[i % 5] = ('y'):rep(v * 1500) .. i end
    function clear(i) if i % 2 == 0 then slots = {} end; collectgarbage() end
    function nothing() end";
const FUNCTIONS: [&str; 6] = ["poke", "sweep", "make", "large", "clear", "nothing"];

/// A window that one test alone uses.
fn windows(window: u32) -> Arc<Windows> {
    Arc::new(Windows::reserve(window, 1).unwrap())
}

fn call(state: &mut State, function: &str, arguments: [i64; 2]) {
    let (_, step) = state.call(function, &arguments.map(Value::Integer));
    assert!(matches!(step, Step::Ended(_)), "{step:?}");
}

/// A file with an image whose pages begin at a page, and where it begins.
fn file_of(image: &Image) -> (File, u64) {
    let file = tempfile::tempfile().unwrap();
    let begin = (2 * PAGE - image.pages_offset() % PAGE) as u64;
    file.write_all_at(image.as_bytes(), begin).unwrap();
    (file, begin)
}

fn restored_mapped(windows: &Arc<Windows>, images: &[Image]) -> Result<State, StateError> {
    let (file, begin) = file_of(&images[0]);
    let whole = FileImage::open(&file, begin, images[0].as_bytes().len() as u64).unwrap();
    // Where the kernel does not tell what was written, nothing is mapped.
    let mapped = State::restore_mapped(windows, &whole, &images[1..])?;
    assert_eq!(mapped.is_some(), windows.tells_writes());
    mapped.map_or_else(|| State::restore(windows, images), Ok)
}

#[derive(Clone, Debug)]
enum Do {
    Call(usize, [i64; 2]),
    Changes,
    Whole,
    /// What was not stored is lost.
    Restore,
    RestoreMapped,
    /// As a store does that collects garbage while the state is in memory.
    Fold,
}

fn steps() -> impl Strategy<Value = Vec<Do>> {
    let one = prop_oneof![
        10 => (0..FUNCTIONS.len(), 1_i64..5000, 0_i64..60).prop_map(|(function, i, v)| Do::Call(function, [i, v])),
        8 => Just(Do::Changes),
        1 => Just(Do::Whole),
        1 => Just(Do::Restore),
        1 => Just(Do::RestoreMapped),
        1 => Just(Do::Fold),
    ];
    proptest::collection::vec(one, 1..80)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

    #[test]
    fn images_lead_to_the_state_that_they_are_of(steps in steps(), is_told in any::<bool>()) {
        let reserve = if is_told { Windows::reserve } else { Windows::reserve_untold };
        let windows = Arc::new(reserve(80, 1).unwrap());
        let mut state = State::new(&windows, 80, MEMORY, 1).unwrap();
        state.run("=program", PROGRAM, &[]);
        let mut images = vec![state.whole()];
        for step in steps {
            match step {
                Do::Call(function, arguments) => {
                    call(&mut state, FUNCTIONS[function], arguments);
                    continue;
                }
                Do::Changes => images.push(state.changes()),
                Do::Whole => images = vec![state.whole()],
                Do::Restore => {
                    drop(state);
                    state = State::restore(&windows, &images).unwrap();
                }
                Do::RestoreMapped => {
                    drop(state);
                    state = restored_mapped(&windows, &images).unwrap();
                }
                Do::Fold => {
                    images = vec![Image::folded(&images).unwrap()];
                    continue;
                }
            }
            prop_assert!(Image::folded(&images).unwrap() == state.image(), "after {:?}", step);
        }
    }
}

#[test]
fn changes_of_a_counter_are_small() {
    for windows in [Windows::reserve(81, 1), Windows::reserve_untold(83, 1)] {
        small_changes(&Arc::new(windows.unwrap()));
    }
}

fn small_changes(windows: &Arc<Windows>) {
    let window = if windows.tells_writes() { 81 } else { 83 };
    let mut state = State::new(windows, window, MEMORY, 1).unwrap();
    state.run("=counter", COUNTER, &[]);
    let mut images = vec![state.whole()];
    let message = |state: &mut State, images: &mut Vec<Image>| {
        assert!(matches!(state.call("message", &[]).1, Step::Ended(_)));
        images.push(state.changes());
        images.last().unwrap().as_bytes().len()
    };
    message(&mut state, &mut images);
    for n in 0..100 {
        let bytes = message(&mut state, &mut images);
        // After a restore, it may write to a page that is in no changes yet.
        let is_first = n % 40 == 21 || n % 40 == 31;
        assert!(bytes < if is_first { 2000 + PAGE } else { 2000 }, "{bytes} bytes at {n}");
        match n % 40 {
            // The copies of pages outlast an image of all.
            10 => images = vec![state.whole()],
            // Pages that have changed since a whole image are known after a restore.
            20 => {
                drop(state);
                state = State::restore(windows, &images).unwrap();
            }
            30 => {
                drop(state);
                state = restored_mapped(windows, &images).unwrap();
            }
            _ => {}
        }
    }
    assert_eq!(state.call("message", &[]).1, Step::Ended(vec![Value::Integer(102)]));
}

/// An image of changes of a window: runs of lines, and bytes of lines.
fn lines_of(sample: &Image, runs: &[(u32, u32)], bytes: usize) -> Image {
    let mut image = sample.as_bytes()[..52].to_vec();
    image.extend_from_slice(&(runs.len() as u32).to_le_bytes());
    runs.iter().flat_map(|(first, count)| [first, count]).for_each(|n| image.extend_from_slice(&n.to_le_bytes()));
    image.resize(HEADER + runs.len() * 8 + bytes, 0);
    Image::from_bytes(image)
}

#[test]
fn lines_that_cannot_be_are_refused() {
    let windows = windows(82);
    let mut state = State::new(&windows, 82, MEMORY, 1).unwrap();
    state.run("=counter", COUNTER, &[]);
    let whole = state.whole();
    assert!(matches!(state.call("message", &[]).1, Step::Ended(_)));
    let changes = state.changes();
    drop(state);
    let refused = |changes: Image, expected: ImageError, why: &str| {
        let images = [whole.clone(), changes];
        assert_eq!(Image::folded(&images).unwrap_err(), expected, "{why}");
        for error in [State::restore(&windows, &images), restored_mapped(&windows, &images)].map(Result::unwrap_err) {
            assert!(matches!(&error, StateError::Image(error) if *error == expected), "{why}: {error}");
        }
    };
    let malformed = |runs: &[(u32, u32)], bytes: usize, why: &str| {
        refused(lines_of(&changes, runs, bytes), ImageError::Malformed, why);
    };
    let end = (WINDOW_BYTES / LINE) as u32;
    let last_page = end - (PAGE / LINE) as u32;
    malformed(&[(70, 1), (65, 1)], 2 * LINE, "out of order");
    malformed(&[(70, 2), (71, 1)], 3 * LINE, "overlapping");
    malformed(&[(70, 2), (70, 2)], 4 * LINE, "twice");
    malformed(&[(70, 0)], 0, "none");
    malformed(&[(end - 1, 2)], 2 * LINE, "beyond the window");
    malformed(&[(end, 1)], LINE, "behind the window");
    malformed(&[(u32::MAX, u32::MAX)], LINE, "far behind the window");
    malformed(&[(70, 2)], 2 * LINE - 1, "short");
    malformed(&[(70, 2)], LINE, "a line is missing");
    malformed(&[(70, 2)], 2 * LINE + 1, "long");
    malformed(&[(70, 2)], PAGE * 2, "pages instead of lines");
    for len in [0, 15, 16, 48, 52, HEADER - 1, HEADER, HEADER + 7, changes.as_bytes().len() - 1] {
        let cut = Image::from_bytes(changes.as_bytes()[..len].to_vec());
        refused(cut, ImageError::Malformed, &format!("{len} bytes"));
    }
    let mut other = changes.as_bytes().to_vec();
    other[15] ^= 1;
    refused(Image::from_bytes(other), ImageError::Malformed, "neither pages nor lines");
    let unsound = |runs: &[(u32, u32)], why: &str| {
        let lines: u32 = runs.iter().map(|(_, count)| count).sum();
        refused(lines_of(&changes, runs, lines as usize * LINE), ImageError::Unsound, why);
    };
    unsound(&[(last_page, 1)], "a line of a page that is not there");
    unsound(&[(end - 1, 1)], "the last line");
    unsound(&[(last_page - 64, 65)], "a page, and a line of the next");
    unsound(&[(last_page - 1, 65)], "a line of a page, and the next page");
    unsound(&[(last_page, 32), (last_page + 33, 31)], "all lines but one");
    unsound(&[(0, 64)], "nothing is taken");
    // A page of which all is there needs none before it.
    let complete = lines_of(&changes, &[(last_page, 64)], PAGE);
    assert_eq!(complete.page_count(), 1);
    assert_eq!(lines_of(&changes, &[(3, 1), (5, 1), (63, 2), (200, 100)], 104 * LINE).page_count(), 4);
    let images = [whole.clone(), complete];
    assert_eq!(Image::folded(&images).unwrap(), whole, "it is not taken");
    assert_eq!(State::restore(&windows, &images).unwrap().image(), whole);
    assert_eq!(restored_mapped(&windows, &images).unwrap().image(), whole);
    // Without what they are changes of.
    let alone = lines_of(&changes, &[(0, 1)], LINE);
    assert_eq!(Image::folded(std::slice::from_ref(&alone)).unwrap_err(), ImageError::Unsound);
    assert!(matches!(State::restore(&windows, &[alone]), Err(StateError::Image(ImageError::Unsound))));
    // What has no pages cannot be mapped.
    let lines = lines_of(&changes, &[(0, 64)], PAGE);
    let (file, begin) = file_of(&lines);
    let error = FileImage::open(&file, begin, lines.as_bytes().len() as u64).unwrap_err();
    assert!(matches!(error, FileImageError::Image(ImageError::Malformed)), "{error}");
    State::restore(&windows, &[whole, changes]).unwrap();
}
