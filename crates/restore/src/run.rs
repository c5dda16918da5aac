//! Running a plan: the tracer's side.
//!
//! Waits are for one thread after the other, makers before what they make: nobody's way to its next stop depends on a
//! later one, so the order costs nothing, and everything that can run does.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};
use torpor_image::tree::{End, Process, Tree};
use torpor_linux::restorer::{
    self, BuildingTask, Entered, ForkTracker, Launch, LaunchError, STOP, adopt, destroy, destroy_all, launch,
};

use super::check;
use super::error::RestoreError;
use super::lazy::{MOST_CONTEXTS, Waiting};
use super::open::Opened;
use torpor_pages::place::{Placement, Way};
use torpor_planner::calls;
use torpor_planner::plan::{BORN, DONE, FILL, JOINED};
use torpor_planner::plan::{Kind, Plan, Task};

/// The first process of a pid namespace.
const INIT: i32 = 1;
/// How long ids may be taken by what is ending.
const ENDING: Duration = Duration::from_secs(1);
/// How long a number may be taken after its process is gone.
const FREED: Duration = Duration::from_millis(1);
/// How often the first process is tried while its number is still taken.
const LAUNCHES: u32 = 100;

/// A tree that is being built. Dropping it kills what is there.
pub struct Building<'a> {
    tree: &'a Tree,
    plan: &'a Plan,
    /// By number of the task; `None` if it is not there yet, or has ended.
    pub(crate) newborns: Vec<Option<BuildingTask>>,
    /// Ids in our pid namespace, by number of the task; 0 if it has not been there.
    ids: Vec<i32>,
    /// Of a tree in another pid namespace: who has been born.
    births: Option<ForkTracker>,
    /// What the first process uses of ours until it has stopped for the first time.
    entered: Option<Entered>,
    /// The first process's descriptor, from then on.
    pub first: Option<OwnedFd>,
    /// The tree is let go, and not ours to kill any more.
    pub(crate) released: bool,
}

