//! Waking: from dozing by refilling memory in place, from warm by building the processes again.

use std::time::SystemTime;

use torpor_engine::{Asleep, Step, wake};
use torpor_lifecycle::{Event, WakeCause, WakeFailure};

use super::freezer::SandboxFreezer;
use super::lazy::LazyPagers;
use super::sleep_state::SleepState;
use super::target::with_target;
use super::texts::{chain, text};
use super::{ProcessTree, parked};
use crate::app::deadlines::Operations;
use crate::app::history::Entry;
use crate::app::workload::{Report, Wake};

impl ProcessTree {
    /// Wakes it. From dozing that is done right here, and its outcome known.
    /// From warm it is built on a thread of its own, and the outcome comes later.
    pub(super) fn begin_wake(&mut self, cause: &WakeCause, operations: &mut Operations) -> Wake {
        if let Some(reason) = self.lost.take() {
            return Wake::failed(WakeFailure::Damaged(reason));
        }
        self.sleep.dozes = None;
        match self.sleep.state.take() {
            Some(SleepState::Dozing(asleep)) => self.refill(asleep, cause, operations),
            Some(SleepState::Warm(app)) => self.resume(app, cause, operations),
            // Its sandbox has gone while the wake waited for its turn, and cannot be made. Else a sleep that failed was
            // undone already: it runs.
            None => match &self.sandbox_retry {
                Some(retry) => Wake::failed(WakeFailure::Passing(retry.reason().clone())),
                None => Wake::Ended(Event::Woken.into()),
            },
        }
    }

    /// Brings back the memory of one that dozes.
    fn refill(&mut self, asleep: Box<Asleep>, cause: &WakeCause, operations: &Operations) -> Wake {
        let Some(sandbox) = self.run.sandbox.clone() else {
            return Wake::failed(WakeFailure::Passing(text("it has no processes")));
        };
        self.sleep.watch = None;
        crate::probes::undefer(&std::mem::take(&mut self.sleep.deferred), &crate::probes::Sockets::OfProcesses);
        let (operation, _watched) = operations.watch_refill(asleep.image_bytes);
        let cause = cause.to_string();
        let pagers = LazyPagers::new(self, &sandbox, asleep.image.clone(), &cause);
        let run = || {
            let (freezer, faults) = (SandboxFreezer::of(&sandbox), &self.shared.faults);
            let lazy = self.sleep.contexts_held.then(|| self.learned.way(&cause, &pagers)).flatten();
            with_target(self.owner(), &operation, &freezer, &*self.journal, faults, |target| {
                wake(target, &asleep, lazy)
            })
        };
        // However little it is, the disk that it is read from may hang: other tasks do not wait for this thread.
        let (result, timings) = tokio::task::block_in_place(run);
        let lazy = pagers.into_wake();
        let thawed = || lazy.iter().for_each(|lazy| lazy.thawed());
        match result {
            Ok(woken) => {
                thawed();
                let entry = Entry::new(&timings, None);
                self.lazy = lazy;
                if self.sleep.contexts_held && !woken.is_lazy() {
                    self.learned.pass(&cause);
                }
                self.finish_wake(woken);
                Wake::Ended(Report::with_entry(Event::Woken, entry))
            }
            Err(error) => {
                let reason = chain(&error);
                let entry = Entry::new(&timings, Some(reason.to_string()));
                let lost = error.is_lost();
                let runs = timings.steps().iter().any(|(step, _)| *step == Step::Awake);
                if runs && sandbox.cgroup().thaw().is_ok() {
                    thawed();
                    // It is thawed, and its memory is complete or comes: a detail failed behind that.
                    self.lazy = lazy;
                    tracing::warn!(app = self.record.spec.name, %reason, "after waking");
                    return Wake::Ended(Report::with_entry(Event::Woken, entry));
                }
                if let Some(lazy) = lazy {
                    // It has not run: what came in the meantime is what the image says.
                    tokio::task::block_in_place(|| lazy.stop());
                }
                self.hold(SleepState::Dozing(asleep), SystemTime::now());
                let failure =
                    if lost { WakeFailure::Damaged(self.lost_because(&reason)) } else { WakeFailure::Passing(reason) };
                Wake::Ended(Report::with_entry(Event::WakeFailed(failure), entry))
            }
        }
    }

    /// The small things after a wake, off the path to the first answer.
    fn finish_wake(&mut self, woken: torpor_engine::Woken) {
        self.sleep.cached_image = None;
        let name = self.record.spec.name.clone();
        let shared = self.shared.clone();
        let id = self.record.id.clone();
        let all_is_back = self.sleep.contexts_held && !woken.is_lazy();
        let finish = move || {
            let memories = woken.finish();
            if let Err(error) = parked::drop_watch(&shared, &id) {
                tracing::warn!(app = name, error = %chain(&error), "forgetting its parked descriptors");
            }
            memories
        };
        let finished = tokio::task::block_in_place(finish);
        if all_is_back {
            self.clear_contexts();
        }
        match finished {
            Ok(memories) => self.memories = memories,
            Err(error) => tracing::warn!(app = self.record.spec.name, error = %chain(&error), "after waking"),
        }
    }
}
