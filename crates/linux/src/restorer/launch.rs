//! Starting the seed: `clone3(2)` with a chosen pid, then exec, traced from its first instruction.

use std::convert::Infallible;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use super::raw::{call, clone};
use crate::clone::NO_ARGUMENTS;

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
struct Child {
    seed: i32,
    first: i32,
    numbers: Vec<i32>,
    /// Its parent, whose death it dies of while it is not traced.
    parent: libc::pid_t,
    failed: Failed,
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
    let mut child = Child {
        seed: launch.seed.as_raw_fd(),
        first: launch.first,
        numbers: launch.inherit.iter().map(AsRawFd::as_raw_fd).collect(),
        parent,
        failed: Failed::default(),
    };
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
extern "C" fn run(child: *mut u8) -> ! {
    // SAFETY: `launch` passes a valid `Child` that nobody else touches before this process has left our memory.
    let child = unsafe { &mut *child.cast::<Child>() };
    child.failed = match prepare(child) {
        Ok(never) => match never {},
        Err(failed) => failed,
    };
    leave()
}

/// Ends a child.
pub(super) fn leave() -> ! {
    loop {
        // SAFETY: ends this process alone: it is not a thread of ours.
        unsafe { call(libc::SYS_exit_group, [127, 0, 0, 0, 0, 0]) };
    }
}

/// A call of a child that shares our memory.
///
/// # Safety
/// It takes numbers or pointers to memory that outlives it, and changes only this process's own descriptors, limits and
/// attributes: nothing but memory is shared.
pub(super) unsafe fn step(name: &'static str, number: i64, arguments: [u64; 6]) -> Result<i64, Failed> {
    // SAFETY: as the caller promises.
    match unsafe { call(number, arguments) } {
        answer if answer < 0 => Err(Failed { step: name, error: -answer as i32 }),
        answer => Ok(answer),
    }
}

fn prepare(child: &Child) -> Result<Infallible, Failed> {
    // SAFETY: both take numbers.
    let father = unsafe {
        step(
            "prctl(PR_SET_PDEATHSIG)",
            libc::SYS_prctl,
            [libc::PR_SET_PDEATHSIG as u64, libc::SIGKILL as u64, 0, 0, 0, 0],
        )?;
        step("getppid", libc::SYS_getppid, [0; 6])?
    };
    if father != i64::from(child.parent) {
        return Err(Failed { step: "getppid", error: libc::ESRCH });
    }
    forget_ours()?;
    let seed = descriptors(child)?;
    // SAFETY: takes numbers.
    unsafe { step("ptrace(PTRACE_TRACEME)", libc::SYS_ptrace, [u64::from(libc::PTRACE_TRACEME), 0, 0, 0, 0, 0])? };
    execute(seed)
}

/// Takes away what is ours and lasts: actions for signals, the limit of descriptors.
pub(super) fn forget_ours() -> Result<(), Failed> {
    // Cloning has left what is ignored. A kernel's struct sigaction of zeros is the default.
    let default = [0_u64; 4];
    for signal in (1..=64_u64).filter(|signal| !matches!(*signal as i32, libc::SIGKILL | libc::SIGSTOP)) {
        let arguments = [signal, default.as_ptr() as u64, 0, size_of::<u64>() as u64, 0, 0];
        // SAFETY: reads the action, which outlives the call; actions are not shared.
        unsafe { step("rt_sigaction", libc::SYS_rt_sigaction, arguments)? };
    }
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    let files = u64::from(libc::RLIMIT_NOFILE);
    let place = &raw mut limit as u64;
    // SAFETY: writes the limit, which outlives the call.
    unsafe { step("getrlimit(RLIMIT_NOFILE)", libc::SYS_prlimit64, [0, files, 0, place, 0, 0])? };
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: reads the limit, which outlives the call.
    unsafe { step("setrlimit(RLIMIT_NOFILE)", libc::SYS_prlimit64, [0, files, &raw const limit as u64, 0, 0, 0])? };
    Ok(())
}

/// Becomes the seed behind this descriptor.
pub(super) fn execute(seed: u64) -> Result<Infallible, Failed> {
    let arguments = [c"torpor-restore".as_ptr(), ptr::null()];
    let environment = [ptr::null::<libc::c_char>()];
    let (words, none) = (arguments.as_ptr() as u64, environment.as_ptr() as u64);
    let path = c"".as_ptr() as u64;
    // SAFETY: both lists end in a null pointer and outlive the call, as does what they point to.
    unsafe { step("execveat", libc::SYS_execveat, [seed, path, words, none, libc::AT_EMPTY_PATH as u64, 0])? };
    Err(Failed { step: "execveat", error: libc::EIO })
}

/// Puts what it inherits in its place, the seed behind, and closes the rest; gives the seed's number.
fn descriptors(child: &Child) -> Result<u64, Failed> {
    let first = child.first as u64;
    let mut next = first;
    for number in &child.numbers {
        // SAFETY: it takes numbers, and the table of descriptors is not shared.
        unsafe { step("dup3", libc::SYS_dup3, [*number as u64, next, 0, 0, 0, 0])? };
        next += 1;
    }
    let seed = [child.seed as u64, next, libc::O_CLOEXEC as u64, 0, 0, 0];
    // SAFETY: as above.
    unsafe { step("dup3", libc::SYS_dup3, seed)? };
    close_all_but(first, next)?;
    Ok(next)
}

/// Closes all descriptors but `first..=last`.
pub(super) fn close_all_but(first: u64, last: u64) -> Result<(), Failed> {
    if first > 0 {
        // SAFETY: takes numbers; the table of descriptors is not shared.
        unsafe { step("close_range", libc::SYS_close_range, [0, first - 1, 0, 0, 0, 0])? };
    }
    // SAFETY: as above.
    unsafe { step("close_range", libc::SYS_close_range, [last + 1, u64::from(u32::MAX), 0, 0, 0, 0])? };
    Ok(())
}
