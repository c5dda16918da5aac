//! Making processes in new namespaces and turning them into programs: `clone3(2)`, `unshare(2)`, `execve(2)`.
//!
//! Forking is only offered to processes of a single thread (checked with the kernel), because in the child of a process
//! with threads nearly nothing may be called. The set-up processes of sandboxes are made for this: small, fresh, alone.

use std::convert::Infallible;
use std::ffi::{CStr, CString, c_char, c_int};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;

use rustix::process::Pid;
use rustix::thread::UnshareFlags;

use crate::clone::NO_ARGUMENTS;

/// The init of sandboxes: a static executable of less than a page, see `init/init.rs`.
pub static SANDBOX_INIT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/sandbox-init"));

/// `CLONE_INTO_CGROUP`.
const INTO_CGROUP: u64 = 1 << 33;

/// On which side of [`fork`] the caller finds itself.
#[derive(Debug)]
pub enum Forked {
    /// In the process that called.
    Parent {
        /// The child as the caller's pid namespace numbers it.
        pid: Pid,
        /// A descriptor for the child.
        pidfd: OwnedFd,
    },
    /// In the child.
    Child,
}

/// Whose child a new process becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChildOf {
    /// The caller's.
    Caller,
    /// The caller's parent's (`CLONE_PARENT`), which alone can wait for it then.
    Parent,
}

fn check(answer: libc::c_long) -> io::Result<libc::c_long> {
    if answer == -1 { Err(io::Error::last_os_error()) } else { Ok(answer) }
}

/// `EINVAL` unless the calling process has a single thread.
fn single_threaded() -> io::Result<()> {
    // SAFETY: only checks (CLONE_THREAD alone changes nothing).
    check(unsafe { libc::syscall(libc::SYS_unshare, libc::CLONE_THREAD) }).map(drop)
}

/// Copies the calling process into new namespaces (`clone3(2)`); the child runs on after this call, too.
///
/// # Errors
/// `EINVAL` in a process with several threads; what `clone3` says otherwise.
pub fn fork(namespaces: UnshareFlags, child_of: ChildOf) -> io::Result<Forked> {
    fork_into(namespaces, child_of, None, None)
}

/// The same, into the cgroup v2 whose directory is `group` (`CLONE_INTO_CGROUP`), without the wait for all processors that
/// a later move takes; with the number `id` in its pid namespace (`set_tid`), which does not count for the next number.
///
/// # Errors
/// As [`fork`]; `EACCES` where the caller may not move processes there, `EAGAIN` where its limit of processes is reached;
/// `EEXIST` for a number that is taken, `EPERM` where the caller may not choose.
pub fn fork_into(
    namespaces: UnshareFlags,
    child_of: ChildOf,
    group: Option<BorrowedFd<'_>>,
    id: Option<Pid>,
) -> io::Result<Forked> {
    single_threaded()?;
    let mut pidfd: RawFd = -1;
    let (parent, signal) = match child_of {
        ChildOf::Caller => (0, libc::SIGCHLD),
        // With CLONE_PARENT the signal is the caller's own and must not be given.
        ChildOf::Parent => (libc::CLONE_PARENT, 0),
    };
    let ids = id.map(|id| [id.as_raw_nonzero().get()]);
    let into = if group.is_some() { INTO_CGROUP } else { 0 };
    let mut arguments = libc::clone_args {
        flags: u64::from(namespaces.bits()) | (libc::CLONE_PIDFD | parent) as u64 | into,
        pidfd: &raw mut pidfd as u64,
        exit_signal: signal as u64,
        set_tid: ids.as_ref().map_or(0, |ids| ids.as_ptr() as u64),
        set_tid_size: ids.map_or(0, |ids| ids.len() as u64),
        cgroup: group.map_or(0, |group| group.as_raw_fd() as u64),
        ..NO_ARGUMENTS
    };
    // SAFETY: without CLONE_VM this is a fork: the child has a copy of the memory, the stack too. There is one thread
    // (checked above), so no lock is left held by a thread that the child lacks. `arguments`, `pidfd` and `ids` outlive it.
    let pid = check(unsafe { libc::syscall(libc::SYS_clone3, &raw mut arguments, size_of::<libc::clone_args>()) })?;
    match Pid::from_raw(pid as c_int) {
        None => Ok(Forked::Child),
        // SAFETY: CLONE_PIDFD made this descriptor and nobody else knows it.
        Some(pid) => Ok(Forked::Parent { pid, pidfd: unsafe { OwnedFd::from_raw_fd(pidfd) } }),
    }
}

