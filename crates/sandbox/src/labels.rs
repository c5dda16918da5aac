//! What a Linux security module calls an app's programs: an AppArmor profile, an SELinux context.
//!
//! A process says which label the next program that it executes gets (`/proc/thread-self/attr`), so the labels are set by
//! whoever becomes a program of the app, in the last moment before. They are not in images: an app with labels does not go
//! warm.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags, PROC_SUPER_MAGIC, ResolveFlags, openat2};
use serde::{Deserialize, Serialize};
use torpor_linux::probe::{Outcome, Probe};

use crate::error::{Doing, SetupError};
use crate::inside::open_inside;

/// What programs of apps are called; absent: what the daemon is, which is nothing special as a rule.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Labels {
    /// Name of a loaded AppArmor profile.
    pub apparmor_profile: Option<String>,
    /// An SELinux context, as `system_u:system_r:container_t:s0`.
    pub selinux_label: Option<String>,
}

/// Where the kernel tells of AppArmor and SELinux.
const APPARMOR_ENABLED: &str = "/sys/module/apparmor/parameters/enabled";
const APPARMOR_PROFILES: &str = "/sys/kernel/security/apparmor/profiles";
const SELINUX: &str = "/sys/fs/selinux";
const ATTRIBUTES: &str = "/proc/thread-self/attr";

impl Labels {
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.apparmor_profile.is_none() && self.selinux_label.is_none()
    }

    /// Gives them to the next program of the calling thread, which is in the app's namespaces.
    pub(crate) fn set(&self) -> Result<(), SetupError> {
        if self.is_empty() {
            return Ok(());
        }
        let opening = || format!("opening {ATTRIBUTES}");
        let attributes = open_inside(Path::new(ATTRIBUTES), OFlags::PATH | OFlags::DIRECTORY).doing(opening)?;
        // The app may have mounted something else there.
        if rustix::fs::fstatfs(&attributes).doing(opening)?.f_type != PROC_SUPER_MAGIC {
            return Err(SetupError::Target { path: ATTRIBUTES.to_owned(), found: "not the kernel's".to_owned() });
        }
        self.write(&attributes)
    }

    /// Writes them to the files of a directory `attr`.
    fn write(&self, attributes: &OwnedFd) -> Result<(), SetupError> {
        let write = |name: &str, text: &str| {
            let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
            let file = openat2(attributes.as_fd(), name, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty(), resolve)?;
            // In one call, as the kernel wants it.
            rustix::io::write(&file, text.as_bytes()).map(drop)
        };
        if let Some(profile) = &self.apparmor_profile {
            write("apparmor/exec", &format!("exec {profile}"))
                .doing(|| format!("setting the AppArmor profile `{profile}` (is it loaded? see apparmor_parser(8))"))?;
        }
        if let Some(label) = &self.selinux_label {
            write("exec", label).doing(|| format!("setting the SELinux context `{label}`"))?;
        }
        Ok(())
    }
}

/// What the machine has, and whether it has these labels.
pub(crate) fn probe(labels: &Labels) -> [Probe; 2] {
    let profiles = match fs::read_to_string(APPARMOR_ENABLED) {
        Ok(text) if text.starts_with('Y') => Some(fs::read_to_string(APPARMOR_PROFILES).unwrap_or_default()),
        _ => None,
    };
    let valid = |label: &str| fs::write(format!("{SELINUX}/context"), label).is_ok();
    let selinux = fs::read_to_string(format!("{SELINUX}/enforce")).ok();
    [
        apparmor(labels.apparmor_profile.as_deref(), profiles.as_deref()),
        selinux_probe(labels, selinux.as_deref(), valid),
    ]
}

const REFUSED: &str = "no app can be started: load it, or correct the configuration (`[security]`)";

