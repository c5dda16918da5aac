//! Programs that move to another process at each wait say the same as those that run straight through.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod libraries;
mod programs;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::{env, fs};

use torpor_lua::{Image, State, Step, Task, Value, Windows};

use self::programs::PROGRAMS;

const WINDOW: u32 = 7;
const MEMORY: usize = 32 << 20;
const SEED: u64 = 4711;
/// Set for the process that moves a state on by one wait: the number of its answer.
const ANSWER: &str = "TORPOR_LUA_ANSWER";
const FOLDER: &str = "TORPOR_LUA_FOLDER";
/// Waits of a program at most.
const MOST_WAITS: i64 = 200;

fn windows() -> Arc<Windows> {
    Arc::new(Windows::reserve(0, 16).unwrap())
}

fn text_of(values: &[Value]) -> String {
    match values {
        [Value::String(bytes)] => String::from_utf8_lossy(bytes).into_owned(),
        other => format!("{other:?}"),
    }
}

fn ended(step: &Step) -> Option<String> {
    match step {
        Step::Waits(_) => None,
        Step::Ended(values) => Some(text_of(values)),
        Step::Failed(error) => Some(format!("failed: {error}")),
    }
}

/// Runs it in one process, and counts its waits.
fn straight(program: &str) -> (String, i64) {
    let mut state = State::new(&windows(), WINDOW, MEMORY, SEED).unwrap();
    let (task, mut step) = state.run("program", program, &[]);
    let mut waits = 0;
    loop {
        if let Some(text) = ended(&step) {
            return (text, waits);
        }
        waits += 1;
        assert!(waits < MOST_WAITS, "{program}");
        step = state.answer(task, &[Value::Integer(waits)]).unwrap();
    }
}

/// Answers the state that is stored in a folder, and stores what becomes of it.
fn moved_on(folder: &Path, answer: i64) {
    let image = Image::from_bytes(fs::read(folder.join("image")).unwrap());
    let mut state = State::restore(&windows(), &[image]).unwrap();
    let step = state.answer(Task(1), &[Value::Integer(answer)]).unwrap();
    match ended(&step) {
        Some(text) => fs::write(folder.join("ended"), text).unwrap(),
        None => fs::write(folder.join("image"), state.image().as_bytes()).unwrap(),
    }
}

/// Runs it in a process for each wait.
fn in_other_processes(program: &str) -> (String, i64) {
    let folder = tempfile::tempdir().unwrap();
    let mut state = State::new(&windows(), WINDOW, MEMORY, SEED).unwrap();
    let (_, step) = state.run("program", program, &[]);
    if let Some(text) = ended(&step) {
        return (text, 0);
    }
    fs::write(folder.path().join("image"), state.image().as_bytes()).unwrap();
    drop(state);
    for waits in 1..MOST_WAITS {
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["--exact", "every_program_says_the_same_in_other_processes"]);
        let output = command.env(ANSWER, waits.to_string()).env(FOLDER, folder.path()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        if let Ok(text) = fs::read_to_string(folder.path().join("ended")) {
            return (text, waits);
        }
    }
    panic!("it does not end: {program}");
}

#[test]
fn every_program_says_the_same_in_other_processes() {
    if let (Ok(answer), Some(folder)) = (env::var(ANSWER), env::var_os(FOLDER)) {
        return moved_on(folder.as_ref(), answer.parse().unwrap());
    }
    let mut names = BTreeSet::new();
    for (name, program) in PROGRAMS.iter().chain(libraries::PROGRAMS) {
        assert!(names.insert(name), "{name} is there twice");
        let expected = straight(program);
        eprintln!("{name}: {} ({} waits)", expected.0, expected.1);
        assert!(!expected.0.starts_with("failed") && expected.1 > 0, "{name}: {expected:?}");
        assert_eq!(in_other_processes(program), expected, "{name}");
    }
}
