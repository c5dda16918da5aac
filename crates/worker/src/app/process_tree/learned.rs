//! The working sets of an app, for the threads that wake it and put it to sleep, and in a file.
//!
//! They are hints: whatever becomes of them, an app only wakes more slowly.

use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use torpor_api::view::WorkingSet;
use torpor_api::working_set::WorkingSetPolicy;
use torpor_engine::{Expected, LazyServed, LazyWay, Pagers, Touched};
use torpor_image::PAGE;

use super::texts::chain;
use crate::app::working_set::{Observed, Run, Score, Way, WorkingSets};

/// One full wake in this many is written to the file.
const PASSES_KEPT: u32 = 8;

/// The working sets of an app.
#[derive(Debug)]
pub(super) struct Learned {
    path: PathBuf,
    policy: WorkingSetPolicy,
    /// Wakes may bring all memory first. Where what is missing does not come unless it is touched, the faults of a wake are spread over all the time
    /// until the next sleep, and say nothing about how it was to wait for them.
    may_be_full: bool,
    sets: Mutex<WorkingSets>,
}

impl Learned {
    /// Reads them from their file.
    pub(super) fn read(path: PathBuf, policy: WorkingSetPolicy, may_be_full: bool) -> Self {
        let sets = match crate::files::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(io::Error::from),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(WorkingSets::default()),
            Err(error) => Err(error),
        };
        let mut sets = sets.unwrap_or_else(|error| {
            tracing::warn!(path = %path.display(), %error, "which pages the app needs first is learned anew");
            WorkingSets::default()
        });
        let may_be_full = may_be_full && !matches!(policy, WorkingSetPolicy::None | WorkingSetPolicy::All);
        if !may_be_full {
            sets.forget_slow();
        }
        Self { path, policy, may_be_full, sets: Mutex::new(sets) }
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

    /// How the next wake is to be: lazily by `pagers`, or by nobody.
    pub(super) fn way<'a>(&self, cause: &'a str, pagers: &'a dyn Pagers) -> Option<LazyWay<'a>> {
        match self.sets().way(cause, self.policy, self.may_be_full) {
            Way::Full => None,
            Way::Lazy(sample) => Some(LazyWay { pagers, cause, sample }),
        }
    }

    /// For those who ask.
    pub(super) fn view(&self) -> Option<WorkingSet> {
        let sets = self.sets();
        let (wakes, pages) = sets.counts();
        let Score { expected, misses, sampled } = sets.last()?;
        let (used, unused) = sampled.unzip();
        let full = sets.full_causes().map(str::to_owned).collect();
        Some(WorkingSet { wakes, pages: pages as u64, expected, misses, used, unused, full })
    }

    /// Learns from a wake, whose processes are still there, or it was in vain.
    pub(super) fn observe(&self, cause: &str, served: &LazyServed) {
        let touched = runs(served.touched.iter().map(|Touched { pid, page, .. }| (*pid, *page..*page + PAGE)));
        let staged = runs(served.staged.iter().cloned());
        let observed = Observed {
            cause,
            is_sampled: served.is_sampled,
            is_whole: served.counts.settled,
            is_all_staged: served.counts.all_staged,
            staged: &staged,
            touched: &touched,
            faults: if self.may_be_full { served.counts.faults } else { 0 },
            missing: served.counts.missing_pages,
        };
        let mut sets = self.sets();
        sets.observe(&observed, self.policy);
        self.keep(&sets);
    }

    fn keep(&self, sets: &WorkingSets) {
        let written = serde_json::to_vec(sets).map_err(io::Error::from);
        if let Err(error) = written.and_then(|bytes| crate::files::replace(&self.path, &bytes)) {
            tracing::warn!(error = %chain(&error), "keeping a working set");
        }
    }

    /// A wake brought all memory back first. That is kept now and then, since it leads to a wake that does not.
    pub(super) fn pass(&self, cause: &str) {
        let mut sets = self.sets();
        if sets.pass(cause).is_multiple_of(PASSES_KEPT) {
            self.keep(&sets);
        }
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

/// Translates process ids to those that the processes see themselves, and leaves out processes that have ended.
fn runs(ranges: impl Iterator<Item = (i32, Range<u64>)>) -> Vec<Run> {
    let mut last = None;
    let mut own = |pid| match last {
        Some((of, own)) if of == pid => own,
        _ => last.insert((pid, own_id(pid))).1,
    };
    let run = |(pid, range): (i32, Range<u64>)| {
        let pages = u32::try_from((range.end - range.start) / PAGE).ok()?;
        Some(Run { pid: own(pid)?, start: range.start, pages })
    };
    ranges.filter_map(run).collect()
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
        let learned = Learned::read(path.clone(), WorkingSetPolicy::default(), true);
        let pid = std::process::id() as i32;
        assert_eq!(learned.expected(&[pid]), []);
        let touched = vec![Touched { pid, page: 0x7000, staged: false }, Touched { pid, page: 0x8000, staged: false }];
        learned.observe(
            "timer",
            &LazyServed { counts: Served::default(), touched, staged: Vec::new(), is_sampled: false },
        );
        let read = Learned::read(path.clone(), WorkingSetPolicy::default(), true);
        assert_eq!(read.view(), Some(WorkingSet { wakes: 1, pages: 2, misses: 2, ..WorkingSet::default() }));
        let expected = read.expected(&[pid]);
        let causes: Vec<(&str, usize)> = expected.iter().map(|one| (one.cause.as_str(), one.ranges.len())).collect();
        assert_eq!(causes, [("", 0), ("timer", 1)]);
        assert_eq!(expected[1].ranges, [(pid, 0x7000..0x9000)]);
        // A process that is not there has no pages.
        assert!(read.expected(&[]).iter().all(|one| one.ranges.is_empty()));
        read.forget();
        assert_eq!(Learned::read(path.clone(), WorkingSetPolicy::default(), true).view(), None);
        std::fs::write(&path, "{").unwrap();
        assert_eq!(Learned::read(path, WorkingSetPolicy::default(), true).view(), None);
    }
}
