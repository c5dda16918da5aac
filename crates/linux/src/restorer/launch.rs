//! Starting the seed: `clone3(2)` with a chosen pid, then exec, traced from its first instruction.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use super::raw::{call, clone};

/// What is started.
#[derive(Debug)]
pub struct Launch<'a> {
    /// Its process id in the pid namespace that it is started in.
    pub pid: i32,
    /// The seed's executable.
    pub seed: BorrowedFd<'a>,
    /// What it inherits; nothing else.
    pub inherit: &'a [BorrowedFd<'a>],
    /// Number of the first of them; they follow each other. The caller has none of them itself at these numbers or at
    /// the [`SPARE_NUMBERS`] behind.
    pub first: i32,
}

/// Descriptor numbers behind the inherited ones that the seed uses until it is executed.
pub const SPARE_NUMBERS: i32 = 2;

/// Why it could not be started.
#[derive(Debug, thiserror::Error)]
#[error("{step} for process {pid}")]
pub struct LaunchError {
    /// What was done.
    pub step: &'static str,
    /// For which process.
    pub pid: i32,
    /// What the kernel said.
    #[source]
    pub error: io::Error,
}

/// What a child needs until exec, and where it says what failed. It shares our memory.
#[derive(Debug)]
pub(super) struct Child {
    pub(super) seed: i32,
    pub(super) first: i32,
    pub(super) numbers: Vec<i32>,
    /// Waits for a byte here before it executes the seed; otherwise it is traced by its parent.
    pub(super) gate: Option<i32>,
    /// Its parent, whose death it dies of while it is not traced.
    pub(super) parent: Option<libc::pid_t>,
    pub(super) failed: Failed,
}

/// The step that failed in a child, and its error.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Failed {
    pub(super) step: &'static str,
    pub(super) error: i32,
}

impl Failed {
    /// The error, if there was one.
    pub(super) fn of(self, pid: i32) -> Result<(), LaunchError> {
        match self.error {
            0 => Ok(()),
            error => Err(LaunchError { step: self.step, pid, error: io::Error::from_raw_os_error(error) }),
        }
    }
}

/// A stack for a child, until exec.
#[derive(Debug)]
pub(super) struct Stack(Vec<u128>);

impl Stack {
    const BYTES: usize = 32 << 10;

    pub(super) fn new() -> Self {
        Self(vec![0; Self::BYTES / size_of::<u128>()])
    }

    pub(super) fn place(&mut self) -> (u64, u64) {
        (self.0.as_mut_ptr() as u64, size_of_val(self.0.as_slice()) as u64)
    }
}

/// The child begins with default actions where we have handlers.
pub(super) const CLEAR_SIGNAL_ACTIONS: u64 = 1 << 32;

impl Child {
    pub(super) fn new(launch: &Launch<'_>) -> Self {
        Self {
            seed: launch.seed.as_raw_fd(),
            first: launch.first,
            numbers: launch.inherit.iter().map(AsRawFd::as_raw_fd).collect(),
            gate: None,
            parent: None,
            failed: Failed::default(),
        }
    }
}

/// Starts the seed as a child of the calling thread, which traces it, and comes back when it is about to be executed: it
/// will then stop by itself. Signals are blocked in it but `SIGTRAP`, all actions are the default ones.
///
/// Should the calling thread die before it has asked for `PTRACE_O_EXITKILL`, the child dies with it.
///
/// # Errors
/// `EEXIST` if the pid is taken; `EPERM` without CAP_CHECKPOINT_RESTORE.
pub fn launch(launch: &Launch<'_>) -> Result<(), LaunchError> {
    // SAFETY: getpid has no preconditions.
    let parent = unsafe { libc::getpid() };
    let mut child = Child { parent: Some(parent), ..Child::new(launch) };
    let mut stack = Stack::new();
    let (stack, stack_size) = stack.place();
    let ids = [launch.pid];
    let arguments = libc::clone_args {
        flags: (libc::CLONE_VM | libc::CLONE_VFORK) as u64 | CLEAR_SIGNAL_ACTIONS,
        exit_signal: libc::SIGCHLD as u64,
        stack,
        stack_size,
        set_tid: ids.as_ptr() as u64,
        set_tid_size: 1,
        ..NO_ARGUMENTS
    };
    let blocked = Blocked::all();
    // SAFETY: all places outlive the call, since this thread goes on only when the child has left our memory (CLONE_VFORK).
    // `run` never returns and makes system calls only; signals are blocked.
    let answer = unsafe { clone(&arguments, run, ptr::from_mut(&mut child).cast()) };
    drop(blocked);
    if answer < 0 {
        let error = io::Error::from_raw_os_error(-answer as i32);
        return Err(LaunchError { step: "clone3", pid: launch.pid, error });
    }
    child.failed.of(launch.pid).inspect_err(|_| {
        let mut status = 0;
        // SAFETY: the child is ours and has ended; `status` outlives the call.
        unsafe { libc::waitpid(launch.pid, &raw mut status, libc::__WALL) };
    })
}

/// For `..` in literals.
pub(super) const NO_ARGUMENTS: libc::clone_args = libc::clone_args {
    flags: 0,
    pidfd: 0,
    child_tid: 0,
    parent_tid: 0,
    exit_signal: 0,
    stack: 0,
    stack_size: 0,
    tls: 0,
    set_tid: 0,
    set_tid_size: 0,
    cgroup: 0,
};

