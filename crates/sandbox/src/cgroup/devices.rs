//! Which devices the processes of a group may use: for apps without a user namespace, whose root can make device nodes if it
//! has CAP_MKNOD.
//!
//! A BPF program at the app's v2 group says so, on every machine whose kernel has them; elsewhere the `devices` controller of
//! cgroup v1 does, if it is mounted.

use torpor_linux::bpf::{DeviceKind, DeviceRule, device_program, guard_devices};

use super::files::write;
use super::{Cgroup, Hierarchies};
use crate::error::CgroupError;

/// The v1 controller.
pub(super) const CONTROLLER: &str = "devices";

/// Any node may be made, and the harmless ones used: null, zero, full, random, urandom, tty, ptmx, pseudo-terminals.
const RULES: [DeviceRule; 9] = [
    DeviceRule { kind: None, major: None, minor: None, make: true, open: false },
    usable(1, Some(3)),
    usable(1, Some(5)),
    usable(1, Some(7)),
    usable(1, Some(8)),
    usable(1, Some(9)),
    usable(5, Some(0)),
    usable(5, Some(2)),
    usable(136, None),
];

const fn usable(major: u32, minor: Option<u32>) -> DeviceRule {
    DeviceRule { kind: Some(DeviceKind::Character), major: Some(major), minor, make: true, open: true }
}

/// What limits devices on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeviceGuard {
    /// A BPF program.
    Program,
    /// The v1 controller.
    Legacy,
}

impl DeviceGuard {
    /// Looks for it.
    pub(crate) fn of(hierarchies: &Hierarchies) -> Result<Self, CgroupError> {
        match device_program(&RULES) {
            Ok(_) => Ok(Self::Program),
            Err(_) if hierarchies.legacy_with(CONTROLLER).is_some() => Ok(Self::Legacy),
            Err(error) => {
                let why =
                    format!("the kernel takes no BPF program for it ({error}), and no v1 hierarchy has `{CONTROLLER}`");
                Err(CgroupError::NoController { limit: "device", why })
            }
        }
    }

    /// Puts it in force.
    pub(super) fn put(self, cgroup: &Cgroup) -> Result<(), CgroupError> {
        match self {
            Self::Program => {
                let path = &cgroup.core;
                let guard = || guard_devices(std::fs::File::open(path)?, device_program(&RULES)?);
                guard().map_err(|source| CgroupError::File {
                    doing: "limiting the devices of",
                    path: path.clone(),
                    source,
                })
            }
            Self::Legacy => {
                let Some(group) = cgroup.legacy(CONTROLLER) else { return Ok(()) };
                write(&group.join("devices.deny"), "a")?;
                RULES.iter().flat_map(legacy).try_for_each(|rule| write(&group.join("devices.allow"), &rule))
            }
        }
    }
}

/// A rule in the words of v1, which has none for both kinds at once but the one for everything.
fn legacy(rule: &DeviceRule) -> Vec<String> {
    let kinds = match rule.kind {
        None => &["c", "b"][..],
        Some(DeviceKind::Character) => &["c"],
        Some(DeviceKind::Block) => &["b"],
    };
    let number = |number: Option<u32>| number.map_or("*".to_owned(), |number| number.to_string());
    let access = [if rule.open { "rw" } else { "" }, if rule.make { "m" } else { "" }].concat();
    kinds.iter().map(|kind| format!("{kind} {}:{} {access}", number(rule.major), number(rule.minor))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_in_the_words_of_version_1() {
        let words: Vec<String> = RULES.iter().flat_map(legacy).collect();
        assert_eq!(words[..4], ["c *:* m", "b *:* m", "c 1:3 rwm", "c 1:5 rwm"]);
        assert_eq!(words.last().unwrap(), "c 136:* rwm");
    }
}
