//! `torpor image` on images of real processes.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use torpor_testkit::conformance::{Begun, Execution, program};

fn torpor(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_torpor")).args(arguments).output().unwrap()
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn good(arguments: &[&str]) -> String {
    let output = torpor(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", text(&output));
    String::from_utf8(output.stdout).unwrap()
}

fn json(arguments: &[&str]) -> Value {
    serde_json::from_str(&good(arguments)).unwrap()
}

fn capture(running: &Execution, image: &Path) {
    let pid = running.pid().to_string();
    good(&["checkpoint", "--pid", &pid, "--image", image.to_str().unwrap(), "--leave-running"]);
}

fn started(name: &str) -> Execution {
    let mut running = Execution::start(&program(name).unwrap()).unwrap();
    assert_eq!(running.begun().unwrap(), Begun::Ready);
    running
}

#[test]
fn inspecting_tells_of_the_tree() {
    let running = started("sessions");
    let image = running.image();
    capture(&running, &image);
    let view = json(&["image", "inspect", "--json", image.to_str().unwrap()]);
    assert_eq!(view["kind"], "complete");
    let processes = view["processes"].as_array().unwrap();
    assert_eq!(processes.len(), 3);
    assert_eq!(processes[0]["pid"], running.pid());
    assert_eq!(processes[0]["parent"], Value::Null);
    assert_eq!(processes[1]["parent"], processes[0]["pid"]);
    assert_eq!(processes[1]["session"], processes[1]["pid"]);
    assert_eq!(processes[2]["session"], processes[1]["pid"]);
    assert_eq!(processes[2]["group"], processes[2]["pid"]);
    for process in processes {
        assert!(process["stored_bytes"].as_u64().unwrap() > 4096);
        assert_eq!(process["threads"].as_array().unwrap().len(), 1);
    }
    let shown = good(&["image", "inspect", image.to_str().unwrap()]);
    assert!(shown.contains("complete image") && shown.contains("/dev/null"), "{shown}");
}

#[test]
fn descriptors_are_told_in_words() {
    let running = started("pipe_contents");
    capture(&running, &running.image());
    let shown = good(&["image", "inspect", running.image().to_str().unwrap()]);
    assert!(shown.contains("pipe 0, reading, 11 bytes unread"), "{shown}");
}

#[test]
fn a_sound_image_is_verified_and_damage_is_found() {
    let running = started("anonymous_memory");
    let image = running.image();
    capture(&running, &image);
    let path = image.to_str().unwrap();
    let view = json(&["image", "verify", "--json", path]);
    // 300 pages are full, and others beside them.
    assert!(view[0]["page_bytes"].as_u64().unwrap() > 300 * 4096, "{view}");
    let file = OpenOptions::new().read(true).write(true).open(image.join("image")).unwrap();
    let length = file.metadata().unwrap().len();
    for (at, words) in [(9, "version"), (4096 + 50_000, "of process"), (length - 1, "the plan")] {
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 4], at).unwrap();
        let output = torpor(&["image", "verify", path]);
        assert_eq!(output.status.code(), Some(1), "{at}");
        assert!(text(&output).contains(words), "{at}: {}", text(&output));
        file.write_all_at(&byte, at).unwrap();
    }
    good(&["image", "verify", path]);
    file.set_len(length - 1).unwrap();
    let output = torpor(&["image", "inspect", path]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output).contains("cut off"), "{}", text(&output));
}

#[test]
fn what_is_no_image_is_said_to_be_none() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, vec![7; 10_000]).unwrap();
    for (path, words, code) in [
        (file.to_str().unwrap(), "not a Torpor image", 1),
        ("/nowhere", "No such file", 3),
        ("/dev/zero", "not a regular file", 1),
    ] {
        let output = torpor(&["image", "verify", path]);
        assert_eq!(output.status.code(), Some(code), "{path}");
        assert!(text(&output).contains(words), "{path}: {}", text(&output));
    }
}

#[test]
fn two_captures_of_one_tree_differ_by_what_has_happened() {
    let running = started("interval_timer_fires");
    let (first, second) = (running.image(), running.image().with_extension("second"));
    capture(&running, &first);
    capture(&running, &second);
    let paths = [first.to_str().unwrap(), second.to_str().unwrap()];
    let difference = json(&["image", "diff", "--json", paths[0], paths[1]]);
    assert_eq!(difference["new_processes"].as_array().unwrap().len(), 0);
    let process = &difference["processes"][0];
    assert_eq!(process["pid"], running.pid());
    // Its handler counts on its data page and runs on its stack; most else is as it was.
    let pages = |key: &str| process[key].as_u64().unwrap();
    assert!((1..=8).contains(&pages("changed_pages")), "{difference}");
    assert!(pages("same_pages") > 3, "{difference}");
    assert_eq!(process["descriptors"].as_array().unwrap().len(), 0);
    assert!(good(&["image", "diff", paths[0], paths[0]]).contains("no difference"));

    let other = started("sessions");
    capture(&other, &other.image());
    let shown = good(&["image", "diff", paths[0], other.image().to_str().unwrap()]);
    assert_eq!(shown.matches("+ process").count(), 3, "{shown}");
    assert_eq!(shown.matches("- process").count(), 1, "{shown}");
}