/// Makes what will be the first process of a tree, with the id `pid` inside. The calling thread's children are made in the
/// home's pid namespace.
pub fn enter(
    init: BorrowedFd<'_>,
    cgroup: BorrowedFd<'_>,
    tasks: &[BorrowedFd<'_>],
    pid: i32,
) -> Result<Entered, LaunchError> {
    let mut spares = (INIT + 1..).filter(|id| *id != pid);
    let begun = Instant::now();
    loop {
        let spare = spares.next().unwrap_or(i32::MAX);
        match restorer::enter(&restorer::Inside { init, cgroup, tasks, pid, spare }) {
            // What was there before may still be ending: whoever has to has not asked for it yet.
            Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists && begun.elapsed() < ENDING => {
                std::thread::yield_now();
            }
            other => return other,
        }
    }
}

pub(crate) fn name(process: &Process) -> String {
    let name = match &process.end {
        End::Alive(life) => &life.threads[0].name,
        End::Zombie { name, .. } => name,
    };
    String::from_utf8_lossy(name).into_owned()
}

impl<'a> Building<'a> {
    /// Starts the first process.
    pub(super) fn launch(tree: &'a Tree, plan: &'a Plan, opened: &Opened) -> Result<Self, RestoreError> {
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
        started.map_err(|error| match error.error.kind() {
            io::ErrorKind::AlreadyExists => RestoreError::Refused(vec![check::taken(pid)]),
            _ => error.into(),
        })?;
        let mut building = Self::begin(tree, plan);
        building.ids = plan.tasks.iter().map(|task| task.tid).collect();
        building.adopt(0, true)?;
        Ok(building)
    }

    /// Lets the first process, which has entered the app's home, begin. The calling thread has no children and no other
    /// tracees.
    pub(crate) fn begin_inside(
        tree: &'a Tree,
        plan: &'a Plan,
        opened: &Opened,
        mut entered: Entered,
    ) -> Result<Self, RestoreError> {
        let inherit = opened.inherited();
        let request =
            Launch { pid: plan.tasks[0].tid, seed: opened.seed.as_fd(), inherit: &inherit, first: plan.first_fd };
        let mut building = Self::begin(tree, plan);
        building.ids[0] = entered.pid();
        let first = entered.execute(&request, building.filters())?;
        building.births = Some(ForkTracker::of(&first));
        building.newborns[0] = Some(first);
        building.entered = Some(entered);
        Ok(building)
    }

    fn begin(tree: &'a Tree, plan: &'a Plan) -> Self {
        let mut newborns = Vec::new();
        newborns.resize_with(plan.tasks.len(), || None);
        Self {
            tree,
            plan,
            newborns,
            ids: vec![0; plan.tasks.len()],
            births: None,
            entered: None,
            first: None,
            released: false,
        }
    }

    /// Some thread has seccomp filters.
    fn filters(&self) -> bool {
        self.tree.threads().any(|thread| !thread.seccomp.is_empty() || thread.strict)
    }

    /// The id in our pid namespace of a task.
    pub fn id(&self, n: usize) -> i32 {
        self.ids[n]
    }

    /// The id in our pid namespace of who has this one in the tree; 0 if it is nobody's.
    pub fn id_of(&self, inside: i32) -> i32 {
        self.plan.tasks.iter().position(|task| task.tid == inside).map_or(0, |n| self.ids[n])
    }

    /// The tasks of the plan.
    pub fn tasks(&self) -> &'a [Task] {
        &self.plan.tasks
    }

    pub(crate) fn tree(&self) -> &'a Tree {
        self.tree
    }

    fn process(&self, task: &Task) -> &'a Process {
        &self.tree.processes[task.process as usize]
    }

    fn halt(&self, task: &Task) -> impl FnOnce(restorer::Halt) -> RestoreError + use<> {
        let process = self.process(task);
        let (pid, name) = (process.pid, name(process));
        move |error| RestoreError::Halt { pid, name, error }
    }

    fn adopt(&mut self, n: usize, seed: bool) -> Result<(), RestoreError> {
        let (task, plan) = (&self.plan.tasks[n], self.plan);
        let newborn = match &mut self.births {
            None => adopt(task.tid, seed, self.filters()),
            // The step that makes a task names its list.
            Some(births) => births.born(task.first, |step| plan.step(step).map(|step| step.arguments[2])),
        };
        let newborn = newborn.map_err(self.halt(task))?;
        self.ids[n] = newborn.tracee().thread();
        self.newborns[n] = Some(newborn);
        self.go_on(n)
    }

    fn newborn(&self, n: usize) -> Result<&BuildingTask, RestoreError> {
        self.newborns[n].as_ref().ok_or_else(missing)
    }

    fn go_on(&self, n: usize) -> Result<(), RestoreError> {
        self.newborn(n)?.go_on().map_err(self.halt(&self.plan.tasks[n]))
    }

    /// Waits until task `n` is at a barrier.
    fn wait(&mut self, n: usize, barrier: u64) -> Result<(), RestoreError> {
        let task = &self.plan.tasks[n];
        let newborn = self.newborns[n].as_ref().ok_or_else(missing)?;
        let stop = match &mut self.births {
            None => newborn.stopped(),
            Some(births) => births.stopped(newborn),
        };
        if n == 0
            && let Some(entered) = self.entered.take()
        {
            match &stop {
                Err(restorer::Halt::Ended(..)) => {
                    self.newborns[0] = None;
                    if let Some(error) = entered.failure() {
                        return Err(error.into());
                    }
                }
                Err(_) => self.entered = Some(entered),
                Ok(_) => {
                    let first = entered.executed();
                    self.first = Some(first.map_err(|error| RestoreError::Own("duplicating a descriptor", error))?);
                }
            }
        }
        let stop = stop.map_err(self.halt(task))?;
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
        // Somebody has taken a number since they were all found free. (Within an app's home there is nobody else.)
        if let Some(step) = step.filter(|step| i64::from(step.number) == calls::CLONE3)
            && error.kind() == io::ErrorKind::AlreadyExists
            && self.births.is_none()
        {
            return Err(RestoreError::Refused(vec![check::taken(step.expected as i32)]));
        }
        let call = call + step.map_or("", |step| scarcity(step.number, &error));
        Err(RestoreError::Call { pid: process.pid, name: name(process), tid: task.tid, call, error })
    }

    fn leaders(&self) -> Vec<usize> {
        let thread = |task: &Task| matches!(task.kind, Kind::Thread(n) if n > 0);
        (0..self.plan.tasks.len()).filter(|n| !thread(&self.plan.tasks[*n])).collect()
    }

    /// Until all processes are there, in their sessions and groups, and those that have ended have. The others run on
    /// towards the end of their steps.
    pub(crate) fn born(&mut self) -> Result<(), RestoreError> {
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
            self.adopt(*n, false)?;
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
            let error = restorer::Halt::Ended(task.tid, found);
            return Err(self.halt(task)(error));
        }
        Ok(())
    }

    /// Until the processes that are to be filled have mapped their memory; gives their tasks, and what goes where.
    pub(super) fn mapped(&mut self) -> Result<(Vec<usize>, Vec<Placement>), RestoreError> {
        let mut found = self.leaders();
        found.retain(|n| self.tasks()[*n].kind == Kind::Thread(0));
        let (mut waiting, mut missing) = (Vec::new(), Vec::new());
        for n in found {
            let mut steps = self.plan.steps(&self.tasks()[n]).map(|(_, step)| step);
            let stop = steps.find(|step| step.number == STOP && step.expected as u64 == FILL);
            let Some(restorer::Step { arguments: [table, count, ..], .. }) = stop else { continue };
            self.wait(n, FILL)?;
            waiting.push(n);
            let words = count.checked_mul(3).and_then(|count| self.plan.words(table, count));
            let words = words.ok_or_else(|| {
                RestoreError::Own("the plan names memory that it does not have", io::ErrorKind::InvalidData.into())
            })?;
            let pid = self.ids[n];
            missing.extend(words.as_chunks().0.iter().map(|[address, bytes, offset]| Placement {
                pid,
                address: *address,
                bytes: *bytes,
                offset: *offset,
                // It is protected afterwards only.
                way: Way::Written,
            }));
        }
        Ok((waiting, missing))
    }

    /// Contexts of those that wait to be filled. Who gets none, for whatever reason, is filled without.
    pub(crate) fn contexts(&self, tasks: &[usize], device: BorrowedFd<'_>) -> Vec<Waiting<'a>> {
        let context = |n: &usize| {
            let life = self.process(&self.plan.tasks[*n]).alive()?;
            let made = Waiting::of(self.newborns[*n].as_ref()?, self.plan.address, life, device);
            made.unwrap_or_else(|error| {
                let error = &error as &dyn std::error::Error;
                tracing::debug!(pid = self.ids[*n], error, "no userfaultfd context");
                None
            })
        };
        tasks.iter().filter_map(context).take(MOST_CONTEXTS).collect()
    }

    /// Lets those go on that have been filled.
    pub(super) fn filled(&self, tasks: &[usize]) -> Result<(), RestoreError> {
        tasks.iter().try_for_each(|n| self.go_on(*n))
    }

    /// Until every thread has made all its steps.
    pub(crate) fn built(&mut self) -> Result<(), RestoreError> {
        let tasks = &self.plan.tasks;
        for (n, task) in tasks.iter().enumerate() {
            match task.kind {
                Kind::Thread(0) => self.wait(n, DONE)?,
                Kind::Thread(_) => self.adopt(n, false)?,
                Kind::Zombie | Kind::Helper => {}
            }
        }
        for n in (0..tasks.len()).filter(|n| matches!(tasks[*n].kind, Kind::Thread(t) if t > 0)) {
            self.wait(n, DONE)?;
        }
        Ok(())
    }
}

