//! Which cgroup hierarchies this machine mounts, and the groups that all apps share.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use rustix::mount::MountFlags;
use torpor_proc::mounts::{self, Mount};

use super::files::{self, make_directory, read, read_field, read_number, write};
use super::{Cgroup, groups_below, remove_group};
use crate::error::CgroupError;
use crate::spec::check_name;

/// Everything that can control in a v1 hierarchy; other mount options are not controllers.
const LEGACY_CONTROLLERS: [&str; 14] = [
    "blkio",
    "cpu",
    "cpuacct",
    "cpuset",
    "devices",
    "freezer",
    "hugetlb",
    "memory",
    "misc",
    "net_cls",
    "net_prio",
    "perf_event",
    "pids",
    "rdma",
];
/// The group of inits, set-up processes and the keeper, in v2.
const SUPPORT: &str = "support";

/// The machine's cgroup hierarchies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hierarchies {
    /// Where the v2 hierarchy is mounted.
    pub(super) core: PathBuf,
    /// What the v2 hierarchy can control at its root.
    controllers: BTreeSet<String>,
    /// v1 hierarchies.
    pub(super) legacy: Vec<Legacy>,
}

/// A v1 hierarchy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Legacy {
    /// What it controls; `name=systemd` for one that controls nothing.
    pub(super) controllers: BTreeSet<String>,
    /// Where it is mounted.
    pub(super) mount: PathBuf,
}

impl Legacy {
    /// Whether a new group takes no process before it is configured; then processes go to the root.
    pub(super) fn needs_set_up(&self) -> bool {
        self.controllers.contains("cpuset")
    }

    /// The group for those that need none of their own.
    pub(super) fn shared(&self, parent: &str) -> PathBuf {
        if self.needs_set_up() { self.mount.clone() } else { self.mount.join(parent) }
    }
}

impl Hierarchies {
    /// Reads what is mounted. On a machine without any v2 mount, mounts one at `private` (a directory; made if missing).
    ///
    /// # Errors
    /// When `/proc/self/mountinfo` cannot be read or cgroup v2 cannot be mounted.
    pub fn detect(private: &Path) -> Result<Self, CgroupError> {
        let mounts = mounts::read("/proc/self").map_err(|source| CgroupError::File {
            doing: "reading",
            path: "/proc/self/mountinfo".into(),
            source,
        })?;
        let core = match Self::core_mount(&mounts) {
            Some(mount) => mount,
            None => mount_core(private)?,
        };
        let controllers = read(&core.join("cgroup.controllers"))?.split_whitespace().map(str::to_owned).collect();
        Ok(Self { core, controllers, legacy: Self::legacy_mounts(&mounts) })
    }

    /// A machine with cgroup v2 only.
    #[cfg(test)]
    pub(super) fn version_2(core: &Path, controllers: &str) -> Self {
        let controllers = controllers.split_whitespace().map(str::to_owned).collect();
        Self { core: core.to_owned(), controllers, legacy: Vec::new() }
    }

    /// Reads a text as `mountinfo`: for fuzzing.
    pub(super) fn parse(text: &str) {
        let Some(mounts) = mounts::parse_all(text) else { return };
        let _ = (Self::core_mount(&mounts), Self::legacy_mounts(&mounts));
    }

    fn core_mount(mounts: &[Mount]) -> Option<PathBuf> {
        let core = || mounts.iter().filter(|mount| mount.kind == "cgroup2");
        core().find(|mount| mount.root == b"/").or_else(|| core().next()).map(Mount::place)
    }

    fn legacy_mounts(mounts: &[Mount]) -> Vec<Legacy> {
        let mut legacy: Vec<Legacy> = Vec::new();
        for mount in mounts.iter().filter(|mount| mount.kind == "cgroup") {
            let mut controllers = BTreeSet::new();
            for (key, value) in mount.options() {
                match value {
                    Some(name) if key == "name" => controllers.insert(format!("name={name}")),
                    None if LEGACY_CONTROLLERS.contains(&key) => controllers.insert(key.to_owned()),
                    _ => false,
                };
            }
            if !controllers.is_empty() && legacy.iter().all(|known| known.controllers != controllers) {
                legacy.push(Legacy { controllers, mount: mount.place() });
            }
        }
        legacy
    }

    /// The v1 hierarchy of a controller.
    pub(super) fn legacy_with(&self, controller: &str) -> Option<&Legacy> {
        self.legacy.iter().find(|hierarchy| hierarchy.controllers.contains(controller))
    }

    /// Where cgroup v2 is mounted.
    pub fn core(&self) -> &Path {
        &self.core
    }

