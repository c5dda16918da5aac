//! Remote calls in a stopped process: what the kernel tells a process only about itself.
//!
//! One thread of a process calls at a time, those of several processes together; from the [`landing`] in the vDSO's unused tail, which lets it go on as it was if we die.
//! It makes all calls of a list and then stops, by a signal that means nothing to its program (see there).
//! Calls and answers are in pages that are mapped for it and unmapped again; [`Remote::end`] takes the code out. The order
//! matters: a thread's registers lead to the landing before its signals are blocked, and until they are unblocked again.

use std::cell::Cell;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use torpor_image::tree::Limit;
use torpor_linux::pagemap;
use torpor_linux::ptrace::CallError;
use torpor_linux::registers::Registers;
use torpor_linux::uapi::syscall;

use super::call_batch::{Answers, Call, CallBatch};
use super::credentials::Status;
use super::process;
use super::raised_limits::RaisedLimits;
use super::trampoline::{self, CALL_WORDS};
use torpor_proc::maps::Area;
use torpor_process::threads::RemoteMemory;
use torpor_process::trace::{Process, Thread, TraceError};

/// Bytes of the pages for answers, and behind them those for a list of calls.
const ANSWERS: usize = 4096;
const LIST: usize = 3 * 4096;
const CALL_BYTES: usize = CALL_WORDS * 8;
/// Maps both: readable and writable, private and anonymous.
const MAPPING: [u64; 6] = [0, (ANSWERS + LIST) as u64, 3, 0x22, u64::MAX, 0];
/// The answer of a call that has not been made.
const NONE: i64 = i64::MIN;
/// What a program may take no notice of, those first that mean the least.
const SIGNALS: [u32; 8] = [
    23, // SIGURG
    28, // SIGWINCH
    17, // SIGCHLD
    13, // SIGPIPE
    1,  // SIGHUP
    10, // SIGUSR1
    12, // SIGUSR2
    14, // SIGALRM
];
/// Those of them that it ignores unless it says otherwise.
const MEANINGLESS: u64 = bit(23) | bit(28) | bit(17);

const fn bit(signal: u32) -> u64 {
    1 << (signal - 1)
}

/// A call that has been begun.
pub(super) enum BegunCall {
    /// By this thread.
    Running(usize, &'static str),
    /// It was made at once.
    Made(u64),
}

/// A list of calls that has been begun by thread `n`.
pub(super) struct BegunAsk {
    n: usize,
    questions: CallBatch,
    /// They were made at once.
    results: Option<Vec<i64>>,
}

/// A process that remote calls are made in.
pub(super) struct Remote<'a> {
    pub(super) process: &'a Process,
    statuses: &'a [Status],
    /// `/proc/PID/mem`.
    memory: File,
    /// Where the landing is.
    place: u64,
    /// The thread that calls.
    caller: Cell<Option<usize>>,
    /// It has been let run, and has not been waited for.
    running: Cell<bool>,
    /// What makes threads stop after their calls; `None`: there is no such signal.
    signal: Option<u32>,
    scratch: Cell<u64>,
    /// New mappings are locked into memory (`mlockall(MCL_FUTURE)`).
    locks_mappings: bool,
}

impl<'a> Remote<'a> {
    /// In `process`, whose areas are `areas`, and whose threads `statuses` are of.
    pub(super) fn new(process: &'a Process, statuses: &'a [Status], areas: &[Area]) -> Result<Self, TraceError> {
        let look = |error| TraceError::Look(process.pid, error);
        let memory = File::options().read(true).write(true).open(format!("/proc/{}/mem", process.pid)).map_err(look)?;
        Ok(Self {
            process,
            statuses,
            place: trampoline::place(process.pid, &memory, areas)?,
            memory,
            caller: Cell::new(None),
            running: Cell::new(false),
            signal: signal(&process.threads, statuses),
            scratch: Cell::new(0),
            locks_mappings: false,
        })
    }

    /// Begins to map the pages for answers.
    pub(super) fn map(&self) -> Result<BegunCall, TraceError> {
        let begun = match self.begin_call(0, "mmap", syscall::MMAP, &MAPPING) {
            Err(error) if is_over_a_limit(&error) => BegunCall::Made(self.map_without_limits()?),
            begun => begun?,
        };
        if let BegunCall::Made(address) = begun {
            self.scratch.set(address);
        }
        Ok(begun)
    }

