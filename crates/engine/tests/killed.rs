//! The process that captures a program is killed at any moment: the program goes on as if nothing had happened.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::fs;
use std::io::{BufRead, BufReader, Write, stdin};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use common::freezer::{CgroupFreezer, OwnCgroup};
use rustix::process::{Pid, Signal, kill_process};
use torpor_engine::{Checkpoint, Freezer, NoFaults, checkpoint};
use torpor_linux::ptrace::{Seized, Tracee};
use torpor_testkit::native;
use torpor_testkit::programs::only_standard_descriptors;
use torpor_testkit::wait::soon;

/// `interrupted`, with handlers for this many signals.
struct Program(Child);

impl Program {
    fn start(handlers: u32) -> Self {
        let mut command = Command::new(native::executable("interrupted").unwrap());
        let child = only_standard_descriptors(command.arg(handlers.to_string())).spawn().unwrap();
        let threads = || fs::read_dir(format!("/proc/{}/task", child.id())).unwrap().count();
        soon("all threads run", || threads() == 6);
        Self(child)
    }

    fn check(&mut self, when: &str) {
        assert_eq!(self.0.try_wait().unwrap(), None, "{when}");
        for thread in fs::read_dir(format!("/proc/{}/task", self.0.id())).unwrap() {
            let status = thread.unwrap().path().join("status");
            let unblocked = || fs::read_to_string(&status).unwrap().contains("SigBlk:\t0000000000000000");
            soon(&format!("no signal is blocked by {} {when}", status.display()), unblocked);
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Not a test of its own: the process that captures, and is killed.
#[test]
fn helper_that_captures() {
    let (Ok(pid), Ok(folder)) = (std::env::var("TORPOR_TEST_PID"), std::env::var("TORPOR_TEST_FOLDER")) else { return };
    println!("\ntid {}", rustix::thread::gettid().as_raw_nonzero());
    stdin().lock().read_line(&mut String::new()).unwrap();
    let request = Checkpoint {
        pid: pid.parse().unwrap(),
        folder: folder.as_ref(),
        leave_running: true,
        lock: None,
        faults: &NoFaults,
    };
    checkpoint(&request).unwrap();
}

/// Starts to capture the program; gives the thread that does.
fn capturing(pid: u32, folder: &Path) -> (Child, i32) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "helper_that_captures", "--nocapture", "--test-threads=1"]);
    command.env("TORPOR_TEST_PID", pid.to_string()).env("TORPOR_TEST_FOLDER", folder.join("image"));
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let tid = lines.map_while(Result::ok).find_map(|line| line.strip_prefix("tid ")?.parse().ok());
    (child, tid.unwrap())
}

/// Starts to capture the program; the thread that does stands before its first call for that.
fn held(pid: u32, folder: &Path) -> (Child, Tracee) {
    let (mut child, tid) = capturing(pid, folder);
    let tracee = Seized::seize(tid).unwrap().stopped().unwrap();
    tracee.set_signal_mask(u64::MAX).unwrap();
    child.stdin.take().unwrap().write_all(b"\n").unwrap();
    (child, tracee)
}

#[test]
fn a_program_survives_the_death_of_its_captor_at_any_moment() {
    survives(1);
}

#[test]
fn a_program_with_handlers_for_all_signals_survives_the_death_of_its_captor() {
    survives(8);
}

fn survives(handlers: u32) {
    let folder = tempfile::tempdir().unwrap();
    let mut program = Program::start(handlers);
    let pid = program.0.id();
    // After each so many system calls of the one who captures; 1 for all of them.
    let every: usize = std::env::var("TORPOR_TEST_EVERY").map_or(23, |every| every.parse().unwrap());
    for calls in (0..).step_by(every) {
        let (mut child, tracee) = held(pid, folder.path());
        let made = (0..calls).take_while(|_| tracee.make_call().is_ok()).count();
        child.kill().unwrap();
        drop(tracee);
        child.wait().unwrap();
        program.check(&format!("after {calls} calls"));
        if made < calls {
            eprintln!("killed until call {made}");
            break;
        }
    }
    for n in 0..50 {
        let (mut child, _) = capturing(pid, folder.path());
        child.stdin.take().unwrap().write_all(b"\n").unwrap();
        std::thread::sleep(Duration::from_micros(n * 300));
        child.kill().unwrap();
        child.wait().unwrap();
        program.check(&format!("after {n} delays"));
    }
    std::thread::sleep(Duration::from_secs(5));
    program.check("at last");
    let image = folder.path().join("last");
    checkpoint(&Checkpoint { pid: pid as i32, folder: &image, leave_running: true, lock: None, faults: &NoFaults })
        .unwrap();
    program.check("captured");
}

