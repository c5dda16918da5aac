//! What the tests of the engine share. They need root and a cgroup v2 mount.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    reason = "each test uses its part; a test fails by panicking"
)]

pub mod dozing;
pub mod freezer;
pub mod home;
pub mod journal;
pub mod process;

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Command, Stdio};

use torpor_engine::{Fault, Faults, Step};

use freezer::OwnCgroup;

/// A program in a cgroup.
pub struct Program {
    pub child: Child,
    pub cgroup: OwnCgroup,
}

impl Program {
    /// Starts `command` and waits for its first line of output, which is returned too.
    pub fn start(command: &Command) -> (Self, String) {
        let (program, output) = Self::start_unread(command);
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line).unwrap();
        (program, line.trim().to_owned())
    }

    /// Starts `command`, which is in the cgroup from its first instruction on, and returns its output.
    pub fn start_unread(command: &Command) -> (Self, ChildStdout) {
        let cgroup = OwnCgroup::new();
        // A shell enters the cgroup and becomes the program.
        let mut shell = Command::new("sh");
        shell.args(["-c", "echo $$ > \"$0\" && exec \"$@\""]).arg(cgroup.path().join("cgroup.procs"));
        shell.arg(command.get_program()).args(command.get_args());
        let mut child = shell.stdout(Stdio::piped()).process_group(0).spawn().unwrap();
        let output = child.stdout.take().unwrap();
        (Self { child, cgroup }, output)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Fails at a step.
pub struct FailAt(pub Step);

impl Faults for FailAt {
    fn reached(&self, step: Step) -> Result<(), Fault> {
        if step == self.0 { Err(Fault(step)) } else { Ok(()) }
    }
}

/// This boot, as images have it.
pub fn boot() -> [u64; 2] {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    [0..16, 16..32].map(|range| u64::from_str_radix(&digits[range], 16).unwrap())
}

/// When a process was started, in clock ticks since boot.
pub fn start_ticks(pid: i32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit_once(')').unwrap().1.split_ascii_whitespace().nth(19).unwrap().parse().unwrap()
}

/// Private resident memory of a process, kB, from the kernel.
pub fn private_kb(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
    let line = text.lines().find(|line| line.starts_with("Anonymous:")).unwrap();
    line.split_ascii_whitespace().nth(1).unwrap().parse().unwrap()
}
