//! What apps take on disk: their limit, where there are no project quotas, and trees that are hard to remove.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod python;

use std::fs;
use std::path::PathBuf;

use python::{Place, names};
use torpor_testkit::skip;
use torpor_testkit::wait::{PATIENCE, eventually_ok};

/// Writes 8 MiB, and waits.
const WRITER: &str = "write_file.py /data 8388608";

fn own_files(place: &Place) -> PathBuf {
    let apps = place.daemon.data_dir().join("apps");
    let [id] = &names(&apps)[..] else { panic!("one app is there") };
    apps.join(id)
}

#[test]
fn an_app_above_its_disk_limit_is_reported_and_cannot_be_restarted() {
    let place = Place::with("[disk]\nlimit = '64M'\n[idle]\nsleep = false\n");
    if place.daemon.ok(&["doctor"]).unwrap().contains("project quotas") {
        let doctor = place.daemon.ok(&["doctor"]).unwrap();
        if !doctor.contains("no project quotas") {
            skip!("the file system of the tests has project quotas, which the kernel enforces");
        }
    }
    place.run("within", WRITER, &[]);
    place.wait_log("within", "written");
    let disk = &place.daemon.json(&["inspect", "within"]).unwrap()["status"]["disk"];
    assert_eq!((disk["limit_bytes"].as_u64(), disk["by"].as_str()), (Some(64 << 20), Some("accounting")), "{disk}");
    place.daemon.ok(&["rm", "-f", "within"]).unwrap();

    place.run("over", WRITER, &["--disk", "4M", "--restart", "no"]);
    place.wait_log("over", "written");
    place.wait_text(&["events", "--app", "over"], "disk-over");
    assert!(place.daemon.ok(&["ps"]).unwrap().contains("over its disk limit"));
    let explain = place.daemon.ok(&["explain", "over"]).unwrap();
    assert!(explain.contains("of 4.0 MiB (over)"), "{explain}");
    assert!(place.daemon.ok(&["stats", "over"]).unwrap().contains("of 4.0 MiB (over)"));
    assert_eq!(place.daemon.state("over").unwrap(), "running", "it runs on");
    let output = place.daemon.cli(&["restart", "over"]).unwrap();
    let text = python::said(&output);
    assert!(!output.status.success() && text.contains("4.0 MiB is its limit") && text.contains("/upper"), "{text}");
    fs::remove_file(own_files(&place).join("upper/data")).unwrap();
    place.daemon.ok(&["start", "over"]).unwrap();
}

#[test]
fn an_app_with_thirty_thousand_nested_directories_can_be_removed() {
    let place = Place::with("[idle]\nsleep = false\n");
    place.run("nested", "nest_directories.py 30000", &[]);
    place.wait_log("nested", "nested");
    place.daemon.ok(&["stop", "nested"]).unwrap();
    // Where the disk is busy, the command does not wait for the end of the removal.
    let removed = place.daemon.cli(&["rm", "nested"]).unwrap();
    assert!(removed.status.success() || python::said(&removed).contains("goes on"), "{}", python::said(&removed));
    eventually_ok("it is removed", PATIENCE, || match place.daemon.json(&["ps"]).unwrap() {
        apps if apps.as_array().is_some_and(Vec::is_empty) => Ok(()),
        apps => Err(apps.to_string()),
    })
    .unwrap();
    assert_eq!(names(&place.daemon.data_dir().join("apps")), [""; 0]);
    place.daemon.ok(&["ps"]).unwrap();
}
