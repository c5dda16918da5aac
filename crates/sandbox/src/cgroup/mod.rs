//! The cgroups of one app, on machines with cgroup v1, v2 or both.
//!
//! An app has the group `/<parent>/<id>` in the v2 hierarchy, always: its core files freeze and kill without any
//! controller. Where a controller that is needed lives in a v1 hierarchy, the app has a group of the same name there.
//! In every other v1 hierarchy its processes are in `/<parent>`, so that they have left the daemon's own group
//! everywhere (systemd ends a service by its group). The sandboxes' inits and set-up processes are in the *support*
//! group: `/<parent>/support` in v2, `/<parent>` in v1. They stay out of the app's group because it freezes and has
//! limits.
//!
//! A crash leaves directories, perhaps with processes in them; [`Cgroup::at`] finds them again, [`Cgroup::kill`] and
//! [`Cgroup::remove`] clear them.

mod devices;
mod files;
mod hierarchies;

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use torpor_linux::spawn::send_signal;

pub(crate) use self::devices::DeviceGuard;
pub(crate) use self::files::make_directory as make_group;
use self::files::{read, read_number, wait_for_event, write};
pub use self::hierarchies::Hierarchies;
use crate::error::CgroupError;
use crate::process;
use crate::spec::Limits;

/// Period of CPU limits, in microseconds.
const CPU_PERIOD_US: u64 = 100_000;
/// How long killed processes may take to end.
const KILL_DEADLINE: Duration = Duration::from_secs(10);
/// How long processes may take to freeze before they are ended all the same.
const FREEZE_PATIENCE: Duration = Duration::from_secs(1);
/// So many processes are ended at a time: each takes a descriptor.
const DESCRIPTORS: usize = 256;
/// After this, signalled processes that have not ended are looked for again.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// How long a group whose processes are ending may refuse to go away.
const REMOVE_DEADLINE: Duration = Duration::from_secs(10);
/// Pause between attempts to remove it where no event tells: in v1, and while the kernel still sees a process that has ended.
const REMOVE_PAUSE: Duration = Duration::from_millis(1);
/// Processes and groups that are named where a group cannot be removed.
const SHOWN_USERS: usize = 5;
/// The groups of one app.
#[derive(Clone, Debug)]
pub struct Cgroup {
    /// Its group in the v2 hierarchy.
    core: PathBuf,
    /// Its groups in v1 hierarchies, each with what that hierarchy controls.
    legacy: Vec<(BTreeSet<String>, PathBuf)>,
    /// v1 groups that it shares with others.
    shared: Vec<PathBuf>,
}

impl Cgroup {
    /// Makes the groups (or takes those that still have processes as they are) and sets the limits. `devices` limits
    /// device nodes to the harmless ones ([`devices`]).
    /// Limits that this machine cannot enforce come back beside the groups.
    ///
    /// # Errors
    /// When a directory cannot be made or a limit is refused.
    pub fn create(
        hierarchies: &Hierarchies,
        parent: &str,
        id: &str,
        limits: &Limits,
        devices: bool,
    ) -> Result<(Self, Vec<CgroupError>), CgroupError> {
        let mut wanted = Vec::new();
        // Only for a limit: a group that counts memory costs 1 kB for every 64 file systems mounted on the whole machine (a
        // shrinker's bitmap), so that a thousand apps pay 110 kB each.
        wanted.extend(limits.memory_bytes.map(|_| "memory"));
        wanted.extend(limits.cpu_us_per_second.map(|_| "cpu"));
        wanted.extend(limits.processes.map(|_| "pids"));
        let mut unenforced = hierarchies.make_parent(parent, &wanted)?;
        let guard = if devices { Some(DeviceGuard::of(hierarchies)) } else { None };
        if let Some(Ok(DeviceGuard::Legacy)) = guard {
            wanted.push(devices::CONTROLLER);
        }
        let cgroup = Self::place(hierarchies, parent, id, |controllers| {
            wanted.iter().any(|&controller| controllers.contains(controller))
        });
        for path in cgroup.directories() {
            files::renew_directory(path)?;
        }
        cgroup.limit(limits)?;
        match guard {
            Some(Ok(guard)) => guard.put(&cgroup)?,
            Some(Err(nobody)) => unenforced.push(nobody),
            None => {}
        }
        Ok((cgroup, unenforced))
    }

