//! Real processes through an image and back.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use common::process::{UNCHANGED, capture, exit_status, let_go_on, restored as restored_from, start, start_python};
use rustix::process::{Pid, WaitOptions, waitpid};
use torpor_engine::{Fault, Restore, RestoreError, RestoreStep, Restored, restore};
use torpor_linux::restorer::as_process;
use torpor_testkit::wait::soon;

/// Captures and restores a program that has begun to wait.
fn captured_and_restored(mut child: Child) -> Restored {
    let folder = tempfile::tempdir().unwrap();
    let done = capture(&mut child, folder.path());
    eprintln!("checkpoint {:?}", done.timings.steps());
    let restored = restored_from(&done.image).unwrap_or_else(|error| panic!("{error:#?}"));
    eprintln!("{restored:?} {}", restored.timings.total_us());
    restored
}

#[test]
fn a_sleeping_program_goes_on() {
    let restored = captured_and_restored(start(Command::new("sleep").arg("2"), "sleep"));
    assert_eq!(exit_status(restored.pid), Some(0));
}

/// Runs a Python program through an image, which finds everything as it was.
fn is_unchanged(program: &str) {
    let folder = tempfile::tempdir().unwrap();
    let restored = captured_and_restored(start_python(program, folder.path()));
    let_go_on(folder.path());
    assert_eq!(exit_status(restored.pid), Some(UNCHANGED), "{program}");
}

#[test]
fn a_python_program_goes_on_with_its_memory() {
    is_unchanged("keeps_memory.py");
}

#[test]
fn threads_go_on() {
    is_unchanged("keeps_threads.py");
}

#[test]
fn a_process_tree_goes_on() {
    is_unchanged("keeps_process_tree.py");
}

/// One at a time: a restore that fails adopts for a moment what others leave, and nobody would ask for their children.
static TURN: std::sync::Mutex<()> = std::sync::Mutex::new(());

const STEPS: [&str; 8] = ["read", "checked", "opened", "launched", "forked", "verified", "built", "finished"];

/// A tree with threads, a child and a zombie, as an image; and the ids of all its threads and processes.
fn imaged(folder: &Path) -> (PathBuf, Vec<i32>) {
    let mut child = start_python("waiting_tree.py", folder);
    let pid = child.id() as i32;
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let mut ids: Vec<i32> =
        threads.map(|entry| entry.unwrap().file_name().to_str().unwrap().parse().unwrap()).collect();
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    ids.extend(children.split_whitespace().map(|id| id.parse::<i32>().unwrap()));
    let done = capture(&mut child, folder);
    assert_eq!((done.processes, done.threads, ids.len()), (3, 3, 4), "the program was not ready");
    (done.image, ids)
}

/// Waits until the process has ended and its id is free. Its last parent is the machine's init, which may take seconds to reap it, or
/// this process, while another test restores in it (`restore` adopts what its helpers leave).
fn nothing_left(pid: i32) {
    soon(&format!("{pid} is gone"), || {
        // Not a child of ours is as good.
        let _ = waitpid(Pid::from_raw(pid), WaitOptions::NOHANG);
        rustix::process::test_kill_process(Pid::from_raw(pid).unwrap()).is_err()
    });
}

fn kill(restored: &Restored) {
    rustix::process::kill_process_group(Pid::from_raw(restored.pid).unwrap(), rustix::process::Signal::KILL)
        .or_else(|_| rustix::process::kill_process(Pid::from_raw(restored.pid).unwrap(), rustix::process::Signal::KILL))
        .unwrap();
    waitpid(Pid::from_raw(restored.pid), WaitOptions::empty()).unwrap();
}

#[test]
fn an_error_at_any_step_leaves_nothing() {
    let _turn = TURN.lock();
    let folder = tempfile::tempdir().unwrap();
    let (image, ids) = imaged(folder.path());
    let before = std::fs::read(&image).unwrap();
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    for name in STEPS {
        let descriptors = open();
        let fault = |step: RestoreStep| if step.name() == name { Err(Fault(step)) } else { Ok(()) };
        let error =
            restore(Restore { image: &image, standard: [None, None, None], lock: None, late: None, faults: &fault })
                .unwrap_err();
        assert!(matches!(error, RestoreError::Fault(Fault(step)) if step.name() == name), "{name}: {error:?}");
        ids.iter().for_each(|id| nothing_left(*id));
        // Those of the app are closed by other threads.
        soon(&format!("descriptors are closed ({name})"), || open() <= descriptors + 1);
    }
    assert_eq!(std::fs::read(&image).unwrap(), before);
    let restored = restored_from(&image).unwrap();
    assert_eq!((restored.processes, restored.threads), (3, 3));
    // The first one's taken id is the error of a second.
    let error = restored_from(&image).unwrap_err();
    assert!(error.is_refusal() && error.to_string().contains("is taken by ready"), "{error}");
    kill(&restored);
}

/// Not a test of its own: has a thread that is process `TORPOR_TEST_ID` until its input ends.
#[test]
fn helper_with_an_id() {
    let Ok(id) = std::env::var("TORPOR_TEST_ID") else { return };
    let end = || std::io::Read::read(&mut std::io::stdin(), &mut [0]);
    as_process(id.parse().unwrap(), end).unwrap().unwrap();
}

