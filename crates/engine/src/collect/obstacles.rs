//! What processes may not be like: shared in ways that a tree cannot say, or in other namespaces.

use std::cmp::Ordering;
use std::fs;
use std::io;
use std::path::PathBuf;

use torpor_linux::kcmp::{Shared, compare};

use crate::obstacle::{Obstacle, Place};
use crate::view::View;

/// Namespaces of a thread, by their name under `/proc/PID/ns`.
const NAMESPACES: [(&str, &str); 10] = [
    ("mnt", "mount"),
    ("net", "network"),
    ("ipc", "ipc"),
    ("uts", "uts"),
    ("pid", "pid"),
    ("pid_for_children", "pid (for its children)"),
    ("user", "user"),
    ("cgroup", "cgroup"),
    ("time", "time"),
    ("time_for_children", "time (for its children)"),
];

/// Those that a thread has in common with its process: the kernel changes them only for a process with one thread, or that
/// of mounts for one with directories of its own, which is refused.
const OF_PROCESS: [&str; 4] = ["mnt", "pid", "user", "time"];

/// Everything of that kind in a tree: processes with their threads.
pub(super) fn find(view: &View, tree: &[(i32, Vec<i32>)]) -> io::Result<Vec<Obstacle>> {
    let mut found = Vec::new();
    namespaces(view, tree, &mut found)?;
    for (pid, threads) in tree {
        let pid = *pid;
        for tid in threads.iter().filter(|tid| **tid != pid).copied() {
            for (what, name) in [(Shared::Descriptors, "descriptors"), (Shared::Directories, "a working directory")] {
                if compare(what, pid, tid)? != Ordering::Equal {
                    let what = format!("it has {name} of its own, apart from its process (unshare)");
                    found.push(Obstacle::new(pid, Place::Thread(tid), what, ""));
                }
            }
        }
    }
    let pids: Vec<i32> = tree.iter().map(|(pid, _)| *pid).collect();
    for (what, name) in [
        (Shared::Memory, "its memory (CLONE_VM, vfork)"),
        (Shared::Descriptors, "its table of descriptors (CLONE_FILES)"),
        (Shared::Directories, "its working directory (CLONE_FS)"),
    ] {
        for (one, other) in sharing(what, &pids)? {
            let what = format!("it shares {name} with process {other}");
            found.push(Obstacle::new(one, Place::Process, what, ""));
        }
    }
    Ok(found)
}

/// Pairs of processes that share something of this kind.
fn sharing(what: Shared, pids: &[i32]) -> io::Result<Vec<(i32, i32)>> {
    let mut failed = Ok(());
    let mut sorted = pids.to_vec();
    sorted.sort_by(|a, b| match compare(what, *a, *b) {
        Ok(order) => order,
        Err(error) => {
            failed = Err(error);
            a.cmp(b)
        }
    });
    failed?;
    let mut pairs = Vec::new();
    for pair in sorted.windows(2) {
        if compare(what, pair[0], pair[1])? == Ordering::Equal {
            pairs.push((pair[0].max(pair[1]), pair[0].min(pair[1])));
        }
    }
    Ok(pairs)
}

/// What a namespace is known by: `net:[4026531840]`. That is cheaper to read than what it leads to. `None`: a kernel without
/// that kind.
fn namespace(path: String) -> io::Result<Option<PathBuf>> {
    match fs::read_link(path) {
        Ok(link) => Ok(Some(link)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Threads that are not in the namespaces that they should be in.
fn namespaces(view: &View, tree: &[(i32, Vec<i32>)], found: &mut Vec<Obstacle>) -> io::Result<()> {
    let own = NAMESPACES.map(|(file, _)| namespace(format!("{}/ns/{file}", view.reference())));
    let own = own.into_iter().collect::<io::Result<Vec<_>>>()?;
    let remedy = if view.keeps_files() { "" } else { "run torpor inside that namespace" };
    for (pid, tid) in tree.iter().flat_map(|(pid, tids)| tids.iter().map(|tid| (*pid, *tid))) {
        for ((file, name), own) in NAMESPACES.into_iter().zip(&own) {
            if tid != pid && OF_PROCESS.contains(&file) {
                continue;
            }
            if namespace(format!("/proc/{pid}/task/{tid}/ns/{file}"))? != *own {
                let place = if tid == pid { Place::Process } else { Place::Thread(tid) };
                let what = format!("it is in another {name} namespace");
                found.push(Obstacle::new(pid, place, what, remedy));
            }
        }
    }
    Ok(())
}
