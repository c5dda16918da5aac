//! Starting the seed in the namespaces and cgroups of an app, as a child of its init.
//!
//! ```text
//! L, a thread of ours     clones P into the pid namespace and the v2 cgroup, and waits until P has ended
//!  └▶ P, shares our       enters the v1 cgroups, then the other namespaces; clones R; ends, so that R is init's child
//!     memory and files
//!      └▶ R, shares our   closes our descriptors and waits at the gate, a socket: for L to have seized it, and for its own
//!         memory          descriptors; then executes the seed
//! ```
//! A child's parent must be in its pid namespace for the kernel to hand it to the namespace's init. A process of many threads
//! enters a pid namespace for its children only; P does it for R. The user namespace is left for the seed to enter: here it
//! would change what we may do with our own memory. Nothing of this needs to know what R will become, so it may go on
//! while others find out.
//!
//! # Which processor
//! L is kept on its processor while it makes P and P makes R, so P starts there, at the moment in which L begins to wait, and R
//! when P has ended. The kernel places a new process on the processor with the least to do, which on a small machine is that
//! of the thread that finds out what R will become: P, and later R, would wait for it, while L's processor has nothing to do.
//! The first that R does is to let itself run wherever L might.
//!
//! # Descriptors
//! R would get a copy of all of ours. If there are low numbers for gates ([`super::low`]), it shares ours instead until it has
//! made a table of its own with what is below its gate's; L waits for that, and is told by the kernel if R ends before.
//!
//! # Killed cgroups
//! Since Linux 6.14 the kernel kills what is cloned into a cgroup whose count of kills (of times that `cgroup.kill` was
//! written) is not that of the parent's own cgroup. So where P does not live, the cgroup is killed until it does: it
//! has no processes. Where that is of no use (its count is the higher one), P is made in our cgroup and moves by itself, which
//! takes the kernel up to 20 ms.
//!
//! # If we die
//! Before R is seized, the gate's only other end is ours, for R closes what it has of it: it reads the end and ends.
//! Afterwards it is killed (`PTRACE_O_EXITKILL`). P ends by itself.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Signal, pidfd_send_signal};
use rustix::thread::futex;

use super::building_task::BuildingTask;
use super::handoff::{self, Waiting};
use super::launch::{Blocked, CLEAR_SIGNAL_ACTIONS, Failed, Launch, LaunchError, Stack, leave};
use super::raw::{call, clone};
use super::reserved_descriptor::ReservedDescriptor;
use crate::clone::NO_ARGUMENTS;
use crate::ptrace::{self, Tracee};
use crate::scheduling::Pinned;

/// Where the seed is started.
#[derive(Debug)]
pub struct Inside<'a> {
    /// A descriptor of the init process: its namespaces are entered, all but the user namespace.
    pub init: BorrowedFd<'a>,
    /// The directory of the v2 cgroup, which must not be frozen and has no processes.
    pub cgroup: BorrowedFd<'a>,
    /// `tasks` of v1 cgroups, open for writing.
    pub tasks: &'a [BorrowedFd<'a>],
    /// The process id that it gets inside.
    pub pid: i32,
    /// Another one that is free inside; it is free again afterwards.
    pub spare: i32,
}

/// R, before it has executed the seed. Dropping it ends it.
#[derive(Debug)]
pub struct Entered {
    /// Its id in our pid namespace.
    pid: i32,
    /// Its id inside, for errors.
    inside: i32,
    process: OwnedFd,
    gate: OwnedFd,
    /// The kernel sets it to 0 when R leaves our memory.
    _shares: Box<AtomicU32>,
    /// R runs on these until it has executed the seed or ended.
    waiting: Box<Waiting>,
    _stack: Stack,
    /// It has left our memory.
    gone: bool,
    /// We trace it.
    seized: bool,
}