    /// Who controls `controller` here: `v1`, `v2` or nobody.
    pub fn version_of(&self, controller: &str) -> Option<&'static str> {
        match self.legacy_with(controller) {
            Some(_) => Some("v1"),
            None => self.controllers.contains(controller).then_some("v2"),
        }
    }

    /// Makes the shared groups, and lets the groups below them have `controllers`. What cannot be had comes back.
    pub(super) fn make_parent(&self, parent: &str, controllers: &[&str]) -> Result<Vec<CgroupError>, CgroupError> {
        for hierarchy in self.legacy.iter().filter(|hierarchy| !hierarchy.needs_set_up()) {
            make_directory(&hierarchy.mount.join(parent))?;
        }
        let group = self.core.join(parent);
        make_directory(&group)?;
        make_directory(&group.join(SUPPORT))?;
        let mut missing = Vec::new();
        for &controller in controllers {
            let limit = match controller {
                "memory" => "memory",
                "cpu" => "CPU",
                _ => "process",
            };
            match self.version_of(controller) {
                Some("v1") => {}
                None => {
                    let why = format!("the kernel offers no `{controller}` controller in any mounted hierarchy");
                    missing.push(CgroupError::NoController { limit, why });
                }
                Some(_) => {
                    let enabled = enable(&self.core, controller).and_then(|()| enable(&group, controller));
                    if let Err(error) = enabled {
                        let why = format!("{error}: {}", source_of(&error));
                        missing.push(CgroupError::NoController { limit, why });
                    }
                }
            }
        }
        Ok(missing)
    }

    /// The directory of the support group in v2.
    pub(crate) fn support_group(&self, parent: &str) -> PathBuf {
        self.core.join(parent).join(SUPPORT)
    }

    /// The processes in it: inits, the keeper, perhaps the worker.
    pub(crate) fn support_processes(&self, parent: &str) -> Result<Vec<i32>, CgroupError> {
        match files::read_processes(&self.support_group(parent).join("cgroup.procs")) {
            Err(error) if error.is_gone() => Ok(Vec::new()),
            found => found,
        }
    }

    /// The `tasks` files of the support group in v1.
    pub(crate) fn support_tasks_files(&self, parent: &str) -> Vec<PathBuf> {
        self.legacy.iter().map(|hierarchy| hierarchy.shared(parent).join("tasks")).collect()
    }

    fn support_procs_files(&self, parent: &str) -> Vec<PathBuf> {
        let legacy = self.legacy.iter().map(|hierarchy| hierarchy.shared(parent));
        legacy.chain([self.support_group(parent)]).map(|path| path.join("cgroup.procs")).collect()
    }

    /// Makes the support group of `parent` and gives the files to which a process's id is written to put it there, outside
    /// the groups of the service that started it.
    ///
    /// # Errors
    /// When a group cannot be made.
    pub fn support(&self, parent: &str) -> Result<Vec<PathBuf>, crate::SandboxError> {
        check_name("cgroup", parent)?;
        self.make_parent(parent, &[])?;
        Ok(self.support_procs_files(parent))
    }

    /// Moves the calling process out of its groups into the support group of `parent`, in every hierarchy, so that it
    /// survives the end of the service that started it.
    ///
    /// # Errors
    /// When a group cannot be made or entered.
    pub fn move_self_out(&self, parent: &str) -> Result<(), crate::SandboxError> {
        for path in self.support(parent)? {
            write(&path, "0")?;
        }
        Ok(())
    }

    /// Ids of the apps that still have groups below `parent`, in any hierarchy.
    ///
    /// # Errors
    /// When a directory cannot be read.
    pub fn apps(&self, parent: &str) -> Result<BTreeSet<String>, CgroupError> {
        let legacy = self.legacy.iter().filter(|hierarchy| !hierarchy.needs_set_up());
        let mut ids = BTreeSet::new();
        for group in legacy.map(|hierarchy| hierarchy.mount.join(parent)).chain([self.core.join(parent)]) {
            let failed = |source| CgroupError::File { doing: "listing cgroup", path: group.clone(), source };
            ids.extend(groups_below(&group).map_err(failed)?);
        }
        ids.remove(SUPPORT);
        Ok(ids)
    }

    /// Has the memory of the groups of all apps of a worker counted together, without a count for each app.
    ///
    /// # Errors
    /// Where no hierarchy counts memory.
    pub fn count_memory(&self) -> Result<(), CgroupError> {
        match self.version_of("memory") {
            Some("v1") => Ok(()),
            Some(_) => enable(&self.core, "memory"),
            None => {
                let why = "the kernel offers no `memory` controller in any mounted hierarchy".to_owned();
                Err(CgroupError::NoController { limit: "memory", why })
            }
        }
    }

    /// Memory of all apps below `parent`, in bytes, without cached files that nobody has used lately; none where it is not
    /// counted.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub fn memory_bytes(&self, parent: &str) -> Result<Option<u64>, CgroupError> {
        let (group, usage, idle_files) = match self.legacy_with("memory") {
            Some(hierarchy) => (hierarchy.mount.join(parent), "memory.usage_in_bytes", "total_inactive_file"),
            None => (self.core.join(parent), "memory.current", "inactive_file"),
        };
        let Some(usage) = read_number(&group.join(usage))? else { return Ok(None) };
        let idle_files = read_field(&group.join("memory.stat"), idle_files)?.unwrap_or(0);
        Ok(Some(usage.saturating_sub(idle_files)))
    }

    /// Kills and removes the group of an app that nobody has a record of: left by a crash while it was being started.
    ///
    /// # Errors
    /// When its processes do not end, or a group cannot be removed.
    pub fn remove_app(&self, parent: &str, id: &str) -> Result<(), CgroupError> {
        let cgroup = Cgroup::at(self, parent, id);
        cgroup.kill()?;
        cgroup.remove()
    }

    /// Removes the shared groups of `parent`; the groups of its apps must be gone. Fine if there are none.
    ///
    /// # Errors
    /// When one still has processes or groups below it, after a time for them to end.
    pub fn remove_parent(&self, parent: &str) -> Result<(), CgroupError> {
        remove_group(&self.core.join(parent).join(SUPPORT))?;
        remove_group(&self.core.join(parent))?;
        let legacy = self.legacy.iter().filter(|hierarchy| !hierarchy.needs_set_up());
        legacy.map(|hierarchy| hierarchy.mount.join(parent)).try_for_each(|path| remove_group(&path))
    }
}

