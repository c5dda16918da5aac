//! From a tree to the plan of its restore: pure.
//!
//! ```text
//! task              steps
//! ────              ─────
//! process           children of before setsid, setsid, children, own group │1│ join a group │2│ helpers' ends │ memory,
//!                   descriptors, directories, signal actions, threads, timers, limits, credentials, pending signals │3│
//! thread            its own attributes, filters, credentials, pending signals │3│
//! zombie            as a process until its group, then its end
//! helper            a session or group for others │1│ │2│ its end
//! ```
//! The numbers are barriers, at which the restorer waits for all; 1 and 2 are there only where they are needed. Who makes
//! others fills what they are to share copy-on-write before that ([`shared_pages`]). A process with much memory waits when it has
//! mapped it: [`super::fill`].

mod addresses;
mod aio;
mod build;
mod kernel;
mod mapping;
mod memory;
mod order;
mod page_reads;
mod process;
mod runs;
mod shared_pages;
mod thread;

use std::collections::HashSet;

use torpor_image::checksum;
use torpor_image::tree::{End, LiveProcess, Process, Shares, Tree};
use torpor_linux::restorer::CODE_BYTES;
use torpor_linux::uapi::file::{TIOCSCTTY, TIOCSPGRP};
use torpor_linux::uapi::prctl::{PR_SET_DUMPABLE, PR_SET_NAME};
use torpor_linux::uapi::process::{
    CLONE_FILES, CLONE_FS, CLONE_NEWTIME, CLONE_NEWUSER, CLONE_PARENT, CLONE_PTRACE, RLIMIT_CORE,
};
use torpor_linux::uapi::signal::{SIGCHLD, SIGTRAP};

use self::addresses::ScratchArea;
use self::build::{Builder, Steps};
use self::kernel::KernelAreas;
use self::memory::BaselineLayout;
use self::order::{Birth, Group, Helper, Maker, Node, Order};
use self::shared_pages::SharedPages;
use crate::allowed;
use crate::calls;
use crate::plan::{BORN, CLONE_THREAD_FLAGS, DONE, JOINED, Kind, Plan, Task, key};
use crate::staged::Staged;

/// Where in the blob's file zeros are read.
pub const HOLE_OFFSET: u64 = 1 << 40;

/// Where the blob may lie: above what programs are linked at, below where the kernel places mappings.
const ROOM: std::ops::Range<u64> = 0x10_0000_0000..0x2000_0000_0000;
/// Distance of the blob from everything else.
const MARGIN: u64 = 4 << 20;
/// First guess of what the data takes.
const RESERVE: u64 = 1 << 20;

/// Why a tree cannot be restored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompileError {
    /// There is nothing.
    #[error("the tree has no living process")]
    Empty,
    /// How it came into its session cannot be done again.
    #[error("process {pid} is in session {session}, whose leader has ended or is not among its ancestors")]
    Session {
        /// Process.
        pid: i32,
        /// Session.
        session: i32,
    },
    /// Nobody in its session can make its group.
    #[error("process {pid} is in group {group}, whose leader has ended, and nobody in its session can make the group")]
    Group {
        /// Process.
        pid: i32,
        /// Group.
        group: i32,
    },
    /// A System V segment that is mapped in part.
    #[error("process {pid} maps a part of a System V segment at {start:#x}")]
    PartOfSegment {
        /// Process.
        pid: i32,
        /// First byte.
        start: u64,
    },
    /// An area of the kernel's that is not as in other processes of the tree.
    #[error("process {pid} has an area of the kernel's at {start:#x} that others have otherwise")]
    Kernel {
        /// Process.
        pid: i32,
        /// First byte.
        start: u64,
    },
    /// A signal that the restorer itself uses.
    #[error("a SIGTRAP waits for process {0}")]
    Trap(i32),
    /// Too many timers were made before.
    #[error("process {0} has a timer with a number that this kernel cannot be brought to")]
    Timer(i32),
    /// Address spaces without a common gap.
    #[error("there is no address that is free in all processes")]
    NoRoom,
    /// It shares with a process that cannot make it.
    #[error("process {0} shares descriptors or directories with its parent, which cannot make it in its session")]
    Sharing(i32),
    /// Descriptors up to the highest number.
    #[error("there are no free descriptor numbers")]
    NoNumbers,
}

