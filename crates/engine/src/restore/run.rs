//! Running a plan: the tracer's side.
//!
//! Waits are for one thread after the other, makers before what they make: nobody's way to its next stop depends on a
//! later one, so the order costs nothing, and everything that can run does.

use std::io;

use torpor_image::tree::{End, Process, Tree};
use torpor_linux::restorer::{Launch, Newborn, adopt, destroy, launch};

use super::calls;
use super::compile::{BORN, DONE, JOINED};
use super::error::RestoreError;
use super::open::Opened;
use super::plan::{Kind, Plan, Task};

/// How often the first process is tried while its number is still taken.
const LAUNCHES: u32 = 100;

/// A tree that is being built. Dropping it kills what is there.
pub(super) struct Building<'a> {
    tree: &'a Tree,
    plan: &'a Plan,
    /// By number of the task; `None` if it is not there yet, or has ended.
    pub(super) newborns: Vec<Option<Newborn>>,
    /// The tree is let go, and not ours to kill any more.
    pub(super) released: bool,
}

pub(super) fn name(process: &Process) -> String {
    let name = match &process.end {
        End::Alive(life) => &life.threads[0].name,
        End::Zombie { name, .. } => name,
    };
    String::from_utf8_lossy(name).into_owned()
}

impl<'a> Building<'a> {
    /// Starts the first process.
    pub(super) fn launch(tree: &'a Tree, plan: &'a Plan, opened: &Opened) -> Result<Self, RestoreError> {
        use std::os::fd::AsFd;
        let pid = plan.tasks[0].tid;
        let inherit = opened.inherited();
        let request = Launch { pid, seed: opened.seed.as_fd(), inherit: &inherit, first: plan.first_fd };
        let mut started = launch(&request);
        // The kernel frees a number a moment after the process is gone, and we have seen that it is.
        for _ in 0..LAUNCHES {
            match &started {
                Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => std::thread::yield_now(),
                _ => break,
            }
            started = launch(&request);
        }
        started?;
        let mut newborns = Vec::new();
        newborns.resize_with(plan.tasks.len(), || None);
        let mut building = Self { tree, plan, newborns, released: false };
        let alive = tree.processes.iter().filter_map(Process::alive);
        let filters = alive.flat_map(|life| &life.threads).any(|thread| !thread.seccomp.is_empty());
        building.adopt(0, true, filters)?;
        Ok(building)
    }

