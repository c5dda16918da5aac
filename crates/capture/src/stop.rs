//! Stopping a whole process tree that no cgroup freezes.
//!
//! Every thread is seized and interrupted; then it is looked for children and threads that have appeared, until a whole
//! round finds nothing new: a parent that is stopped makes no more of them.

use std::collections::{HashMap, HashSet};
use std::io;
use std::time::{Duration, Instant};

use torpor_linux::ptrace::{Seized, StopError};

use super::CaptureError;
use torpor_proc as proc;
use torpor_process::blocker::{Blocker, Place};
use torpor_process::trace::{Process, Thread, TraceError};

/// How long a thread may wait in the kernel uninterruptibly (a page from disk, `vfork`) before it is refused.
const PATIENCE: Duration = Duration::from_millis(200);
/// Between two looks; the kernel offers no event.
const PAUSE: Duration = Duration::from_micros(200);
/// Rounds before a tree that grows faster than it can be stopped is given up.
const ROUNDS: usize = 1000;

/// A process of a stopped tree.
#[derive(Debug)]
pub struct Stopped {
    /// Its id.
    pub pid: i32,
    /// Parent in the tree; 0: outside.
    pub(crate) parent: i32,
    /// Its threads, the leader first; `None`: it has ended.
    pub alive: Option<Process>,
}

/// Processes of the tree below `root`, as they are now: parents before their children.
pub fn pids(root: i32) -> io::Result<Vec<i32>> {
    let mut found = vec![root];
    let mut next = 0;
    while let Some(pid) = found.get(next).copied() {
        next += 1;
        found.extend(children(pid)?);
    }
    Ok(found)
}

pub(super) fn children(pid: i32) -> io::Result<Vec<i32>> {
    children_of(pid, &gone_is_none(proc::processes::threads(pid))?)
}

/// Children of these threads of a process.
fn children_of(pid: i32, threads: &[i32]) -> io::Result<Vec<i32>> {
    let mut found = Vec::new();
    for tid in threads {
        found.extend(gone_is_none(proc::processes::children(pid, *tid))?);
    }
    Ok(found)
}