/// Makes the plan of a tree's restore: what an image carries so that restoring is doing and not thinking.
pub fn compile(tree: &Tree) -> Result<Vec<u8>, CompileError> {
    plan(tree, key(checksum(&tree.encode()))).map(|plan| plan.encode())
}

/// Makes the plan; `key` says which tree it is for.
pub fn plan(tree: &Tree, key: u64) -> Result<Plan, CompileError> {
    if tree.processes.first().and_then(Process::alive).is_none() {
        return Err(CompileError::Empty);
    }
    check(tree)?;
    let staged = Staged::of(tree).ok_or(CompileError::NoNumbers)?;
    let order = Order::of(tree)?;
    for (process, maker) in tree.processes.iter().zip(&order.makers) {
        let shares = process.alive().map(|life| life.shares).unwrap_or_default();
        if shares != Shares::default() && !matches!(maker, Maker::Parent { .. }) {
            return Err(CompileError::Sharing(process.pid));
        }
    }
    let shared = SharedPages::of(tree, &order);
    let mut reserve = RESERVE;
    loop {
        let room = room(tree, reserve)?;
        let mut compiler = Compiler::new(tree, &staged, &order, &shared, room);
        let tasks = compiler.tasks()?;
        if compiler.builder.len() <= reserve {
            let address = room.address + CODE_BYTES as u64;
            let firsts: Vec<u64> = tasks.iter().map(|task| task.first).collect();
            let data = compiler.builder.finish(address, &firsts);
            let place = |offset: u64| address + offset;
            let limits = |task: &Task| if task.limits == u64::MAX { 0 } else { place(task.limits) };
            let tasks = tasks
                .into_iter()
                .map(|task| Task { first: place(task.first), end: place(task.end), limits: limits(&task), ..task })
                .collect();
            let plan = Plan { key, address: room.address, first_fd: staged.first, tasks, data };
            // What is not known there would be dropped with every image that is read, and be made again: slowly, not wrongly.
            debug_assert!(
                allowed::is_allowed(tree, &plan),
                "`allowed` does not know {:?}",
                allowed::strangers(tree, &plan)
            );
            return Ok(plan);
        }
        reserve = compiler.builder.len().next_power_of_two();
    }
}

/// What no step could do.
fn check(tree: &Tree) -> Result<(), CompileError> {
    /// Timers that are made and removed to come to a number.
    const TIMERS: i32 = 10_000;
    for process in &tree.processes {
        let Some(life) = process.alive() else { continue };
        let pending = life.threads.iter().flat_map(|thread| &thread.pending).chain(&life.pending);
        if pending.into_iter().any(|signal| process::signal_number(&signal.info) == SIGTRAP) {
            return Err(CompileError::Trap(process.pid));
        }
        if !exact_timer_ids(tree) && life.posix_timers.iter().any(|timer| timer.id > TIMERS) {
            return Err(CompileError::Timer(process.pid));
        }
    }
    Ok(())
}

/// Kernels since 6.16 give a timer the number that it is asked for.
fn exact_timer_ids(tree: &Tree) -> bool {
    let mut parts = tree.machine.kernel.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    let version = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    version >= (6, 16)
}

/// A gap in all address spaces for the kernel's areas and a blob with `reserve` bytes of data.
fn room(tree: &Tree, reserve: u64) -> Result<ScratchArea, CompileError> {
    let lives = || tree.processes.iter().filter_map(Process::alive);
    let kernel = lives().map(kernel::bytes).max().unwrap_or(0);
    let wanted = kernel + CODE_BYTES as u64 + reserve;
    let mut areas: Vec<(u64, u64)> =
        lives().flat_map(|life| &life.space.areas).map(|area| (area.start, area.end)).collect();
    areas.sort_unstable();
    let mut start = ROOM.start;
    for (from, to) in areas {
        if from >= start + wanted + MARGIN {
            break;
        }
        start = start.max((to + MARGIN).next_multiple_of(MARGIN));
    }
    if start + wanted > ROOM.end {
        return Err(CompileError::NoRoom);
    }
    let address = start + kernel;
    Ok(ScratchArea { start, address, end: address + CODE_BYTES as u64 + reserve })
}

