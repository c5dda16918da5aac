//! The reading ends of a program's output outlive everybody outside who had them: init holds them.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;

use common::{Machine, PATIENCE, null, pipe};
use torpor_sandbox::{ExitStatus, Sandbox};

/// Ends with 3 or 4 when it cannot write, to the one or the other.
const TICKS: &str = "trap '' PIPE; while :; do echo tick || exit 3; echo tock >&2 || exit 4; sleep 0.05; done";

fn line(stream: impl Into<File>) -> String {
    let mut line = String::new();
    BufReader::new(stream.into()).read_line(&mut line).unwrap();
    line
}

#[test]
fn output_that_only_init_holds_is_found_again() {
    let machine = Machine::new();
    let app = machine.app(TICKS);
    let ((out, out_end), (err, err_end)) = (pipe(), pipe());
    let held = Some([out.as_fd(), err.as_fd()]);
    let prepared = Sandbox::prepare(&machine.launcher, &app.spec, [null(), out_end, err_end], held).unwrap();
    let sandbox = prepared.start().unwrap();
    let record = sandbox.record().clone();
    assert_eq!(line(out), "tick\n");
    drop((sandbox, err));
    // Whoever has the record finds them, more than once.
    for _ in 0..2 {
        let sandbox = Sandbox::adopt(machine.launcher.hierarchies(), record.clone()).unwrap();
        let [out, err] = sandbox.output().unwrap().unwrap();
        assert_eq!((line(out).as_str(), line(err).as_str()), ("tick\n", "tock\n"));
    }
    let sandbox = Sandbox::adopt(machine.launcher.hierarchies(), record).unwrap();
    let descriptors = fs::read_dir(format!("/proc/{}/fd", sandbox.init_pid())).unwrap().count();
    assert_eq!(descriptors, 5, "the status file, the output, and the ends of the deposit");
    let [out, _err] = sandbox.output().unwrap().unwrap();
    sandbox.signal(9).unwrap();
    assert_eq!(sandbox.wait(Some(PATIENCE)).unwrap(), Some(ExitStatus::Signaled(9)));
    // Nobody but its processes kept the writing ends.
    let rest: Vec<String> = BufReader::new(File::from(out)).lines().map(Result::unwrap).collect();
    assert!(rest.iter().all(|line| line == "tick"), "{rest:?}");
    assert!(sandbox.output().is_err());
    sandbox.destroy().unwrap();
    app.assert_nothing_left();
}

#[test]
fn a_sandbox_that_was_given_none_has_none() {
    let machine = Machine::new();
    let app = machine.app(TICKS);
    let mut running = app.start().unwrap();
    running.expect_line("tick");
    assert!(running.sandbox.output().unwrap().is_none());
    drop(running.output);
    let ended = running.sandbox.wait(Some(PATIENCE)).unwrap();
    assert!(matches!(ended, Some(ExitStatus::Exited(3 | 4))), "{ended:?}");
    running.sandbox.destroy().unwrap();
}
