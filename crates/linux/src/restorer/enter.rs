//! Starting the seed in the namespaces and cgroups of an app, as a child of its init.
//!
//! ```text
//! L, a thread of ours     clones P into the pid namespace and the v2 cgroup, and waits until P has ended
//!  └▶ P, shares our       enters the v1 cgroups, then the other namespaces; clones R; ends, so that R is init's child
//!     memory and files
//!      └▶ R, shares our   puts its descriptors in order and waits at the gate, a pipe: for L to have seized it
//!         memory          then executes the seed
//! ```
//! A child's parent must be in its pid namespace for the kernel to hand it to the namespace's init. A process of many threads
//! enters a pid namespace for its children only; P does it for R. The user namespace is left for the seed to enter: here it
//! would change what we may do with our own memory.
//!
//! # Killed cgroups
//! Since Linux 6.14 the kernel kills what is cloned into a cgroup when `cgroup.kill` was once written there (it compares the
//! count of kills with that of the parent's own cgroup). P is then made again in our cgroup and moves by itself, which takes the
//! kernel up to 20 ms more.
//!
//! # If we die
//! Before R is seized, the gate's only writers are ours and R's own, which it closes: it reads the end and ends. Afterwards it
//! is killed (`PTRACE_O_EXITKILL`). P ends by itself.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Mode, OFlags, openat};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Signal, pidfd_send_signal};

use super::launch::{
    Blocked, CLEAR_SIGNAL_ACTIONS, Child, Failed, Launch, LaunchError, NO_ARGUMENTS, SPARE_NUMBERS, Stack, leave, run,
};
use super::newborn::Newborn;
use super::raw::{call, clone};
use crate::ptrace::{self, Tracee};

/// Where the seed is started.
#[derive(Debug)]
pub struct Inside<'a> {
    /// A descriptor of the init process: its namespaces are entered, all but the user namespace.
    pub init: BorrowedFd<'a>,
    /// The directory of the v2 cgroup, which must not be frozen and should never have been killed.
    pub cgroup: BorrowedFd<'a>,
    /// `tasks` of v1 cgroups, open for writing.
    pub tasks: &'a [BorrowedFd<'a>],
    /// A process id that is free inside; it is free again afterwards.
    pub spare: i32,
}

/// R, before it has executed the seed. Dropping it ends it.
#[derive(Debug)]
pub struct Entered {
    /// Its id in our pid namespace.
    pid: i32,
    /// P, which has ended or is about to; 0 when it has been waited for.
    passed: i32,
    /// Its id inside, for errors.
    inside: i32,
    process: OwnedFd,
    gate: OwnedFd,
    /// R runs on these until it has executed the seed or ended.
    child: Box<Child>,
    _stack: Stack,
    /// It has been seen to leave our memory.
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

/// What P needs. It runs while the calling thread waits.
struct Passage<'a> {
    init: i32,
    tasks: &'a [i32],
    root: libc::clone_args,
    child: *mut Child,
    answer: i64,
    failed: Failed,
}