/// Children of the calling thread are made in the pid namespace of `init` from now on (`setns(2)`): it can make no threads
/// any more, and should end soon.
pub fn enter_for_children(init: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: changes the namespace of this thread's children only.
    if unsafe { libc::setns(init.as_raw_fd(), libc::CLONE_NEWPID) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// `CLONE_INTO_CGROUP`.
const INTO_CGROUP: u64 = 1 << 33;

/// How often a cgroup is killed for P to live there.
const KILLS: u32 = 8;

/// What P needs. It runs while the calling thread waits.
struct Passage<'a> {
    init: i32,
    tasks: &'a [i32],
    root: libc::clone_args,
    waiting: *mut Waiting,
    answer: i64,
    failed: Failed,
}

impl Passage<'_> {
    /// P was killed before it could do anything.
    const fn was_killed(&self) -> bool {
        self.answer == 0 && self.failed.error == 0
    }

    /// Makes P and waits until it has ended.
    fn pass(&mut self, inside: &Inside<'_>, into: u64) -> Result<(), LaunchError> {
        let failed = |step| move |error: io::Error| LaunchError { step, pid: inside.pid, error };
        let mut stack = Stack::new();
        let (stack, stack_size) = stack.place();
        let spare = [inside.spare];
        let arguments = libc::clone_args {
            flags: (libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_FILES) as u64 | CLEAR_SIGNAL_ACTIONS | into,
            stack,
            stack_size,
            set_tid: spare.as_ptr() as u64,
            set_tid_size: 1,
            cgroup: inside.cgroup.as_raw_fd() as u64,
            ..NO_ARGUMENTS
        };
        let pinned = Pinned::here();
        // SAFETY: R, which looks at it, is not there yet.
        unsafe { (*self.waiting).processors = pinned.as_ref().map(|pinned| *pinned.before()) };
        let blocked = Blocked::all();
        // SAFETY: this thread goes on only when P has left our memory (CLONE_VFORK), and all places outlive that. `pass`
        // never returns and makes system calls only; signals are blocked. What R uses (`waiting`, its stack) is kept by
        // `Entered` until R has left our memory, too.
        let passed = unsafe { clone(&arguments, pass, ptr::from_mut(self).cast()) };
        drop(blocked);
        drop(pinned);
        if passed < 0 {
            return Err(failed("clone3")(io::Error::from_raw_os_error(-passed as i32)));
        }
        ptrace::wait(passed as i32).map(drop).map_err(failed("waiting"))
    }
}

