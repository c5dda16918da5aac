//! The guard of a tree that misses pages.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal, setsid};
use torpor_linux::socket::{Sent, send};
use torpor_linux::userfault::Userfault;

use super::{CHILD, LateTree, PAGER_COMMAND, RestoredError, TREE, pair, ready, start, take, tell_ready};

/// Pagers that it starts for one tree, at most: an end without a reason will come again.
const MOST_PAGERS: usize = 100;
/// Between two attempts to start a pager.
const AGAIN: Duration = Duration::from_millis(100);
/// Interval at which it checks whether killed processes have ended.
const LOOK: Duration = Duration::from_millis(10);

/// Guards the tree that the socket at standard input brings, until its memory is complete.
///
/// # Errors
/// The error that stopped it. The processes of the tree were killed.
pub fn guard_main() -> Result<(), RestoredError> {
    // What ends the one who restores, from its terminal, does not end us.
    let _ = setsid();
    let mut tree = LateTree::taken(io::stdin())?;
    let pids: Vec<i32> = tree.records()?.iter().map(|record| record.pid).collect();
    let open = |pid: &i32| Ok(pidfd_open(Pid::from_raw(*pid).ok_or(io::ErrorKind::InvalidData)?, PidfdFlags::empty())?);
    let processes = pids.iter().map(open).collect::<io::Result<Vec<OwnedFd>>>()?;
    let mut guarded = Guarding { tree, pids, processes, children: Vec::new(), is_complete: false };
    guarded.serve()
}

/// A tree that is served. Dropped before it is complete, its processes are ended.
struct Guarding {
    tree: LateTree,
    pids: Vec<i32>,
    processes: Vec<OwnedFd>,
    /// Contexts of children that were forked meanwhile.
    children: Vec<OwnedFd>,
    is_complete: bool,
}

impl Guarding {
    /// Has one pager after the other serve it.
    fn serve(&mut self) -> Result<(), RestoredError> {
        let mut is_served = false;
        for _ in 0..MOST_PAGERS {
            match self.serve_by_one(&mut is_served) {
                Ok(Some(true)) => {
                    self.is_complete = true;
                    return Ok(());
                }
                Ok(Some(false)) => return Err(RestoredError::Ended),
                Ok(None) => {}
                Err(error) if !is_served => return Err(error.into()),
                // There may be memory and descriptors again soon.
                Err(error) => {
                    tracing::warn!(%error, "starting a pager");
                    std::thread::sleep(AGAIN);
                }
            }
        }
        Err(RestoredError::Ended)
    }

    /// Whether a pager has brought all that was missing; none where it was killed.
    fn serve_by_one(&mut self, is_served: &mut bool) -> io::Result<Option<bool>> {
        let (socket, theirs) = pair()?;
        send(&socket, &Sent { bytes: TREE, files: &self.tree.files(), ..Sent::default() })?;
        for child in &self.children {
            send(&socket, &Sent { bytes: CHILD, files: &[child.as_fd()], ..Sent::default() })?;
        }
        let mut pager = start(PAGER_COMMAND, theirs, true)?;
        if !*is_served {
            match ready(&socket).and_then(|()| tell_ready(io::stdin().as_fd())) {
                Ok(()) => *is_served = true,
                // It has ended; or it hangs, and ends now.
                Err(_) => pager.kill()?,
            }
        }
        let status = pager.wait()?;
        if status.code().is_some() {
            return Ok(Some(status.success()));
        }
        // It was killed. A child's context that it has sent is one of the tree's from now on.
        while let Some((word, files)) = take(&socket)? {
            if word == CHILD {
                self.children.extend(files);
            }
        }
        Ok(None)
    }

    /// Ends its processes, and children of theirs as far as they are found. Comes back when every context's process has ended: one that is not
    /// found waits for a page for ever, but does not read zeros.
    fn end(&self) {
        // Stopped, they fork no more.
        let mut found: BTreeSet<i32> = self.pids.iter().copied().collect();
        loop {
            for process in &self.processes {
                let _ = pidfd_send_signal(process, Signal::STOP);
            }
            let more: Vec<i32> =
                found.iter().flat_map(|pid| children_of(*pid)).filter(|pid| !found.contains(pid)).collect();
            if more.is_empty() {
                break;
            }
            for pid in more {
                signal(pid, Signal::STOP);
                found.insert(pid);
            }
        }
        for process in &self.processes {
            let _ = pidfd_send_signal(process, Signal::KILL);
        }
        found.iter().filter(|pid| !self.pids.contains(pid)).for_each(|pid| signal(*pid, Signal::KILL));
        let contexts = self.tree.contexts.iter().skip(1).chain(&self.children);
        let contexts = contexts.filter_map(|context| Some(Userfault::from_parked(context.try_clone().ok()?)));
        for context in contexts.collect::<Vec<_>>() {
            while !context.has_ended() {
                std::thread::sleep(LOOK);
            }
        }
    }
}

impl Drop for Guarding {
    fn drop(&mut self) {
        if !self.is_complete {
            self.end();
        }
    }
}

fn signal(pid: i32, signal: Signal) {
    // It may have ended by itself.
    let _ = Pid::from_raw(pid).map(|pid| kill_process(pid, signal));
}

/// Children of all threads of a process.
fn children_of(pid: i32) -> Vec<i32> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    let parsed = |list: String| list.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<i32>>();
    lists.flat_map(parsed).collect()
}
