//! Whoever captures a program is killed at any moment: the program goes on as if nothing had been.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::fs;
use std::io::{BufRead, BufReader, Write, stdin};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use common::Group;
use rustix::process::{Pid, Signal, kill_process};
use torpor_engine::{Checkpoint, Freezer, NoFaults, checkpoint};
use torpor_linux::ptrace::{Seized, Tracee};

/// Threads that compute, sleep, wait and read, and one that looks whether all get on. None takes a signal, for as many as
/// the argument says there is a handler that ends all.
const SOURCE: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
static volatile unsigned long count[5];
static int ends[2];
static const struct timespec PAUSE = {0, 3000000};
static double work(unsigned long *sum) {
    double x = 0.3, y = 0.7; unsigned long n = 1;
    for (int i = 0; i < 20000; i++) {
        x = 3.9 * x * (1 - x); y = 3.8 * y * (1 - y);
        n ^= n << 13; n ^= n >> 7; n ^= n << 17; if (n & 1) n += i;
    }
    *sum = n; return x + y;
}
static void *compute(void *a) {
    unsigned long first, next; double was = work(&first);
    for (;; count[0]++) if (work(&next) != was || next != first) _exit(10);
}
static void *sleeps(void *a) { for (;; count[1]++) if (nanosleep(&PAUSE, 0)) _exit(11); }
static void *waits(void *a) {
    static int word;
    for (;; count[2]++)
        if (syscall(SYS_futex, &word, FUTEX_WAIT, 0, &PAUSE, 0, 0) != -1 || errno != ETIMEDOUT) _exit(12);
}
static void *reads(void *a) { char c; for (;; count[3]++) if (read(ends[0], &c, 1) != 1) _exit(13); }
static void *writes(void *a) {
    for (;; count[4]++) { if (nanosleep(&PAUSE, 0)) _exit(14); if (write(ends[1], "x", 1) != 1) _exit(15); }
}
static void takes(int signal) { _exit(30); }
int main(int argc, char **argv) {
    const int signals[] = {SIGURG, SIGWINCH, SIGCHLD, SIGPIPE, SIGHUP, SIGUSR1, SIGUSR2, SIGALRM};
    for (int i = 0; i < atoi(argv[1]); i++) signal(signals[i], takes);
    void *(*all[5])(void *) = {compute, sleeps, waits, reads, writes};
    unsigned long before[5] = {0}; pthread_t thread;
    if (pipe(ends)) return 1;
    for (int i = 0; i < 5; i++) if (pthread_create(&thread, 0, all[i], 0)) return 1;
    for (;;) {
        struct timespec long_time = {2, 0};
        if (nanosleep(&long_time, 0)) _exit(16);
        for (int i = 0; i < 5; i++) { if (count[i] == before[i]) _exit(20 + i); before[i] = count[i]; }
    }
}
"#;

struct Program(Child);

impl Program {
    fn start(folder: &Path, handlers: u32) -> Self {
        let (source, program) = (folder.join("a.c"), folder.join("a"));
        fs::write(&source, SOURCE).unwrap();
        let built = Command::new("gcc").args(["-O2", "-pthread", "-o"]).arg(&program).arg(&source).status().unwrap();
        assert!(built.success());
        let close = "for f in /proc/self/fd/*; do n=${f##*/}; [ $n -gt 2 ] && eval \"exec $n>&-\"; done; exec \"$@\"";
        let mut command = Command::new("bash");
        command.args(["-c", close, "bash"]).arg(&program).arg(handlers.to_string());
        let file = || Stdio::from(fs::File::open("/etc/passwd").unwrap());
        let child = command.stdin(file()).stdout(file()).stderr(file()).spawn().unwrap();
        let threads = || fs::read_dir(format!("/proc/{}/task", child.id())).unwrap().count();
        while threads() < 6 {
            std::thread::sleep(Duration::from_millis(5));
        }
        Self(child)
    }

    fn check(&mut self, when: &str) {
        assert_eq!(self.0.try_wait().unwrap(), None, "{when}");
        for thread in fs::read_dir(format!("/proc/{}/task", self.0.id())).unwrap() {
            let status = thread.unwrap().path().join("status");
            let unblocked = || fs::read_to_string(&status).unwrap().contains("SigBlk:\t0000000000000000");
            let soon = (0..1000).any(|_| {
                unblocked() || {
                    std::thread::sleep(Duration::from_millis(1));
                    false
                }
            });
            assert!(soon, "{} {when}", status.display());
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
fn captures() {
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
    command.args(["--exact", "captures", "--nocapture", "--test-threads=1"]);
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
fn a_program_outlives_whoever_captures_it() {
    outlives(1);
}

#[test]
fn one_that_takes_all_signals_does_too() {
    outlives(8);
}

fn outlives(handlers: u32) {
    let folder = tempfile::tempdir().unwrap();
    let mut program = Program::start(folder.path(), handlers);
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

/// Lets whoever captures go on to where he lets a thread run for the `wanted`-th time, which it does not yet, as its group is
/// frozen; `false`: there are not so many.
fn let_run(tracee: &Tracee, group: &Group, wanted: usize) -> bool {
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
fn a_thread_makes_its_calls_without_whoever_wanted_them() {
    let folder = tempfile::tempdir().unwrap();
    let mut program = Program::start(folder.path(), 1);
    let group = Group::new();
    fs::write(group.path().join("cgroup.procs"), program.0.id().to_string()).unwrap();
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
fn a_stop_that_comes_meanwhile_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let mut program = Program::start(folder.path(), 1);
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
        assert!(image.join(torpor_engine::IMAGE_NAME).exists(), "after {calls} calls");
        fs::remove_dir_all(image).unwrap();
        let is_stopped = || fs::read_to_string(format!("/proc/{pid}/stat")).unwrap().contains(") T ");
        let soon = (0..1000).any(|_| {
            is_stopped() || {
                std::thread::sleep(Duration::from_millis(1));
                false
            }
        });
        assert!(soon, "after {calls} calls");
        kill_process(program_id, Signal::CONT).unwrap();
        program.check(&format!("stopped after {calls} calls"));
        if made < calls {
            break;
        }
    }
}
