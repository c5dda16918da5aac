//! The freezer of these tests: a cgroup v2 directory that is frozen, thawed and emptied. It is the test's own, or that of a sandbox.

use std::fs;
use std::io::{self, Read, Seek};
use std::ops::Deref;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use torpor_engine::Freezer;
use torpor_sandbox::Sandbox;
use torpor_testkit::wait::SOON;

/// A cgroup that somebody else removes.
#[derive(Clone)]
pub struct CgroupFreezer<'a> {
    path: PathBuf,
    /// Ends the processes, and hears that they are back; a bare cgroup is killed.
    sandbox: Option<&'a Sandbox>,
}

impl<'a> CgroupFreezer<'a> {
    /// A bare cgroup.
    pub fn at(path: &Path) -> Self {
        Self { path: path.to_owned(), sandbox: None }
    }

    /// That of a sandbox.
    pub fn of(sandbox: &'a Sandbox) -> Self {
        Self { path: sandbox.cgroup().core().to_owned(), sandbox: Some(sandbox) }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Puts a process into it.
    pub fn add(&self, pid: u32) {
        fs::write(self.path.join("cgroup.procs"), pid.to_string()).unwrap();
    }

    pub fn is_frozen(&self) -> bool {
        fs::read_to_string(self.path.join("cgroup.events")).unwrap().contains("frozen 1")
    }

    fn set_frozen(&self, frozen: &str) -> io::Result<()> {
        fs::write(self.path.join("cgroup.freeze"), frozen)
    }

    /// Waits until `cgroup.events` has this line.
    fn wait_event(&self, line: &str) -> io::Result<()> {
        let deadline = Instant::now() + SOON;
        let mut events = fs::File::open(self.path.join("cgroup.events"))?;
        loop {
            let mut text = String::new();
            events.read_to_string(&mut text)?;
            if text.contains(line) {
                return Ok(());
            }
            let left = Timespec::try_from(deadline.saturating_duration_since(Instant::now())).unwrap();
            if poll(&mut [PollFd::new(&events, PollFlags::PRI)], Some(&left))? == 0 {
                return Err(io::Error::new(io::ErrorKind::TimedOut, format!("no `{line}` in {}", self.path.display())));
            }
            events.rewind()?;
        }
    }
}

impl Freezer for CgroupFreezer<'_> {
    fn freeze(&self) -> io::Result<()> {
        self.begin_freezing()?;
        self.wait_event("frozen 1")
    }

    fn begin_freezing(&self) -> io::Result<()> {
        self.set_frozen("1")
    }

    fn thaw(&self) -> io::Result<()> {
        self.set_frozen("0")
    }

    fn is_freezing(&self) -> io::Result<bool> {
        Ok(fs::read_to_string(self.path.join("cgroup.freeze"))?.trim() == "1")
    }

    fn processes(&self) -> io::Result<Vec<i32>> {
        Ok(fs::read_to_string(self.path.join("cgroup.procs"))?.lines().map(|pid| pid.parse().unwrap()).collect())
    }

    fn end_processes(&self) -> io::Result<()> {
        if let Some(sandbox) = self.sandbox {
            return sandbox.end_processes().map_err(io::Error::other);
        }
        fs::write(self.path.join("cgroup.kill"), "1")?;
        self.wait_event("populated 0")
    }

    fn processes_are_back(&self, initial: i32, process: OwnedFd) -> io::Result<()> {
        self.sandbox.map_or(Ok(()), |sandbox| sandbox.initial_is_back(initial, process).map_err(io::Error::other))
    }
}

/// A cgroup of the test's own, removed with everything in it when this is dropped.
pub struct OwnCgroup(CgroupFreezer<'static>);

impl OwnCgroup {
    pub fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let mount = mounts.lines().find(|line| line.contains(" - cgroup2 ")).expect("a cgroup v2 mount");
        let name = format!("torpor-engine-test-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = Path::new(mount.split(' ').nth(4).unwrap()).join(name);
        fs::create_dir(&path).unwrap();
        Self(CgroupFreezer::at(&path))
    }
}

impl Deref for OwnCgroup {
    type Target = CgroupFreezer<'static>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl Drop for OwnCgroup {
    fn drop(&mut self) {
        // The cgroup is busy until its last process is gone.
        let removed = self.end_processes().and_then(|()| fs::remove_dir(&self.path));
        if let Err(error) = removed {
            eprintln!("cgroup {} stays: {error}", self.path.display());
        }
    }
}
