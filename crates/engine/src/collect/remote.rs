//! Remote calls in a stopped process: what the kernel tells a process only about itself.
//!
//! One thread calls at a time, from the [`landing`] in the vDSO's unused tail, which lets it go on as it was if we die.
//! Answers go to a page that is mapped for it and unmapped again; [`Remote::end`] takes the code out. The order matters:
//! a thread's registers lead to the landing before its signals are blocked, and until they are unblocked again.

use std::cell::Cell;
use std::fs::File;

use torpor_linux::pagemap;
use torpor_linux::vm;

use super::landing;
use crate::memory::layout::Area;
use crate::trace::{PARK_OFFSET, Process, TraceError};

/// Bytes of the page for answers.
pub(super) const SCRATCH: usize = 4096;

const MMAP: u64 = 9;
const MUNMAP: u64 = 11;
const GETPID: u64 = 39;

/// A process that remote calls are made in.
pub(super) struct Remote<'a> {
    pub(super) process: &'a Process,
    /// Where the landing is.
    place: u64,
    /// The thread that calls.
    caller: Cell<Option<usize>>,
    scratch: u64,
    /// New mappings are locked into memory (`mlockall(MCL_FUTURE)`).
    locks_mappings: bool,
}

impl<'a> Remote<'a> {
    /// Makes calls possible in `process`, whose areas are `areas`.
    pub(super) fn begin(process: &'a Process, areas: &[Area]) -> Result<Self, TraceError> {
        let place = landing::place(process.pid, areas)?;
        let mut remote = Self { process, place, caller: Cell::new(None), scratch: 0, locks_mappings: false };
        match remote.prepare() {
            Ok(()) => Ok(remote),
            Err(error) => {
                // The first error says what is wrong; giving back what can be given back is all that is left.
                let _ = remote.give_back();
                Err(error)
            }
        }
    }

    fn prepare(&mut self) -> Result<(), TraceError> {
        const READ_WRITE: u64 = 3;
        const PRIVATE_ANONYMOUS: u64 = 0x22;
        let arguments = [0, SCRATCH as u64, READ_WRITE, PRIVATE_ANONYMOUS, u64::MAX, 0];
        self.scratch = self.call(0, "mmap", MMAP, &arguments)?;
        let look = |error| TraceError::Look(self.process.pid, error);
        let pagemap = File::open(format!("/proc/{}/pagemap", self.process.pid)).map_err(look)?;
        let mut entries = Vec::new();
        pagemap::entries(&pagemap, self.scratch, 1, &mut entries).map_err(look)?;
        // Nothing has touched it, so only being locked can have brought it there.
        self.locks_mappings = entries.iter().any(|entry| entry.present());
        Ok(())
    }

    /// Makes a call in thread `n` of the process.
    pub(super) fn call(&self, n: usize, name: &'static str, number: u64, arguments: &[u64]) -> Result<u64, TraceError> {
        if self.caller.get() != Some(n) {
            self.leave()?;
            self.enter(n)?;
        }
        self.process.call_in(n, self.place + PARK_OFFSET, name, number, arguments)
    }

    /// Makes the `n`-th thread the one that calls.
    fn enter(&self, n: usize) -> Result<(), TraceError> {
        let Some(thread) = self.process.threads.get(n) else { return Ok(()) };
        let wrong = |error| TraceError::Registers(thread.tracee.thread(), error);
        landing::put(self.process.pid, self.place, thread)?;
        self.caller.set(Some(n));
        thread.tracee.set_registers(&thread.registers.calling(self.place, GETPID, &[])).map_err(wrong)?;
        thread.tracee.set_signal_mask(u64::MAX).map_err(wrong)
    }

    /// Gives the thread that calls its mask and registers back.
    fn leave(&self) -> Result<(), TraceError> {
        let Some(thread) = self.caller.take().and_then(|n| self.process.threads.get(n)) else { return Ok(()) };
        let wrong = |error| TraceError::Registers(thread.tracee.thread(), error);
        let unblocked = thread.tracee.set_signal_mask(thread.signal_mask).map_err(wrong);
        unblocked.and(thread.restore())
    }

    /// Address of the page for answers.
    pub(super) const fn scratch(&self) -> u64 {
        self.scratch
    }

    /// New mappings are locked into memory (`mlockall(MCL_FUTURE)`); not seen where only touched pages are (`MCL_ONFAULT`).
    pub(super) const fn locks_mappings(&self) -> bool {
        self.locks_mappings
    }

    /// Reads `N` bytes of the page for answers from `offset` on.
    pub(super) fn answer<const N: usize>(&self, offset: usize) -> Result<[u8; N], TraceError> {
        let mut bytes = [0; N];
        let range = vm::Remote { address: self.scratch + offset as u64, len: N };
        vm::read(self.process.pid, &[range], &mut bytes).map_err(|error| TraceError::Look(self.process.pid, error))?;
        Ok(bytes)
    }

    /// Gives everything back.
    pub(super) fn end(mut self) -> Result<(), TraceError> {
        self.give_back()
    }

    fn give_back(&mut self) -> Result<(), TraceError> {
        let mut result = Ok(());
        if self.scratch != 0 {
            result = self.call(0, "munmap", MUNMAP, &[self.scratch, SCRATCH as u64]).map(drop);
            self.scratch = 0;
        }
        result = result.and(self.leave());
        // A thread that could not be given its registers needs the code.
        result?;
        landing::take_out(self.process.pid, self.place).map_err(|error| TraceError::Look(self.process.pid, error))
    }
}
