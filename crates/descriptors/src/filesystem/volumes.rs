//! Files that others than the app's own processes can reach: those of its volumes.
//!
//! The root and the tmpfs mounts of an app are in no other mount namespace. Every other mount in its namespace is a volume: a directory
//! of the machine, whose files are also opened by programs of the machine and by other apps with the same volume.

use std::collections::HashSet;
use std::io;
use std::os::fd::AsFd;

use rustix::fs::{AtFlags, StatxFlags, statx};

use super::mounts::tmpfs_of_app;
use torpor_proc::mounts;

/// File systems of which each mount namespace has its own, or whose files are not stored.
const OWN: [&str; 6] = ["proc", "sysfs", "devpts", "mqueue", "cgroup", "cgroup2"];

/// Numbers of the mounts of an app's volumes.
#[derive(Debug)]
pub struct Volumes(HashSet<u64>);

impl Volumes {
    /// The volumes of an app. `reference` is the `/proc` directory of a process in the mount namespace of the app.
    ///
    /// # Errors
    /// When its mounts cannot be read.
    pub fn of(reference: &str) -> io::Result<Self> {
        let memory: HashSet<u64> = tmpfs_of_app(reference)?.into_iter().map(|mount| mount.device).collect();
        let mut found = mounts::read(reference)?;
        found.retain(|mount| {
            mount.path != b"/" && !memory.contains(&mount.device) && !OWN.contains(&mount.kind.as_str())
        });
        Ok(Self(found.into_iter().map(|mount| mount.id).collect()))
    }

    /// Whether a file was opened in one of them.
    ///
    /// # Errors
    /// When the kernel does not tell.
    pub fn have(&self, file: impl AsFd) -> io::Result<bool> {
        Ok(self.0.contains(&statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID)?.stx_mnt_id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_and_file_systems_of_the_kernel_are_no_volumes() {
        let volumes = Volumes::of("/proc/self").unwrap();
        for path in ["/", "/proc/self/stat"] {
            assert!(!volumes.have(std::fs::File::open(path).unwrap()).unwrap(), "{path}");
        }
        // The machine's own memory file systems are in its mount namespace, too.
        let mounts = mounts::read("/proc/self").unwrap();
        for mount in mounts.iter().filter(|mount| mount.kind == "tmpfs") {
            assert!(volumes.0.contains(&mount.id), "{mount:?}");
        }
    }
}
