//! Starting the seed: `clone3(2)` with a chosen pid, then exec, traced from its first instruction.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

/// What is started.
#[derive(Debug)]
pub struct Launch<'a> {
    /// Its process id in this pid namespace.
    pub pid: i32,
    /// The seed's executable.
    pub seed: BorrowedFd<'a>,
    /// What it inherits; nothing else.
    pub inherit: &'a [BorrowedFd<'a>],
    /// Number of the first of them; they follow each other. The caller has none of them itself at these numbers or at
    /// the one behind.
    pub first: i32,
}

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

/// What the child needs, and where it says what failed. It shares our memory until exec.
struct Child<'a> {
    parent: libc::pid_t,
    seed: i32,
    first: i32,
    numbers: &'a [i32],
    step: &'static str,
    error: i32,
}

/// Bytes of stack for the child, until exec.
const STACK_BYTES: usize = 32 << 10;

/// Starts the seed as a child of the calling thread, which traces it, and comes back when it is about to be executed: it
/// will then stop by itself. Signals are blocked in it but `SIGTRAP`, all actions are the default ones.
///
/// Should the calling thread die before it has asked for `PTRACE_O_EXITKILL`, the child dies with it.
///
/// # Errors
/// `EEXIST` if the pid is taken; `EPERM` without CAP_CHECKPOINT_RESTORE.
pub fn launch(launch: &Launch<'_>) -> Result<(), LaunchError> {
    let numbers: Vec<i32> = launch.inherit.iter().map(AsRawFd::as_raw_fd).collect();
    // SAFETY: getpid has no preconditions.
    let parent = unsafe { libc::getpid() };
    let mut child =
        Child { parent, seed: launch.seed.as_raw_fd(), first: launch.first, numbers: &numbers, step: "", error: 0 };
    let mut stack = vec![0_u128; STACK_BYTES / size_of::<u128>()];
    let blocked = !(1_u64 << (libc::SIGTRAP - 1));
    let before = mask(blocked);
    let answer = vfork(launch.pid, &mut stack, &mut child);
    mask(before);
    let failed = |step, error| LaunchError { step, pid: launch.pid, error };
    if answer < 0 {
        return Err(failed("clone3", io::Error::from_raw_os_error(-answer as i32)));
    }
    if child.error == 0 {
        return Ok(());
    }
    let mut status = 0;
    // SAFETY: the child is ours and has ended; `status` outlives the call.
    unsafe { libc::waitpid(launch.pid, &raw mut status, libc::__WALL) };
    Err(failed(child.step, io::Error::from_raw_os_error(child.error)))
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

/// Runs `child` in a new process that shares our memory, while this thread waits until it has executed the seed or ended.
fn vfork(pid: i32, stack: &mut [u128], child: &mut Child<'_>) -> i64 {
    const CLEAR_SIGNAL_ACTIONS: u64 = 1 << 32;
    let ids = [pid];
    let arguments = libc::clone_args {
        flags: (libc::CLONE_VM | libc::CLONE_VFORK) as u64 | CLEAR_SIGNAL_ACTIONS,
        pidfd: 0,
        child_tid: 0,
        parent_tid: 0,
        exit_signal: libc::SIGCHLD as u64,
        stack: stack.as_mut_ptr() as u64,
        stack_size: size_of_val(stack) as u64,
        tls: 0,
        set_tid: ids.as_ptr() as u64,
        set_tid_size: 1,
        cgroup: 0,
    };
    let answer;
    // SAFETY: `arguments`, `ids`, `stack` and `child` outlive the call, since this thread goes on only when the child has
    // left our memory (CLONE_VFORK). The child runs on `stack`, which nothing else uses, calls `run`, which never returns
    // and makes system calls only, and runs no signal handler (all are blocked or default). Its stack pointer is
    // 16-byte aligned before the call, as the convention wants.
    unsafe {
        std::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, r12",
            "call r13",
            "ud2",
            "2:",
            inlateout("rax") libc::SYS_clone3 => answer,
            in("rdi") &raw const arguments,
            in("rsi") size_of::<libc::clone_args>(),
            in("r12") ptr::from_mut(child),
            in("r13") run as extern "C" fn(*mut Child<'_>) -> !,
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    answer
}

/// The child until exec: system calls only, no allocation, no panic.
extern "C" fn run(child: *mut Child<'_>) -> ! {
    // SAFETY: `vfork` passes a valid pointer and its thread does not run meanwhile.
    let child = unsafe { &mut *child };
    let (step, error) = prepare(child);
    child.step = step;
    child.error = error;
    loop {
        // SAFETY: ends this process alone: it is not a thread of ours.
        unsafe { libc::syscall(libc::SYS_exit_group, 127) };
    }
}

/// Comes back only if something failed.
fn prepare(child: &Child<'_>) -> (&'static str, i32) {
    // SAFETY: all calls take numbers or pointers to memory that outlives them. They change only this process's own
    // descriptors, limits and attributes, since nothing but memory is shared; `errno` is the waiting thread's, who does not
    // look at it before it goes on.
    unsafe {
        let errno = || *libc::__errno_location();
        if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) < 0 {
            return ("prctl(PR_SET_PDEATHSIG)", errno());
        }
        if libc::getppid() != child.parent {
            return ("getppid", libc::ESRCH);
        }
        // Clearing leaves what is ignored. A kernel's struct sigaction of zeros is the default.
        let default = [0_u64; 4];
        for signal in (1..=64).filter(|signal| !matches!(*signal, libc::SIGKILL | libc::SIGSTOP)) {
            let none = ptr::null_mut::<u64>();
            if libc::syscall(libc::SYS_rt_sigaction, signal, default.as_ptr(), none, size_of::<u64>()) < 0 {
                return ("rt_sigaction", errno());
            }
        }
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) < 0 {
            return ("getrlimit(RLIMIT_NOFILE)", errno());
        }
        limit.rlim_cur = limit.rlim_max;
        if libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) < 0 {
            return ("setrlimit(RLIMIT_NOFILE)", errno());
        }
        let mut next = child.first;
        for number in child.numbers {
            if libc::dup3(*number, next, 0) < 0 {
                return ("dup3", errno());
            }
            next += 1;
        }
        if libc::dup3(child.seed, next, libc::O_CLOEXEC) < 0 {
            return ("dup3", errno());
        }
        let close = |from: i32, to: u32| libc::syscall(libc::SYS_close_range, from, to, 0);
        if (child.first > 0 && close(0, child.first as u32 - 1) < 0) || close(next + 1, u32::MAX) < 0 {
            return ("close_range", errno());
        }
        if libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) < 0 {
            return ("ptrace(PTRACE_TRACEME)", errno());
        }
        let arguments = [c"torpor-restore".as_ptr(), ptr::null()];
        let environment = [ptr::null::<libc::c_char>()];
        let path = c"".as_ptr();
        libc::syscall(libc::SYS_execveat, next, path, arguments.as_ptr(), environment.as_ptr(), libc::AT_EMPTY_PATH);
        ("execveat", errno())
    }
}
