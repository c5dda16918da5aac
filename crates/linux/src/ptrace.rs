//! Tracing of single threads: `ptrace(2)` with `PTRACE_SEIZE`, so that attaching sends no `SIGSTOP`.
//!
//! A [`Tracee`] is attached and stopped. Tracing belongs to the *thread* that attached, so it is neither `Send` nor
//! `Sync`. Dropping it detaches: the thread goes on from its registers, or into the freezer if its cgroup is frozen.
//! The same happens when the tracing thread dies, at any moment: whoever changes registers must leave the tracee
//! in a state from which it may go on by itself.

use std::cell::Cell;
use std::io;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ptr;

use crate::registers::{Registers, WORDS};

mod state;

pub use state::{Rseq, Siginfo};

/// A thread that was seized and asked to stop, but has not been seen to stop.
#[derive(Debug)]
pub struct Seized {
    thread: libc::pid_t,
    attached: bool,
    unfiltered: bool,
    not_send: PhantomData<*const ()>,
}

/// A thread that is attached and stopped: with the signal of job control, and whether a `SIGSTOP` was kept from it.
#[derive(Debug)]
pub struct Tracee(Seized, Option<i32>, Cell<bool>);

/// How waiting for a stop went otherwise.
#[derive(Debug, thiserror::Error)]
pub enum StopError {
    /// It is gone: exit status as `wait(2)` gives it.
    #[error("thread {0} has ended")]
    Ended(libc::pid_t),
    /// The kernel refused.
    #[error("waiting for thread {0} to stop")]
    Wait(libc::pid_t, #[source] io::Error),
}

/// Calls `ptrace` with plain numbers or pointers.
pub(crate) fn ptrace(request: libc::c_uint, thread: libc::pid_t, address: usize, data: usize) -> io::Result<i64> {
    // SAFETY: the callers pass requests whose `data` is a number, or a pointer to memory that they own and that is large
    // enough for the request. The kernel checks the thread id.
    let result = unsafe { libc::ptrace(request, thread, address, data) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

impl Seized {
    /// Attaches to a thread and asks it to stop. Several can be asked before the first is waited for. As long as it is
    /// attached, its seccomp filters do not apply, where the kernel and our privileges allow that.
    pub fn seize(thread: i32) -> io::Result<Self> {
        let plain = libc::PTRACE_O_TRACESYSGOOD as usize;
        let without_seccomp = plain | libc::PTRACE_O_SUSPEND_SECCOMP as usize;
        let unfiltered = match ptrace(libc::PTRACE_SEIZE, thread, 0, without_seccomp) {
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EPERM)) => {
                ptrace(libc::PTRACE_SEIZE, thread, 0, plain)?;
                false
            }
            other => other.map(|_| true)?,
        };
        let seized = Self { thread, attached: true, unfiltered, not_send: PhantomData };
        ptrace(libc::PTRACE_INTERRUPT, thread, 0, 0)?;
        Ok(seized)
    }

    /// Waits until it has stopped. A thread in uninterruptible sleep stops only when that ends. A signal that it was just
    /// about to take is let through first.
    pub fn stopped(mut self) -> Result<Tracee, StopError> {
        loop {
            let status = wait(self.thread).map_err(|error| StopError::Wait(self.thread, error))?;
            if !libc::WIFSTOPPED(status) {
                self.attached = false;
                return Err(StopError::Ended(self.thread));
            }
            let signal = libc::WSTOPSIG(status);
            if status >> 16 == libc::PTRACE_EVENT_STOP {
                let group_stop = (signal != libc::SIGTRAP).then_some(signal);
                return Ok(Tracee(self, group_stop, Cell::new(false)));
            }
            // Taken between being attached to and being asked to stop; it stops once the signal is dealt with.
            ptrace(libc::PTRACE_CONT, self.thread, 0, signal as usize)
                .map_err(|error| StopError::Wait(self.thread, error))?;
        }
    }
}

impl Drop for Seized {
    fn drop(&mut self) {
        if !self.attached || ptrace(libc::PTRACE_DETACH, self.thread, 0, 0).is_ok() {
            return;
        }
        // It has not stopped yet, or has died. It was asked to stop, so either is told; then there is nothing left to do.
        if wait(self.thread).is_ok_and(|status| libc::WIFSTOPPED(status)) {
            let _ = ptrace(libc::PTRACE_DETACH, self.thread, 0, 0);
        }
    }
}

pub(crate) fn wait(thread: libc::pid_t) -> io::Result<libc::c_int> {
    loop {
        let mut status = 0;
        // SAFETY: `status` is a valid place for an int for the whole call.
        let waited = unsafe { libc::waitpid(thread, &raw mut status, libc::__WALL) };
        if waited == thread {
            return Ok(status);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

impl Drop for Tracee {
    fn drop(&mut self) {
        if self.0.attached {
            // It may have ended.
            let _ = self.give_stop();
        }
    }
}

impl Tracee {
    /// Its thread id.
    pub const fn thread(&self) -> i32 {
        self.0.thread
    }

    /// The signal that job control had stopped its process with, if it was stopped so (`SIGSTOP`, `SIGTSTP` …). Let go,
    /// it stays stopped.
    pub const fn group_stop(&self) -> Option<i32> {
        self.1
    }

    /// Its seccomp filters do not apply for now.
    pub const fn is_unfiltered(&self) -> bool {
        self.0.unfiltered
    }

    /// Its general registers.
    pub fn registers(&self) -> io::Result<Registers> {
        let mut words = MaybeUninit::<[u64; WORDS]>::uninit();
        let mut place = libc::iovec { iov_base: words.as_mut_ptr().cast(), iov_len: size_of::<[u64; WORDS]>() };
        ptrace(libc::PTRACE_GETREGSET, self.thread(), libc::NT_PRSTATUS as usize, (&raw mut place) as usize)?;
        if place.iov_len != size_of::<[u64; WORDS]>() {
            // A 32-bit thread has a shorter set.
            return Err(io::Error::new(io::ErrorKind::Unsupported, "not a 64-bit thread"));
        }
        // SAFETY: the kernel has written `iov_len` bytes, which is all of them; every bit pattern is a valid u64.
        Ok(Registers::from_words(unsafe { words.assume_init() }))
    }

    /// Sets its general registers.
    pub fn set_registers(&self, registers: &Registers) -> io::Result<()> {
        let words = registers.words();
        let mut place = libc::iovec { iov_base: ptr::from_ref(words).cast_mut().cast(), iov_len: size_of_val(words) };
        ptrace(libc::PTRACE_SETREGSET, self.thread(), libc::NT_PRSTATUS as usize, (&raw mut place) as usize)?;
        Ok(())
    }

    /// Its mask of blocked signals; bit `n - 1` is signal `n`.
    pub fn signal_mask(&self) -> io::Result<u64> {
        let mut mask = 0_u64;
        ptrace(libc::PTRACE_GETSIGMASK, self.thread(), size_of::<u64>(), (&raw mut mask) as usize)?;
        Ok(mask)
    }

    /// Sets its mask of blocked signals.
    pub fn set_signal_mask(&self, mask: u64) -> io::Result<()> {
        ptrace(libc::PTRACE_SETSIGMASK, self.thread(), size_of::<u64>(), (&raw const mask) as usize)?;
        Ok(())
    }

    /// Lets it make the system call whose `syscall` instruction is the next one, and waits until it has been made. The
    /// thread's cgroup must not be frozen, and its signals must be blocked, or the stop may be for a signal: that is an
    /// error, never delivered.
    ///
    /// By stops at the call's entry and exit, not by single-stepping: the trap flag would outlive a tracer that dies.
    pub fn make_call(&self) -> Result<(), CallError> {
        self.next_call_stop()?;
        self.next_call_stop()
    }

    fn next_call_stop(&self) -> Result<(), CallError> {
        const CALL_STOP: libc::c_int = libc::SIGTRAP | 0x80;
        loop {
            ptrace(libc::PTRACE_SYSCALL, self.thread(), 0, 0).map_err(|e| CallError::Resume(self.thread(), e))?;
            let status = wait(self.thread()).map_err(|e| CallError::Resume(self.thread(), e))?;
            if !libc::WIFSTOPPED(status) {
                return Err(CallError::Ended(self.thread()));
            }
            if libc::WSTOPSIG(status) == CALL_STOP {
                return Ok(());
            }
            // Under job control being attached to and being asked to stop are told one after the other.
            if status >> 16 != libc::PTRACE_EVENT_STOP && !self.withholds(status) {
                return Err(CallError::Other(self.thread(), status));
            }
        }
    }

    /// Lets it run; it must be waited for by [`Tracee::stopped_for`].
    pub fn run(&self) -> Result<(), CallError> {
        ptrace(libc::PTRACE_CONT, self.thread(), 0, 0).map(drop).map_err(|e| CallError::Resume(self.thread(), e))
    }

    /// Waits until it stops for `signal`, which does not reach it. All others must be blocked: a stop for one is an error,
    /// and it is never delivered. But for `SIGSTOP`, which nobody can block: it is kept for later
    /// ([`Tracee::give_stop`]).
    pub fn stopped_for(&self, signal: u32) -> Result<(), CallError> {
        loop {
            let status = wait(self.thread()).map_err(|e| CallError::Resume(self.thread(), e))?;
            if !libc::WIFSTOPPED(status) {
                return Err(CallError::Ended(self.thread()));
            }
            if status >> 16 == 0 && libc::WSTOPSIG(status).unsigned_abs() == signal {
                return Ok(());
            }
            // As above.
            if status >> 16 != libc::PTRACE_EVENT_STOP && !self.withholds(status) {
                return Err(CallError::Other(self.thread(), status));
            }
            self.run()?;
        }
    }

    /// It has stopped to take a `SIGSTOP`, which it will not, for now.
    fn withholds(&self, status: libc::c_int) -> bool {
        let stop = status >> 16 == 0 && libc::WSTOPSIG(status) == libc::SIGSTOP;
        self.2.set(self.2.get() || stop);
        stop
    }

    /// Sends it the `SIGSTOP` again that came while it made calls for us, unless it was continued since. It makes no more
    /// calls after that. Letting it go does this, too.
    pub fn give_stop(&self) -> io::Result<()> {
        if !self.2.replace(false) {
            return Ok(());
        }
        // A stop takes away what waits of these.
        let continued = |signal: &Siginfo| signal.starts_with(&libc::SIGCONT.to_ne_bytes());
        for shared in [false, true] {
            if self.pending_signals(shared)?.iter().any(continued) {
                return Ok(());
            }
        }
        // SAFETY: numbers only.
        let sent = unsafe { libc::syscall(libc::SYS_tkill, self.thread(), libc::SIGSTOP) };
        if sent == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Lets it go.
    pub fn detach(self) -> io::Result<()> {
        self.detach_with(0)
    }

    /// Lets it go with a signal (0: none).
    pub(crate) fn detach_with(self, signal: i32) -> io::Result<()> {
        let thread = self.thread();
        self.give_stop()?;
        self.forget();
        ptrace(libc::PTRACE_DETACH, thread, 0, signal as usize).map(drop)
    }

    /// A child of the calling thread that traces itself, or was born traced, and has been seen to stop.
    pub(crate) fn stopped_child(thread: i32) -> Self {
        Self(Seized { thread, attached: true, unfiltered: false, not_send: PhantomData }, None, Cell::new(false))
    }

    /// Leaves it attached.
    pub(crate) fn forget(mut self) {
        self.0.attached = false;
    }
}

/// Why a call was not made.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The kernel refused.
    #[error("letting thread {0} make a call")]
    Resume(i32, #[source] io::Error),
    /// It was killed.
    #[error("thread {0} ended in a call")]
    Ended(i32),
    /// It stopped for another reason.
    #[error("thread {0} stopped with status {1:#x} instead of for its call")]
    Other(i32, i32),
}
