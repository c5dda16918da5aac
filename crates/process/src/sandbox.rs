//! Where an app's processes live: namespaces that its init keeps alive, and cgroups.

use std::os::fd::OwnedFd;
use std::path::PathBuf;

/// The home of an app, which lasts while the app has no processes.
#[derive(Debug)]
pub struct SandboxHandle {
    /// The sandbox's init, process 1 of the app's pid namespace and no part of its tree: a process descriptor, which also
    /// names its namespaces.
    pub init: OwnedFd,
    /// Init's id on the machine.
    pub init_pid: i32,
    /// When init was started, in clock ticks since boot: field 22 of `/proc/PID/stat`.
    pub init_start_ticks: u64,
    /// The initial process's id inside.
    pub initial: i32,
    /// Directory of the app's cgroup v2.
    pub cgroup: PathBuf,
    /// Files `tasks` of its cgroups v1.
    pub tasks: Vec<PathBuf>,
    /// Ids of the app's user namespace, which its processes enter themselves.
    pub user_namespace: Option<Ids>,
    /// The app has a time namespace, likewise.
    pub time_namespace: bool,
}

/// Users and groups of a user namespace: ids from 0 on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ids {
    /// The machine's id of id 0.
    pub first: u32,
    /// How many there are.
    pub count: u32,
}

impl Ids {
    /// The machine's id.
    pub const fn outside(self, inside: u32) -> Option<u32> {
        if inside < self.count { self.first.checked_add(inside) } else { None }
    }
}

/// What the clocks of a process's time namespace show beyond the machine's.
pub fn clock_offsets(pid: i32) -> std::io::Result<[i64; 2]> {
    let path = format!("/proc/{pid}/timens_offsets");
    let text = torpor_proc::read(&path)?;
    // `monotonic SECONDS NANOSECONDS`
    let offset = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        let mut fields = line.split_ascii_whitespace().map(|field| field.parse::<i64>().ok());
        fields.next()??.checked_mul(1_000_000_000)?.checked_add(fields.next()??)
    };
    match (offset("monotonic"), offset("boottime")) {
        (Some(monotonic), Some(boottime)) => Ok([monotonic, boottime]),
        _ => Err(torpor_proc::unexpected(&path)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_the_machine_follow_each_other() {
        let ids = Ids { first: 100_000, count: 65_536 };
        assert_eq!((ids.outside(0), ids.outside(65_535), ids.outside(65_536)), (Some(100_000), Some(165_535), None));
        assert_eq!(Ids { first: u32::MAX, count: 2 }.outside(1), None);
    }
}
