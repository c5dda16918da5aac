//! Reports of long work.

use std::sync::Arc;

use crate::limits::PROGRESS_STEP_BYTES;

/// How far a piece of long work is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// What is being done: `pulling layer sha256:12ab…`.
    pub what: String,
    /// Bytes done.
    pub done_bytes: u64,
    /// Bytes in all, where known.
    pub total_bytes: Option<u64>,
}

/// Is told about progress; must not block for long.
pub type ProgressFn = Arc<dyn Fn(Progress) + Send + Sync>;

/// A callback that listens to nothing.
pub fn no_progress() -> ProgressFn {
    Arc::new(|_| {})
}

/// Reports one piece of work, not more often than every [`PROGRESS_STEP_BYTES`].
pub(crate) struct Reporter {
    callback: ProgressFn,
    progress: Progress,
    reported_bytes: u64,
}

impl Reporter {
    pub(crate) fn new(callback: &ProgressFn, what: String, total_bytes: Option<u64>) -> Self {
        let progress = Progress { what, done_bytes: 0, total_bytes };
        callback(progress.clone());
        Self { callback: Arc::clone(callback), progress, reported_bytes: 0 }
    }

    pub(crate) fn advance(&mut self, bytes: u64) {
        self.progress.done_bytes += bytes;
        if self.progress.done_bytes - self.reported_bytes >= PROGRESS_STEP_BYTES {
            self.report();
        }
    }

    pub(crate) fn finish(&mut self) {
        self.report();
    }

    fn report(&mut self) {
        self.reported_bytes = self.progress.done_bytes;
        (self.callback)(self.progress.clone());
    }
}
