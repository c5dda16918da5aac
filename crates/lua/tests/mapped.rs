//! States whose images are mapped from files.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use torpor_lua::{FileImage, FileImageError, Image, ImageError, State, StateError, Step, Value, Windows};

const PROGRAM: &str = "
    all = {}
    for i = 1, 20000 do all[i] = {i} end
    function change(k) for i = k, #all, 4001 do all[i] = {-i} end return collectgarbage('count') end
    function sum() local n = 0; for i = 1, #all do n = n + all[i][1] end return n end
    function drop() all = {}; collectgarbage(); collectgarbage(); local s = ('x'):rep(300000); return #s end";

fn windows(window: u32) -> Arc<Windows> {
    Arc::new(Windows::reserve(window, 1).unwrap())
}

fn integer(step: Step) -> i64 {
    match step {
        Step::Ended(values) => match values.as_slice() {
            [Value::Integer(number)] => *number,
            [Value::Number(_)] => 0,
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

/// A file with an image whose pages begin at a page. Gives where the image begins.
fn written(image: &Image) -> (File, u64) {
    let file = tempfile::tempfile().unwrap();
    let begin = 8192 - image.pages_offset() as u64 % 4096;
    file.write_all_at(image.as_bytes(), begin).unwrap();
    (file, begin)
}

#[test]
fn a_mapped_state_is_the_same_and_tells_its_changes() {
    let windows = windows(70);
    let mut state = State::new(&windows, 70, 16 << 20, 1).unwrap();
    state.run("=program", PROGRAM, &[]);
    let whole = state.whole();
    integer(state.call("change", &[1.into()]).1);
    let mut changes = vec![state.changes()];
    let expected = integer(state.call("sum", &[]).1);
    drop(state);
    let (file, begin) = written(&whole);
    let bytes = whole.as_bytes().len() as u64;
    let image = || FileImage::open(&file, begin, bytes).unwrap();
    for round in 2..6_i64 {
        let mut state = State::restore_mapped(&windows, &image(), &changes).unwrap().unwrap();
        let mut read = integer(state.call("sum", &[]).1);
        if round == 2 {
            assert_eq!(read, expected);
        }
        integer(state.call("change", &[round.into()]).1);
        let change = state.changes();
        assert!(change.page_count() * 3 < whole.page_count(), "{} of {}", change.page_count(), whole.page_count());
        changes.push(change);
        read = integer(state.call("sum", &[]).1);
        let image = state.image();
        drop(state);
        // As if it had been read.
        let all: Vec<Image> = std::iter::once(&whole).chain(&changes).cloned().collect();
        let mut state = State::restore(&windows, &all).unwrap();
        assert_eq!(integer(state.call("sum", &[]).1), read);
        drop(state);
        let mut state = State::restore(&windows, &[image]).unwrap();
        assert_eq!(integer(state.call("sum", &[]).1), read);
    }
    // Memory that it has given back and takes again.
    let mut state = State::restore_mapped(&windows, &image(), &changes).unwrap().unwrap();
    assert_eq!(integer(state.call("drop", &[]).1), 300_000);
    let whole = state.whole();
    drop(state);
    assert_eq!(integer(State::restore(&windows, &[whole]).unwrap().call("sum", &[]).1), 0);
    // The file is as it was.
    let mut first = vec![0; bytes as usize];
    file.read_exact_at(&mut first, begin).unwrap();
    assert_eq!(integer(State::restore(&windows, &[Image::from_bytes(first)]).unwrap().call("sum", &[]).1), 200_010_000);
    // The window is anonymous memory again.
    let mut state = State::new(&windows, 70, 16 << 20, 1).unwrap();
    state.run("=program", PROGRAM, &[]);
    let pages = state.whole().page_count();
    state.run("=x", "x = 1", &[]);
    let changed = state.changes().page_count();
    assert!(changed > 0 && changed * 10 < pages, "{changed} of {pages}");
}

#[test]
fn what_is_no_image_is_refused() {
    let windows = windows(71);
    let mut state = State::new(&windows, 71, 16 << 20, 1).unwrap();
    state.run("=program", PROGRAM, &[]);
    let (whole, changes) = (state.whole(), state.changes());
    drop(state);
    let (file, begin) = written(&whole);
    let bytes = whole.as_bytes().len() as u64;
    for (begin, bytes) in [(begin + 8, bytes), (begin, bytes - 4096), (begin, 20), (begin + bytes, bytes)] {
        assert!(FileImage::open(&file, begin, bytes).is_err());
    }
    // Pages that are not at the beginning of a page of the file.
    file.write_all_at(whole.as_bytes(), begin + 8).unwrap();
    let error = FileImage::open(&file, begin + 8, bytes).unwrap_err();
    assert!(matches!(error, FileImageError::Image(ImageError::Malformed)), "{error}");
    let (file, begin) = written(&changes);
    if changes.page_count() > 0 {
        let image = FileImage::open(&file, begin, changes.as_bytes().len() as u64).unwrap();
        let error = State::restore_mapped(&windows, &image, &[]).unwrap_err();
        assert!(matches!(error, StateError::Image(ImageError::Unsound)), "{error}");
    }
    // The window is free after each.
    State::restore(&windows, &[whole]).unwrap();
}
