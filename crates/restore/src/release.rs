//! Letting a built tree go: the stopped processes first, then the others, the root last.
//!
//! A process that was stopped by job control is let go with a stop signal, and stops before it runs an instruction, in the freezer too.
//! The other processes are let go after that. If they ran earlier, a `SIGCONT` of the parent would only cancel the stop, and the parent
//! would wait for ever to hear that its child continues (`WCONTINUED`).
//!
//! # Which signal
//! The signal that had stopped the process is used where it stops the process again: a parent sees it (`WSTOPSIG`). `SIGTSTP`, `SIGTTIN`
//! and `SIGTTOU` do not always do so:
//!
//! - the kernel ignores them if the process group is orphaned. A group can become orphaned while its processes are stopped, for example
//!   when the parent begins a session of its own;
//! - a process that blocks them, and was stopped in `sigsuspend(2)` or a call like it, takes them later;
//! - a handler may be installed.
//!
//! `SIGSTOP` is used in these cases. It always stops a process.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use torpor_image::tree::LiveProcess;
use torpor_linux::uapi::signal::SIGSTOP;

use super::RestoreError;
use super::run::Building;
use torpor_planner::plan::Kind;
use torpor_proc::{self as proc, stat::Stat};

/// How long all stopped processes together may take to stop again: half of it their first threads, the other half the others.
const STOPS_WITHIN: Duration = Duration::from_secs(1);
/// Between two looks at them.
const STOP_PAUSE: Duration = Duration::from_micros(50);

/// `SIG_DFL`.
const DEFAULT: u64 = 0;
/// The kernel does not count it as a parent that keeps a group from being orphaned.
const GLOBAL_INIT: i32 = 1;

/// A process that was stopped.
struct Stopped {
    /// Its first thread's task, and those of all its threads.
    leader: usize,
    threads: Vec<usize>,
    /// What stops it again.
    signal: i32,
}

impl Building<'_> {
    /// Lets everything go, the root last unless it is stopped. After an error what was let go is there. A process that does not stop again
    /// in time is named in `warnings`.
    pub fn release(mut self, warnings: &mut Vec<String>) -> Result<(), RestoreError> {
        self.released = true;
        let stopped = self.stopped();
        let deadline = Instant::now() + STOPS_WITHIN;
        for one in &stopped {
            self.let_go(one.leader, one.signal)?;
        }
        // A thread that is let go takes part in the stop that its leader has begun.
        self.wait_until_stopped(stopped.iter().map(|one| one.leader), deadline - STOPS_WITHIN / 2);
        for n in stopped.iter().flat_map(|one| &one.threads) {
            self.let_go(*n, 0)?;
        }
        let late = self.wait_until_stopped(stopped.iter().flat_map(|one| one.threads.iter().copied()), deadline);
        let late: HashSet<i32> = late.into_iter().map(|n| self.tree().processes[self.process_of(n)].pid).collect();
        for pid in late {
            warnings.push(format!(
                "process {pid} was stopped and has not stopped again within {} s: if it runs, stop it with SIGSTOP",
                STOPS_WITHIN.as_secs()
            ));
        }
        (0..self.newborns.len()).rev().try_for_each(|n| self.let_go(n, 0))
    }

    /// Lets a task go, with a signal (0: none), if it has not been.
    fn let_go(&mut self, n: usize, signal: i32) -> Result<(), RestoreError> {
        let Some(newborn) = self.newborns[n].take() else { return Ok(()) };
        let set = |error| RestoreError::Set { pid: self.tasks()[n].tid, what: "letting go", error };
        newborn.detach(signal).map_err(set)
    }

    /// The processes that were stopped, and what stops each of them again.
    fn stopped(&self) -> Vec<Stopped> {
        let leader = |n: &usize| self.tasks()[*n].kind == Kind::Thread(0);
        let stopped_by = |n: usize| {
            let life = self.tree().processes[self.process_of(n)].alive()?;
            Some((n, life, life.stopped_by?))
        };
        let found: Vec<_> = (0..self.tasks().len()).filter(leader).filter_map(stopped_by).collect();
        // Not looked at where it does not matter: there may be thousands of processes.
        let kept =
            if found.iter().any(|(_, _, signal)| *signal != SIGSTOP) { self.kept_groups() } else { HashSet::new() };
        let with_signal = |(leader, life, signal): (usize, &LiveProcess, i32)| {
            let group = look(self.id(leader)).map_or(0, |stat| stat.group);
            let signal = if stops(life, signal) && kept.contains(&group) { signal } else { SIGSTOP };
            Stopped { leader, threads: (leader..leader + life.threads.len()).collect(), signal }
        };
        found.into_iter().map(with_signal).collect()
    }

    /// Process groups of the tree that are not orphaned (`will_become_orphaned_pgrp` in the kernel's `kernel/exit.c`): a living member has
    /// a parent in another group of the same session. Members outside of the tree are not looked for.
    fn kept_groups(&self) -> HashSet<i32> {
        let leaders = (0..self.tasks().len()).filter(|n| self.tasks()[*n].kind == Kind::Thread(0));
        let there: HashMap<i32, Stat> = leaders.filter_map(|n| Some((self.id(n), look(self.id(n))?))).collect();
        let keeps = |stat: &&Stat| {
            let parent = there.get(&stat.parent).copied().or_else(|| look(stat.parent));
            stat.parent != GLOBAL_INIT
                && parent.is_some_and(|parent| parent.group != stat.group && parent.session == stat.session)
        };
        there.values().filter(keeps).map(|stat| stat.group).filter(|group| *group > 0).collect()
    }

    /// Waits until these tasks have stopped, or have been killed; gives those that have not at the deadline. There is no event for who is
    /// not their parent.
    fn wait_until_stopped(&self, tasks: impl Iterator<Item = usize>, deadline: Instant) -> Vec<usize> {
        let runs = |n: &usize| look(self.id(*n)).is_some_and(|stat| !matches!(stat.state, 'T' | 'Z' | 'X'));
        let mut left: Vec<usize> = tasks.filter(runs).collect();
        while !left.is_empty() && Instant::now() < deadline {
            std::thread::sleep(STOP_PAUSE);
            left.retain(runs);
        }
        left
    }

    fn process_of(&self, n: usize) -> usize {
        self.tasks()[n].process as usize
    }
}

fn look(id: i32) -> Option<Stat> {
    proc::stat::read(&format!("/proc/{id}/stat")).ok()
}

/// The signal stops the process at once when its first thread takes it, if its group is not orphaned.
fn stops(life: &LiveProcess, signal: i32) -> bool {
    let Some(place) = usize::try_from(signal).ok().and_then(|signal| signal.checked_sub(1)) else { return false };
    let blocked = life.threads.first().is_none_or(|leader| leader.signal_mask & (1 << place) != 0);
    !blocked && life.actions.get(place).is_some_and(|action| action.handler == DEFAULT)
}
