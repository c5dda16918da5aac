//! Real processes through an image and back.

use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, WaitOptions, waitpid};
use torpor_engine::{Checkpoint, NoFaults, Restore, Restored, checkpoint, restore};

/// A program without the descriptors of whoever runs the tests.
fn start(line: &str) -> Child {
    let close = "for f in /proc/self/fd/*; do n=${f##*/}; [ $n -gt 2 ] && eval \"exec $n>&-\"; done; eval \"exec $1\"";
    let mut command = Command::new("bash");
    let child = command.args(["-c", close, "bash", line]);
    child.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

fn through(mut child: Child) -> Restored {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("image");
    std::thread::sleep(std::time::Duration::from_millis(150));
    let pid = child.id() as i32;
    let done = checkpoint(&Checkpoint { pid, folder: &folder, leave_running: false, faults: &NoFaults });
    let done = done.unwrap_or_else(|error| panic!("{error:#?}"));
    eprintln!("checkpoint {:?}", done.timings.steps());
    // The tracer that ended it may have been the one to wait for it.
    let _ = child.wait();
    let restored = restore(Restore { image: &done.image, standard: [None, None, None], faults: &|_| Ok(()) });
    let restored = restored.unwrap_or_else(|error| panic!("{error:#?}"));
    eprintln!("{restored:?} {}", restored.timings.total_us());
    restored
}

fn status(pid: i32) -> Option<i32> {
    waitpid(Pid::from_raw(pid), WaitOptions::empty()).unwrap().unwrap().1.exit_status()
}

#[test]
fn sleep_goes_on() {
    let restored = through(start("sleep 1"));
    assert_eq!(status(restored.pid), Some(0));
}