/// Moves the calling process into new namespaces (`unshare(2)`). Not for `FILES` or `FS`.
///
/// # Errors
/// `EINVAL` for `FILES` and `FS`; what `unshare` says otherwise.
pub fn unshare(namespaces: UnshareFlags) -> io::Result<()> {
    if namespaces.intersects(UnshareFlags::FILES | UnshareFlags::FS) {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    // SAFETY: the one danger, a descriptor table that threads no longer share, has been excluded.
    unsafe { rustix::thread::unshare_unsafe(namespaces) }.map_err(Into::into)
}

fn pointers(words: &[CString]) -> Vec<*const c_char> {
    words.iter().map(|word| word.as_ptr()).chain([ptr::null()]).collect()
}

/// Becomes the program at `path` (`execve(2)`); returns only the error.
pub fn execve(path: &CStr, arguments: &[CString], environment: &[CString]) -> io::Error {
    let (arguments, environment) = (pointers(arguments), pointers(environment));
    // SAFETY: the path is a C string; both arrays end in a null pointer and point to C strings that outlive the call.
    unsafe { libc::execve(path.as_ptr(), arguments.as_ptr(), environment.as_ptr()) };
    io::Error::last_os_error()
}

/// Becomes the program that `file` refers to (`execveat(2)`); returns only the error.
pub fn execve_file(file: impl AsFd, arguments: &[CString], environment: &[CString]) -> io::Error {
    let (arguments, environment) = (pointers(arguments), pointers(environment));
    // SAFETY: as in `execve`; the descriptor is borrowed for the duration of the call.
    unsafe {
        libc::syscall(
            libc::SYS_execveat,
            file.as_fd().as_raw_fd(),
            c"".as_ptr(),
            arguments.as_ptr(),
            environment.as_ptr(),
            libc::AT_EMPTY_PATH,
        )
    };
    io::Error::last_os_error()
}

/// Programs that this process becomes are laid out without address randomisation (`personality(2)`).
///
/// # Errors
/// What `personality` says.
pub fn no_address_randomisation() -> io::Result<()> {
    // SAFETY: personality takes a number and touches no memory.
    check(unsafe { libc::syscall(libc::SYS_personality, libc::ADDR_NO_RANDOMIZE) }).map(drop)
}

/// Sets every signal to its default action and blocks all of them, or none.
///
/// # Errors
/// What `sigaction` or `sigprocmask` say.
pub fn reset_signals(block_all: bool) -> io::Result<()> {
    for signal in 1..=libc::SIGRTMAX() {
        // 32 and 33 belong to libc and are at their default in a process without threads.
        if matches!(signal, libc::SIGKILL | libc::SIGSTOP | 32 | 33) {
            continue;
        }
        // SAFETY: sets the default action: no handler that could run.
        if unsafe { libc::signal(signal, libc::SIG_DFL) } == libc::SIG_ERR {
            return Err(io::Error::last_os_error());
        }
    }
    let mask: u64 = if block_all { u64::MAX } else { 0 };
    // SAFETY: `mask` is a kernel signal set of the size given and outlives the call.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            libc::SIG_SETMASK,
            &raw const mask,
            ptr::null_mut::<u64>(),
            size_of::<u64>(),
        )
    };
    check(answer).map(drop)
}

/// Marks every descriptor from `first` on as closed by the next `execve` (`close_range(2)`).
///
/// # Errors
/// What `close_range` says.
pub fn close_on_exec_from(first: u32) -> io::Result<()> {
    // SAFETY: CLOSE_RANGE_CLOEXEC closes nothing now; no owner of a descriptor is affected before exec.
    let answer = unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    check(answer).map(drop)
}

/// Closes every descriptor but 0, 1, 2 and those of `kept`, then runs `then`, which must become another program or exit.
///
/// For a process that is about to resolve paths that it does not trust: `/proc/self/fd/N` leads through every descriptor
/// that is open, also one that the next `execve` closes.
///
/// `then` is told whether the descriptors were closed, and must not go on if not: `EINVAL` in a process with several
/// threads; what `close_range(2)` says otherwise. It owns what it uses (`'static`), so it holds no reference to a
/// descriptor that is closed here. It must not own any either, except in `kept`.
pub fn keep_only<K: 'static>(
    kept: K,
    descriptors: impl FnOnce(&K) -> Vec<BorrowedFd<'_>>,
    then: impl FnOnce(K, io::Result<()>) -> Infallible + 'static,
) -> ! {
    /// Unwinding would drop descriptors whose numbers are closed or another's.
    struct NoReturn;
    impl Drop for NoReturn {
        fn drop(&mut self) {
            std::process::abort()
        }
    }
    let _no_return = NoReturn;
    let mut numbers: Vec<u32> = descriptors(&kept).iter().map(|fd| fd.as_raw_fd().unsigned_abs()).collect();
    numbers.extend([0, 1, 2]);
    numbers.sort_unstable();
    numbers.dedup();
    let closed = single_threaded().and_then(|()| {
        let ends = numbers.iter().skip(1).map(|number| number - 1).chain([u32::MAX]);
        numbers.iter().zip(ends).filter(|(number, last)| *number < last).try_for_each(|(number, last)| {
            // SAFETY: the owners of what is closed are in frames that are never returned to: `then` does not return, and a
            // panic aborts. There is no other thread that could own some, and what `then` has itself it keeps.
            check(unsafe { libc::syscall(libc::SYS_close_range, number + 1, last, 0) }).map(drop)
        })
    });
    match then(kept, closed) {}
}

/// Sends a signal by number, real-time signals too, to the process of `pidfd` (`pidfd_send_signal(2)`).
///
/// # Errors
/// `ESRCH` if it has ended, `EINVAL` for a number that is no signal.
pub fn send_signal(pidfd: BorrowedFd<'_>, signal: i32) -> io::Result<()> {
    // SAFETY: the descriptor is borrowed for the call; a null siginfo asks for the default one.
    let answer = unsafe {
        libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), signal, ptr::null::<libc::siginfo_t>(), 0)
    };
    check(answer).map(drop)
}
