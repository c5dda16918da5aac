//! Whether a tree is in a sandbox, and what becomes of its open files, are two questions: an app's files are parked while it sleeps on
//! its machine, and would be described for another one.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::collections::BTreeMap;
use std::process::{Child, Command};

use common::home::TestHome;
use common::process::wait_named;
use torpor_descriptors::{DumpError, Dumped, OpenFiles, Request, dump};
use torpor_image::tree::FileKind;
use torpor_pages::sink::PageSink;
use torpor_proc::processes::children;
use torpor_process::view::View;
use torpor_process::wait::since;
use torpor_testkit::programs::{only_standard_descriptors, path};
use torpor_testkit::wait::soon;

/// A program in the namespaces of a home.
struct Inside {
    entered: Child,
    pid: i32,
}

impl Inside {
    fn start(place: &TestHome, directory: &std::path::Path) -> Self {
        let mut command = Command::new("nsenter");
        command.args(["--target", &place.home.init_pid.to_string(), "--pid", "--net", "--ipc", "--uts", "--mount"]);
        command.args(["python3", "-u", "-B"]).arg(path("unread_contents.py")).arg(directory);
        let entered = only_standard_descriptors(&command).spawn().unwrap();
        let own = entered.id().cast_signed();
        soon("nsenter forks", || children(own, own).is_ok_and(|children| children.len() == 1));
        let pid = children(own, own).unwrap()[0];
        wait_named(pid.cast_unsigned(), "ready");
        Self { entered, pid }
    }

    fn dump(&self, place: &TestHome, open_files: OpenFiles) -> Result<Dumped, DumpError> {
        let view = View::of(&place.home, &[self.pid]).unwrap();
        let image = tempfile::tempfile().unwrap();
        let request = Request {
            processes: &[self.pid],
            ids: &BTreeMap::from([(self.pid, view.id(self.pid).unwrap())]),
            areas: &[],
            view: &view,
            open_files,
            lock: None,
            since: since::now(),
            look_only: false,
            go_on: &|| true,
        };
        view.within(|| dump(&request, &mut PageSink::new(&image, 0))).unwrap()
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        // It ends with its namespaces; nsenter waits for it.
        let _ = self.entered.kill();
        let _ = self.entered.wait();
    }
}

#[test]
fn in_a_sandbox_open_files_are_parked_or_described() {
    let place = TestHome::new(2);
    let directory = tempfile::tempdir().unwrap();
    let program = Inside::start(&place, directory.path());

    let parked = program.dump(&place, OpenFiles::Parked).unwrap();
    assert!(!parked.kept.is_empty(), "what only an open file has is handed out");
    assert!(parked.warnings.iter().any(|warning| warning.contains("inotify")), "{:?}", parked.warnings);

    let Err(DumpError::Refused(blockers)) = program.dump(&place, OpenFiles::Described) else { panic!("it is refused") };
    assert!(blockers.iter().all(|blocker| blocker.to_string().contains("inotify")), "{blockers:?}");

    std::fs::write(directory.path().join("go"), "").unwrap();
    wait_named(program.pid.cast_unsigned(), "done");
    let described = program.dump(&place, OpenFiles::Described).unwrap();
    assert!(described.kept.is_empty(), "nothing but the description is left");
    assert!(described.pipes.iter().any(|pipe| pipe.contents == [b"unread"]), "{:?}", described.pipes);
    let watched = |kind: &FileKind| matches!(kind, FileKind::Inotify { watches } if watches.len() == 1);
    assert!(described.files.iter().any(|file| watched(&file.kind)), "{:?}", described.files);
}