    pub(super) fn tasks(&self) -> &'a [Task] {
        &self.plan.tasks
    }

    pub(super) fn tree(&self) -> &'a Tree {
        self.tree
    }

    fn process(&self, task: &Task) -> &'a Process {
        &self.tree.processes[task.process as usize]
    }

    fn halt(&self, task: &Task) -> impl FnOnce(torpor_linux::restorer::Halt) -> RestoreError + use<> {
        let process = self.process(task);
        let (pid, name) = (process.pid, name(process));
        move |error| RestoreError::Halt { pid, name, error }
    }

    fn adopt(&mut self, n: usize, seed: bool, filters: bool) -> Result<(), RestoreError> {
        let task = &self.plan.tasks[n];
        let newborn = adopt(task.tid, seed, filters).map_err(self.halt(task))?;
        self.newborns[n] = Some(newborn);
        self.go_on(n)
    }

    fn newborn(&self, n: usize) -> Result<&Newborn, RestoreError> {
        let missing = || RestoreError::Own("a task of the plan is not there", io::ErrorKind::NotFound.into());
        self.newborns[n].as_ref().ok_or_else(missing)
    }

    fn go_on(&self, n: usize) -> Result<(), RestoreError> {
        self.newborn(n)?.go_on().map_err(self.halt(&self.plan.tasks[n]))
    }

    /// Waits until task `n` is at a barrier.
    fn wait(&self, n: usize, barrier: u64) -> Result<(), RestoreError> {
        let task = &self.plan.tasks[n];
        let stop = self.newborn(n)?.stopped().map_err(self.halt(task))?;
        let step = self.plan.step(stop.step);
        if !stop.failed && step.is_some_and(|step| step.expected as u64 == barrier) {
            return Ok(());
        }
        let process = self.process(task);
        let call = step.map_or_else(|| "mapping the blob".to_owned(), |step| describe(&step));
        let error = match i32::try_from(-stop.answer) {
            Ok(number) if stop.failed && number > 0 && number < 4096 => io::Error::from_raw_os_error(number),
            _ if stop.failed => io::Error::other(format!("the kernel answered {:#x}", stop.answer)),
            _ => io::Error::other(format!("it is not at barrier {barrier}")),
        };
        Err(RestoreError::Call { pid: process.pid, name: name(process), tid: task.tid, call, error })
    }

    fn leaders(&self) -> Vec<usize> {
        let thread = |task: &Task| matches!(task.kind, Kind::Thread(n) if n > 0);
        (0..self.plan.tasks.len()).filter(|n| !thread(&self.plan.tasks[*n])).collect()
    }

    /// Until all processes are there, in their sessions and groups, and those that have ended have. The others run on
    /// towards the end of their steps.
    pub(super) fn born(&mut self) -> Result<(), RestoreError> {
        let leaders = self.leaders();
        if leaders.len() == 1 {
            return Ok(());
        }
        let mut at_barrier = vec![false; self.plan.tasks.len()];
        for n in &leaders[1..] {
            let maker = self.plan.tasks[*n].maker as usize;
            if !std::mem::replace(&mut at_barrier[maker], true) {
                self.wait(maker, BORN)?;
            }
            self.adopt(*n, false, false)?;
        }
        for n in &leaders {
            if !at_barrier[*n] {
                self.wait(*n, BORN)?;
            }
        }
        let helpers: Vec<usize> =
            leaders.iter().copied().filter(|n| self.plan.tasks[*n].kind == Kind::Helper).collect();
        if !helpers.is_empty() {
            leaders.iter().try_for_each(|n| self.go_on(*n))?;
            leaders.iter().try_for_each(|n| self.wait(*n, JOINED))?;
        }
        for n in helpers {
            self.end(n, 0)?;
        }
        for n in leaders {
            match self.process(&self.plan.tasks[n]).end {
                _ if self.newborns[n].is_none() => {}
                End::Zombie { status, .. } => self.end(n, status)?,
                End::Alive(_) => self.go_on(n)?,
            }
        }
        Ok(())
    }

    /// Lets a task run to its end, which must have this wait status.
    fn end(&mut self, n: usize, status: i32) -> Result<(), RestoreError> {
        /// The end left a core file.
        const DUMPED: i32 = 0x80;
        let task = &self.plan.tasks[n];
        let signal = status & 0x7f;
        if signal != 0 {
            self.go_on(n)?;
            self.wait(n, DONE)?;
        }
        let Some(newborn) = self.newborns[n].take() else { return Ok(()) };
        let found = newborn.end(signal).map_err(self.halt(task))?;
        if found != status & !DUMPED {
            let error = torpor_linux::restorer::Halt::Ended(task.tid, found);
            return Err(self.halt(task)(error));
        }
        Ok(())
    }

    /// Until every thread has made all its steps.
    pub(super) fn built(&mut self) -> Result<(), RestoreError> {
        let tasks = &self.plan.tasks;
        for (n, task) in tasks.iter().enumerate() {
            match task.kind {
                Kind::Thread(0) => self.wait(n, DONE)?,
                Kind::Thread(_) => self.adopt(n, false, false)?,
                Kind::Zombie | Kind::Helper => {}
            }
        }
        for n in (0..tasks.len()).filter(|n| matches!(tasks[*n].kind, Kind::Thread(t) if t > 0)) {
            self.wait(n, DONE)?;
        }
        Ok(())
    }
}

/// The call of a step, for people.
fn describe(step: &torpor_linux::restorer::Step) -> String {
    const NAMED: usize = 4;
    let arguments: Vec<String> = step.arguments[..NAMED]
        .iter()
        .map(|argument| match *argument as i64 {
            small @ -4096..4096 => small.to_string(),
            _ => format!("{argument:#x}"),
        })
        .collect();
    format!("{}({}, …)", calls::name(step.number), arguments.join(", "))
}

impl Drop for Building<'_> {
    fn drop(&mut self) {
        if self.released {
            return;
        }
        // Whose parents are gone comes to us to be waited for.
        let before = rustix::process::child_subreaper().unwrap_or(None);
        let own = rustix::process::Pid::from_raw(1);
        if let Err(error) = rustix::process::set_child_subreaper(own) {
            tracing::warn!(%error, "cannot wait for all processes of a failed restore");
        }
        for n in self.leaders() {
            let task = self.plan.tasks[n];
            let threads = self
                .plan
                .tasks
                .iter()
                .filter(|other| other.process == task.process && matches!(other.kind, Kind::Thread(t) if t > 0));
            let threads: Vec<i32> = threads.map(|other| other.tid).collect();
            destroy(task.tid, &threads);
        }
        if before.is_none()
            && let Err(error) = rustix::process::set_child_subreaper(None)
        {
            tracing::warn!(%error, "still a subreaper after a failed restore");
        }
    }
}
