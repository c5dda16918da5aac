//! An app's home for tests: namespaces with an init of their own, and a cgroup.
#![allow(dead_code, unreachable_pub, reason = "each test uses its part")]

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use torpor_engine::{
    Checkpoint, Faults, Freezer, Home, NoFaults, Phase, RestoreStep, Revive, ReviveError, Revived, Target, Timings,
    checkpoint, revive,
};

use super::{Group, Memory};

/// Waits for something that takes a moment.
pub fn soon(what: &str, mut is: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !is() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// When a process was started, in clock ticks since boot.
pub fn start_ticks(pid: i32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit_once(')').unwrap().1.split_ascii_whitespace().nth(19).unwrap().parse().unwrap()
}

/// Ends what is in it, as a sandbox would.
pub struct Lived(pub Group);

impl Freezer for Lived {
    fn freeze(&self) -> io::Result<()> {
        self.0.freeze()
    }

    fn thaw(&self) -> io::Result<()> {
        self.0.thaw()
    }

    fn is_freezing(&self) -> io::Result<bool> {
        self.0.is_freezing()
    }

    fn processes(&self) -> io::Result<Vec<i32>> {
        self.0.processes()
    }

    fn end_processes(&self) -> io::Result<()> {
        fs::write(self.0.path().join("cgroup.kill"), "1")?;
        soon("processes do not end", || self.processes().unwrap().is_empty());
        Ok(())
    }

    fn processes_are_back(&self, _: i32, _: OwnedFd) -> io::Result<()> {
        Ok(())
    }
}

/// Namespaces with an init that does nothing but reap, and a cgroup.
pub struct Place {
    unshare: Child,
    pub home: Home,
    pub group: Lived,
}

impl Place {
    pub fn new(initial: i32) -> Self {
        // The kernel reaps for whom ignores the ends of its children.
        let line = "import os, signal\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)\n\
                    os.system('ip link set lo up')\nos.execvp('sleep', ['sleep', '600'])";
        let mut command = Command::new("unshare");
        command.args(["--pid", "--net", "--ipc", "--uts", "--mount", "--fork", "--kill-child", "python3", "-c", line]);
        let unshare = command.spawn().unwrap();
        let path = format!("/proc/{0}/task/{0}/children", unshare.id());
        let mut init_pid = 0;
        soon("init does not come", || {
            init_pid = fs::read_to_string(&path).unwrap().trim().parse().unwrap_or(0);
            fs::read_to_string(format!("/proc/{init_pid}/comm")).is_ok_and(|name| name.trim() == "sleep")
        });
        let group = Lived(Group::new());
        let home = Home {
            init: pidfd_open(Pid::from_raw(init_pid).unwrap(), PidfdFlags::empty()).unwrap(),
            init_pid,
            init_start_ticks: start_ticks(init_pid),
            initial,
            cgroup: group.0.path().to_owned(),
            tasks: Vec::new(),
            user_namespace: None,
            time_namespace: false,
        };
        Self { unshare, home, group }
    }

    pub fn revive(&self, image: &Path, given: BTreeMap<u32, OwnedFd>, faults: &dyn Faults) -> Outcome {
        let journal = Memory::new();
        journal.0.lock().map(|mut phase| *phase = WARM).unwrap();
        let target = Target { app: 0, boot: boot(), freezer: &self.group, journal: &journal, faults };
        let given: BTreeMap<_, _> = given.into_iter().map(|(id, fd)| (id, fd.into())).collect();
        let request = Revive { home: &self.home, image, generation: 0, given: Box::new(move || Ok(given)) };
        let (result, timings) = revive(&target, request);
        Outcome { result, timings, phase: journal.phase() }
    }

    pub fn is_empty(&self) -> bool {
        let path = format!("/proc/{0}/task/{0}/children", self.home.init_pid);
        fs::read_to_string(path).unwrap().is_empty() && self.group.processes().unwrap().is_empty()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_raw(self.home.init_pid).unwrap(), Signal::KILL);
        let _ = self.unshare.wait();
    }
}

pub const WARM: Phase = Phase::Warm { generation: 0, wake_at: None };

pub struct Outcome {
    pub result: Result<Revived, ReviveError>,
    pub timings: Timings<RestoreStep>,
    pub phase: Phase,
}

pub fn boot() -> [u64; 2] {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    [0..16, 16..32].map(|range| u64::from_str_radix(&digits[range], 16).unwrap())
}

/// A program that leads its session, without the descriptors of whoever runs the tests, that has given itself this name; as
/// an image.
pub fn imaged(line: &str, name: &str, folder: &Path) -> (PathBuf, i32) {
    let close = "for f in /proc/self/fd/*; do n=${f##*/}; [ $n -gt 2 ] && eval \"exec $n>&-\"; done; eval \"exec $1\"";
    let mut command = Command::new("setsid");
    let file = || Stdio::from(fs::File::open("/etc/passwd").unwrap());
    let mut child =
        command.args(["bash", "-c", close, "bash", line]).stdin(file()).stdout(file()).stderr(file()).spawn().unwrap();
    let pid = child.id() as i32;
    let path = format!("/proc/{pid}/comm");
    soon(name, || fs::read_to_string(&path).is_ok_and(|found| found.trim() == name));
    std::thread::sleep(Duration::from_millis(50));
    let done = checkpoint(&Checkpoint {
        pid,
        folder: &folder.join("image"),
        leave_running: false,
        lock: None,
        faults: &NoFaults,
    });
    let done = done.unwrap_or_else(|error| panic!("{error:#?}"));
    let _ = child.wait();
    (done.image, pid)
}
