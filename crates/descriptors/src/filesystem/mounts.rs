//! The memory file systems that only an app has.

use std::collections::HashSet;
use std::io;

use torpor_proc::mounts::{self, Mount};

/// `TMPFS_MAGIC`.
pub(crate) const TMPFS_MAGIC: i64 = 0x0102_1994;

/// The tmpfs mounts of an app, each file system once. `reference` is the `/proc` directory of a process in the mount namespace of the
/// app.
pub(crate) fn tmpfs_of_app(reference: &str) -> io::Result<Vec<Mount>> {
    let machine: HashSet<u64> = mounts::read("/proc/self")?.into_iter().map(|mount| mount.device).collect();
    let mut seen = HashSet::new();
    let mut found = mounts::read(reference)?;
    found.retain(|mount| {
        let whole = mount.root == b"/" || mount.path == b"/dev";
        mount.kind == "tmpfs" && whole && !machine.contains(&mount.device) && seen.insert(mount.device)
    });
    Ok(found)
}