    /// Maps them in a process whose limits leave no room for them.
    fn map_without_limits(&self) -> Result<u64, TraceError> {
        let found = process::limits(self.process.pid).map_err(|error| self.wrong(error))?;
        let set = |number, limit| self.set_limit(number, limit);
        let lifted = RaisedLimits::lift(self.process.pid, &found, &set)?;
        let mapped = self.begin_call(0, "mmap", syscall::MMAP, &MAPPING).and_then(|begun| self.finish_call(&begun));
        // It is unmapped again whatever follows.
        if let Ok(address) = mapped {
            self.scratch.set(address);
        }
        lifted.put_back()?;
        mapped.map_err(|error| match error {
            // The hard limits are as low, and only CAP_SYS_RESOURCE lifts them.
            TraceError::Call { pid, error, .. } if is_refusal(&error) => TraceError::Limits { pid, error },
            error => error,
        })
    }

    /// The process sets one of its limits, by its number.
    fn set_limit(&self, number: usize, limit: Limit) -> Result<(), TraceError> {
        self.enter(0)?;
        // There are no pages yet that the call could read it from.
        let place = self.place - trampoline::LIMIT_BYTES as u64;
        let mut found = [0; trampoline::LIMIT_BYTES];
        self.memory.read_exact_at(&mut found, place).map_err(|error| self.wrong(error))?;
        if found != [0; trampoline::LIMIT_BYTES] {
            return Err(TraceError::NoVdso(self.process.pid));
        }
        let words = [limit.soft.to_ne_bytes(), limit.hard.to_ne_bytes()].concat();
        self.write(place, &words)?;
        let set = self
            .begin_call(0, "prlimit64", syscall::PRLIMIT64, &[0, number as u64, place, 0, 0, 0])
            .and_then(|begun| self.finish_call(&begun));
        self.write(place, &[0; trampoline::LIMIT_BYTES])?;
        set.map(drop)
    }

    /// They are mapped.
    pub(super) fn mapped(&mut self, begun: &BegunCall) -> Result<(), TraceError> {
        let address = match self.finish_call(begun) {
            Err(error) if is_over_a_limit(&error) => self.map_without_limits()?,
            address => address?,
        };
        self.scratch.set(address);
        let look = |error| self.wrong(error);
        let pagemap = File::open(format!("/proc/{}/pagemap", self.process.pid)).map_err(look)?;
        let mut entries = Vec::new();
        pagemap::entries(&pagemap, self.scratch.get(), 1, &mut entries).map_err(look)?;
        // Nothing has touched it, so only being locked can have brought it there.
        self.locks_mappings = entries.iter().any(|entry| entry.present());
        Ok(())
    }

    /// A list of calls is made to its end, whatever becomes of us.
    pub(super) const fn makes_lists(&self) -> bool {
        self.signal.is_some()
    }

    /// Writes to the process's memory.
    pub(super) fn write(&self, address: u64, bytes: &[u8]) -> Result<(), TraceError> {
        self.memory.write_all_at(bytes, address).map_err(|error| self.wrong(error))
    }

    /// The process's id as it knows it itself.
    pub(super) fn own_pid(&self) -> i32 {
        self.statuses.first().map_or(self.process.pid, |status| status.ids.0)
    }

    /// The process's memory, to be read.
    pub(super) const fn memory(&self) -> RemoteMemory {
        RemoteMemory(self.process.pid)
    }

    pub(super) fn wrong(&self, error: io::Error) -> TraceError {
        TraceError::Look(self.process.pid, error)
    }

    fn thread(&self, n: usize) -> Result<&Thread, TraceError> {
        self.process.threads.get(n).ok_or_else(|| self.wrong(io::ErrorKind::NotFound.into()))
    }

    /// Begins a call in thread `n` of the process.
    fn begin_call(
        &self,
        n: usize,
        name: &'static str,
        number: u64,
        arguments: &[u64],
    ) -> Result<BegunCall, TraceError> {
        self.enter(n)?;
        if self.signal.is_none() {
            return self.process.call_at(n, self.place, name, number, arguments).map(BegunCall::Made);
        }
        self.run(n, self.thread(n)?.registers.calling(self.place, number, arguments))?;
        Ok(BegunCall::Running(n, name))
    }

    fn finish_call(&self, begun: &BegunCall) -> Result<u64, TraceError> {
        match *begun {
            BegunCall::Made(answer) => Ok(answer),
            BegunCall::Running(n, call) => {
                let answer = self.stopped(n)?.base();
                let error = Answers::error(answer as i64);
                error.map_or(Ok(answer), |error| Err(TraceError::Call { pid: self.process.pid, call, error }))
            }
        }
    }

    /// Lets thread `n` run from these registers.
    fn run(&self, n: usize, registers: Registers) -> Result<(), TraceError> {
        let thread = self.thread(n)?;
        let wrong = |error| TraceError::Registers(thread.tracee.thread(), error);
        thread.tracee.set_registers(&registers).map_err(wrong)?;
        thread.tracee.run()?;
        self.running.set(true);
        Ok(())
    }

