//! The processes of an app: those of its cgroup, and their children that have ended.
//!
//! They need not be one tree: a process whose parent has ended is a child of the sandbox's init, as is the initial process.

use std::collections::HashMap;
use std::io;

use super::stop::{Stopped, children};
use super::{CaptureError, Look, rseq};
use torpor_proc as proc;
use torpor_process::blocker::{Blocker, Place};
use torpor_process::sandbox::SandboxHandle;
use torpor_process::trace::{Process, TraceError, stop_all};
use torpor_process::view::parent;

/// A process of an app.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its id.
    pub pid: i32,
    /// Its parent; 0: init.
    pub(crate) parent: i32,
    /// It has ended, and its parent has not asked for it yet.
    pub(crate) ended: bool,
}

/// The family of these living processes, parents before their children, the initial process first. They are frozen or
/// stopped. What is in the way of that goes to `obstacles`.
pub fn family(home: &SandboxHandle, pids: &[i32], obstacles: &mut Vec<Blocker>) -> io::Result<Vec<Member>> {
    let mut below: HashMap<i32, Vec<Member>> = HashMap::new();
    for pid in pids {
        let mut parent = parent(*pid)?;
        if parent == home.init_pid {
            parent = 0;
        } else if !pids.contains(&parent) {
            let what = format!("its parent is process {parent}, outside of the app (torpor exec)");
            obstacles.push(Blocker::new(*pid, Place::Process, what, "try again when it has ended"));
            parent = 0;
        }
        below.entry(parent).or_default().push(Member { pid: *pid, parent, ended: false });
        for child in children(*pid)? {
            if !pids.contains(&child) && proc::stat::read(&format!("/proc/{child}/stat"))?.state == 'Z' {
                below.entry(*pid).or_default().push(Member { pid: child, parent: *pid, ended: true });
            }
        }
    }
    let mut found = below.remove(&0).unwrap_or_default();
    let mut initial = Ok(());
    found.sort_by_key(|member| {
        let inside = inside(member.pid).unwrap_or_else(|error| {
            initial = Err(error);
            0
        });
        (inside != home.initial, inside)
    });
    initial?;
    let mut next = 0;
    while let Some(member) = found.get(next) {
        found.extend(below.remove(&member.pid).unwrap_or_default());
        next += 1;
    }
    Ok(found)
}

/// A process's id in its own pid namespace.
fn inside(pid: i32) -> io::Result<i32> {
    let path = format!("/proc/{pid}/status");
    let text = proc::read(&path)?;
    let ids = proc::field(&text, "NSpid").and_then(|ids| proc::numbers(ids)?.pop());
    ids.ok_or_else(|| proc::unexpected(&path))
}

/// Stops every thread of a frozen family.
pub fn hold(family: &[Member]) -> Result<Vec<Stopped>, CaptureError> {
    let pids: Vec<i32> = family.iter().filter(|member| !member.ended).map(|member| member.pid).collect();
    let mut alive: HashMap<i32, Process> = stop_all(&pids)?.into_iter().map(|process| (process.pid, process)).collect();
    for process in alive.values_mut() {
        process.threads.sort_by_key(|thread| (thread.tracee.thread() != process.pid, thread.tracee.thread()));
        for thread in &mut process.threads {
            rseq::abort(thread)?;
        }
    }
    let mut stopped = Vec::with_capacity(family.len());
    for Member { pid, parent, ended } in family.iter().copied() {
        let alive = alive.remove(&pid);
        if !ended && alive.as_ref().is_none_or(|process| process.threads.is_empty()) {
            return Err(TraceError::Look(pid, io::ErrorKind::NotFound.into()).into());
        }
        stopped.push(Stopped { pid, parent, alive });
    }
    Ok(stopped)
}

/// Processes whose first thread has ended while others live on.
pub fn without_leaders(family: &[Member]) -> Result<Vec<Blocker>, CaptureError> {
    let mut found = Vec::new();
    for member in family.iter().filter(|member| !member.ended) {
        let stat = proc::stat::read(&format!("/proc/{0}/task/{0}/stat", member.pid)).look(member.pid)?;
        if matches!(stat.state, 'Z' | 'X') {
            let what = "its first thread has ended while others live on";
            found.push(Blocker::new(member.pid, Place::Process, what, ""));
        }
    }
    Ok(found)
}
