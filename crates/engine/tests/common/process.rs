//! Programs that are captured and restored without a sandbox.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use rustix::process::{Pid, WaitOptions, waitpid};
use torpor_engine::{Checkpoint, Checkpointed, NoFaults, Restore, RestoreError, Restored, checkpoint, restore};
use torpor_testkit::programs::{only_standard_descriptors, python};
use torpor_testkit::wait::soon;

/// Exit status of a program of `captured.py` that finds everything as it was.
pub const UNCHANGED: i32 = 7;

/// Starts a command without the descriptors of the test, and waits until it calls itself `name` and waits for something.
pub fn start(command: &Command, name: &str) -> Child {
    let child = only_standard_descriptors(command).spawn().unwrap();
    wait_named(child.id(), name);
    child
}

/// Starts a Python program that calls itself `ready`, with `directory` as its argument.
pub fn start_python(program: &str, directory: &Path) -> Child {
    start(python(program).arg(directory), "ready")
}

/// Waits until the process has this name and its first thread waits for something.
pub fn wait_named(pid: u32, name: &str) {
    soon(&format!("`{name}` waits"), || {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.contains(&format!(" ({name}) S "))
    });
}

/// Captures a program, which ends, into `directory/image`.
pub fn capture(child: &mut Child, directory: &Path) -> Checkpointed {
    let (pid, folder) = (child.id() as i32, directory.join("image"));
    let done = checkpoint(&Checkpoint { pid, folder: &folder, leave_running: false, lock: None, faults: &NoFaults });
    let done = done.unwrap_or_else(|error| panic!("{error:#?}"));
    // The tracer that ended it may have reaped it.
    let _ = child.wait();
    done
}

/// Restores an image.
pub fn restored(image: &Path) -> Result<Restored, RestoreError> {
    restore(Restore { image, standard: [None, None, None], lock: None, late: None, faults: &|_| Ok(()) })
}

/// Lets a program of `captured.py` go on that waits to be restored.
pub fn let_go_on(directory: &Path) {
    fs::write(directory.join("go"), "").unwrap();
}

/// What a program of `captured.py` reports.
pub fn report(directory: &Path) -> String {
    let path: PathBuf = directory.join("result");
    soon("the program reports", || path.exists());
    fs::read_to_string(path).unwrap()
}

/// Waits for the end of a restored process, which is a child of this one; its exit status.
pub fn exit_status(pid: i32) -> Option<i32> {
    waitpid(Pid::from_raw(pid), WaitOptions::empty()).unwrap().unwrap().1.exit_status()
}
