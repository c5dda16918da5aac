//! The working sets of an app, for the threads that wake it and put it to sleep, and in a file.
//!
//! They are hints: whatever becomes of them, an app only wakes more slowly.

use std::io;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use torpor_api::view::WorkingSet;
use torpor_api::working_set::WorkingSetPolicy;
use torpor_engine::{Expected, LazyServed, Touched};

use super::texts::chain;
use crate::app::working_set::{Observed, Run, Score, WorkingSets};

/// The working sets of an app.
#[derive(Debug)]
pub(super) struct Learned {
    path: PathBuf,
    policy: WorkingSetPolicy,
    sets: Mutex<WorkingSets>,
}

impl Learned {
    /// Reads them from their file.
    pub(super) fn read(path: PathBuf, policy: WorkingSetPolicy) -> Self {
        let sets = match crate::files::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(io::Error::from),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(WorkingSets::default()),
            Err(error) => Err(error),
        };
        let sets = sets.unwrap_or_else(|error| {
            tracing::warn!(path = %path.display(), %error, "which pages the app needs first is learned anew");
            WorkingSets::default()
        });
        Self { path, policy, sets: Mutex::new(sets) }
    }

    fn sets(&self) -> MutexGuard<'_, WorkingSets> {
        self.sets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its processes are new: where their pages are says nothing any more.
    pub(super) fn forget(&self) {
        *self.sets() = WorkingSets::default();
        match std::fs::remove_file(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(path = %self.path.display(), %error, "removing a working set");
            }
            _ => {}
        }
    }

    /// Whether its wakes may be lazy at all.
    pub(super) fn may_be_lazy(&self) -> bool {
        self.policy != WorkingSetPolicy::All
    }

    /// Whether the next wake is to show which pages of its set are needed.
    pub(super) fn is_sample_due(&self, cause: &str) -> bool {
        self.sets().is_sample_due(cause, self.policy)
    }

    /// For those who ask.
    pub(super) fn view(&self) -> Option<WorkingSet> {
        let sets = self.sets();
        let (wakes, pages) = sets.counts();
        let Score { expected, misses, sampled } = sets.last()?;
        let (used, unused) = sampled.unzip();
        Some(WorkingSet { wakes, pages: pages as u64, expected, misses, used, unused })
    }

    /// Learns from a wake, whose processes are still there, or it was in vain.
    pub(super) fn observe(&self, cause: &str, served: &LazyServed) {
        let mut touched = Vec::with_capacity(served.touched.len());
        for of_process in served.touched.chunk_by(|a, b| a.pid == b.pid) {
            // One that has ended needs nothing.
            let Some(pid) = own_id(of_process[0].pid) else { continue };
            touched.extend(of_process.iter().map(|Touched { page, .. }| Run { pid, start: *page, pages: 1 }));
        }
        let mut sets = self.sets();
        let (is_sampled, is_whole) = (served.is_sampled, served.counts.settled);
        sets.observe(&Observed { cause, is_sampled, is_whole, touched: &touched }, self.policy);
        let written = serde_json::to_vec(&*sets).map_err(io::Error::from);
        if let Err(error) = written.and_then(|bytes| crate::files::replace(&self.path, &bytes)) {
            tracing::warn!(error = %chain(&error), "keeping a working set");
        }
    }

    /// A wake brought all memory back first.
    pub(super) fn pass(&self, cause: &str) {
        self.sets().pass(cause);
    }

    /// What is expected of the next wakes of these processes.
    pub(super) fn expected(&self, pids: &[i32]) -> Vec<Expected> {
        let groups = self.sets().groups(self.policy);
        if groups.is_empty() {
            return Vec::new();
        }
        let ids: Vec<(i32, i32)> = pids.iter().filter_map(|pid| Some((own_id(*pid)?, *pid))).collect();
        let here = |(own, range)| Some((ids.iter().find(|(known, _)| *known == own)?.1, range));
        let group =
            |(cause, runs): (String, Vec<_>)| Expected { cause, ranges: runs.into_iter().filter_map(here).collect() };
        groups.into_iter().map(group).collect()
    }
}

/// The id of a process as it sees itself; none if it is gone.
fn own_id(pid: i32) -> Option<i32> {
    let status = torpor_proc::read(&format!("/proc/{pid}/status")).ok()?;
    torpor_proc::numbers(torpor_proc::field(&status, "NSpid")?)?.last().copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use torpor_engine::Served;

    #[test]
    fn what_is_learned_survives_and_is_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("working-set.json");
        let learned = Learned::read(path.clone(), WorkingSetPolicy::default());
        let pid = std::process::id() as i32;
        assert_eq!(learned.expected(&[pid]), []);
        let touched = vec![Touched { pid, page: 0x7000, staged: false }, Touched { pid, page: 0x8000, staged: false }];
        learned.observe("timer", &LazyServed { counts: Served::default(), touched, is_sampled: false });
        let read = Learned::read(path.clone(), WorkingSetPolicy::default());
        assert_eq!(read.view(), Some(WorkingSet { wakes: 1, pages: 2, misses: 2, ..WorkingSet::default() }));
        let expected = read.expected(&[pid]);
        let causes: Vec<(&str, usize)> = expected.iter().map(|one| (one.cause.as_str(), one.ranges.len())).collect();
        assert_eq!(causes, [("", 0), ("timer", 1)]);
        assert_eq!(expected[1].ranges, [(pid, 0x7000..0x9000)]);
        // A process that is not there has no pages.
        assert!(read.expected(&[]).iter().all(|one| one.ranges.is_empty()));
        read.forget();
        assert_eq!(Learned::read(path.clone(), WorkingSetPolicy::default()).view(), None);
        std::fs::write(&path, "{").unwrap();
        assert_eq!(Learned::read(path, WorkingSetPolicy::default()).view(), None);
    }
}