    /// The groups of `id` as far as they are there now.
    pub fn at(hierarchies: &Hierarchies, parent: &str, id: &str) -> Self {
        let mut cgroup = Self::place(hierarchies, parent, id, |_| true);
        cgroup.legacy.retain(|(_, path)| path.is_dir());
        cgroup
    }

    fn place(hierarchies: &Hierarchies, parent: &str, id: &str, own: impl Fn(&BTreeSet<String>) -> bool) -> Self {
        let (mut legacy, mut shared) = (Vec::new(), Vec::new());
        for hierarchy in &hierarchies.legacy {
            if own(&hierarchy.controllers) && !hierarchy.needs_set_up() {
                legacy.push((hierarchy.controllers.clone(), hierarchy.mount.join(parent).join(id)));
            } else {
                shared.push(hierarchy.shared(parent));
            }
        }
        Self { core: hierarchies.core.join(parent).join(id), legacy, shared }
    }

    fn directories(&self) -> impl Iterator<Item = &Path> {
        [self.core.as_path()].into_iter().chain(self.legacy.iter().map(|(_, path)| path.as_path()))
    }

    /// The v1 group that `controller` controls.
    fn legacy(&self, controller: &str) -> Option<&Path> {
        self.legacy.iter().find(|(controllers, _)| controllers.contains(controller)).map(|(_, path)| path.as_path())
    }

    /// Its directory in the v2 hierarchy.
    pub fn core(&self) -> &Path {
        &self.core
    }

    /// The files to which a process's id is written to put it in, in order.
    pub fn procs_files(&self) -> Vec<PathBuf> {
        let shared = self.shared.iter().map(PathBuf::as_path);
        shared.chain(self.directories()).map(|path| path.join("cgroup.procs")).collect()
    }

    /// The `tasks` files of v1 groups: a process of one thread that writes `0` there is in within microseconds, where
    /// `cgroup.procs` makes it wait for all processors.
    pub fn tasks_files(&self) -> Vec<PathBuf> {
        let own = self.legacy.iter().map(|(_, path)| path.join("tasks"));
        self.shared.iter().map(|path| path.join("tasks")).chain(own).collect()
    }

    /// What programs inside may see of it: where under `/sys/fs/cgroup`, and which directory.
    pub(crate) fn visible(&self) -> Vec<(String, PathBuf)> {
        if self.legacy.is_empty() {
            return vec![(String::new(), self.core.clone())];
        }
        let name = |controllers: &BTreeSet<String>| controllers.iter().cloned().collect::<Vec<_>>().join(",");
        self.legacy.iter().map(|(controllers, path)| (name(controllers), path.clone())).collect()
    }

    fn limit(&self, limits: &Limits) -> Result<(), CgroupError> {
        if let Some(bytes) = limits.memory_bytes {
            self.limit_memory(bytes)?;
        }
        if let Some(share) = limits.cpu_us_per_second {
            let quota = share.saturating_mul(CPU_PERIOD_US) / 1_000_000;
            if let Some(group) = self.legacy("cpu") {
                write(&group.join("cpu.cfs_period_us"), &CPU_PERIOD_US.to_string())?;
                write(&group.join("cpu.cfs_quota_us"), &quota.to_string())?;
            } else {
                self.limit_core("cpu.max", &format!("{quota} {CPU_PERIOD_US}"))?;
            }
        }
        if limits.processes.is_some() {
            self.limit_processes(limits.processes)?;
        }
        Ok(())
    }

    /// Sets the limit of processes and threads, for a group that was made with one; none: no limit. Processes that are over it
    /// stay, and none can be added.
    ///
    /// # Errors
    /// When the group is gone.
    pub fn limit_processes(&self, count: Option<u32>) -> Result<(), CgroupError> {
        let text = count.map_or_else(|| "max".to_owned(), |count| count.to_string());
        match self.legacy("pids") {
            Some(group) => write(&group.join("pids.max"), &text),
            None => self.limit_core("pids.max", &text),
        }
    }