/// As long as it is there, all signals but `SIGTRAP` are blocked in the calling thread, and in what it clones for good.
#[derive(Debug)]
pub(super) struct Blocked {
    before: u64,
}

impl Blocked {
    pub(super) fn all() -> Self {
        Self { before: mask(!(1_u64 << (libc::SIGTRAP - 1))) }
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        mask(self.before);
    }
}

/// Sets the calling thread's mask of blocked signals and gives the one before.
fn mask(new: u64) -> u64 {
    let mut old = 0_u64;
    // SAFETY: both places are kernel signal sets of the size given and outlive the call, which cannot fail then.
    unsafe {
        libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const new, &raw mut old, size_of::<u64>());
    }
    old
}

/// The child until exec: system calls only, no allocation, no panic.
pub(super) extern "C" fn run(child: *mut u8) -> ! {
    // SAFETY: whoever clones passes a valid `Child` that nobody else touches before this process has left our memory.
    let child = unsafe { &mut *child.cast::<Child>() };
    child.failed = prepare(child);
    leave()
}

/// Ends a child.
pub(super) fn leave() -> ! {
    loop {
        // SAFETY: ends this process alone: it is not a thread of ours.
        unsafe { call(libc::SYS_exit_group, [127, 0, 0, 0, 0, 0]) };
    }
}

/// Comes back only if something failed.
fn prepare(child: &Child) -> Failed {
    let step = |step: &'static str, number: i64, arguments: [u64; 6]| {
        // SAFETY: all calls take numbers or pointers to memory that outlives them. They change only this process's own
        // descriptors, limits and attributes, since nothing but memory is shared.
        match unsafe { call(number, arguments) } {
            answer if answer < 0 => Err(Failed { step, error: -answer as i32 }),
            answer => Ok(answer),
        }
    };
    let all = || {
        if let Some(parent) = child.parent {
            let death = [libc::PR_SET_PDEATHSIG as u64, libc::SIGKILL as u64, 0, 0, 0, 0];
            step("prctl(PR_SET_PDEATHSIG)", libc::SYS_prctl, death)?;
            if step("getppid", libc::SYS_getppid, [0; 6])? != i64::from(parent) {
                return Err(Failed { step: "getppid", error: libc::ESRCH });
            }
        }
        // Clearing leaves what is ignored. A kernel's struct sigaction of zeros is the default.
        let default = [0_u64; 4];
        for signal in (1..=64_u64).filter(|signal| !matches!(*signal as i32, libc::SIGKILL | libc::SIGSTOP)) {
            let arguments = [signal, default.as_ptr() as u64, 0, size_of::<u64>() as u64, 0, 0];
            step("rt_sigaction", libc::SYS_rt_sigaction, arguments)?;
        }
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        let files = u64::from(libc::RLIMIT_NOFILE);
        let place = &raw mut limit as u64;
        step("getrlimit(RLIMIT_NOFILE)", libc::SYS_prlimit64, [0, files, 0, place, 0, 0])?;
        limit.rlim_cur = limit.rlim_max;
        step("setrlimit(RLIMIT_NOFILE)", libc::SYS_prlimit64, [0, files, &raw const limit as u64, 0, 0, 0])?;
        let seed = descriptors(child, step)?;
        if child.gate.is_some() {
            let mut byte = 0_u8;
            // Nothing to read: whoever was to trace us has gone.
            if step("read", libc::SYS_read, [seed + 1, &raw mut byte as u64, 1, 0, 0, 0])? != 1 {
                return Err(Failed { step: "read", error: libc::ESRCH });
            }
        } else {
            step("ptrace(PTRACE_TRACEME)", libc::SYS_ptrace, [u64::from(libc::PTRACE_TRACEME), 0, 0, 0, 0, 0])?;
        }
        let arguments = [c"torpor-restore".as_ptr(), ptr::null()];
        let environment = [ptr::null::<libc::c_char>()];
        let (words, none) = (arguments.as_ptr() as u64, environment.as_ptr() as u64);
        let path = c"".as_ptr() as u64;
        step("execveat", libc::SYS_execveat, [seed, path, words, none, libc::AT_EMPTY_PATH as u64, 0])
    };
    match all() {
        Ok(_) => Failed { step: "execveat", error: libc::EIO },
        Err(failed) => failed,
    }
}

/// Puts what it inherits in its place, the seed and the gate behind, and closes the rest; gives the seed's number.
fn descriptors(
    child: &Child,
    step: impl Fn(&'static str, i64, [u64; 6]) -> Result<i64, Failed>,
) -> Result<u64, Failed> {
    let first = child.first as u64;
    let mut next = first;
    for number in &child.numbers {
        step("dup3", libc::SYS_dup3, [*number as u64, next, 0, 0, 0, 0])?;
        next += 1;
    }
    let closed = libc::O_CLOEXEC as u64;
    step("dup3", libc::SYS_dup3, [child.seed as u64, next, closed, 0, 0, 0])?;
    let mut last = next;
    if let Some(gate) = child.gate {
        last += 1;
        step("dup3", libc::SYS_dup3, [gate as u64, last, closed, 0, 0, 0])?;
    }
    if first > 0 {
        step("close_range", libc::SYS_close_range, [0, first - 1, 0, 0, 0, 0])?;
    }
    step("close_range", libc::SYS_close_range, [last + 1, u64::from(u32::MAX), 0, 0, 0, 0])?;
    Ok(next)
}
