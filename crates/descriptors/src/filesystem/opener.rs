//! Opening an app's files as the app could.
//!
//! Some files show more to whoever had more rights when they were opened: `/proc/kallsyms` has the kernel's addresses for
//! CAP_SYSLOG, a PCI device's configuration is whole for CAP_SYS_ADMIN. The kernel looks at the opener, not at the reader. So the files
//! of an app are opened with the capabilities over files alone, which those interfaces do not ask for; they are what root of the app's
//! user namespace has over its own files. What it would not have over others' ([`is_forbidden`]) is refused afterwards.

use rustix::fs::{OFlags, Stat};
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};

/// Over files. The owner is set and the mode changed of directories that are put back.
const OVER_FILES: CapabilitySet = CapabilitySet::DAC_OVERRIDE
    .union(CapabilitySet::DAC_READ_SEARCH)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::CHOWN)
    .union(CapabilitySet::FSETID);
/// Ids of an app's user namespace.
const USERS: u32 = 1 << 16;

/// Does `work` in the calling thread with no other capabilities in effect than those over files.
pub fn as_app<T>(work: impl FnOnce() -> T) -> rustix::io::Result<T> {
    let own = capabilities(None)?;
    let effective = own.effective & OVER_FILES;
    if effective == own.effective {
        return Ok(work());
    }
    set_capabilities(None, CapabilitySets { effective, ..own })?;
    let done = work();
    set_capabilities(None, own)?;
    Ok(done)
}

/// A file of none of the app's users, which others may not open so: we may, but an app in a user namespace could not have, and what it
/// shows is not the app's (`/proc/kmsg`). The caller has the app's root as its user.
pub(crate) fn is_forbidden(stat: &Stat, flags: OFlags) -> bool {
    let root = rustix::process::geteuid();
    let first = root.as_raw();
    // Group and user in the range: its root has capabilities over it.
    let own = |id: u32| (first..first.saturating_add(USERS)).contains(&id);
    if flags.contains(OFlags::PATH) || root.is_root() || (own(stat.st_uid) && own(stat.st_gid)) {
        return false;
    }
    let wanted = match flags & OFlags::RWMODE {
        OFlags::RDONLY => 0o4,
        OFlags::WRONLY => 0o2,
        _ => 0o6,
    };
    let shift = if stat.st_uid == first { 6 } else { 0 };
    stat.st_mode >> shift & wanted != wanted
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filesystem::Root;
    use rustix::fs::{CWD, Mode, fstat, openat};
    use std::io::{BufRead, BufReader};
    use std::os::fd::{AsFd, OwnedFd};

    fn has_addresses(file: OwnedFd) -> bool {
        let lines = BufReader::new(std::fs::File::from(file)).lines();
        lines.take(200).any(|line| !line.unwrap().starts_with("0000000000000000 "))
    }

    /// The kernel's addresses are for whoever had CAP_SYSLOG when the file was opened, and an app never has.
    #[test]
    fn files_that_trust_their_opener_show_nothing() {
        const PATH: &[u8] = b"/proc/kallsyms";
        let root = openat(CWD, "/", OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap();
        let own = Root::Own.open(PATH, OFlags::RDONLY).unwrap();
        if !has_addresses(own) {
            let reason = "this kernel shows its addresses to nobody (kernel.kptr_restrict)";
            torpor_testkit::skip::skipped("files_that_trust_their_opener_show_nothing", reason);
            return;
        }
        let as_app = Root::At(root.as_fd()).open(PATH, OFlags::RDONLY).unwrap();
        assert!(
            !has_addresses(as_app),
            "an app reads the kernel's addresses from a file that the worker opened for it"
        );
        assert!(capabilities(None).unwrap().effective.contains(CapabilitySet::SYSLOG), "ours are back");
    }

    #[test]
    fn root_has_its_own_way() {
        let stat = fstat(std::fs::File::open("/proc/self/maps").unwrap()).unwrap();
        // The machine's root runs these tests, as an app without a user namespace does.
        assert!(!is_forbidden(&stat, OFlags::RDWR));
    }
}