/// What is compiled and where it has got to.
struct Compiler<'t> {
    tree: &'t Tree,
    staged: &'t Staged<'t>,
    order: &'t Order,
    room: ScratchArea,
    kernel: KernelAreas<'t>,
    shared: &'t SharedPages<'t>,
    builder: Builder,
    claimed: process::Claimed,
    /// Processes with children that have ended.
    reapers: HashSet<i32>,
    /// Number of the task of each process and of each helper.
    processes: Vec<usize>,
    helpers: Vec<usize>,
}

impl<'t> Compiler<'t> {
    fn new(
        tree: &'t Tree,
        staged: &'t Staged<'t>,
        order: &'t Order,
        shared: &'t SharedPages<'t>,
        room: ScratchArea,
    ) -> Self {
        // Helpers of sessions come before those whom they make; helpers of groups last.
        let mut next = 0;
        let mut processes = Vec::with_capacity(tree.processes.len());
        let mut helpers = vec![usize::MAX; order.helpers.len()];
        for (process, maker) in tree.processes.iter().zip(&order.makers) {
            if let Maker::Helper { by } = *maker
                && helpers[by] == usize::MAX
            {
                helpers[by] = next;
                next += 1;
            }
            processes.push(next);
            next += process.alive().map_or(1, |life| life.threads.len());
        }
        for helper in helpers.iter_mut().filter(|helper| **helper == usize::MAX) {
            *helper = next;
            next += 1;
        }
        let claimed = process::Claimed::new(tree);
        let kernel = KernelAreas::of(tree, room);
        let ended = tree.processes.iter().filter(|process| process.alive().is_none());
        let reapers = ended.map(|process| process.parent).collect();
        let builder = Builder::default();
        Self { tree, staged, order, room, kernel, shared, builder, claimed, reapers, processes, helpers }
    }

    /// The lists of all tasks, with offsets for addresses.
    fn tasks(&mut self) -> Result<Vec<Task>, CompileError> {
        let count = self.processes.len() + self.helpers.len();
        let mut tasks: Vec<(usize, Task)> = Vec::with_capacity(count);
        for (n, process) in self.tree.processes.iter().enumerate() {
            let number = self.processes[n];
            let mut steps = Steps::default();
            if n == 0 {
                self.enter(&mut steps);
            }
            self.birth(n, process, &mut steps)?;
            let (kind, limits) = match &process.end {
                End::Zombie { status, name } => {
                    self.end(*status, name, &mut steps);
                    (Kind::Zombie, u64::MAX)
                }
                End::Alive(life) => {
                    let limits = self.life(n, process, life, &mut steps)?;
                    let common = thread::common_filters(life);
                    for (t, thread) in life.threads.iter().enumerate().skip(1) {
                        let mut own = Steps::default();
                        self.thread(process, life, t, common, &mut own);
                        own.stop(DONE);
                        let task = self.task(thread.tid, n, Kind::Thread(t as u32), number, &own, u64::MAX);
                        tasks.push((number + t, task));
                    }
                    (Kind::Thread(0), limits)
                }
            };
            let maker = match self.order.makers[n] {
                Maker::Launch => 0,
                Maker::Parent { by, .. } | Maker::Sibling { by } => self.processes[by],
                Maker::Helper { by } => self.helpers[by],
            };
            tasks.push((number, self.task(process.pid, n, kind, maker, &steps, limits)));
        }
        for (h, helper) in self.order.helpers.iter().enumerate() {
            let steps = self.helper(h, *helper);
            let process = helper.parent.unwrap_or(0);
            let maker = self.processes[process];
            tasks.push((self.helpers[h], self.task(helper.pid, process, Kind::Helper, maker, &steps, u64::MAX)));
        }
        tasks.sort_unstable_by_key(|(number, _)| *number);
        Ok(tasks.into_iter().map(|(_, task)| task).collect())
    }

    fn task(&mut self, tid: i32, process: usize, kind: Kind, maker: usize, steps: &Steps, limits: u64) -> Task {
        let (first, end) = self.builder.list(steps);
        Task { tid, process: process as u32, kind, maker: maker as u32, first, end, limits }
    }

    fn several(&self) -> bool {
        self.tree.processes.len() + self.order.helpers.len() > 1
    }

