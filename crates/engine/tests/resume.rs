//! Processes built again in an app's home.
//!
//! The images are of plain processes here, so their ids are the machine's; inside the home they are free.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use common::home::{TestHome, image_of};
use common::process::{let_go_on, report};
use torpor_engine::{Freezer, NoFaults, Phase};
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

/// Thaws as another does, and notes what the caller has open below a directory when it is asked to.
struct OpenAtThaw<'a> {
    freezer: &'a dyn Freezer,
    below: &'a Path,
    open: Mutex<Vec<PathBuf>>,
}

impl Freezer for OpenAtThaw<'_> {
    fn freeze(&self) -> io::Result<()> {
        self.freezer.freeze()
    }

    fn begin_freezing(&self) -> io::Result<()> {
        self.freezer.begin_freezing()
    }

    fn thaw(&self) -> io::Result<()> {
        let numbers = fs::read_dir("/proc/self/fd")?.flatten();
        let open = numbers.filter_map(|number| fs::read_link(number.path()).ok());
        *self.open.lock().unwrap() = open.filter(|path| path.starts_with(self.below)).collect();
        self.freezer.thaw()
    }

    fn is_freezing(&self) -> io::Result<bool> {
        self.freezer.is_freezing()
    }

    fn processes(&self) -> io::Result<Vec<i32>> {
        self.freezer.processes()
    }

    fn end_processes(&self) -> io::Result<()> {
        self.freezer.end_processes()
    }

    fn processes_are_back(&self, initial: i32, process: OwnedFd) -> io::Result<()> {
        self.freezer.processes_are_back(initial, process)
    }
}

#[test]
fn nobody_else_has_its_files_open_when_it_runs() {
    let (folder, images) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (image, pid) = image_of(python("holds_lock.py").arg(folder.path()), "ready", images.path());
    let place = TestHome::new(pid);
    let freezer = OpenAtThaw { freezer: &*place.cgroup, below: folder.path(), open: Mutex::default() };
    place.resume_by(&freezer, &image, BTreeMap::new(), &NoFaults).result.unwrap();
    assert_eq!(*freezer.open.lock().unwrap(), [""; 0].map(PathBuf::from));
    let_go_on(folder.path());
    assert_eq!(report(folder.path()), "True");
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
