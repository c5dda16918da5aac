//! Memory of an app that is made again by the worker counts against the app's own limit.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod python;

use std::path::PathBuf;

use python::{PATIENCE, Place};
use torpor_testkit::skip::skipped;
use torpor_testkit::wait::eventually_ok;

const MB: u64 = 1 << 20;

/// What is charged to the app's cgroup; none where it has none that counts memory.
fn charged(place: &Place) -> Option<u64> {
    let id = place.daemon.json(&["inspect", "holder"]).unwrap()["status"]["id"].as_str().unwrap().to_owned();
    let mut directories = vec![PathBuf::from("/sys/fs/cgroup")];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
            if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            let counts = ["memory.usage_in_bytes", "memory.current"].map(|name| entry.path().join(name));
            let count = counts.iter().find_map(|count| std::fs::read_to_string(count).ok());
            if let Some(count) = count.filter(|_| entry.file_name().to_string_lossy().contains(&id)) {
                return Some(count.trim().parse().unwrap());
            }
            directories.push(entry.path());
        }
    }
    None
}

#[test]
fn restored_memory_is_charged_to_the_app() {
    let mut place = Place::with("[idle]\nsleep = false\n");
    // Shared memory, which is in the image, and a file in a memory file system, which a power cut takes.
    place.run("holder", "hold_memory.py", &["--memory", "128M"]);
    place.wait_log("holder", "ready");
    if charged(&place).is_none() {
        return skipped(module_path!(), "no cgroup hierarchy here counts memory");
    }
    let charged = |place: &Place| charged(place).unwrap();
    assert!(charged(&place) >= 40 * MB, "{}", charged(&place));
    let warm = |place: &Place| {
        eventually_ok("it goes warm", PATIENCE, || place.daemon.ok(&["sleep", "holder", "--level", "warm"])).unwrap();
        assert_eq!(place.daemon.state("holder").unwrap(), "warm");
    };
    warm(&place);
    let asleep = charged(&place);
    assert!(asleep < 24 * MB, "{asleep}");
    place.daemon.ok(&["wake", "holder"]).unwrap();
    assert!(charged(&place) >= 40 * MB, "{}", charged(&place));
    warm(&place);
    place.daemon.power_off().unwrap();
    place.daemon.up().unwrap();
    let cut = charged(&place);
    assert!(cut < 8 * MB, "{cut}");
    place.daemon.ok(&["wake", "holder"]).unwrap();
    assert!(charged(&place) >= 40 * MB, "{}", charged(&place));
}