/// Lets the captor go on to where it lets a thread run for the `wanted`-th time, which it does not yet, as its group is
/// frozen; `false`: there are not so many.
fn let_run(tracee: &Tracee, group: &CgroupFreezer<'_>, wanted: usize) -> bool {
    const PTRACE: u64 = 101;
    const CONTINUE: u64 = 7;
    const SET_REGISTERS: u64 = 0x4205;
    let made = || tracee.make_call().ok().and_then(|()| tracee.registers().ok());
    let asked = |request: u64, found: &torpor_linux::registers::Registers| {
        found.call() == Some(PTRACE) && found.argument(0) == request
    };
    let mut count = 0;
    while let Some(found) = made() {
        if !asked(SET_REGISTERS, &found) || !stopped(found.argument(1)) {
            continue;
        }
        group.freeze().unwrap();
        let Some(next) = made() else { return false };
        count += usize::from(asked(CONTINUE, &next));
        if asked(CONTINUE, &next) && count > wanted {
            return true;
        }
        group.thaw().unwrap();
    }
    false
}

/// All threads of this one's process are stopped.
fn stopped(tid: u64) -> bool {
    let threads = fs::read_dir(format!("/proc/{tid}/task")).unwrap();
    threads
        .map(|thread| thread.unwrap().path().join("stat"))
        .all(|stat| fs::read_to_string(stat).unwrap().contains(") t "))
}

#[test]
fn a_thread_survives_the_death_of_its_captor_before_each_list_of_calls() {
    let folder = tempfile::tempdir().unwrap();
    let mut program = Program::start(1);
    let group = OwnCgroup::new();
    group.add(program.0.id());
    for wanted in 0.. {
        let (mut child, tracee) = held(program.0.id(), folder.path());
        let found = let_run(&tracee, &group, wanted);
        child.kill().unwrap();
        drop(tracee);
        child.wait().unwrap();
        group.thaw().unwrap();
        program.check(&format!("killed with the calls of list {wanted} before it"));
        if !found {
            eprintln!("{wanted} times");
            // It maps, it unmaps, and each of the six threads has a list.
            assert!(wanted >= 8, "{wanted}");
            break;
        }
    }
}

#[test]
fn a_stop_signal_that_comes_during_a_capture_takes_effect() {
    let folder = tempfile::tempdir().unwrap();
    let mut program = Program::start(1);
    let pid = program.0.id() as i32;
    let every: usize = std::env::var("TORPOR_TEST_EVERY").map_or(41, |every| every.parse().unwrap());
    for calls in (0..).step_by(every) {
        let (mut child, tracee) = held(pid as u32, folder.path());
        let made = (0..calls).take_while(|_| tracee.make_call().is_ok()).count();
        let program_id = Pid::from_raw(pid).unwrap();
        kill_process(program_id, Signal::STOP).unwrap();
        drop(tracee);
        child.wait().unwrap();
        let image = folder.path().join("image");
        assert!(image.join(torpor_store::IMAGE_NAME).exists(), "after {calls} calls");
        fs::remove_dir_all(image).unwrap();
        let is_stopped = || fs::read_to_string(format!("/proc/{pid}/stat")).unwrap().contains(") T ");
        soon(&format!("it is stopped after {calls} calls"), is_stopped);
        kill_process(program_id, Signal::CONT).unwrap();
        program.check(&format!("stopped after {calls} calls"));
        if made < calls {
            break;
        }
    }
}