/// `profiles`: lines `name (mode)`; none where AppArmor is off.
fn apparmor(wanted: Option<&str>, profiles: Option<&str>) -> Probe {
    let mode = |name: &str| {
        let lines = profiles?.lines();
        lines.filter_map(|line| line.strip_prefix(name)?.strip_prefix(' ')).next()
    };
    let (outcome, found) = match (wanted, profiles) {
        (None, None) => (Outcome::Ok, "not on this machine".to_owned()),
        (None, Some(_)) => (Outcome::Ok, "on; not used for apps (`security.apparmor_profile`)".to_owned()),
        (Some(name), None) => (Outcome::Missing, format!("not on this machine, and apps are to have profile `{name}`")),
        (Some(name), Some(_)) => match mode(name) {
            Some(mode) => (Outcome::Ok, format!("profile `{name}` {mode}")),
            None => (Outcome::Missing, format!("profile `{name}` is not loaded")),
        },
    };
    Probe::new("AppArmor", outcome, found, REFUSED)
}

fn selinux_probe(labels: &Labels, enforce: Option<&str>, valid: impl Fn(&str) -> bool) -> Probe {
    let mode = |text: &str| if text.trim() == "1" { "enforcing" } else { "permissive" };
    let (outcome, found) = match (labels.selinux_label.as_deref(), enforce) {
        (None, None) => (Outcome::Ok, "not on this machine".to_owned()),
        (None, Some(text)) => (Outcome::Ok, format!("{}; no context for apps (`security.selinux_label`)", mode(text))),
        (Some(label), None) => (Outcome::Missing, format!("not on this machine, and apps are to have `{label}`")),
        (Some(label), Some(text)) if valid(label) => (Outcome::Ok, format!("{}; `{label}`", mode(text))),
        (Some(label), Some(_)) => (Outcome::Missing, format!("the policy knows no context `{label}`")),
    };
    Probe::new("SELinux", outcome, found, REFUSED)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(apparmor: Option<&str>, selinux: Option<&str>) -> Labels {
        Labels { apparmor_profile: apparmor.map(str::to_owned), selinux_label: selinux.map(str::to_owned) }
    }

    #[test]
    fn labels_are_written_as_the_kernel_reads_them() {
        let directory = tempfile::tempdir().unwrap();
        let file = |name: &str| directory.path().join(name);
        fs::create_dir(file("apparmor")).unwrap();
        for name in ["apparmor/exec", "exec"] {
            fs::write(file(name), "").unwrap();
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        let attributes = rustix::fs::open(directory.path(), flags, Mode::empty()).unwrap();
        labels(Some("torpor-app"), Some("a:b:c:s0")).write(&attributes).unwrap();
        assert_eq!(fs::read_to_string(file("apparmor/exec")).unwrap(), "exec torpor-app");
        assert_eq!(fs::read_to_string(file("exec")).unwrap(), "a:b:c:s0");
        // Nobody's link is followed.
        fs::remove_file(file("exec")).unwrap();
        std::os::unix::fs::symlink("apparmor/exec", file("exec")).unwrap();
        assert!(labels(None, Some("a")).write(&attributes).is_err());
        fs::remove_file(file("apparmor/exec")).unwrap();
        let error = labels(Some("torpor-app"), None).write(&attributes).unwrap_err().to_string();
        assert!(error.contains("`torpor-app`"), "{error}");
    }

    #[test]
    fn what_the_machine_lacks_is_said() {
        let profiles = "other (complain)\ntorpor-app-2 (enforce)\ntorpor-app (enforce)\n";
        assert_eq!(apparmor(Some("torpor-app"), Some(profiles)).found, "profile `torpor-app` (enforce)");
        assert_eq!(apparmor(Some("torpor"), Some(profiles)).outcome, Outcome::Missing);
        assert_eq!(apparmor(Some("torpor-app"), None).outcome, Outcome::Missing);
        assert_eq!(apparmor(None, None).outcome, Outcome::Ok);
        let selinux = |label, enforce, valid| selinux_probe(&labels(None, label), enforce, |_| valid);
        assert_eq!(selinux(Some("a"), Some("1\n"), true).found, "enforcing; `a`");
        assert_eq!(selinux(Some("a"), Some("0\n"), false).outcome, Outcome::Missing);
        assert_eq!(selinux(Some("a"), None, true).outcome, Outcome::Missing);
        assert_eq!(selinux(None, Some("1"), true).outcome, Outcome::Ok);
    }
}