    fn limit_memory(&self, bytes: u64) -> Result<(), CgroupError> {
        let Some(group) = self.legacy("memory") else {
            self.limit_core("memory.max", &bytes.to_string())?;
            return self.limit_core("memory.swap.max", "0");
        };
        // The sum with swap may not be below the memory's, so the order depends on what was there before.
        let (limit, with_swap) = (group.join("memory.limit_in_bytes"), group.join("memory.memsw.limit_in_bytes"));
        if !with_swap.exists() {
            return write(&limit, &bytes.to_string());
        }
        let raised = read_number(&with_swap)?.is_some_and(|before| before < bytes);
        for path in if raised { [&with_swap, &limit] } else { [&limit, &with_swap] } {
            write(path, &bytes.to_string())?;
        }
        Ok(())
    }

    /// Writes a v2 limit; its file is missing where the controller is, which [`Hierarchies::make_parent`] has reported.
    fn limit_core(&self, file: &str, text: &str) -> Result<(), CgroupError> {
        let path = self.core.join(file);
        if path.exists() { write(&path, text) } else { Ok(()) }
    }

    /// Asks the kernel to freeze every process and thread; does not wait.
    ///
    /// # Errors
    /// When the group is gone.
    pub fn freeze_request(&self) -> Result<(), CgroupError> {
        write(&self.core.join("cgroup.freeze"), "1")
    }

    /// Freezes every process and thread and returns once all are frozen.
    ///
    /// # Errors
    /// `NotFrozen` after `deadline`; the request stands then, and [`Cgroup::thaw`] takes it back.
    pub fn freeze(&self, deadline: Duration) -> Result<(), CgroupError> {
        self.freeze_request()?;
        if self.wait_frozen(deadline)? {
            return Ok(());
        }
        Err(CgroupError::NotFrozen { path: self.core.clone(), after: deadline })
    }

    /// Waits until every process is frozen; false after `deadline`.
    ///
    /// # Errors
    /// When the group is gone.
    pub fn wait_frozen(&self, deadline: Duration) -> Result<bool, CgroupError> {
        wait_for_event(&self.core.join("cgroup.events"), "frozen 1", deadline)
    }

    /// Whether every process is frozen.
    ///
    /// # Errors
    /// When the group is gone.
    pub fn is_frozen(&self) -> Result<bool, CgroupError> {
        Ok(read(&self.core.join("cgroup.events"))?.lines().any(|line| line == "frozen 1"))
    }

    /// Lets everything run again.
    ///
    /// # Errors
    /// When the group is gone.
    pub fn thaw(&self) -> Result<(), CgroupError> {
        write(&self.core.join("cgroup.freeze"), "0")
    }

    /// Whether it has any process.
    ///
    /// # Errors
    /// When the group is gone.
    pub fn is_populated(&self) -> Result<bool, CgroupError> {
        Ok(read(&self.core.join("cgroup.events"))?.lines().any(|line| line == "populated 1"))
    }

    /// Ends every process, frozen and traced ones too, and returns once none is left, thawed: the group is to be used again.
    ///
    /// By signals, after it has been frozen. After a `cgroup.kill` the kernel (since 6.14, and 6.6 and 6.12 with their
    /// corrections) also kills every process that is made in the group with `CLONE_INTO_CGROUP` later: it compares the
    /// group's count of kills with that of its maker's group.
    ///
    /// # Errors
    /// `NotEmpty` if that takes more than ten seconds; when the group is gone.
    pub fn end_processes(&self) -> Result<(), CgroupError> {
        let started = Instant::now();
        // Nothing more is born, so one look finds all; a process that cannot freeze now is found by the next one.
        self.freeze(FREEZE_PATIENCE).or_else(|error| match error {
            CgroupError::NotFrozen { .. } => Ok(()),
            error => Err(error),
        })?;
        loop {
            self.signal_all()?;
            if wait_for_event(&self.core.join("cgroup.events"), "populated 0", LOOK_AGAIN)? {
                return self.thaw();
            }
            if started.elapsed() > KILL_DEADLINE {
                return Err(CgroupError::NotEmpty { path: self.core.clone(), after: KILL_DEADLINE });
            }
        }
    }

