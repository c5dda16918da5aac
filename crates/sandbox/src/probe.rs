//! What the kernel and machine offer to sandboxes, for `torpor doctor`.

use std::fs;
use std::path::Path;

use rustix::mount::FsOpenFlags;
use rustix::thread::CapabilitySet;
use torpor_linux::probe::{Outcome, Probe};

use crate::cgroup::{DeviceGuard, Hierarchies};
use crate::error::{SandboxError, While};
use crate::labels::{self, Labels};
use crate::launcher::{Launcher, SETUP_COMMAND, answer};
use crate::message::{FromSetup, Request};

/// The oldest kernel that has everything: appended overlay layers, PAGEMAP_SCAN.
const OLDEST_KERNEL: (u32, u32) = (6, 7);

/// Looks for everything that sandboxes need. `directory` is where layers will lie; without a launcher (not root, say)
/// what needs one is left out. `labels` are those that apps are to have.
pub fn probe(launcher: Option<&Launcher>, directory: &Path, labels: &Labels) -> Vec<Probe> {
    let mut probes = vec![kernel(), root(), overlay(), user_namespaces(), seccomp(), aio_events(), terminals()];
    probes.extend(labels::probe(labels));
    if let Some(launcher) = launcher {
        probes.push(id_mapping(launcher, directory));
        probes.extend(cgroups(launcher.hierarchies()));
    }
    probes
}

fn kernel() -> Probe {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse::<u32>().unwrap_or(0));
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let outcome = if version >= OLDEST_KERNEL { Outcome::Ok } else { Outcome::Missing };
    Probe::new("kernel", outcome, release, "Linux 6.7 or newer is needed: upgrade the kernel")
}

fn root() -> Probe {
    let held = rustix::thread::capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.effective);
    let outcome = if held.contains(CapabilitySet::SYS_ADMIN) { Outcome::Ok } else { Outcome::Missing };
    Probe::new("root privileges", outcome, format!("effective capabilities {:#x}", held.bits()), "run Torpor as root")
}

fn overlay() -> Probe {
    let (outcome, found) = match rustix::mount::fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC) {
        Ok(_) => (Outcome::Ok, "available".to_owned()),
        Err(error) => (Outcome::Missing, error.to_string()),
    };
    Probe::new("overlay file system", outcome, found, "apps stand on it: load the module with `modprobe overlay`")
}

fn user_namespaces() -> Probe {
    let name = "user namespaces";
    let meaning = "apps run only with `user_namespace = false`: raise user.max_user_namespaces with sysctl";
    match fs::read_to_string("/proc/sys/user/max_user_namespaces") {
        Ok(text) if text.trim() == "0" => Probe::new(name, Outcome::Degraded, "user.max_user_namespaces is 0", meaning),
        Ok(text) => Probe::new(name, Outcome::Ok, format!("at most {}", text.trim()), meaning),
        Err(error) => Probe::new(name, Outcome::Degraded, format!("not in this kernel ({error})"), meaning),
    }
}

/// Tries it, in a set-up process.
fn id_mapping(launcher: &Launcher, directory: &Path) -> Probe {
    let name = "id-mapped mounts";
    let meaning = "apps whose layers lie there run only with `user_namespace = false`: move Torpor's directory to ext4, xfs \
                   or btrfs";
    let attempt = || -> Result<(), SandboxError> {
        let (channel, mut child) = launcher.spawn(SETUP_COMMAND)?;
        let request = Request::TryIdMapping(directory.to_owned());
        channel.send(&request, &[]).whilst(|| "asking the set-up process".to_owned())?;
        let answered = answer(&channel, &mut child, "doctor");
        child.wait().whilst(|| "waiting for the set-up process".to_owned())?;
        match answered?.0 {
            FromSetup::Failed(error) => Err(error.into()),
            _ => Ok(()),
        }
    };
    match attempt() {
        Ok(()) => Probe::new(name, Outcome::Ok, format!("available on {}", directory.display()), meaning),
        Err(error) => Probe::new(name, Outcome::Degraded, error.to_string(), meaning),
    }
}