    /// Waits until thread `n` is at the end of the landing's calls; gives the registers that it has there.
    fn stopped(&self, n: usize) -> Result<Registers, TraceError> {
        let thread = self.thread(n)?;
        let wrong = |error| TraceError::Registers(thread.tracee.thread(), error);
        loop {
            // Whatever it was stopped by, it does not run then.
            self.running.set(false);
            thread.tracee.stopped_for(self.signal.unwrap_or(0))?;
            let found = thread.tracee.registers().map_err(wrong)?;
            if found.instruction() == self.place + trampoline::END {
                return Ok(found);
            }
            // Somebody else's, of which the program would not have heard either.
            thread.tracee.run()?;
            self.running.set(true);
        }
    }

    /// An empty list.
    pub(super) fn questions(&self) -> CallBatch {
        let list = self.scratch.get() + ANSWERS as u64;
        CallBatch::new((self.scratch.get(), ANSWERS), (list, LIST / CALL_BYTES - 1))
    }

    /// An empty list for this many calls, which is to be put where the process has [`Self::list_bytes`] for them.
    pub(super) fn long_questions(&self, list: u64, calls: usize) -> CallBatch {
        CallBatch::new((self.scratch.get(), ANSWERS), (list, calls))
    }

    /// Bytes of a list of so many calls.
    pub(super) const fn list_bytes(calls: usize) -> u64 {
        (CALL_BYTES * (calls + 1)) as u64
    }

    /// Makes the calls of a list in thread `n`.
    pub(super) fn ask(&self, n: usize, questions: CallBatch) -> Result<Answers, TraceError> {
        self.answers(self.begin_ask(n, questions)?)
    }

    /// Begins to.
    pub(super) fn begin_ask(&self, n: usize, questions: CallBatch) -> Result<BegunAsk, TraceError> {
        let calls = questions.calls();
        if self.signal.is_none() {
            let mut results = Vec::with_capacity(calls.len());
            for call in calls {
                results.push(match self.process_call(n, call) {
                    Ok(answer) => answer as i64,
                    Err(TraceError::Call { error, .. }) => -i64::from(error.raw_os_error().unwrap_or(0)),
                    Err(error) => return Err(error),
                });
            }
            return Ok(BegunAsk { n, questions, results: Some(results) });
        }
        self.enter(n)?;
        let place = questions.list();
        let mut list: Vec<u8> = Vec::with_capacity((calls.len() + 1) * CALL_BYTES);
        for call in calls {
            let words = [call.number + 1].into_iter().chain(call.arguments).chain([NONE as u64]);
            list.extend(words.flat_map(u64::to_ne_bytes));
        }
        list.extend(0_u64.to_ne_bytes());
        self.memory.write_all_at(&list, place).map_err(|error| self.wrong(error))?;
        let mut registers = self.thread(n)?.registers.calling(self.place + trampoline::LIST, 0, &[]);
        registers.set_base(place);
        self.run(n, registers)?;
        Ok(BegunAsk { n, questions, results: None })
    }

    fn process_call(&self, n: usize, call: &Call) -> Result<u64, TraceError> {
        self.enter(n)?;
        self.process.call_at(n, self.place, call.name, call.number, &call.arguments)
    }

    /// Waits for the answers.
    pub(super) fn answers(&self, begun: BegunAsk) -> Result<Answers, TraceError> {
        let BegunAsk { n, questions, results } = begun;
        let results = match results {
            Some(results) => results,
            None => self.results(n, &questions)?,
        };
        let mut bytes = vec![0; questions.bytes()];
        self.memory.read_exact_at(&mut bytes, self.scratch.get()).map_err(|error| self.wrong(error))?;
        Ok(questions.answered(self.process.pid, results, bytes))
    }

    fn results(&self, n: usize, questions: &CallBatch) -> Result<Vec<i64>, TraceError> {
        self.stopped(n)?;
        let mut list = vec![0; questions.calls().len() * CALL_BYTES];
        self.memory.read_exact_at(&mut list, questions.list()).map_err(|error| self.wrong(error))?;
        let last = |call: &[u8]| call.last_chunk().map_or(NONE, |word| i64::from_ne_bytes(*word));
        let results: Vec<i64> = list.chunks_exact(CALL_BYTES).map(last).collect();
        if results.contains(&NONE) {
            let ended = CallError::Other(self.thread(n)?.tracee.thread(), 0);
            return Err(ended.into());
        }
        Ok(results)
    }