    /// Sends SIGKILL to every process that is there now.
    fn signal_all(&self) -> Result<(), CgroupError> {
        let failed = |source| CgroupError::File { doing: "ending the processes of", path: self.core.clone(), source };
        for pids in self.processes()?.chunks(DESCRIPTORS) {
            let open = |&pid: &i32| Some(process::open(pid).transpose()?.map(|pidfd| (pid, pidfd)));
            let held: Vec<(i32, OwnedFd)> = pids.iter().filter_map(open).collect::<io::Result<_>>().map_err(failed)?;
            // Whoever has the pid of one that has ended meanwhile is not in the group, or the descriptor is of the dead one.
            let still = self.processes()?;
            for (_, pidfd) in held.iter().filter(|(pid, _)| still.contains(pid)) {
                match send_signal(pidfd.as_fd(), libc::SIGKILL) {
                    Err(error) if error.raw_os_error() != Some(libc::ESRCH) => return Err(failed(error)),
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// Kills every process, frozen ones too, and returns once they have ended; the group is good for nothing but its removal
    /// afterwards ([`Cgroup::end_processes`]). Fine if the group is gone.
    ///
    /// # Errors
    /// `NotEmpty` if that takes more than ten seconds.
    pub fn kill(&self) -> Result<(), CgroupError> {
        let killed = write(&self.core.join("cgroup.kill"), "1")
            .and_then(|()| wait_for_event(&self.core.join("cgroup.events"), "populated 0", KILL_DEADLINE));
        match killed {
            Ok(true) => Ok(()),
            Ok(false) => Err(CgroupError::NotEmpty { path: self.core.clone(), after: KILL_DEADLINE }),
            Err(error) if error.is_gone() => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Process ids (not threads), as this process's pid namespace numbers them.
    ///
    /// # Errors
    /// When the group is gone.
    pub fn processes(&self) -> Result<Vec<i32>, CgroupError> {
        files::read_processes(&self.core.join("cgroup.procs"))
    }

    /// Memory charged to it, page cache and kernel memory included, in bytes; none where nothing counts it.
    ///
    /// # Errors
    /// When the group is gone.
    pub fn memory_bytes(&self) -> Result<Option<u64>, CgroupError> {
        match self.legacy("memory") {
            Some(group) => read_number(&group.join("memory.usage_in_bytes")),
            None => read_number(&self.core.join("memory.current")),
        }
    }

    /// Kernel memory charged to it, in bytes; none where nothing counts it.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub fn kernel_bytes(&self) -> Result<Option<u64>, CgroupError> {
        match self.legacy("memory") {
            Some(group) => read_number(&group.join("memory.kmem.usage_in_bytes")),
            None => files::read_field(&self.core.join("memory.stat"), "kernel"),
        }
    }

    /// CPU time that its processes have used, in microseconds.
    ///
    /// # Errors
    /// When the group is gone.
    pub fn cpu_us(&self) -> Result<u64, CgroupError> {
        let path = self.core.join("cpu.stat");
        let missing = || CgroupError::Content { path: path.clone(), text: "no usage_usec".to_owned() };
        files::read_field(&path, "usage_usec")?.ok_or_else(missing)
    }

    /// Processes that the kernel has killed for want of memory; 0 where nothing counts memory.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub fn oom_kills(&self) -> Result<u64, CgroupError> {
        let count = match self.legacy("memory") {
            Some(group) => files::read_field(&group.join("memory.oom_control"), "oom_kill")?,
            None => files::read_field(&self.core.join("memory.events"), "oom_kill")?,
        };
        Ok(count.unwrap_or_default())
    }

    /// Removes the groups, which must have no process. Fine if they are gone.
    ///
    /// # Errors
    /// When one still has processes.
    pub fn remove(&self) -> Result<(), CgroupError> {
        self.directories().try_for_each(remove_group)
    }
}

/// Reads a text as each file of a cgroup and as `mountinfo`: for fuzzing.
pub(crate) fn parse(text: &str) {
    files::parse(text);
    Hierarchies::parse(text);
}

/// Removes the directory of a group once its last process has ended; says who is in it where that does not come.
pub(crate) fn remove_group(path: &Path) -> Result<(), CgroupError> {
    let started = Instant::now();
    let events = path.join("cgroup.events");
    // Only v2 has them. Whether they come in time or not, removing tells.
    match wait_for_event(&events, "populated 0", REMOVE_DEADLINE) {
        Err(error) if !error.is_gone() => return Err(error),
        _ => {}
    }
    loop {
        match fs::remove_dir(path) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy && started.elapsed() < REMOVE_DEADLINE => {
                std::thread::sleep(REMOVE_PAUSE);
            }
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                let users = users(path);
                return Err(CgroupError::InUse { path: path.to_owned(), users, after: REMOVE_DEADLINE });
            }
            Err(source) => return Err(CgroupError::File { doing: "removing cgroup", path: path.to_owned(), source }),
        }
    }
}

/// The processes and groups in a group, in words.
fn users(path: &Path) -> String {
    let pids = fs::read_to_string(path.join("cgroup.procs")).unwrap_or_default();
    let pids = torpor_proc::numbers(&pids).unwrap_or_default();
    let mut found: Vec<String> =
        pids.into_iter().map(|pid| format!("process {pid} ({})", torpor_proc::name(pid))).collect();
    found.extend(groups_below(path).unwrap_or_default().iter().map(|name| format!("group {name}")));
    match found.len() {
        0 => "by something that ended in this moment".to_owned(),
        count @ 1..=SHOWN_USERS => found[..count].join(", "),
        count => format!("{} and {} more", found[..SHOWN_USERS].join(", "), count - SHOWN_USERS),
    }
}

/// Names of the groups in a group; none where it is gone.
fn groups_below(path: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory that looks like a v2 mount with these controllers, with the groups and files already there.
    fn machine(controllers: &str, files: &[&str]) -> (tempfile::TempDir, Hierarchies) {
        let root = tempfile::tempdir().unwrap();
        let app = root.path().join("torpor/app");
        fs::create_dir_all(&app).unwrap();
        for name in ["cgroup.subtree_control", "torpor/cgroup.subtree_control"] {
            fs::write(root.path().join(name), "").unwrap();
        }
        for name in files {
            fs::write(app.join(name), "").unwrap();
        }
        let hierarchies = Hierarchies::version_2(root.path(), controllers);
        (root, hierarchies)
    }

    const LIMITS: Limits = Limits {
        memory_bytes: Some(64 << 20),
        cpu_us_per_second: Some(500_000),
        processes: Some(20),
        open_files: None,
    };

    #[test]
    fn limits_of_version_2() {
        let files = ["memory.max", "memory.swap.max", "cpu.max", "pids.max"];
        let (root, hierarchies) = machine("cpuset cpu io memory pids", &files);
        let (cgroup, missing) = Cgroup::create(&hierarchies, "torpor", "app", &LIMITS, false).unwrap();
        assert!(missing.is_empty(), "{missing:?}");
        let content = |name: &str| fs::read_to_string(root.path().join(name)).unwrap();
        assert_eq!(content("torpor/app/memory.max"), "67108864");
        assert_eq!(content("torpor/app/memory.swap.max"), "0");
        assert_eq!(content("torpor/app/cpu.max"), "50000 100000");
        assert_eq!(content("torpor/app/pids.max"), "20");
        cgroup.limit_processes(None).unwrap();
        assert!(content("torpor/app/pids.max").starts_with("max"));
        for name in ["cgroup.subtree_control", "torpor/cgroup.subtree_control"] {
            // A plain file keeps what the last, shorter write did not replace.
            assert_eq!(content(name), "+pidsry");
        }
        assert_eq!(cgroup.procs_files(), [root.path().join("torpor/app/cgroup.procs")]);
        assert_eq!(cgroup.visible(), [(String::new(), root.path().join("torpor/app"))]);
        assert!(root.path().join("torpor/support").is_dir());
    }

    #[test]
    fn limits_that_cannot_be_enforced_are_named() {
        let (_root, hierarchies) = machine("memory", &["memory.max", "memory.swap.max"]);
        let (_, missing) = Cgroup::create(&hierarchies, "torpor", "app", &LIMITS, false).unwrap();
        let names: Vec<_> = missing.iter().map(ToString::to_string).collect();
        assert_eq!(names.len(), 2, "{names:?}");
        assert!(names[0].starts_with("the CPU limit cannot be enforced"), "{names:?}");
        assert!(names[1].starts_with("the process limit cannot be enforced"), "{names:?}");
        let (_, missing) = Cgroup::create(&hierarchies, "torpor", "app", &Limits::default(), false).unwrap();
        assert!(missing.is_empty(), "accounting alone is no promise: {missing:?}");
    }
}