/// `None` where the process or thread has gone.
fn gone<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if proc::gone(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

fn gone_is_none(result: io::Result<Vec<i32>>) -> io::Result<Vec<i32>> {
    gone(result).map(Option::unwrap_or_default)
}

#[derive(Default)]
struct Tree {
    /// Parents before their children.
    order: Vec<i32>,
    parents: HashMap<i32, i32>,
    /// By process.
    threads: HashMap<i32, Vec<Thread>>,
}

/// Stops every thread of the tree below `root`. `before` is what was seen of it just now.
pub fn stop(root: i32, before: &[i32]) -> Result<Vec<Stopped>, CaptureError> {
    let look = |pid| move |error| CaptureError::from(TraceError::Look(pid, error));
    proc::stat::read(&format!("/proc/{root}/stat")).map_err(look(root))?;
    let mut tree = Tree { order: vec![root], ..Tree::default() };
    tree.parents.insert(root, 0);
    // All at once: while one stops, the others are asked. Who is found here and is not of the tree any more is let go
    // again below.
    tree.stop_threads(before)?;
    for _ in 0..ROUNDS {
        let mut settled = true;
        let mut next = 0;
        while let Some(pid) = tree.order.get(next).copied() {
            next += 1;
            settled &= !tree.stop_threads(&[pid])?;
            // Those that are not stopped have ended, or will be seen in the next round.
            let threads: Vec<i32> =
                tree.threads.get(&pid).into_iter().flatten().map(|thread| thread.tracee.thread()).collect();
            for child in children_of(pid, &threads).map_err(look(pid))? {
                if tree.parents.insert(child, pid).is_none() {
                    tree.order.push(child);
                    settled &= tree.threads.contains_key(&child);
                }
            }
        }
        if settled {
            return tree.finish();
        }
    }
    Err(CaptureError::Restless(root))
}

impl Tree {
    /// Stops those threads of these processes that are not stopped yet; `true` if there was one.
    fn stop_threads(&mut self, pids: &[i32]) -> Result<bool, CaptureError> {
        let mut asked = Vec::new();
        for pid in pids {
            let known: HashSet<i32> = self.threads.get(pid).into_iter().flatten().map(|t| t.tracee.thread()).collect();
            for tid in gone_is_none(proc::processes::threads(*pid)).map_err(|error| TraceError::Look(*pid, error))? {
                if !known.contains(&tid)
                    && let Some(seized) = seize(*pid, tid)?
                {
                    asked.push((*pid, tid, seized));
                }
            }
        }
        let mut found = false;
        for (pid, tid, seized) in asked {
            if let Some(thread) = stop_thread(pid, tid, seized)? {
                self.threads.entry(pid).or_default().push(thread);
                found = true;
            }
        }
        Ok(found)
    }

    fn finish(mut self) -> Result<Vec<Stopped>, CaptureError> {
        // Those that were of the tree before it was stopped, and are not any more.
        self.threads.retain(|pid, _| self.parents.contains_key(pid));
        let mut stopped = Vec::with_capacity(self.order.len());
        for pid in &self.order {
            let look = |error| TraceError::Look(*pid, error);
            // A process that ended while others were being stopped may have been reaped.
            let Some(stat) = gone(proc::stat::read(&format!("/proc/{pid}/stat"))).map_err(look)? else { continue };
            let mut threads = self.threads.remove(pid).unwrap_or_default();
            threads.sort_by_key(|thread| (thread.tracee.thread() != *pid, thread.tracee.thread()));
            let alive = match threads.first() {
                None => None,
                Some(leader) if leader.tracee.thread() == *pid => {
                    Some(Process { pid: *pid, start_ticks: stat.start_ticks, threads })
                }
                Some(_) => {
                    let what = "its first thread has ended while others live on";
                    return Err(Blocker::new(*pid, Place::Process, what, "").into());
                }
            };
            stopped.push(Stopped { pid: *pid, parent: self.parents.get(pid).copied().unwrap_or(0), alive });
        }
        let there: Vec<i32> = stopped.iter().map(|process| process.pid).collect();
        for process in &mut stopped {
            if !there.contains(&process.parent) {
                process.parent = 0;
            }
        }
        Ok(stopped)
    }
}

/// Asks a thread to stop; `None` if it has ended.
fn seize(pid: i32, tid: i32) -> Result<Option<Seized>, CaptureError> {
    let begun = Instant::now();
    loop {
        match state(pid, tid)? {
            None => return Ok(None),
            Some('D') if begun.elapsed() > PATIENCE => {
                let what = "it waits in the kernel and cannot be stopped (vfork, or disk I/O)";
                return Err(Blocker::new(pid, Place::Thread(tid), what, "try again later").into());
            }
            Some('D') => std::thread::sleep(PAUSE),
            Some(_) => break,
        }
    }
    match Seized::seize(tid) {
        Ok(seized) => Ok(Some(seized)),
        Err(error) if proc::gone(&error) => Ok(None),
        Err(error) => Err(why_not(pid, tid, error)),
    }
}

/// What a thread does; `None`: it has ended.
fn state(pid: i32, tid: i32) -> Result<Option<char>, CaptureError> {
    let stat = gone(proc::stat::read(&format!("/proc/{pid}/task/{tid}/stat")));
    let state = stat.map_err(|error| TraceError::Look(pid, error))?.map(|stat| stat.state);
    Ok(state.filter(|state| !matches!(state, 'Z' | 'X')))
}

/// Waits until a thread has stopped; `None` if it has ended.
fn stop_thread(pid: i32, tid: i32, mut seized: Seized) -> Result<Option<Thread>, CaptureError> {
    loop {
        let Some(thread) = stopped(tid, seized)? else { return Ok(None) };
        if !super::trampoline::holds(pid, thread.registers.instruction()) {
            return Ok(Some(thread));
        }
        // Somebody died while it made a call for them: it is on its way back.
        drop(thread);
        std::thread::yield_now();
        match seize(pid, tid)? {
            Some(again) => seized = again,
            None => return Ok(None),
        }
    }
}

fn stopped(tid: i32, seized: Seized) -> Result<Option<Thread>, CaptureError> {
    match seized.stopped() {
        Ok(tracee) => {
            let wrong = |error| TraceError::Registers(tid, error);
            let registers = tracee.registers().map_err(wrong)?;
            let signal_mask = tracee.signal_mask().map_err(wrong)?;
            let mut thread = Thread { registers, signal_mask, tracee };
            super::rseq::abort(&mut thread)?;
            Ok(Some(thread))
        }
        Err(StopError::Ended(_)) => Ok(None),
        Err(error) => Err(TraceError::from(error).into()),
    }
}

/// Why attaching was refused, in terms of who stands in the way.
fn why_not(pid: i32, tid: i32, error: io::Error) -> CaptureError {
    let Some(tracer) = proc::tracer(pid, tid) else { return TraceError::Attach(tid, error).into() };
    let what = format!("process {tracer} ({}) traces it", proc::name(tracer));
    Blocker::new(pid, Place::Thread(tid), what, "end the debugger or tracer").into()
}