    /// Makes a process or a helper, which inherits what is then in memory.
    fn make(&mut self, birth: Birth, steps: &mut Steps) {
        self.shared.before(birth.node, self.staged, &mut self.builder, steps);
        let (id, task, shares) = match birth.node {
            Node::Process(n) => {
                let process = &self.tree.processes[n];
                let shares = process.alive().map(|life| life.shares).unwrap_or_default();
                (process.pid, self.processes[n], shares)
            }
            Node::Helper(h) => (self.order.helpers[h].pid, self.helpers[h], Shares::default()),
        };
        let (mut flags, signal) = if birth.sibling { (CLONE_PARENT, 0) } else { (0, SIGCHLD as u64) };
        if shares.descriptors {
            flags |= CLONE_FILES;
        }
        if shares.directories {
            flags |= CLONE_FS;
        }
        self.clone(id, flags, signal, task, steps);
    }

    fn clone(&mut self, id: i32, flags: u64, signal: u64, task: usize, steps: &mut Steps) {
        let ids = self.builder.numbers(&[id as u64]);
        let mut words = [0.into(); 11];
        words[0] = (flags | CLONE_PTRACE).into();
        words[4] = signal.into();
        words[8] = ids;
        words[9] = 1_u64.into();
        let place = self.builder.words(&words);
        steps.child(id, place, task);
    }

    /// Enters the namespaces of the home that are not entered for it.
    fn enter(&mut self, steps: &mut Steps) {
        let Some(home) = self.staged.home() else { return };
        if self.tree.namespaces.time {
            steps.call(calls::SETNS, &[home.into(), CLONE_NEWTIME.into()]);
        }
        if self.tree.namespaces.user {
            // In it no limit can be raised any more.
            process::highest_limits(self.tree, &mut self.builder, steps);
            steps.call(calls::SETNS, &[home.into(), CLONE_NEWUSER.into()]);
            steps.call(calls::SETGROUPS, &[0_u64.into(), 0_u64.into()]);
            for call in [calls::SETRESGID, calls::SETRESUID] {
                steps.call(call, &[0_u64.into(), 0_u64.into(), 0_u64.into()]);
            }
        }
    }

    /// Session, children, group.
    fn birth(&mut self, n: usize, process: &Process, steps: &mut Steps) -> Result<(), CompileError> {
        const WALL: u64 = 0x4000_0000;
        if n == 0 {
            self.kernel.clear_seed(self.room, steps);
        }
        let (early, late) = self.order.births(Node::Process(n));
        for birth in early {
            self.make(*birth, steps);
        }
        if process.session == process.pid {
            steps.exact(calls::SETSID, process.pid as u64, &[]);
        }
        let terminal = process.alive().and_then(|life| life.terminal);
        if let Some((slave, _)) = terminal {
            // Its children inherit it.
            steps.call(calls::IOCTL, &[self.staged.file(slave).into(), TIOCSCTTY.into(), 0_u64.into()]);
        }
        for birth in late {
            self.make(*birth, steps);
        }
        let own: Vec<i32> = late
            .iter()
            .filter_map(|birth| match birth.node {
                Node::Helper(h) if !birth.sibling => Some(self.order.helpers[h].pid),
                _ => None,
            })
            .collect();
        let group = self.order.groups[n];
        if group == Group::Own {
            steps.call(calls::SETPGID, &[0_u64.into(), 0_u64.into()]);
        }
        if let Some(life) = process.alive().filter(|life| life.shares.descriptors) {
            // Its maker puts their table together, and closes what this one needs now.
            self.place(n, process, life, steps)?;
        }
        if self.several() {
            steps.stop(BORN);
        }
        if let Group::Join(group) = group {
            steps.call(calls::SETPGID, &[0_u64.into(), group.into()]);
        }
        if !self.order.helpers.is_empty() {
            steps.stop(JOINED);
        }
        if let Some((slave, foreground)) = terminal {
            let group = self.builder.numbers(&[foreground as u32 as u64]);
            steps.call(calls::IOCTL, &[self.staged.file(slave).into(), TIOCSPGRP.into(), group]);
        }
        for pid in &own {
            steps.exact(calls::WAIT4, *pid as u64, &[(*pid).into(), 0_u64.into(), WALL.into(), 0_u64.into()]);
        }
        if process.alive().is_some() && (self.reapers.contains(&process.pid) || !own.is_empty()) {
            // The children's ends were reported long ago.
            let set = self.builder.numbers(&[1 << (SIGCHLD as u64 - 1)]);
            let now = self.builder.numbers(&[0, 0]);
            steps.any(calls::RT_SIGTIMEDWAIT, &[set, 0_u64.into(), now, 8_u64.into()]);
        }
        Ok(())
    }