/// Starts a process for the seed in the namespaces of `inside.init`, into whose pid namespace the calling thread's children
/// must be made already ([`enter_for_children`]). Its parent is the namespace's init.
///
/// # Errors
/// `EEXIST` if a pid is taken; `EAGAIN` where the cgroups' limit of processes has no room for this one and, for a moment, another.
pub fn enter(inside: &Inside<'_>) -> Result<Entered, LaunchError> {
    let failed = |step| move |error: io::Error| LaunchError { step, pid: inside.pid, error };
    let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
    let (ours, theirs) = pair.map_err(|error| failed("socketpair")(error.into()))?;
    let theirs = ReservedDescriptor::of(theirs);
    let shares = Box::new(AtomicU32::new(u32::from(theirs.is_reserved())));
    let mut waiting = Box::new(Waiting { gate: theirs.number(), ..Waiting::default() });
    let mut own_table = 0;
    if theirs.is_reserved() {
        waiting.shares = (&raw const *shares).expose_provenance();
        own_table = (libc::CLONE_FILES | libc::CLONE_CHILD_CLEARTID) as u64;
    }
    let mut stack = Stack::new();
    let ids = [inside.pid];
    let mut process: libc::c_int = -1;
    let (root_stack, root_stack_size) = stack.place();
    let tasks: Vec<i32> = inside.tasks.iter().map(AsRawFd::as_raw_fd).collect();
    let moving: Vec<i32>;
    let mut passage = Passage {
        init: inside.init.as_raw_fd(),
        tasks: &tasks,
        root: libc::clone_args {
            flags: (libc::CLONE_VM | libc::CLONE_PIDFD) as u64 | CLEAR_SIGNAL_ACTIONS | own_table,
            child_tid: &raw const *shares as u64,
            pidfd: &raw mut process as u64,
            exit_signal: libc::SIGCHLD as u64,
            stack: root_stack,
            stack_size: root_stack_size,
            set_tid: ids.as_ptr() as u64,
            set_tid_size: 1,
            ..NO_ARGUMENTS
        },
        waiting: ptr::from_mut(&mut *waiting),
        answer: 0,
        failed: Failed::default(),
    };
    passage.pass(inside, INTO_CGROUP)?;
    for _ in 0..KILLS {
        if !passage.was_killed() || process >= 0 || !kill(inside.cgroup).map_err(failed("killing its cgroup"))? {
            break;
        }
        passage.pass(inside, INTO_CGROUP)?;
    }
    if passage.was_killed() && process < 0 {
        let procs = openat(inside.cgroup, "cgroup.procs", OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty());
        let procs = procs.map_err(|error| failed("opening cgroup.procs")(error.into()))?;
        moving = tasks.iter().copied().chain([procs.as_raw_fd()]).collect();
        passage.tasks = &moving;
        passage.pass(inside, 0)?;
    }
    // By the call's answer alone: a `clone3` that fails late, at a limit of processes, has written a number to `process`
    // already, and that descriptor does not exist.
    passage.failed.of(inside.pid)?;
    if passage.answer <= 0 {
        if process >= 0 {
            // P was killed inside of the call or just after it. R may be there, and runs on these until it finds its gate closed.
            std::mem::forget((shares, waiting, stack));
        }
        return Err(failed("clone3")(io::Error::other("it was killed on the way")));
    }
    // SAFETY: the call has succeeded: CLONE_PIDFD has made this descriptor in the table that P shared with us, and nobody else
    // knows it.
    let process = unsafe { OwnedFd::from_raw_fd(process) };
    // R has its own copy of its end behind this.
    while shares.load(Ordering::Acquire) != 0 {
        match futex::wait(&shares, futex::Flags::empty(), 1, None) {
            Ok(()) | Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => std::thread::yield_now(),
        }
    }
    drop(theirs);
    let mut entered = Entered {
        pid: 0,
        inside: inside.pid,
        process,
        gate: ours,
        _shares: shares,
        waiting,
        _stack: stack,
        gone: false,
        seized: false,
    };
    entered.pid = number(entered.process.as_fd()).map_err(failed("asking for its number"))?;
    Ok(entered)
}

/// Counts one more kill of a cgroup without processes; false where it has some, or cannot be killed.
fn kill(cgroup: BorrowedFd<'_>) -> io::Result<bool> {
    let file = |name, flags| openat(cgroup, name, flags | OFlags::CLOEXEC, Mode::empty());
    if rustix::io::read(file("cgroup.procs", OFlags::RDONLY)?, &mut [0_u8; 1])? > 0 {
        return Ok(false);
    }
    match file("cgroup.kill", OFlags::WRONLY) {
        // Before Linux 5.14, which kills nobody either.
        Err(Errno::NOENT) => Ok(false),
        file => Ok(rustix::io::write(file?, b"1").map(|_| true)?),
    }
}

