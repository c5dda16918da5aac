//! What processes may not be like: shared in ways that a tree cannot say, or in other namespaces.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::PathBuf;

use torpor_image::tree::Shares;
use torpor_linux::kcmp::{Shared, compare};

use torpor_process::blocker::{Blocker, Place};
use torpor_process::view::View;

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
pub(super) fn find(view: &View, tree: &[(i32, Vec<i32>)]) -> io::Result<Vec<Blocker>> {
    let mut found = Vec::new();
    namespaces(view, tree, &mut found)?;
    for (pid, threads) in tree {
        let pid = *pid;
        for tid in threads.iter().filter(|tid| **tid != pid).copied() {
            for (what, name) in [(Shared::Descriptors, "descriptors"), (Shared::Directories, "a working directory")] {
                if compare(what, pid, tid)? != Ordering::Equal {
                    let what = format!("it has {name} of its own, apart from its process (unshare)");
                    found.push(Blocker::new(pid, Place::Thread(tid), what, ""));
                }
            }
        }
    }
    let pids: Vec<i32> = tree.iter().map(|(pid, _)| *pid).collect();
    for (one, other) in sharing(Shared::Memory, &pids)? {
        let what = format!("it shares its memory (CLONE_VM, vfork) with process {other}");
        found.push(Blocker::new(one, Place::Process, what, ""));
    }
    Ok(found)
}

/// Which processes share with their parents what only threads usually share. `parents` has the parent of each; who shares with
/// another than its parent goes to `obstacles`.
pub(super) fn shares(parents: &BTreeMap<i32, i32>, obstacles: &mut Vec<Blocker>) -> io::Result<BTreeMap<i32, Shares>> {
    let pids: Vec<i32> = parents.keys().copied().collect();
    let mut found: BTreeMap<i32, Shares> = BTreeMap::new();
    for (what, name) in [
        (Shared::Descriptors, "its table of descriptors (CLONE_FILES)"),
        (Shared::Directories, "its working directory (CLONE_FS)"),
    ] {
        let pairs = sharing(what, &pids)?;
        let all: BTreeSet<i32> = pairs.iter().flat_map(|(one, other)| [*one, *other]).collect();
        for pid in all.iter().copied() {
            let with_parent = match parents.get(&pid) {
                Some(parent) if all.contains(parent) => compare(what, pid, *parent)? == Ordering::Equal,
                _ => false,
            };
            if with_parent {
                let shares = found.entry(pid).or_default();
                *(if what == Shared::Descriptors { &mut shares.descriptors } else { &mut shares.directories }) = true;
                continue;
            }
            // It must be where it comes from: everyone else who shares it has it by way of it.
            let mut others = pairs.iter().filter(|(one, other)| *one == pid || *other == pid);
            let above = others.any(|(one, other)| !descends(parents, if *one == pid { *other } else { *one }, pid));
            if above {
                let what = format!("it shares {name} with a process that is not its parent");
                obstacles.push(Blocker::new(pid, Place::Process, what, ""));
            }
        }
    }
    Ok(found)
}

/// `pid` is a descendant of `of`.
fn descends(parents: &BTreeMap<i32, i32>, pid: i32, of: i32) -> bool {
    std::iter::successors(Some(pid), |pid| parents.get(pid).copied()).skip(1).any(|pid| pid == of)
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
fn namespaces(view: &View, tree: &[(i32, Vec<i32>)], found: &mut Vec<Blocker>) -> io::Result<()> {
    let own = NAMESPACES.map(|(file, _)| namespace(format!("{}/ns/{file}", view.reference())));
    let own = own.into_iter().collect::<io::Result<Vec<_>>>()?;
    let remedy = if view.in_sandbox() { "" } else { "run torpor inside that namespace" };
    for (pid, tid) in tree.iter().flat_map(|(pid, tids)| tids.iter().map(|tid| (*pid, *tid))) {
        for ((file, name), own) in NAMESPACES.into_iter().zip(&own) {
            if tid != pid && OF_PROCESS.contains(&file) {
                continue;
            }
            if namespace(format!("/proc/{pid}/task/{tid}/ns/{file}"))? != *own {
                let place = if tid == pid { Place::Process } else { Place::Thread(tid) };
                let what = format!("it is in another {name} namespace");
                found.push(Blocker::new(pid, place, what, remedy));
            }
        }
    }
    Ok(())
}
