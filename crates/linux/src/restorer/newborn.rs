//! Threads that are being built: traced by us from their first instruction, killed if we die.

use std::io;

use super::CALL_OFFSET;
use crate::ptrace::{self, Tracee};
use crate::registers::Registers;

/// A traced thread under construction. Dropping it leaves it as it is: it dies with the tracer, or is killed.
#[derive(Debug)]
pub struct Newborn(Option<Tracee>);

/// Where an interpreter stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stop {
    /// Address of the step; 0: the seed could not map the blob.
    pub step: u64,
    /// The answer was not the expected one; otherwise a barrier.
    pub failed: bool,
    /// Answer of the call.
    pub answer: i64,
}

/// Why waiting for a stop failed.
#[derive(Debug, thiserror::Error)]
pub enum Halt {
    /// It is gone: exit status as `wait(2)` gives it.
    #[error("thread {0} ended with wait status {1:#x} while it was built")]
    Ended(i32, i32),
    /// It stopped for something else.
    #[error("thread {0} stopped with wait status {1:#x} while it was built")]
    Other(i32, i32),
    /// The kernel refused.
    #[error("{1} for thread {0}")]
    Trace(i32, &'static str, #[source] io::Error),
}

// Words of `user_regs_struct`.
const R15: usize = 0;
const R14: usize = 1;
const RBX: usize = 5;

/// Waits until `thread`, a child of the calling thread or cloned by one of its tracees with `CLONE_PTRACE`, is in its first
/// stop. With `seed`, it is the one that was launched: it and all that come from it are killed if the caller dies, and with
/// `without_filters` seccomp filters do not apply while they are traced.
pub fn adopt(thread: i32, seed: bool, without_filters: bool) -> Result<Newborn, Halt> {
    let status = ptrace::wait(thread).map_err(|error| Halt::Trace(thread, "waiting", error))?;
    if !libc::WIFSTOPPED(status) {
        return Err(Halt::Ended(thread, status));
    }
    let newborn = Newborn(Some(Tracee::stopped_child(thread)));
    if seed {
        let filters = if without_filters { libc::PTRACE_O_SUSPEND_SECCOMP } else { 0 };
        let options = (libc::PTRACE_O_EXITKILL | libc::PTRACE_O_TRACESYSGOOD | filters) as usize;
        ptrace::ptrace(libc::PTRACE_SETOPTIONS, thread, 0, options)
            .map_err(|error| Halt::Trace(thread, "setting options", error))?;
    }
    Ok(newborn)
}

impl Newborn {
    /// The traced thread.
    pub fn tracee(&self) -> &Tracee {
        self.0.as_ref().expect("only detaching takes it, and consumes this")
    }

    /// Lets it run; pending stops of its birth are passed over.
    pub fn go_on(&self) -> Result<(), Halt> {
        self.resume(libc::PTRACE_CONT, "resuming")
    }

    fn resume(&self, request: libc::c_uint, what: &'static str) -> Result<(), Halt> {
        let thread = self.tracee().thread();
        ptrace::ptrace(request, thread, 0, 0).map(drop).map_err(|error| Halt::Trace(thread, what, error))
    }

    /// Waits until it stops by itself, at a barrier or a step that failed.
    pub fn stopped(&self) -> Result<Stop, Halt> {
        let thread = self.tracee().thread();
        let status = ptrace::wait(thread).map_err(|error| Halt::Trace(thread, "waiting", error))?;
        if !libc::WIFSTOPPED(status) {
            return Err(Halt::Ended(thread, status));
        }
        let registers = self.tracee().registers().map_err(|error| Halt::Trace(thread, "reading registers", error))?;
        let words = registers.words();
        if status >> 8 != libc::SIGTRAP || !matches!(words[R14], 1 | 2) {
            return Err(Halt::Other(thread, status));
        }
        Ok(Stop { step: words[RBX], failed: words[R14] == 2, answer: registers.result() })
    }

    /// Makes a call in it, which must be stopped by its interpreter in the blob at `blob`, by a single step: also one after
    /// which the blob is gone. The thread is then in a stop from which the kernel restarts interrupted calls.
    pub fn call(&self, blob: u64, number: i64, arguments: &[u64]) -> Result<i64, Halt> {
        let thread = self.tracee().thread();
        let wrong = |what| move |error| Halt::Trace(thread, what, error);
        let mut words = [0; crate::registers::WORDS];
        words.copy_from_slice(self.tracee().registers().map_err(wrong("reading registers"))?.words());
        let calling = Registers::from_words(words).calling(blob + CALL_OFFSET, number as u64, arguments);
        self.tracee().set_registers(&calling).map_err(wrong("setting registers"))?;
        self.resume(libc::PTRACE_SINGLESTEP, "stepping")?;
        let status = ptrace::wait(thread).map_err(wrong("waiting"))?;
        if !libc::WIFSTOPPED(status) {
            return Err(Halt::Ended(thread, status));
        }
        if status >> 8 != libc::SIGTRAP {
            return Err(Halt::Other(thread, status));
        }
        Ok(self.tracee().registers().map_err(wrong("reading registers"))?.result())
    }

    /// Address of its vDSO as the kernel placed it, while it is stopped in the interpreter.
    pub fn vdso(&self) -> io::Result<u64> {
        Ok(self.tracee().registers()?.words()[R15])
    }

    /// Lets it go, with a signal (0: none).
    pub fn detach(mut self, signal: i32) -> io::Result<()> {
        match self.0.take() {
            Some(tracee) => tracee.detach_with(signal),
            None => Ok(()),
        }
    }
}

impl Drop for Newborn {
    fn drop(&mut self) {
        if let Some(tracee) = self.0.take() {
            tracee.forget();
        }
    }
}