fn seccomp() -> Probe {
    let name = "system-call filters";
    let meaning = "apps run only with `seccomp = false`: use a kernel with CONFIG_SECCOMP_FILTER";
    match fs::read_to_string("/proc/sys/kernel/seccomp/actions_avail") {
        Ok(actions) if actions.contains("errno") => Probe::new(name, Outcome::Ok, "available", meaning),
        Ok(actions) => Probe::new(name, Outcome::Degraded, actions.trim(), meaning),
        Err(error) => Probe::new(name, Outcome::Degraded, error.to_string(), meaning),
    }
}

/// Asynchronous I/O, which the kernel counts for the whole machine only.
fn aio_events() -> Probe {
    let meaning = "once they are used up, programs get no AIO context, and warm apps that have one are not woken: raise \
                   fs.aio-max-nr with sysctl, or stop what holds them";
    machine_wide("AIO events", ["fs/aio-nr", "fs/aio-max-nr"], None, meaning)
}

/// Pseudo-terminals, of which a part is kept for the machine's own programs.
fn terminals() -> Probe {
    let meaning = "once they are used up, `torpor exec -it` fails and programs get no terminal: raise kernel.pty.max with \
                   sysctl, or stop what holds them";
    machine_wide("pseudo-terminals", ["kernel/pty/nr", "kernel/pty/max"], Some("kernel/pty/reserve"), meaning)
}

/// How much of something is used that all programs of the machine share.
fn machine_wide(name: &str, [used, most]: [&str; 2], kept: Option<&str>, meaning: &str) -> Probe {
    let number = |path: &str| -> std::io::Result<u64> {
        let text = fs::read_to_string(Path::new("/proc/sys").join(path))?;
        text.trim().parse().map_err(std::io::Error::other)
    };
    let numbers = || -> std::io::Result<_> { Ok((number(used)?, number(most)?, kept.map_or(Ok(0), number)?)) };
    match numbers() {
        Ok((used, most, kept)) => Probe::use_of(name, used, most.saturating_sub(kept), meaning),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Probe::new(name, Outcome::Ok, "not in this kernel", meaning)
        }
        Err(error) => Probe::new(name, Outcome::Degraded, error.to_string(), meaning),
    }
}

fn cgroups(hierarchies: &Hierarchies) -> Vec<Probe> {
    let freezer = Probe::new("cgroup v2 freezer", Outcome::Ok, hierarchies.core().display().to_string(), "");
    let limits = [
        ("memory", "memory limits", "memory limits are not enforced, memory is not counted per app"),
        ("cpu", "CPU limits", "CPU limits are not enforced"),
        ("pids", "process limits", "process limits are not enforced"),
    ];
    let limits = limits.map(|(controller, name, meaning)| match hierarchies.version_of(controller) {
        Some(version) => Probe::new(name, Outcome::Ok, format!("cgroup {version}"), ""),
        None => Probe::new(name, Outcome::Degraded, format!("no `{controller}` controller"), meaning),
    });
    let meaning = "apps with `user_namespace = false` that may make device nodes can use every device: use a kernel with \
                   CONFIG_CGROUP_BPF";
    let devices = match DeviceGuard::of(hierarchies) {
        Ok(DeviceGuard::Program) => (Outcome::Ok, "BPF programs at cgroups v2".to_owned()),
        Ok(DeviceGuard::Legacy) => (Outcome::Ok, "cgroup v1".to_owned()),
        Err(error) => (Outcome::Degraded, error.to_string()),
    };
    let devices = Probe::new("device limits", devices.0, devices.1, meaning);
    [freezer].into_iter().chain(limits).chain([devices]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_machine_shares_is_counted() {
        for probe in [aio_events(), terminals()] {
            assert!(probe.found.ends_with("in use") || probe.found == "not in this kernel", "{probe:?}");
        }
    }
}
