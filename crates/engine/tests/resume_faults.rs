//! Building an app's processes again fails at every step in turn, by an error and by our death.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Mutex;

use common::boot;
use common::freezer::CgroupFreezer;
use common::home::{TestHome, WARM, home, image_of};
use common::journal::MemoryJournal;
use rustix::process::{Signal, kill_process};
use torpor_engine::{
    Fault, Faults, Freezer, NoFaults, Phase, RestoreError, RestoreStep, ResumeError, ResumeRequest, Step, Target,
    resume,
};
use torpor_store::Store;
use torpor_testkit::programs::python;
use torpor_testkit::wait::soon;

/// One at a time: descriptors are counted.
static TURN: Mutex<()> = Mutex::new(());

/// Fails at a step.
struct At(RestoreStep);

impl Faults for At {
    fn reached(&self, _step: Step) -> Result<(), Fault> {
        Ok(())
    }

    fn rebuilt(&self, step: RestoreStep) -> Result<(), Fault<RestoreStep>> {
        if step == self.0 { Err(Fault(step)) } else { Ok(()) }
    }
}

/// Those of a home that has been there all the time.
fn steps() -> impl Iterator<Item = RestoreStep> {
    RestoreStep::ALL.into_iter().filter(|step| !step.is_not_always_there())
}

#[test]
fn an_error_at_any_step_leaves_nothing() {
    let _turn = TURN.lock();
    let folder = tempfile::tempdir().unwrap();
    let (image, pid) = image_of(&python("waiting_tree.py"), "ready", folder.path());
    let before = fs::read(image.path()).unwrap();
    let place = TestHome::new(pid);
    let open = || fs::read_dir("/proc/self/fd").unwrap().count();
    for step in steps().filter(|step| *step < RestoreStep::Awake) {
        let descriptors = open();
        let outcome = place.resume(&image, BTreeMap::new(), &At(step));
        let error = outcome.result.unwrap_err();
        let asked = matches!(&error, ResumeError::Restore(RestoreError::Fault(Fault(at))) if *at == step);
        assert!(asked, "{}: {error:?}", step.name());
        assert_eq!(outcome.phase, WARM, "{}", step.name());
        assert!(place.is_empty(), "{}", step.name());
        // Those of the app are closed by other threads.
        soon(&format!("descriptors are closed ({})", step.name()), || open() <= descriptors + 1);
    }
    assert_eq!(fs::read(image.path()).unwrap(), before);
    let outcome = place.resume(&image, BTreeMap::new(), &At(RestoreStep::Awake));
    assert!(outcome.result.unwrap_err().is_awake());
    assert_eq!((outcome.phase, place.cgroup.processes().unwrap().len()), (Phase::Awake, 2));
    place.cgroup.end_processes().unwrap();
    soon("zombies are reaped", || place.is_empty());
    // It was consumed when the app was about to run.
    assert!(!image.path().exists());
    image.unconsume().unwrap();
    let outcome = place.resume(&image, BTreeMap::new(), &NoFaults);
    assert_eq!(outcome.result.unwrap().warnings, [""; 0]);
    assert_eq!(place.cgroup.processes().unwrap().len(), 2);
}

/// Kills us at a step.
struct KilledAt(String);

impl Faults for KilledAt {
    fn reached(&self, _step: Step) -> Result<(), Fault> {
        Ok(())
    }

    fn rebuilt(&self, step: RestoreStep) -> Result<(), Fault<RestoreStep>> {
        if step.name() == self.0 {
            kill_process(rustix::process::getpid(), Signal::KILL).unwrap();
        }
        Ok(())
    }
}

/// Not a test of its own: resumes an image and is killed at a step.
#[test]
fn helper_killed_at_a_step() {
    let Ok(words) = std::env::var("TORPOR_TEST_REVIVE") else { return };
    let words: Vec<&str> = words.split(' ').collect();
    let (init_pid, initial) = (words[0].parse().unwrap(), words[1].parse().unwrap());
    let cgroup = CgroupFreezer::at(Path::new(words[2]));
    let home = home(init_pid, initial, &cgroup);
    let journal = MemoryJournal::awake();
    let faults = KilledAt(words[4].to_owned());
    let target = Target {
        app: 0,
        epoch: torpor_image::Epoch::FIRST,
        boot: boot(),
        freezer: &cgroup,
        journal: &journal,
        faults: &faults,
    };
    let request = ResumeRequest {
        home: &home,
        image: &Store::of_checkpoint(Path::new(words[3])).image(0),
        given: Box::new(|| Ok(BTreeMap::new())),
        give_up: Box::new(|| {}),
        lazy: None,
    };
    let (result, _) = resume(&target, request);
    panic!("{result:?}");
}

#[test]
fn killing_the_worker_at_any_step_leaves_nothing_that_runs() {
    let _turn = TURN.lock();
    let folder = tempfile::tempdir().unwrap();
    let (image, pid) = image_of(&python("waiting_tree.py"), "ready", folder.path());
    let place = TestHome::new(pid);
    for step in steps().filter(|step| *step < RestoreStep::Running) {
        let name = step.name();
        let mut helper = Command::new(std::env::current_exe().unwrap());
        let cgroup = place.cgroup.path().display().to_string();
        let words = format!("{} {pid} {cgroup} {} {name}", place.home.init_pid, image.store().folder().display());
        helper.args(["--exact", "helper_killed_at_a_step"]).env("TORPOR_TEST_REVIVE", words);
        let status = helper.stdout(Stdio::null()).status().unwrap();
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9), "{name}");
        if step >= RestoreStep::Released {
            // Complete, and frozen: whoever recovers ends them, or thaws them if the journal says so.
            assert_eq!(place.cgroup.processes().unwrap().len(), 2, "{name}");
            assert!(place.cgroup.is_frozen(), "{name}");
            place.cgroup.end_processes().unwrap();
        }
        soon(name, || place.is_empty());
        // Whoever recovers takes it back, unless the journal says that the app runs.
        image.unconsume().unwrap();
    }
    let outcome = place.resume(&image, BTreeMap::new(), &NoFaults);
    outcome.result.unwrap_or_else(|error| panic!("{error:#?}"));
}
