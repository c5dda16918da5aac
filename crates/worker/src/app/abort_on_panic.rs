//! Faults of ours while an app is changed.
//!
//! Steps of sleeping and waking are made so that the worker may be killed at any of them: the next one reads in the journal what is
//! to be done. A panic between two steps would leave the app in between and nobody to go on with it, so it ends the worker.

/// Kept where an app is changed: if that panics, the process is aborted.
pub(super) struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            tracing::error!("a fault of Torpor's own: the worker ends, and its successor takes the apps over");
            std::process::abort();
        }
    }
}