#[test]
fn a_process_id_that_is_taken_after_the_check_is_named_in_the_error() {
    let _turn = TURN.lock();
    let folder = tempfile::tempdir().unwrap();
    let (image, ids) = imaged(folder.path());
    for id in &ids {
        let taker = std::cell::RefCell::new(None);
        let take = |step: RestoreStep| {
            if step == RestoreStep::Checked {
                let mut helper = Command::new(std::env::current_exe().unwrap());
                helper.args(["--exact", "helper_with_an_id"]).env("TORPOR_TEST_ID", id.to_string());
                taker.replace(Some(helper.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap()));
                soon("the id is taken", || Path::new(&format!("/proc/{id}")).exists());
            }
            Ok(())
        };
        let error =
            restore(Restore { image: &image, standard: [None, None, None], lock: None, late: None, faults: &take })
                .unwrap_err();
        let wanted = format!("process id {id} is taken by helper_with_an");
        assert!(error.is_refusal() && error.to_string().contains(&wanted), "{error}");
        ids.iter().filter(|other| *other != id).for_each(|id| nothing_left(*id));
        let mut taker = taker.take().unwrap();
        drop(taker.stdin.take());
        assert!(taker.wait().unwrap().success(), "it was disturbed");
        nothing_left(*id);
    }
    let restored = restored_from(&image).unwrap();
    kill(&restored);
}

/// A session whose leader has ended has its number still, and no process has it.
#[test]
fn a_session_that_has_the_process_id_is_named_in_the_error() {
    let _turn = TURN.lock();
    let folder = tempfile::tempdir().unwrap();
    let (image, ids) = imaged(folder.path());
    let taker = std::cell::RefCell::new(None);
    let take = |step: RestoreStep| {
        if step == RestoreStep::Checked {
            // The leader, with that id, makes a session, a child in it with a group of its own, and ends.
            let leader = || {
                rustix::process::setsid().unwrap();
                let mut command = Command::new("sleep");
                command.arg("99").stdin(Stdio::null()).process_group(0).spawn().unwrap().id()
            };
            taker.replace(Some(as_process(ids[0], leader).unwrap()));
        }
        Ok(())
    };
    let result =
        restore(Restore { image: &image, standard: [None, None, None], lock: None, late: None, faults: &take });
    let sleeper = Pid::from_raw(taker.take().unwrap() as i32).unwrap();
    rustix::process::kill_process(sleeper, rustix::process::Signal::KILL).unwrap();
    let error = result.unwrap_err();
    let wanted = format!("process id {} is taken by the session of process {}", ids[0], sleeper.as_raw_nonzero());
    assert!(error.is_refusal() && error.to_string().contains(&wanted), "{error}");
    ids.iter().for_each(|id| nothing_left(*id));
}

/// Not a test of its own: restores `TORPOR_TEST_IMAGE` and is killed at step `TORPOR_TEST_STEP`.
#[test]
fn helper_killed_at_a_step() {
    let (Ok(image), Ok(name)) = (std::env::var("TORPOR_TEST_IMAGE"), std::env::var("TORPOR_TEST_STEP")) else { return };
    let fault = |step: RestoreStep| {
        if step.name() == name {
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL).unwrap();
        }
        Ok(())
    };
    let result = restore(Restore {
        image: Path::new(&image),
        standard: [None, None, None],
        lock: None,
        late: None,
        faults: &fault,
    });
    eprintln!("{result:?}");
}

#[test]
fn killing_the_restorer_at_any_step_leaves_nothing() {
    let _turn = TURN.lock();
    let folder = tempfile::tempdir().unwrap();
    let (image, ids) = imaged(folder.path());
    for name in STEPS {
        let mut helper = Command::new(std::env::current_exe().unwrap());
        helper
            .args(["--exact", "helper_killed_at_a_step"])
            .env("TORPOR_TEST_IMAGE", &image)
            .env("TORPOR_TEST_STEP", name);
        let status = helper.stdout(Stdio::null()).status().unwrap();
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9), "{name}");
        ids.iter().for_each(|id| nothing_left(*id));
    }
    let restored = restored_from(&image).unwrap();
    kill(&restored);
}

#[test]
fn a_changed_byte_or_file_is_refused() {
    use std::os::unix::fs::FileExt;
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("sleeper");
    std::fs::copy("/bin/sleep", &program).unwrap();
    let mut child = start(Command::new(&program).arg("99"), "sleeper");
    let pid = child.id() as i32;
    let done = capture(&mut child, folder.path());
    let again = || restored_from(&done.image);
    let file = std::fs::OpenOptions::new().read(true).write(true).open(&done.image).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, 5000).unwrap();
    file.write_all_at(&[byte[0] ^ 1], 5000).unwrap();
    let error = again().unwrap_err();
    assert!(matches!(error, RestoreError::Format(..)), "{error:?}");
    nothing_left(pid);
    file.write_all_at(&byte, 5000).unwrap();
    std::fs::OpenOptions::new()
        .write(true)
        .open(&program)
        .unwrap()
        .set_times(std::fs::FileTimes::new().set_modified(std::time::SystemTime::now()))
        .unwrap();
    let error = again().unwrap_err();
    assert!(error.is_refusal() && error.to_string().contains("has been written to"), "{error}");
    nothing_left(pid);
}
