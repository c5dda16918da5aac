//! Doing something as a process with a certain id, which is gone afterwards: for what the kernel remembers of its caller
//! (`SO_PEERCRED`, `SCM_CREDENTIALS`).

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr;
use std::thread;

use super::launch::{Blocked, CLEAR_SIGNAL_ACTIONS};
use super::raw::{call, clone};
use crate::clone::NO_ARGUMENTS;
use crate::ptrace;

/// Words of its stack.
const STACK: usize = (256 << 10) / size_of::<u128>();

struct Job<F, T> {
    work: Option<F>,
    done: Option<thread::Result<T>>,
}

/// Does `work` as a process with this id, while the calling thread waits: memory and descriptors are ours, users and
/// capabilities its own. It starts no threads, and nothing that it does depends on its id's being known.
///
/// # Errors
/// `EEXIST` if the id is taken, and `work` is not done; `EPERM` without CAP_CHECKPOINT_RESTORE.
pub fn as_process<T>(id: i32, work: impl FnOnce() -> T) -> io::Result<T> {
    let mut job = Job { work: Some(work), done: None };
    let mut stack = vec![0_u128; STACK];
    let ids = [id];
    let arguments = libc::clone_args {
        flags: (libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_FILES) as u64 | CLEAR_SIGNAL_ACTIONS,
        stack: stack.as_mut_ptr() as u64,
        stack_size: size_of_val(stack.as_slice()) as u64,
        set_tid: ids.as_ptr() as u64,
        set_tid_size: 1,
        ..NO_ARGUMENTS
    };
    let entry = entry_of(&job);
    let blocked = Blocked::all();
    // SAFETY: the stack is the child's alone, and lives until it has ended: CLONE_VFORK keeps this thread waiting. So it may
    // use what is this thread's own as if it were this thread. No signal has a handler in it, and all are blocked.
    let pid = unsafe { clone(&arguments, entry, ptr::from_mut(&mut job).cast()) };
    drop(blocked);
    if pid < 0 {
        return Err(io::Error::from_raw_os_error(-pid as i32));
    }
    ptrace::wait(pid as i32)?;
    match job.done {
        Some(done) => Ok(done.unwrap_or_else(|panic| resume_unwind(panic))),
        None => Err(io::Error::other("it was killed on the way")),
    }
}

/// What runs jobs of this kind.
fn entry_of<F: FnOnce() -> T, T>(_: &Job<F, T>) -> super::raw::Entry {
    run::<F, T>
}

extern "C" fn run<F: FnOnce() -> T, T>(job: *mut u8) -> ! {
    // SAFETY: `as_process` passes a job of this kind, and waits.
    let job = unsafe { &mut *job.cast::<Job<F, T>>() };
    job.done = job.work.take().map(|work| catch_unwind(AssertUnwindSafe(work)));
    loop {
        // SAFETY: ends this process, which is a single thread.
        unsafe { call(libc::SYS_exit, [0; 6]) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_see_the_id() {
        // Ids are given upwards; those half-way round are nobody's for a while.
        let read = |name| std::fs::read_to_string(format!("/proc/sys/kernel/{name}")).unwrap().trim().parse::<i32>();
        let (last, max) = (read("ns_last_pid").unwrap(), read("pid_max").unwrap());
        let free = |id: &i32| *id > 300 && !std::path::Path::new(&format!("/proc/{id}")).exists();
        let id = (0..max).map(|distance| (last + max / 2 + distance) % max).find(free).unwrap();
        let (pid, pair) =
            as_process(id, || (rustix::process::getpid(), std::os::unix::net::UnixStream::pair())).unwrap();
        let (one, _other) = pair.unwrap();
        assert_eq!(pid.as_raw_nonzero().get(), id);
        assert_eq!(rustix::net::sockopt::socket_peercred(&one).unwrap().pid, pid);
        assert!(!std::path::Path::new(&format!("/proc/{id}")).exists());
        let taken = as_process(std::process::id() as i32, || ()).unwrap_err();
        assert_eq!(taken.kind(), io::ErrorKind::AlreadyExists);
    }
}
