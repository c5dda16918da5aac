//! Where an app's processes live: namespaces that its init keeps alive, and cgroups.

use std::os::fd::OwnedFd;
use std::path::PathBuf;

/// The home of an app, which lasts while the app has no processes.
#[derive(Debug)]
pub struct Home {
    /// The sandbox's init, process 1 of the app's pid namespace and no part of its tree: a process descriptor, which also
    /// names its namespaces.
    pub init: OwnedFd,
    /// Init's id on the machine.
    pub init_pid: i32,
    /// The initial process's id inside.
    pub initial: i32,
    /// Directory of the app's cgroup v2.
    pub cgroup: PathBuf,
    /// Files `tasks` of its cgroups v1.
    pub tasks: Vec<PathBuf>,
    /// The app has a user namespace, which its processes enter themselves.
    pub user_namespace: bool,
    /// The app has a time namespace, likewise.
    pub time_namespace: bool,
}

/// What the clocks of a process's time namespace show beyond the machine's.
pub(crate) fn clock_offsets(pid: i32) -> std::io::Result<[i64; 2]> {
    let path = format!("/proc/{pid}/timens_offsets");
    let text = crate::proc::read(&path)?;
    // `monotonic SECONDS NANOSECONDS`
    let offset = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        let mut fields = line.split_ascii_whitespace().map(|field| field.parse::<i64>().ok());
        fields.next()??.checked_mul(1_000_000_000)?.checked_add(fields.next()??)
    };
    match (offset("monotonic"), offset("boottime")) {
        (Some(monotonic), Some(boottime)) => Ok([monotonic, boottime]),
        _ => Err(crate::proc::unexpected(&path)),
    }
}