    /// Its memory, and where it stands.
    fn place(
        &mut self,
        n: usize,
        process: &Process,
        life: &LiveProcess,
        steps: &mut Steps,
    ) -> Result<(), CompileError> {
        let builder = &mut self.builder;
        let ground = BaselineLayout { room: self.room, kernel: &self.kernel, kept: &self.shared.kept(n, life) };
        memory::space(self.tree, process.pid, life, self.staged, &ground, builder, steps)?;
        process::surroundings(life, self.staged, builder, steps);
        Ok(())
    }

    /// A zombie's end: it exits, or stops so that the restorer kills it.
    fn end(&mut self, status: i32, name: &[u8], steps: &mut Steps) {
        let name = self.builder.bytes(&[name, &[0]].concat());
        steps.call(calls::PRCTL, &[PR_SET_NAME.into(), name]);
        if status & 0x7f == 0 {
            steps.call(calls::EXIT_GROUP, &[((status >> 8) & 0xff).into()]);
        } else {
            let none = self.builder.numbers(&[0, 0]);
            steps.call(calls::PRLIMIT64, &[0_u64.into(), RLIMIT_CORE.into(), none, 0_u64.into()]);
            steps.stop(DONE);
        }
    }

    fn helper(&mut self, h: usize, helper: Helper) -> Steps {
        let mut steps = Steps::default();
        if helper.session {
            steps.exact(calls::SETSID, helper.pid as u64, &[]);
        } else {
            steps.call(calls::SETPGID, &[0_u64.into(), 0_u64.into()]);
        }
        let (_, children) = self.order.births(Node::Helper(h));
        for birth in children {
            self.make(*birth, &mut steps);
        }
        steps.stop(BORN);
        steps.stop(JOINED);
        steps.call(calls::EXIT_GROUP, &[0_u64.into()]);
        steps
    }

    /// Everything of a living process; gives the offset of its limits.
    fn life(
        &mut self,
        n: usize,
        process: &Process,
        life: &LiveProcess,
        steps: &mut Steps,
    ) -> Result<u64, CompileError> {
        let pid = process.pid;
        let builder = &mut self.builder;
        if !life.shares.descriptors {
            let ground = BaselineLayout { room: self.room, kernel: &self.kernel, kept: &self.shared.kept(n, life) };
            memory::space(self.tree, pid, life, self.staged, &ground, builder, steps)?;
            process::descriptors(self.tree, life, self.staged, &mut self.claimed, builder, steps);
            process::surroundings(life, self.staged, builder, steps);
            process::close_inherited(self.staged, steps);
            process::locks(self.tree, pid, life, &self.claimed, builder, steps);
        }
        process::actions(life, builder, steps);
        let common = thread::common_filters(life);
        thread::filters(&life.threads[0].seccomp[..common], builder, steps);
        for (t, other) in life.threads.iter().enumerate().skip(1) {
            self.clone(other.tid, CLONE_THREAD_FLAGS, 0, self.processes[n] + t, steps);
        }
        process::pending(process, life, &mut self.builder, steps);
        process::timers(life, exact_timer_ids(self.tree), &mut self.builder, steps);
        // A program may have lowered its limits below what it has.
        let limits = process::limits(life, &mut self.builder, steps);
        self.thread(process, life, 0, common, steps);
        if life.threads.len() == 1 {
            let dumpable = u64::from(life.dumpable == 1);
            steps.call(calls::PRCTL, &[PR_SET_DUMPABLE.into(), dumpable.into()]);
        }
        steps.stop(DONE);
        Ok(match limits {
            build::Argument::Data(place) => place,
            build::Argument::Value(_) => u64::MAX,
        })
    }

    /// What thread `t` has of its own; the first `common` of its filters are set already.
    fn thread(&mut self, process: &Process, life: &LiveProcess, t: usize, common: usize, steps: &mut Steps) {
        let thread = &life.threads[t];
        let builder = &mut self.builder;
        thread::attributes(thread, &self.tree.details, builder, steps);
        thread::filters(&thread.seccomp[common..], builder, steps);
        thread::credentials(thread, builder, steps);
        // Who has no parent in the tree has lost it.
        thread::last(process.pid, thread, process.parent != 0, builder, steps);
        thread::strict(thread, steps);
    }
}
