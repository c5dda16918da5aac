//! A cgroup with a program in it, for tests of the engine alone. Needs root and a cgroup v2 mount.
#![allow(dead_code, unreachable_pub, reason = "each test uses its part")]

pub mod home;

use std::fs;
use std::io::{self, BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::event::{PollFd, PollFlags, poll};
use torpor_engine::{Freezer, Journal, Phase};

static COUNT: AtomicU32 = AtomicU32::new(0);

/// A cgroup of our own.
pub struct Group(PathBuf);

impl Group {
    pub fn new() -> Self {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let mount = mounts.lines().find(|line| line.contains(" - cgroup2 ")).expect("a cgroup v2 mount");
        let name = format!("torpor-engine-test-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = Path::new(mount.split(' ').nth(4).unwrap()).join(name);
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    /// One that is there, and is whoever made it's to remove.
    pub fn at(path: &Path) -> std::mem::ManuallyDrop<Self> {
        std::mem::ManuallyDrop::new(Self(path.to_owned()))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    fn set_frozen(&self, frozen: &str) -> io::Result<()> {
        fs::write(self.0.join("cgroup.freeze"), frozen)
    }

    pub fn is_frozen(&self) -> bool {
        fs::read_to_string(self.0.join("cgroup.events")).unwrap().contains("frozen 1")
    }
}

impl Freezer for Group {
    fn freeze(&self) -> io::Result<()> {
        self.set_frozen("1")?;
        let events = fs::File::open(self.0.join("cgroup.events"))?;
        loop {
            let mut text = String::new();
            io::Read::read_to_string(&mut BufReader::new(&events), &mut text)?;
            if text.contains("frozen 1") {
                return Ok(());
            }
            poll(&mut [PollFd::new(&events, PollFlags::PRI)], None)?;
            io::Seek::rewind(&mut &events)?;
        }
    }

    fn thaw(&self) -> io::Result<()> {
        self.set_frozen("0")
    }

    fn is_freezing(&self) -> io::Result<bool> {
        Ok(fs::read_to_string(self.0.join("cgroup.freeze"))?.trim() == "1")
    }

    fn processes(&self) -> io::Result<Vec<i32>> {
        Ok(fs::read_to_string(self.0.join("cgroup.procs"))?.lines().map(|pid| pid.parse().unwrap()).collect())
    }

    fn end_processes(&self) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn processes_are_back(&self, _: i32, _: OwnedFd) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::write(self.0.join("cgroup.kill"), "1");
        // The group is busy until the last process has gone, which `cgroup.events` tells.
        if let Ok(events) = fs::File::open(self.0.join("cgroup.events")) {
            for _ in 0..100 {
                if fs::read_to_string(self.0.join("cgroup.events")).is_ok_and(|text| text.contains("populated 0")) {
                    break;
                }
                let second = rustix::event::Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
                let _ = poll(&mut [PollFd::new(&events, PollFlags::PRI)], Some(&second));
            }
        }
        if let Err(error) = fs::remove_dir(&self.0) {
            eprintln!("cgroup {} stays: {error}", self.0.display());
        }
    }
}

/// A journal in memory.
pub struct Memory(pub Mutex<Phase>);

impl Memory {
    pub fn new() -> Self {
        Self(Mutex::new(Phase::Awake))
    }

    pub fn phase(&self) -> Phase {
        *self.0.lock().unwrap()
    }
}

impl Journal for Memory {
    fn record(&self, phase: Phase) -> io::Result<()> {
        *self.0.lock().unwrap() = phase;
        Ok(())
    }
}

/// A program in a cgroup.
pub struct Program {
    pub child: Child,
    pub group: Group,
}

impl Program {
    /// Starts `command` and waits for its first line of output, which is given back too.
    pub fn start(command: &mut Command) -> (Self, String) {
        let (program, output) = Self::start_unread(command);
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line).unwrap();
        (program, line.trim().to_owned())
    }

    /// Starts `command`, all of it in the group from its first instruction on, and gives its output.
    pub fn start_unread(command: &mut Command) -> (Self, ChildStdout) {
        let group = Group::new();
        // A shell enters the group and becomes the program.
        let mut shell = Command::new("sh");
        shell.args(["-c", "echo $$ > \"$0\" && exec \"$@\""]).arg(group.0.join("cgroup.procs"));
        shell.arg(command.get_program()).args(command.get_args());
        let mut child = shell.stdout(Stdio::piped()).process_group(0).spawn().unwrap();
        let output = child.stdout.take().unwrap();
        (Self { child, group }, output)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Private resident memory of a process, kB, from the kernel.
pub fn private_kb(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
    let line = text.lines().find(|line| line.starts_with("Anonymous:")).unwrap();
    line.split_ascii_whitespace().nth(1).unwrap().parse().unwrap()
}