/// P: system calls only.
extern "C" fn pass(passage: *mut u8) -> ! {
    // SAFETY: `enter` passes a valid pointer and its thread does not run meanwhile.
    let passage = unsafe { &mut *passage.cast::<Passage<'_>>() };
    const NAMESPACES: i32 =
        libc::CLONE_NEWNS | libc::CLONE_NEWNET | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS | libc::CLONE_NEWCGROUP;
    for tasks in passage.tasks {
        // SAFETY: the text outlives the call.
        let answer = unsafe { call(libc::SYS_write, [*tasks as u64, c"0".as_ptr() as u64, 1, 0, 0, 0]) };
        if answer < 0 {
            passage.failed = Failed { step: "entering a cgroup", error: -answer as i32 };
            leave();
        }
    }
    // SAFETY: takes numbers, and changes this process's own namespaces: it has its own root and working directory.
    let answer = unsafe { call(libc::SYS_setns, [passage.init as u64, NAMESPACES as u64, 0, 0, 0, 0]) };
    if answer < 0 {
        passage.failed = Failed { step: "setns", error: -answer as i32 };
        leave();
    }
    // SAFETY: R has a stack of its own; it and the `Waiting` are kept until R has left our memory. `run` never returns and
    // makes system calls by `call` only; the blocked signals are inherited.
    let answer = unsafe { clone(&passage.root, handoff::run, passage.waiting.cast()) };
    if answer < 0 {
        passage.failed = Failed { step: "clone3", error: -answer as i32 };
    }
    passage.answer = answer;
    leave()
}

/// The number of a process in our pid namespace.
fn number(process: BorrowedFd<'_>) -> io::Result<i32> {
    /// `struct pidfd_info` of its first version, Linux 6.13: mask, id of the cgroup, then `pid` and ten more numbers of 4 bytes.
    const BYTES: usize = 64;
    const PID: usize = 16;
    const PIDFD_GET_INFO: libc::Ioctl = (3 << 30 | BYTES << 16 | 0xff << 8 | 11) as libc::Ioctl;
    let mut info = [0_u8; BYTES];
    // PIDFD_INFO_PID
    info[0] = 1;
    // SAFETY: the kernel writes as many bytes as the request's number says, and they are there for the whole call.
    let answer = unsafe { libc::ioctl(process.as_raw_fd(), PIDFD_GET_INFO, info.as_mut_ptr()) };
    let number = i32::from_ne_bytes([info[PID], info[PID + 1], info[PID + 2], info[PID + 3]]);
    if answer == 0 && number > 0 {
        return Ok(number);
    }
    let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", process.as_raw_fd()))?;
    let line = text.lines().find_map(|line| line.strip_prefix("Pid:"));
    let number = line.and_then(|number| number.trim().parse().ok()).filter(|number| *number > 0);
    number.ok_or_else(|| io::Error::from_raw_os_error(libc::ESRCH))
}

impl Entered {
    /// Its id in the pid namespace of `/proc`.
    pub const fn pid(&self) -> i32 {
        self.pid
    }

    /// Traces it from the calling thread and lets it execute the seed with what it inherits; it runs until it stops by
    /// itself. It and all that come from it are killed if the calling thread dies. With `without_filters` seccomp filters do
    /// not apply while they are traced.
    ///
    /// This must be kept until the first stop of the newborn has been seen ([`Entered::executed`]), or its end
    /// ([`Entered::failure`]).
    ///
    /// # Errors
    /// What failed.
    pub fn execute(&mut self, launch: &Launch<'_>, without_filters: bool) -> Result<BuildingTask, LaunchError> {
        let inside = self.inside;
        let failed = |step| move |error: io::Error| LaunchError { step, pid: inside, error };
        let filters = if without_filters { libc::PTRACE_O_SUSPEND_SECCOMP } else { 0 };
        let options = libc::PTRACE_O_EXITKILL | libc::PTRACE_O_TRACESYSGOOD | filters;
        let seized = ptrace::ptrace(libc::PTRACE_SEIZE, self.pid, 0, options as usize);
        seized.map_err(failed("ptrace(PTRACE_SEIZE)"))?;
        self.seized = true;
        match handoff::open(&self.gate, launch.first, launch.inherit, launch.seed) {
            Ok(()) => {}
            // It has ended, and waiting says why.
            Err(error) if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => {}
            Err(error) => return Err(failed("opening the gate")(error)),
        }
        Ok(BuildingTask::stopped_at_birth(Tracee::stopped_child(self.pid)))
    }

    /// It has been seen to stop in the seed: nothing of ours is in use any more. Gives its process descriptor.
    pub fn executed(mut self) -> io::Result<OwnedFd> {
        self.gone = true;
        self.process.try_clone()
    }

    /// Why the seed was not executed, when it has been seen to end.
    pub fn failure(mut self) -> Option<LaunchError> {
        self.gone = true;
        self.waiting.failed.of(self.inside).err()
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        if self.gone {
            return;
        }
        let killed = pidfd_send_signal(&self.process, Signal::KILL);
        // A process that has ended uses no memory of ours: its descriptor tells.
        let ended = loop {
            match poll(&mut [PollFd::new(&self.process, PollFlags::IN)], None) {
                Err(Errno::INTR) => {}
                other => break other,
            }
        };
        assert!(
            ended.is_ok(),
            "the end of a process that uses our memory must be seen (kill: {killed:?}, poll: {ended:?})"
        );
        if self.seized {
            // Its parent can ask for it only after us.
            let _ = ptrace::wait(self.pid);
        }
    }
}