impl Building<'_> {
    /// The calling thread has no children or tracees but these.
    fn destroy_inside(&self) {
        let there: Vec<i32> = self.newborns.iter().flatten().map(|newborn| newborn.tracee().thread()).collect();
        let ended = destroy_all(&there);
        wait_for_ids(ended.into_iter().chain(self.ids.iter().copied()));
    }

    /// Ids in our pid namespace of all that was there.
    pub fn ids(&self) -> Vec<i32> {
        self.ids.clone()
    }
}

/// Waits until what was killed has been asked for: it is its parents', and in the end init's, which asks for all.
pub fn wait_for_ids(ids: impl Iterator<Item = i32>) {
    let begun = Instant::now();
    let is_there = |id: &i32| Pid::from_raw(*id).is_some_and(|id| test_kill_process(id).is_ok());
    let mut there: Vec<i32> = ids.filter(is_there).collect();
    while !there.is_empty() && begun.elapsed() < ENDING {
        std::thread::yield_now();
        there.retain(is_there);
    }
    // The kernel frees a number a moment after the process is gone; there is no event for it.
    std::thread::sleep(FREED);
}

fn missing() -> RestoreError {
    RestoreError::Own("a task of the plan is not there", io::ErrorKind::NotFound.into())
}

/// The call of a step, for people.
fn describe(step: &restorer::Step) -> String {
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

/// What is used up, and the remedy, where the kernel's error does not name the resource.
fn scarcity(call: u32, error: &io::Error) -> &'static str {
    if error.raw_os_error() != Some(Errno::AGAIN.raw_os_error()) {
        return "";
    }
    match i64::from(call) {
        calls::IO_SETUP => {
            " (the machine's AIO events are used up, see fs.aio-nr: raise fs.aio-max-nr with sysctl, or stop what holds them)"
        }
        calls::TIMER_CREATE | calls::RT_SIGQUEUEINFO | calls::RT_TGSIGQUEUEINFO => {
            " (its user has as many POSIX timers and queued signals as the limit of pending signals allows, `ulimit -i`)"
        }
        _ => "",
    }
}

impl Drop for Building<'_> {
    fn drop(&mut self) {
        if self.released {
            return;
        }
        if self.births.is_some() {
            self.destroy_inside();
            return;
        }
        // Whose parents are gone comes to us to be waited for.
        let before = rustix::process::child_subreaper().unwrap_or(None);
        let own = Pid::from_raw(1);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_used_up_is_named() {
        let told = |call: i64, error: Errno| scarcity(call as u32, &error.into());
        assert!(told(calls::IO_SETUP, Errno::AGAIN).contains("fs.aio-max-nr"));
        assert!(told(calls::TIMER_CREATE, Errno::AGAIN).contains("pending signals"));
        assert_eq!(told(calls::IO_SETUP, Errno::NOMEM), "");
        assert_eq!(told(calls::CLONE3, Errno::AGAIN), "");
    }
}
