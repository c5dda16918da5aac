//! Processes as `/proc` shows them: who belongs to a program of the suite, and whether it is still there.

use rustix::process::{Pid, PidfdFlags, Signal};
use torpor_proc as proc;

/// A process that cannot be taken for another: ids are used again, start times are not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Process {
    /// Its id.
    pub(crate) pid: i32,
    /// When it started, in ticks since the machine did.
    started: u64,
    parent: i32,
    session: i32,
}

impl Process {
    /// Process `pid`, if there is one (zombies count).
    pub(crate) fn read(pid: i32) -> Option<Self> {
        let stat = proc::stat::read(&format!("/proc/{pid}/stat")).ok()?;
        Some(Self { pid, parent: stat.parent, session: stat.session, started: stat.start_ticks })
    }

    /// Whether it is still there.
    pub(crate) fn is_there(&self) -> bool {
        Self::read(self.pid).is_some_and(|now| now.started == self.started)
    }
}

/// All processes of the machine.
pub(crate) fn all() -> Vec<Process> {
    proc::processes::all().unwrap_or_default().into_iter().filter_map(Process::read).collect()
}

/// Process `root`, its session and its descendants.
pub(crate) fn tree(root: i32) -> Vec<Process> {
    let all = all();
    let mut found: Vec<Process> =
        all.iter().filter(|process| process.pid == root || process.session == root).copied().collect();
    loop {
        let is_new = |process: &&Process| {
            !found.iter().any(|known| known.pid == process.pid) && found.iter().any(|known| known.pid == process.parent)
        };
        let more: Vec<Process> = all.iter().filter(is_new).copied().collect();
        if more.is_empty() {
            return found;
        }
        found.extend(more);
    }
}

/// Kills process `pid` if `is_it` still says so once the process cannot be mistaken any more.
pub(crate) fn kill_if(pid: i32, is_it: impl Fn(i32) -> bool) {
    let Some(id) = Pid::from_raw(pid) else { return };
    if let Ok(fd) = rustix::process::pidfd_open(id, PidfdFlags::empty())
        && is_it(pid)
    {
        // It may have ended meanwhile.
        let _ = rustix::process::pidfd_send_signal(&fd, Signal::KILL);
    }
}
