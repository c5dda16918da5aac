//! Processes built again in an app's home.
//!
//! The images are of plain processes here, so their ids are the machine's; inside the home they are free.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use common::home::{TestHome, image_of};
use common::process::{let_go_on, report};
use torpor_engine::{NoFaults, Phase};
use torpor_testkit::programs::python;

/// Runs a Python program through an image into a home; what it reports.
fn reported(program: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let (image, pid) = image_of(python(program).arg(folder.path()), "ready", folder.path());
    let place = TestHome::new(pid);
    let outcome = place.resume(&image, BTreeMap::new(), &NoFaults);
    let resumed = outcome.result.unwrap_or_else(|error| panic!("{error:#?}"));
    eprintln!("{:?} {}", outcome.timings.steps(), outcome.timings.total_us());
    assert_eq!(outcome.phase, Phase::Awake);
    let status = fs::read_to_string(format!("/proc/{}/status", resumed.initial)).unwrap();
    assert!(status.contains(&format!("NSpid:\t{}\t{pid}\n", resumed.initial)), "{status}");
    assert!(status.contains(&format!("PPid:\t{}\n", place.home.init_pid)), "{status}");
    let_go_on(folder.path());
    report(folder.path())
}

#[test]
fn a_python_program_goes_on_with_its_memory() {
    assert_eq!(reported("keeps_memory.py"), "True");
}

#[test]
fn the_parent_of_the_initial_process_is_init_and_it_leads_its_session() {
    assert_eq!(reported("keeps_ids.py"), "(1, True, True)");
}

#[test]
fn threads_go_on() {
    assert_eq!(reported("keeps_threads.py"), "True");
}

#[test]
fn a_process_tree_goes_on() {
    assert_eq!(reported("keeps_process_tree.py"), "True");
}

#[test]
fn timers_have_gone_on_and_sockets_belong_to_the_namespaces_of_the_home() {
    assert_eq!(reported("keeps_timers_and_sockets.py"), "(b'x', True)");
}

#[test]
fn a_damaged_or_foreign_image_is_refused() {
    use std::os::unix::fs::FileExt;
    let folder = tempfile::tempdir().unwrap();
    let (image, pid) = image_of(Command::new("sleep").arg("99"), "sleep", folder.path());
    let place = TestHome::new(pid + 1);
    let refused = place.resume(&image, BTreeMap::new(), &NoFaults).result.unwrap_err();
    assert!(!refused.is_lost() && refused.to_string().contains("its initial process is"), "{refused}");
    let place = TestHome::new(pid);
    let file = fs::OpenOptions::new().read(true).write(true).open(image.path()).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, 5000).unwrap();
    file.write_all_at(&[byte[0] ^ 1], 5000).unwrap();
    let damaged = place.resume(&image, BTreeMap::new(), &NoFaults).result.unwrap_err();
    assert!(damaged.is_lost(), "{damaged:?}");
    assert!(place.is_empty());
    file.write_all_at(&byte, 5000).unwrap();
    place.resume(&image, BTreeMap::new(), &NoFaults).result.unwrap();
}