    /// Makes the `n`-th thread the one that calls.
    fn enter(&self, n: usize) -> Result<(), TraceError> {
        if self.caller.get() == Some(n) {
            return Ok(());
        }
        self.leave()?;
        let thread = self.thread(n)?;
        let wrong = |error| TraceError::Registers(thread.tracee.thread(), error);
        let ids = self.statuses.get(n).map(|status| status.ids);
        let stop = self.signal.zip(ids);
        let stop = stop.map(|(signal, (process, thread))| trampoline::Stop { process, thread, signal });
        trampoline::put(&self.memory, self.place, thread, stop).map_err(|error| self.wrong(error))?;
        self.caller.set(Some(n));
        thread.tracee.set_registers(&thread.registers.calling(self.place, syscall::GETPID, &[])).map_err(wrong)?;
        thread.tracee.set_signal_mask(!self.signal.map_or(0, bit)).map_err(wrong)
    }

    /// Gives the thread that calls its mask and registers back.
    fn leave(&self) -> Result<(), TraceError> {
        let Some(thread) = self.caller.take().and_then(|n| self.process.threads.get(n)) else { return Ok(()) };
        let wrong = |error| TraceError::Registers(thread.tracee.thread(), error);
        let unblocked = thread.tracee.set_signal_mask(thread.signal_mask).map_err(wrong);
        unblocked.and(thread.restore())
    }

    /// New mappings are locked into memory (`mlockall(MCL_FUTURE)`); not seen where only touched pages are (`MCL_ONFAULT`).
    pub(super) const fn locks_mappings(&self) -> bool {
        self.locks_mappings
    }

    /// Begins to give everything back.
    pub(super) fn unmap(&self) -> Result<Option<BegunCall>, TraceError> {
        if self.running.get()
            && let Some(n) = self.caller.get()
        {
            // Something else has gone wrong meanwhile; it makes a list of calls, or maps.
            let answer = self.stopped(n)?.base();
            if self.scratch.get() == 0 && Answers::error(answer as i64).is_none() {
                self.scratch.set(answer);
            }
        }
        if self.scratch.get() == 0 {
            return Ok(None);
        }
        let bytes = (ANSWERS + LIST) as u64;
        self.begin_call(0, "munmap", syscall::MUNMAP, &[self.scratch.take(), bytes]).map(Some)
    }

    /// Gives everything back.
    pub(super) fn end(self, begun: Result<Option<BegunCall>, TraceError>) -> Result<(), TraceError> {
        let unmapped = begun.and_then(|begun| begun.map_or(Ok(0), |begun| self.finish_call(&begun)));
        let result = unmapped.and(self.leave());
        // A thread that could not be given its registers needs the code.
        result?;
        trampoline::take_out(&self.memory, self.place).map_err(|error| self.wrong(error))?;
        self.process.threads.iter().try_for_each(|thread| {
            thread.tracee.give_stop().map_err(|error| TraceError::Registers(thread.tracee.thread(), error))
        })
    }
}

/// Limits of the process may be why it cannot map: of its address space or data, or of what it locks (`mlockall(MCL_FUTURE)`).
fn is_over_a_limit(error: &TraceError) -> bool {
    matches!(error, TraceError::Call { error, .. } if is_refusal(error))
}

fn is_refusal(error: &io::Error) -> bool {
    const EAGAIN: i32 = 11;
    const ENOMEM: i32 = 12;
    matches!(error.raw_os_error(), Some(EAGAIN | ENOMEM))
}

/// A signal that the program ignores and none of its threads waits for. None where its filters could keep a thread from
/// sending it.
fn signal(threads: &[Thread], statuses: &[Status]) -> Option<u32> {
    if threads.iter().zip(statuses).any(|(thread, status)| status.seccomp != 0 && !thread.tracee.is_unfiltered()) {
        return None;
    }
    let blocked = threads.iter().fold(0, |all, thread| all | thread.signal_mask);
    let (caught, ignored) = statuses.first().map(|status| (status.caught, status.ignored))?;
    let ignored = (ignored | MEANINGLESS) & !caught & !blocked;
    SIGNALS.into_iter().find(|signal| ignored & bit(*signal) != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_that_the_program_takes_is_not_chosen() {
        let status = |caught: u64, ignored: u64| Status { caught, ignored, ..Status::default() };
        assert_eq!(signal(&[], &[status(0, 0)]), Some(23));
        assert_eq!(signal(&[], &[status(bit(23) | bit(28), 0)]), Some(17));
        assert_eq!(signal(&[], &[status(MEANINGLESS, bit(10))]), Some(10));
        assert_eq!(signal(&[], &[status(MEANINGLESS, 0)]), None);
    }
}
