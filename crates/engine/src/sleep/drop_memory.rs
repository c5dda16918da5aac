//! The part that cannot be aborted: park, drop, let go; or, if that fails, bring everything back.

use std::ops::Range;
use std::os::fd::AsFd;
use std::time::Duration;

use torpor_image::State;
use torpor_linux::uapi::memory::MADV_DONTNEED_LOCKED;
use torpor_linux::uapi::syscall;
use torpor_linux::userfault;

use super::error::{Failure, SleepError};
use super::{Asleep, Captured, Drops, Sleep, carried};
use crate::lazy::Contexts;
use crate::target::Phase;
use torpor_pages::context::Context;
use torpor_pages::refill::refill;
use torpor_pages::source::ImageFile;
use torpor_process::step::Step;
use torpor_process::threads::{ThreadPlan, WaitHistory};
use torpor_process::timers::{earliest, process_timers, timer_descriptors};
use torpor_process::trace::{Process, TraceError};
use torpor_process::userfault::context as make_context;
use torpor_process::wait::since::now;

impl Sleep<'_> {
    /// The part that cannot be aborted.
    pub(super) fn drop_memory(&mut self, captured: Captured) -> Result<Asleep, SleepError> {
        match self.try_drop(&captured) {
            Ok(Dropped { wake_at, memories, contexts }) => Ok(Asleep {
                state: captured.state,
                watch: captured.watch,
                wake_at,
                image: self.request.image.clone(),
                image_bytes: captured.image_bytes,
                kept_bytes: captured.kept_bytes,
                memories,
                plans: std::mem::take(&mut self.plans),
                contexts,
            }),
            Err(error) => {
                let at = self.at();
                if self.close_contexts().is_err() {
                    // What is written to it could wait for a pager that does not answer.
                    return Err(SleepError::Lost(Box::new(error)));
                }
                match self.bring_back(&captured.state) {
                    Ok(()) => Err(SleepError::Failed { at, error: Box::new(error) }),
                    Err(error) => Err(SleepError::Lost(Box::new(error))),
                }
            }
        }
    }

    fn try_drop(&mut self, captured: &Captured) -> Result<Dropped, Failure> {
        self.reached(Step::Committed)?;
        // Dropped memory must not be told to a pager, nor be waited for.
        self.close_contexts()?;
        let park = |pid: i32| {
            let found = captured.state.processes.iter().find(|process| process.pid == pid);
            found.map(|process| process.park_address).ok_or(TraceError::NoVdso(pid))
        };
        for process in &self.processes {
            process.park(park(process.pid)?)?;
        }
        self.target.freezer.thaw().map_err(Failure::Freeze)?;
        self.reached(Step::Parked)?;

        let mut timers = Vec::new();
        let before = &self.request.memories.timers;
        for process in &self.processes {
            timers.extend(timer_descriptors(process.pid, now(), before).map_err(Failure::Look)?);
            timers.extend(process_timers(process, park(process.pid)?, now(), before)?);
        }
        let mut contexts = Vec::new();
        for (process, drops) in self.processes.iter().zip(&captured.drops) {
            let park_address = park(process.pid)?;
            contexts.extend(context(process, park_address, drops));
            drop_ranges(process, park_address, &drops.ranges)?;
        }
        self.reached(Step::Dropped)?;

        self.target.freezer.freeze().map_err(Failure::Freeze)?;
        for thread in std::mem::take(&mut self.processes).into_iter().flat_map(|process| process.threads) {
            thread.release()?;
        }
        self.reached(Step::Released)?;

        let memories = WaitHistory { waits: carried(&self.plans), timers: timers.clone(), ..WaitHistory::default() };
        timers.extend(self.plans.iter().filter_map(ThreadPlan::deadline));
        let wake_at = earliest(&timers, self.request.timers_over);
        let phase = Phase::Dozing { generation: self.request.image.generation(), wake_at };
        self.target.journal.record(phase).map_err(Failure::Journal)?;
        self.reached(Step::Dozing)?;
        self.remove_base()?;
        let contexts = Contexts::new(contexts, &captured.state).unwrap_or_else(|error| {
            tracing::debug!(%error, "no ledger of missing pages");
            None
        });
        Ok(Dropped { wake_at, memories, contexts })
    }

    /// Nobody serves its faults any more: the new image has all that it misses.
    fn close_contexts(&mut self) -> Result<(), Failure> {
        if let Some(lazy) = self.lazy {
            lazy.close().map_err(Failure::Pager)?;
            self.lazy = None;
        }
        Ok(())
    }

    /// After a failure behind the commit: memory from the image, then on as if nothing had been.
    fn bring_back(&mut self, state: &State) -> Result<(), Failure> {
        // A thread that is let go behind a remote call restarts its own call only by way of the freezer.
        self.target.freezer.freeze().map_err(Failure::Freeze)?;
        let image = self.request.image.open().map_err(|error| self.image.failed(error.into()))?;
        refill(&ImageFile::through_cache(image.file()), &state.processes, &[])?;
        self.frozen = true;
        self.undo()?;
        self.remove_base()
    }

    /// Removes the image that it missed pages of.
    fn remove_base(&self) -> Result<(), Failure> {
        let Some(lazy) = self.request.lazy else { return Ok(()) };
        let image = lazy.image();
        let removed = image.remove().and_then(|()| image.remove_consumed());
        removed.map_err(|error| Failure::Image(image.path().to_owned(), error))
    }
}

/// What dropping has found and made.
struct Dropped {
    wake_at: Option<Duration>,
    memories: WaitHistory,
    contexts: Option<Contexts>,
}

/// A context of a parked process that has much to be brought back. Without one it is brought back in another way, more slowly.
fn context(process: &Process, park_address: u64, drops: &Drops) -> Option<Context> {
    let pid = process.pid;
    if drops.anonymous.is_empty() {
        return None;
    }
    let device = userfault::device().inspect_err(|error| tracing::debug!(%error, "{}", userfault::DEVICE)).ok()?;
    match make_context(process, park_address, device.as_fd()) {
        Ok(userfault) => Some(Context { pid, userfault, areas: drops.anonymous.clone() }),
        Err(error) => {
            tracing::debug!(pid, error = &error as &dyn std::error::Error, "no userfaultfd context");
            None
        }
    }
}

/// Drops ranges of a parked process's memory. A range that the kernel will not drop stays, which only costs memory.
fn drop_ranges(process: &Process, park_address: u64, ranges: &[Range<u64>]) -> Result<(), TraceError> {
    for Range { start, end } in ranges {
        let arguments = [*start, end - start, MADV_DONTNEED_LOCKED];
        match process.call(park_address, "madvise", syscall::MADVISE, &arguments) {
            Ok(_) => {}
            Err(TraceError::Call { pid, error, .. }) => {
                tracing::debug!(pid, start, end, %error, "memory stays");
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
