//! Remote calls in a stopped process: what the kernel tells a process only about itself.
//!
//! The calls are made from the code that `trace` puts into the vDSO's unused tail, and answers go to a page that is mapped
//! for it and unmapped again; [`Remote::end`] gives every thread its registers and mask back and takes the code out.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;

use torpor_linux::pagemap;
use torpor_linux::vm;

use crate::memory::layout::Area;
use crate::trace::{CODE_BYTES, Process, TraceError, install_park_loop, park_place};

/// Bytes of the page for answers.
pub(super) const SCRATCH: usize = 4096;

const MMAP: u64 = 9;
const MUNMAP: u64 = 11;

/// A process that remote calls are made in.
pub(super) struct Remote<'a> {
    pub(super) process: &'a Process,
    park_address: u64,
    code: u64,
    scratch: u64,
    vdso: Vec<Area>,
    /// New mappings are locked into memory (`mlockall(MCL_FUTURE)`).
    locks_mappings: bool,
}

impl<'a> Remote<'a> {
    /// Makes calls possible in `process`, whose areas are `areas`.
    pub(super) fn begin(process: &'a Process, areas: &[Area]) -> Result<Self, TraceError> {
        let vdso: Vec<Area> = areas.iter().filter(|area| area.name == "[vdso]").cloned().collect();
        let code = park_place(process.pid, &vdso)?;
        let park_address = install_park_loop(process.pid, &vdso)?;
        let mut remote = Self { process, park_address, code, scratch: 0, vdso, locks_mappings: false };
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
        for thread in &self.process.threads {
            let wrong = |error| TraceError::Registers(thread.tracee.thread(), error);
            thread.tracee.set_signal_mask(u64::MAX).map_err(wrong)?;
        }
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
        self.process.call_in(n, self.park_address, name, number, arguments)
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
        for thread in &self.process.threads {
            let wrong = |error| TraceError::Registers(thread.tracee.thread(), error);
            let back = thread.restore().and_then(|()| thread.tracee.set_signal_mask(thread.signal_mask).map_err(wrong));
            result = result.and(back);
        }
        result.and(self.take_code_out().map_err(|error| TraceError::Look(self.process.pid, error)))
    }

    fn take_code_out(&self) -> io::Result<()> {
        debug_assert!(!self.vdso.is_empty());
        let memory = OpenOptions::new().write(true).open(format!("/proc/{}/mem", self.process.pid))?;
        memory.write_all_at(&[0; CODE_BYTES], self.code)
    }
}