fn source_of(error: &CgroupError) -> String {
    std::error::Error::source(error).map(ToString::to_string).unwrap_or_default()
}

/// Lets the groups below `group` have `controller`.
fn enable(group: &Path, controller: &str) -> Result<(), CgroupError> {
    let path = group.join("cgroup.subtree_control");
    if read(&path)?.split_whitespace().any(|enabled| enabled == controller) {
        return Ok(());
    }
    write(&path, &format!("+{controller}"))
}

/// Mounts the v2 hierarchy where nobody else has.
fn mount_core(private: &Path) -> Result<PathBuf, CgroupError> {
    let failed = |source| CgroupError::NoVersion2 { path: private.to_owned(), source };
    fs::create_dir_all(private).map_err(failed)?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    match read(&private.join("cgroup.controllers")) {
        Ok(_) => return Ok(private.to_owned()),
        Err(error) if error.is_gone() => {}
        Err(error) => return Err(error),
    }
    rustix::mount::mount("cgroup2", private, "cgroup2", flags, None).map_err(|error| failed(error.into()))?;
    Ok(private.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(lines: &str) -> Vec<Mount> {
        mounts::parse_all(lines).unwrap()
    }

    #[test]
    fn a_hybrid_machine() {
        let mounts = parse(concat!(
            "30 24 0:26 / /sys/fs/cgroup/unified rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n",
            "31 24 0:27 / /sys/fs/cgroup/systemd rw shared:10 - cgroup cgroup rw,xattr,name=systemd\n",
            "32 24 0:28 / /sys/fs/cgroup/cpu,cpuacct rw shared:11 - cgroup cgroup rw,cpu,cpuacct\n",
            "33 24 0:28 / /elsewhere rw shared:11 - cgroup cgroup rw,cpu,cpuacct\n",
        ));
        assert_eq!(Hierarchies::core_mount(&mounts), Some("/sys/fs/cgroup/unified".into()));
        let legacy = Hierarchies::legacy_mounts(&mounts);
        assert_eq!(legacy.len(), 2, "the same hierarchy counts once: {legacy:?}");
        assert!(legacy[0].controllers.contains("name=systemd"));
        assert_eq!(legacy[1].controllers.iter().collect::<Vec<_>>(), ["cpu", "cpuacct"]);
    }

    #[test]
    fn a_version_2_machine() {
        let mounts = parse("30 24 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot\n");
        assert_eq!(Hierarchies::core_mount(&mounts), Some("/sys/fs/cgroup".into()));
        assert!(Hierarchies::legacy_mounts(&mounts).is_empty());
    }

    #[test]
    fn a_version_1_machine() {
        let mounts = parse("32 24 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n");
        assert_eq!(Hierarchies::core_mount(&mounts), None);
        assert_eq!(Hierarchies::legacy_mounts(&mounts).len(), 1);
    }

    #[test]
    fn a_private_mount_is_made_once() {
        assert!(rustix::process::geteuid().is_root(), "this test needs root: run it with sudo");
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().join("cgroup2");
        assert_eq!(mount_core(&place).unwrap(), place);
        assert!(place.join("cgroup.procs").exists());
        assert_eq!(mount_core(&place).unwrap(), place);
        rustix::mount::unmount(&place, rustix::mount::UnmountFlags::empty()).unwrap();
        assert!(!place.join("cgroup.procs").exists(), "mounted twice");
    }
}
