//! Threads that are being built: traced by us from their first instruction, killed if we die.

use std::collections::{BTreeMap, HashMap};
use std::io;

use super::CALL_OFFSET;
use crate::ptrace::{self, CallError, Tracee};

/// A traced thread under construction. Dropping it leaves it as it is: it dies with the tracer, or is killed.
#[derive(Debug)]
pub struct BuildingTask(Option<Tracee>);

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
    /// A call of ours was not made.
    #[error("a call in thread {0}")]
    Call(i32, #[source] CallError),
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
pub fn adopt(thread: i32, seed: bool, without_filters: bool) -> Result<BuildingTask, Halt> {
    let status = ptrace::wait(thread).map_err(|error| Halt::Trace(thread, "waiting", error))?;
    if !libc::WIFSTOPPED(status) {
        return Err(Halt::Ended(thread, status));
    }
    let newborn = BuildingTask(Some(Tracee::stopped_child(thread)));
    if seed {
        let filters = if without_filters { libc::PTRACE_O_SUSPEND_SECCOMP } else { 0 };
        let options = (libc::PTRACE_O_EXITKILL | libc::PTRACE_O_TRACESYSGOOD | filters) as usize;
        ptrace::ptrace(libc::PTRACE_SETOPTIONS, thread, 0, options)
            .map_err(|error| Halt::Trace(thread, "setting options", error))?;
    }
    Ok(newborn)
}

/// What the calling thread traces, where ids are not known beforehand: newborns are known by the step that made them.
#[derive(Debug, Default)]
pub struct ForkTracker {
    /// Threads that are known, each with a stop that was seen while others were waited for.
    known: BTreeMap<i32, Option<libc::c_int>>,
    /// Those that were seen before they were asked for, by what the step says of whom it makes.
    early: HashMap<Option<u64>, BuildingTask>,
}

impl ForkTracker {
    /// Begins with the first one, which has made nothing yet. The calling thread has no other children and tracees.
    pub fn of(first: &BuildingTask) -> Self {
        Self { known: BTreeMap::from([(first.tracee().thread(), None)]), early: HashMap::new() }
    }

    /// Waits until the thread `wanted`, which has been cloned already, is in its first stop. `made_by` gives the number of the thread that
    /// the step at an address clones; each thread has a number of its own.
    pub fn born(&mut self, wanted: u64, made_by: impl Fn(u64) -> Option<u64>) -> Result<BuildingTask, Halt> {
        if let Some(newborn) = self.early.remove(&Some(wanted)) {
            return Ok(newborn);
        }
        loop {
            let mut status = 0;
            // SAFETY: `status` outlives the call.
            let thread = unsafe { libc::waitpid(-1, &raw mut status, libc::__WALL | libc::__WNOTHREAD) };
            let wrong = |what| move |error| Halt::Trace(thread, what, error);
            if thread < 0 {
                let error = io::Error::last_os_error();
                if error.kind() == io::ErrorKind::Interrupted {
                    continue;
                }
                return Err(Halt::Trace(0, "waiting for a newborn", error));
            }
            if let Some(seen) = self.known.get_mut(&thread) {
                *seen = Some(status);
                continue;
            }
            if !libc::WIFSTOPPED(status) {
                return Err(Halt::Ended(thread, status));
            }
            self.known.insert(thread, None);
            let newborn = BuildingTask(Some(Tracee::stopped_child(thread)));
            // Its registers are its maker's still.
            let step = newborn.tracee().registers().map_err(wrong("reading registers"))?.words()[RBX];
            let made = made_by(step);
            if made == Some(wanted) {
                return Ok(newborn);
            }
            self.early.insert(made, newborn);
        }
    }

    /// As [`BuildingTask::stopped`], for one of these.
    pub fn stopped(&mut self, newborn: &BuildingTask) -> Result<Stop, Halt> {
        match self.known.get_mut(&newborn.tracee().thread()).and_then(Option::take) {
            Some(status) => newborn.stop(status),
            None => newborn.stopped(),
        }
    }
}

/// Kills everything that the calling thread traces and every child of its own, of which `threads` are known, and waits for
/// their ends. Gives the ids of all that have ended.
pub fn destroy_all(threads: &[i32]) -> Vec<i32> {
    // SAFETY: takes numbers; they are of our children and tracees that nobody has waited for, so they are not others'.
    let kill = |thread: i32| unsafe { libc::kill(thread, libc::SIGKILL) };
    for thread in threads {
        kill(*thread);
    }
    let mut ended = Vec::new();
    loop {
        let mut status = 0;
        // SAFETY: `status` outlives the call.
        match unsafe { libc::waitpid(-1, &raw mut status, libc::__WALL | libc::__WNOTHREAD) } {
            found if found > 0 && libc::WIFSTOPPED(status) => {
                kill(found);
            }
            found if found > 0 => ended.push(found),
            _ if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
            _ => return ended,
        }
    }
}

/// Kills a process that is being built, or one of whose parents was, and waits for its end; parents come before their
/// children. A process that is neither our child nor our tracee is left alone.
pub fn destroy(process: i32, threads: &[i32]) {
    let look = |thread: i32| {
        let mut status = 0;
        // SAFETY: `status` outlives the call.
        let found = unsafe { libc::waitpid(thread, &raw mut status, libc::__WALL | libc::WNOHANG) };
        (found, status)
    };
    loop {
        match look(process) {
            (found, _) if found < 0 => return,
            (found, status) if found > 0 && !libc::WIFSTOPPED(status) => return,
            // SAFETY: takes numbers; the process is ours, so its id is not another's.
            _ => unsafe { libc::kill(process, libc::SIGKILL) },
        };
        // The leader's end is told when those of its threads have been taken.
        for thread in threads {
            look(*thread);
        }
        std::thread::yield_now();
    }
}

impl BuildingTask {
    pub(super) const fn stopped_at_birth(tracee: Tracee) -> Self {
        Self(Some(tracee))
    }

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
        self.stop(ptrace::wait(thread).map_err(|error| Halt::Trace(thread, "waiting", error))?)
    }

    /// The stop that this wait status tells of.
    fn stop(&self, status: libc::c_int) -> Result<Stop, Halt> {
        let thread = self.tracee().thread();
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
        let registers = self.tracee().registers().map_err(wrong("reading registers"))?;
        let calling = registers.calling(blob + CALL_OFFSET, number as u64, arguments);
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

    /// As [`BuildingTask::call`], without the signal of a single step, which would reset what is done on `SIGTRAP` where that is
    /// ignored. The kernel restarts nothing from the stop that this ends in ([`BuildingTask::stop_for_signal`]).
    pub fn quiet_call(&self, blob: u64, number: i64, arguments: &[u64]) -> Result<i64, Halt> {
        let thread = self.tracee().thread();
        let registers = self.tracee().registers();
        let registers = registers.map_err(|error| Halt::Trace(thread, "reading registers", error))?;
        let calling = registers.calling(blob + CALL_OFFSET, number as u64, arguments);
        self.tracee().set_registers(&calling).map_err(|error| Halt::Trace(thread, "setting registers", error))?;
        self.tracee().make_call().map_err(|error| Halt::Call(thread, error))?;
        let registers = self.tracee().registers();
        Ok(registers.map_err(|error| Halt::Trace(thread, "reading registers", error))?.result())
    }

    /// Brings it from the stop that [`BuildingTask::quiet_call`] ends in to a stop for a signal. Only from such a stop the kernel
    /// restarts an interrupted call, or lets a handler interrupt it, and takes the signal of [`BuildingTask::detach`] before it looks
    /// for a freezer; from another one the signal waits until the thread is thawed. A `SIGTRAP` is sent, which leaves what is
    /// done on it as it is, and is not taken. The thread must not be frozen.
    pub fn stop_for_signal(&self) -> Result<(), Halt> {
        let thread = self.tracee().thread();
        // SAFETY: takes numbers; the thread is our tracee, so its id is not another's.
        if unsafe { libc::syscall(libc::SYS_tkill, thread, libc::SIGTRAP) } != 0 {
            return Err(Halt::Trace(thread, "sending SIGTRAP", io::Error::last_os_error()));
        }
        self.go_on()?;
        let status = ptrace::wait(thread).map_err(|error| Halt::Trace(thread, "waiting", error))?;
        match status >> 8 {
            _ if !libc::WIFSTOPPED(status) => Err(Halt::Ended(thread, status)),
            libc::SIGTRAP => Ok(()),
            _ => Err(Halt::Other(thread, status)),
        }
    }

    /// Lets it run to its end, by `signal` if that is not 0; gives its wait status.
    pub fn end(mut self, signal: i32) -> Result<i32, Halt> {
        let thread = self.tracee().thread();
        let wrong = |what| move |error| Halt::Trace(thread, what, error);
        if signal != 0 {
            self.tracee().set_signal_mask(0).map_err(wrong("unblocking signals"))?;
        }
        ptrace::ptrace(libc::PTRACE_CONT, thread, 0, signal as usize).map_err(wrong("resuming"))?;
        let status = ptrace::wait(thread).map_err(wrong("waiting"))?;
        if libc::WIFSTOPPED(status) {
            return Err(Halt::Other(thread, status));
        }
        if let Some(tracee) = self.0.take() {
            tracee.forget();
        }
        Ok(status)
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

impl Drop for BuildingTask {
    fn drop(&mut self) {
        if let Some(tracee) = self.0.take() {
            tracee.forget();
        }
    }
}
