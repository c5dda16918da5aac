//! Capabilities by name (`capabilities(7)`), and the default set.
//!
//! The default is that of containers-common (Podman, CRI-O), eleven of them. Docker adds AUDIT_WRITE, MKNOD and NET_RAW,
//! which image builders have stopped to rely on: device nodes do nothing in a sandbox's root file system, and `ping`
//! works without NET_RAW because unprivileged ICMP sockets are allowed.

use rustix::thread::CapabilitySet;
use serde::{Deserialize, Serialize};

use crate::error::SandboxError;

/// Names in the order of their numbers, without `CAP_`.
const NAMES: [&str; 41] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "DAC_READ_SEARCH",
    "FOWNER",
    "FSETID",
    "KILL",
    "SETGID",
    "SETUID",
    "SETPCAP",
    "LINUX_IMMUTABLE",
    "NET_BIND_SERVICE",
    "NET_BROADCAST",
    "NET_ADMIN",
    "NET_RAW",
    "IPC_LOCK",
    "IPC_OWNER",
    "SYS_MODULE",
    "SYS_RAWIO",
    "SYS_CHROOT",
    "SYS_PTRACE",
    "SYS_PACCT",
    "SYS_ADMIN",
    "SYS_BOOT",
    "SYS_NICE",
    "SYS_RESOURCE",
    "SYS_TIME",
    "SYS_TTY_CONFIG",
    "MKNOD",
    "LEASE",
    "AUDIT_WRITE",
    "AUDIT_CONTROL",
    "SETFCAP",
    "MAC_OVERRIDE",
    "MAC_ADMIN",
    "SYSLOG",
    "WAKE_ALARM",
    "BLOCK_SUSPEND",
    "AUDIT_READ",
    "PERFMON",
    "BPF",
    "CHECKPOINT_RESTORE",
];

/// What programs get unless told otherwise.
const DEFAULT: [&str; 11] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];

/// A set of capabilities.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capabilities(u64);

impl Capabilities {
    /// None.
    pub const NONE: Self = Self(0);

    /// The default set with what `add` names and without what `drop` names; as with container engines a drop of
    /// `ALL` comes first, single ones win over `ALL`.
    ///
    /// # Errors
    /// A name that is no capability.
    pub(crate) fn resolve(add: &[String], drop: &[String]) -> Result<Self, SandboxError> {
        let all = (1_u64 << NAMES.len()) - 1;
        let mut set = DEFAULT.iter().try_fold(0, |set, name| Some(set | bit(name)?)).unwrap_or_default();
        let is_all = |name: &&String| name.eq_ignore_ascii_case("ALL");
        if add.iter().any(|name| is_all(&name)) {
            set = all;
        }
        if drop.iter().any(|name| is_all(&name)) {
            set = 0;
        }
        let known = |name: &String| bit(name).ok_or_else(|| SandboxError::Capability { name: name.clone() });
        for name in add.iter().filter(|name| !is_all(name)) {
            set |= known(name)?;
        }
        for name in drop.iter().filter(|name| !is_all(name)) {
            set &= !known(name)?;
        }
        Ok(Self(set))
    }

    /// Whether `name`, without `CAP_`, is in it.
    pub(crate) fn has(self, name: &str) -> bool {
        bit(name).is_some_and(|bit| self.0 & bit != 0)
    }

    /// As the kernel writes them in `/proc/PID/status`.
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// As rustix has them.
    pub(crate) fn set(self) -> CapabilitySet {
        CapabilitySet::from_bits_retain(self.0)
    }
}

fn bit(name: &str) -> Option<u64> {
    let upper = name.to_ascii_uppercase();
    let bare = upper.strip_prefix("CAP_").unwrap_or(&upper);
    NAMES.iter().position(|known| *known == bare).map(|number| 1 << number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(add: &[&str], drop: &[&str]) -> Result<u64, SandboxError> {
        let words = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<Vec<String>>();
        Capabilities::resolve(&words(add), &words(drop)).map(Capabilities::bits)
    }

    #[test]
    fn the_default_set_is_podmans() {
        // What `podman run alpine grep CapEff /proc/self/status` prints.
        assert_eq!(resolve(&[], &[]).unwrap(), 0x8004_05fb);
    }

    #[test]
    fn names_add_and_drop() {
        assert_eq!(resolve(&["net_raw"], &["ALL"]).unwrap(), 1 << 13);
        assert_eq!(resolve(&["ALL"], &["CAP_SYS_ADMIN"]).unwrap(), ((1 << 41) - 1) & !(1 << 21));
        assert!(resolve(&["NET_RWA"], &[]).unwrap_err().to_string().contains("NET_RWA"));
    }

    #[test]
    fn numbers_are_the_kernels() {
        for (name, set) in [
            ("CHOWN", CapabilitySet::CHOWN),
            ("SYS_ADMIN", CapabilitySet::SYS_ADMIN),
            ("SETFCAP", CapabilitySet::SETFCAP),
            ("CHECKPOINT_RESTORE", CapabilitySet::CHECKPOINT_RESTORE),
        ] {
            assert_eq!(bit(name), Some(set.bits()), "{name}");
        }
    }
}
