//! What a daemon must have removed from the machine once `torpor down` has ended.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use torpor_proc::mounts::Mount;

use crate::error::Error;
use crate::wait::eventually_ok;

/// How deep below a cgroup mount a daemon's own group is looked for: services live a few levels down.
const CGROUP_DEPTH: u32 = 4;
/// How long killed processes and their groups may take to go.
const GONE_WITHIN: Duration = Duration::from_secs(20);

/// One line for each thing of `instance`, or below one of `dirs`, that is still there: cgroups, interfaces, nft tables,
/// mounts, processes.
pub fn leftovers(instance: &str, dirs: &[&Path]) -> Vec<String> {
    let mut found = Vec::new();
    for place in mounts().iter().map(Mount::place) {
        if dirs.iter().any(|dir| place.starts_with(dir)) {
            found.push(format!("mount {}", place.display()));
        }
    }
    found.extend(groups(instance).iter().map(|path| format!("cgroup {}", path.display())));
    let prefix = format!("{instance}-");
    for name in names(Path::new("/sys/class/net")) {
        if name == instance || name.starts_with(&prefix) {
            found.push(format!("interface {name}"));
        }
    }
    match Command::new("nft").args(["list", "tables"]).output() {
        Ok(output) => {
            let tables = String::from_utf8_lossy(&output.stdout).into_owned();
            let is_ours = |name: &str| {
                name == instance || ["_guard", "_names"].iter().any(|end| name == format!("{instance}{end}"))
            };
            let ours = tables.lines().filter(|line| line.split(' ').nth(2).is_some_and(is_ours));
            found.extend(ours.map(|line| format!("nft {line}")));
        }
        Err(error) => found.push(format!("nft tables unknown: {error}; install the package nftables")),
    }
    found.extend(processes(dirs));
    found
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

fn cgroups(dir: &Path, instance: &str, depth: u32, found: &mut Vec<PathBuf>) {
    for name in names(dir) {
        let path = dir.join(&name);
        if !path.is_dir() {
            continue;
        }
        if name == instance || name.strip_prefix(instance).is_some_and(|rest| rest.starts_with(['-', '.'])) {
            found.push(path);
        } else if depth > 1 {
            cgroups(&path, instance, depth - 1, found);
        }
    }
}

/// What is mounted here.
fn mounts() -> Vec<Mount> {
    torpor_proc::mounts::read("/proc/self").unwrap_or_default()
}

/// The groups of `instance` in every hierarchy.
fn groups(instance: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for mount in mounts().iter().filter(|mount| mount.kind.starts_with("cgroup")) {
        cgroups(&mount.place(), instance, CGROUP_DEPTH, &mut found);
    }
    found
}

/// Takes away what a reboot would: the processes of `instance`, its namespaces with them, its cgroups and its nft table.
///
/// # Errors
/// What stays.
pub fn power_off(instance: &str) -> Result<(), Error> {
    let groups = groups(instance);
    eventually_ok("all its processes are gone", GONE_WITHIN, || {
        let pids: BTreeSet<i32> = groups.iter().flat_map(|group| members(group)).collect();
        for pid in pids.iter().filter_map(|pid| Pid::from_raw(*pid)) {
            // It may have ended just now.
            let _ = kill_process(pid, Signal::KILL);
        }
        if pids.is_empty() { Ok(()) } else { Err(format!("{pids:?} are left")) }
    })?;
    for group in &groups {
        remove_groups(group)?;
    }
    let delete = Command::new("nft").args(["delete", "table", "inet", instance]).output();
    delete.map(drop).map_err(|source| Error::Spawn { program: "nft".into(), hint: "install nftables", source })
}

/// Processes in a group and below it.
fn members(group: &Path) -> Vec<i32> {
    let text = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    let own = text.lines().filter_map(|line| line.parse().ok());
    own.chain(below(group).iter().flat_map(|group| members(group))).collect()
}

fn below(group: &Path) -> Vec<PathBuf> {
    names(group).into_iter().map(|name| group.join(name)).filter(|path| path.is_dir()).collect()
}

fn remove_groups(group: &Path) -> Result<(), Error> {
    for group in below(group) {
        remove_groups(&group)?;
    }
    // Groups are busy for a moment after their last process.
    eventually_ok("a cgroup can be removed", GONE_WITHIN, || match fs::remove_dir(group) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(format!("{}: {error}", group.display())),
        _ => Ok(()),
    })
}

/// Processes whose command line, root or working directory is below `dirs`, but our own.
fn processes(dirs: &[&Path]) -> Vec<String> {
    let mut found = Vec::new();
    for pid in names(Path::new("/proc")) {
        if pid.parse::<u32>().map_or(true, |pid| pid == std::process::id()) {
            continue;
        }
        let proc = PathBuf::from("/proc").join(&pid);
        let command = fs::read(proc.join("cmdline")).unwrap_or_default();
        let words: Vec<String> = command.split(|&byte| byte == 0).map(|w| String::from_utf8_lossy(w).into()).collect();
        let links = ["root", "cwd"].map(|name| fs::read_link(proc.join(name)).unwrap_or_default());
        let below = |path: &Path| dirs.iter().any(|dir| path.starts_with(dir));
        if words.iter().any(|word| below(Path::new(word))) || links.iter().any(|link| below(link)) {
            found.push(format!("process {pid}: {}", words.join(" ").trim_end()));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_and_nothing_else_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let dirs = [dir.path()];
        assert_eq!(leftovers("ttestnone", &dirs), Vec::<String>::new());
        let mut child = Command::new("sleep").arg("60").current_dir(dir.path()).spawn().unwrap();
        let found = leftovers("ttestnone", &dirs);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(found, [format!("process {}: sleep 60", child.id())]);
    }
}