/// Starts a process for the seed in the namespaces of `inside.init`, into whose pid namespace the calling thread's children
/// must be made already ([`enter_for_children`]). Its number is `launch.pid` there, and its parent is the namespace's init.
///
/// # Errors
/// `EEXIST` if a pid is taken.
pub fn enter(launch: &Launch<'_>, inside: &Inside<'_>) -> Result<Entered, LaunchError> {
    let failed = |step| move |error: io::Error| LaunchError { step, pid: launch.pid, error };
    let (gate, writer) = pipe_with(PipeFlags::CLOEXEC).map_err(|error| failed("pipe")(error.into()))?;
    // Out of the way of what R inherits.
    let behind = launch.first + launch.inherit.len() as i32 + SPARE_NUMBERS;
    let gate = fcntl_dupfd_cloexec(gate, behind).map_err(|error| failed("fcntl(F_DUPFD)")(error.into()))?;
    let mut child = Box::new(Child { gate: Some(gate.as_raw_fd()), ..Child::new(launch) });
    let (mut stack, mut passage_stack) = (Stack::new(), Stack::new());
    let (ids, spare) = ([launch.pid], [inside.spare]);
    let mut process: libc::c_int = -1;
    let (root_stack, root_stack_size) = stack.place();
    let tasks: Vec<i32> = inside.tasks.iter().map(AsRawFd::as_raw_fd).collect();
    let moving: Vec<i32>;
    let mut passage = Passage {
        init: inside.init.as_raw_fd(),
        tasks: &tasks,
        root: libc::clone_args {
            flags: (libc::CLONE_VM | libc::CLONE_PIDFD) as u64 | CLEAR_SIGNAL_ACTIONS,
            pidfd: &raw mut process as u64,
            exit_signal: libc::SIGCHLD as u64,
            stack: root_stack,
            stack_size: root_stack_size,
            set_tid: ids.as_ptr() as u64,
            set_tid_size: 1,
            ..NO_ARGUMENTS
        },
        child: ptr::from_mut(&mut *child),
        answer: 0,
        failed: Failed::default(),
    };
    let mut pass_through = |passage: &mut Passage<'_>, into: u64| {
        let (stack, stack_size) = passage_stack.place();
        let arguments = libc::clone_args {
            flags: (libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_FILES) as u64 | CLEAR_SIGNAL_ACTIONS | into,
            stack,
            stack_size,
            set_tid: spare.as_ptr() as u64,
            set_tid_size: 1,
            cgroup: inside.cgroup.as_raw_fd() as u64,
            ..NO_ARGUMENTS
        };
        let blocked = Blocked::all();
        // SAFETY: this thread goes on only when P has left our memory (CLONE_VFORK), and all places outlive that. `pass`
        // never returns and makes system calls only; signals are blocked. What R uses (`child`, `stack`) is kept by
        // `Entered` until R has left our memory, too.
        let passed = unsafe { clone(&arguments, pass, ptr::from_mut(passage).cast()) };
        drop(blocked);
        if passed < 0 {
            return Err(failed("clone3")(io::Error::from_raw_os_error(-passed as i32)));
        }
        Ok(passed as i32)
    };
    let mut passed = pass_through(&mut passage, INTO_CGROUP)?;
    if passage.answer == 0 && passage.failed.error == 0 {
        ptrace::wait(passed).map_err(failed("waiting"))?;
        let flags = OFlags::WRONLY | OFlags::CLOEXEC;
        let procs = openat(inside.cgroup, "cgroup.procs", flags, Mode::empty());
        let procs = procs.map_err(|error| failed("opening cgroup.procs")(error.into()))?;
        moving = tasks.iter().copied().chain([procs.as_raw_fd()]).collect();
        passage.tasks = &moving;
        passed = pass_through(&mut passage, 0)?;
    }
    if process < 0 {
        ptrace::wait(passed).map_err(failed("waiting"))?;
        passage.failed.of(launch.pid)?;
        return Err(failed("clone3")(io::Error::other("it was killed on the way")));
    }
    // SAFETY: P shared our descriptors, and CLONE_PIDFD made this one, which nobody else knows.
    let process = unsafe { OwnedFd::from_raw_fd(process) };
    let mut entered = Entered {
        pid: 0,
        passed,
        inside: launch.pid,
        process,
        gate: writer,
        child,
        _stack: stack,
        gone: false,
        seized: false,
    };
    // R has its own copy of the reader.
    drop(gate);
    entered.pid = number(entered.process.as_fd()).map_err(failed("asking for its number"))?;
    Ok(entered)
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
    // SAFETY: R has a stack of its own; it and the `Child` are kept until R has left our memory. `run` never returns and
    // makes system calls by `call` only; the blocked signals are inherited.
    let answer = unsafe { clone(&passage.root, run, passage.child.cast()) };
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

    /// Traces it from the calling thread and lets it execute the seed, which runs until it stops by itself. It and all that
    /// come from it are killed if the calling thread dies. With `without_filters` seccomp filters do not apply while they are
    /// traced.
    ///
    /// This must be kept until the first stop of the newborn has been seen ([`Entered::executed`]), or its end
    /// ([`Entered::failure`]).
    ///
    /// # Errors
    /// What failed.
    pub fn execute(&mut self, without_filters: bool) -> Result<Newborn, LaunchError> {
        let inside = self.inside;
        let failed = |step| move |error: io::Error| LaunchError { step, pid: inside, error };
        let filters = if without_filters { libc::PTRACE_O_SUSPEND_SECCOMP } else { 0 };
        let options = libc::PTRACE_O_EXITKILL | libc::PTRACE_O_TRACESYSGOOD | filters;
        let seized = ptrace::ptrace(libc::PTRACE_SEIZE, self.pid, 0, options as usize);
        seized.map_err(failed("ptrace(PTRACE_SEIZE)"))?;
        self.seized = true;
        match rustix::io::write(&self.gate, b"!") {
            // It has ended, and waiting says why.
            Ok(_) | Err(Errno::PIPE) => {}
            Err(error) => return Err(failed("opening the gate")(error.into())),
        }
        self.reap_passed().map_err(failed("waiting"))?;
        Ok(Newborn::stopped_at_birth(Tracee::stopped_child(self.pid)))
    }

    fn reap_passed(&mut self) -> io::Result<()> {
        match std::mem::take(&mut self.passed) {
            0 => Ok(()),
            passed => ptrace::wait(passed).map(drop),
        }
    }

    /// It has been seen to stop in the seed: nothing of ours is in use any more.
    pub fn executed(mut self) {
        self.gone = true;
    }

    /// Why the seed was not executed, when it has been seen to end.
    pub fn failure(mut self) -> Option<LaunchError> {
        self.gone = true;
        self.child.failed.of(self.inside).err()
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        // It ends by itself.
        let _ = self.reap_passed();
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
