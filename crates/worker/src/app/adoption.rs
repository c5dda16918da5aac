//! Apps that cannot be adopted now, for a reason that says nothing of the app itself: no descriptors are left, a disk cannot be read,
//! the runtime is being shut down.
//!
//! Such an app is left as it is: nothing of it is killed, thawed, written or removed. It is shown as `adopting`, `explain` has the
//! reason, and it is tried again after [`WAKE_RETRY`], with the next command for it, and by the next start. Only `torpor stop` (and with
//! it `torpor rm -f`) ends it; its image is then set aside.
//!
//! Two things delete an image while an app is adopted: a wake that has come to its end, and its removal. Whatever else gives an image up
//! renames it to `N.damaged` and tells `lost`.

use std::collections::BTreeMap;
use std::error::Error;
use std::io;
use std::time::Instant;

use tokio::sync::oneshot;
use torpor_api::worker::Desired;
use torpor_engine::{Failure, RecoverError, RefillError, WakeError};
use torpor_lifecycle::{Phase, Refusal, Request, StopReason, Text, WAKE_RETRY, words};

use super::process_tree::operate::text;
use super::task::{Order, Task};

/// Why an app was not found as it was.
#[derive(Debug)]
pub(super) enum AdoptError {
    /// Its memory cannot be brought back.
    Lost(Text),
    /// It cannot be told now.
    Unknown(Text),
}

/// An app that could not be adopted.
#[derive(Debug)]
pub(super) struct AdoptionRetry {
    reason: Text,
    /// Failures in a row.
    failures: u32,
    again_at: Instant,
}

/// Whether an error of reading a file is ours, rather than says that the file is gone or not what it was.
pub(super) fn is_ours(error: &io::Error) -> bool {
    !matches!(
        error.kind(),
        io::ErrorKind::NotFound
            | io::ErrorKind::InvalidInput
            | io::ErrorKind::InvalidData
            | io::ErrorKind::UnexpectedEof
            | io::ErrorKind::IsADirectory
            | io::ErrorKind::NotADirectory
    )
}

/// Whether an error says that the app's memory cannot be brought back: its image is gone or damaged, or (where it has processes) they
/// are not all there.
pub(super) fn is_lost(error: &RecoverError, has_processes: bool) -> bool {
    match error {
        RecoverError::Image(WakeError::Image(_, read)) | RecoverError::Failed(Failure::Image(_, read)) => {
            !is_ours(read)
        }
        RecoverError::Image(error) if error.is_lost() => true,
        RecoverError::Failed(Failure::Refill(RefillError::Damaged { .. })) => true,
        RecoverError::Image(_) | RecoverError::Failed(_) => has_processes && says_gone(error),
    }
}

/// Whether an error says that a process is not there.
fn says_gone(error: &(dyn Error + 'static)) -> bool {
    let mut source = Some(error);
    while let Some(cause) = source {
        if let Some(error) = cause.downcast_ref::<io::Error>() {
            return match error.get_ref() {
                Some(inner) => says_gone(inner),
                None => matches!(error.raw_os_error(), Some(ENOENT | ESRCH)),
            };
        }
        source = cause.source();
    }
    false
}

const ENOENT: i32 = 2;
const ESRCH: i32 = 3;

impl Task {
    /// First thing of a task: finds what an earlier worker left of the app. Where that cannot be told now, it is tried again later.
    pub(super) async fn try_adopt(&mut self) {
        match self.adopt().await {
            Ok(()) => {
                if self.adoption_retry.take().is_some() {
                    tracing::info!(app = self.record.spec.name, "adopted after all");
                    Box::pin(self.apply_desired_state()).await;
                }
            }
            Err(reason) => self.retry_adoption_later(reason),
        }
    }

    fn retry_adoption_later(&mut self, reason: Text) {
        // Nothing of it is held; what is parked stays parked.
        (self.watch, self.init, self.sandbox, self.asleep) = (None, None, None, None);
        (self.output, self.cached_image) = (None, None);
        self.deferred.clear();
        let known = self.adoption_retry.take();
        let failures = known.as_ref().map_or(0, |known| known.failures);
        if known.is_none_or(|known| known.reason != reason) {
            tracing::error!(app = self.record.spec.name, %reason, "it cannot be adopted now, and is left as it is");
        }
        let again_at = Instant::now() + WAKE_RETRY.delay(failures);
        self.adoption_retry = Some(AdoptionRetry { reason, failures: failures.saturating_add(1), again_at });
    }

    /// When its adoption is to be tried again.
    pub(super) fn adopt_at(&self) -> Option<Instant> {
        self.adoption_retry.as_ref().map(|adoption_retry| adoption_retry.again_at)
    }

    /// What its row says, as for an app that was adopted at once (`port`).
    async fn apply_desired_state(&mut self) {
        let rests = matches!(self.app.phase(), Phase::Stopped { why: StopReason::NotStarted });
        let request = match self.record.desired {
            _ if self.shared.config.for_teardown => return,
            Desired::Up if rests => Request::Start,
            Desired::Down if !matches!(self.app.phase(), Phase::Stopped { .. }) => {
                Request::Stop { grace: crate::TEARDOWN_GRACE }
            }
            _ => return,
        };
        let (answer, _unheard) = oneshot::channel();
        self.order(Order::Request(request, answer)).await;
    }

    /// Before a request for an app that is not adopted: tries again. Gives the answer where that fails.
    pub(super) async fn adopt_for(&mut self, request: &Request) -> Option<Refusal> {
        self.adoption_retry.as_ref()?;
        self.try_adopt().await;
        let reason = self.adoption_retry.as_ref()?.reason.clone();
        if !matches!(request, Request::Stop { .. }) {
            return Some(Refusal::NotAdopted(reason));
        }
        let held = self.end_unadopted(&reason).await.err()?;
        Some(Refusal::NotAdopted(held))
    }

    /// A user wants its end, whatever state it is in.
    async fn end_unadopted(&mut self, reason: &Text) -> Result<(), Text> {
        self.destroy_leftovers().await?;
        self.after_exit().await;
        self.lose_images(&format!("it was stopped while it could not be adopted: {reason}"));
        self.adoption_retry = None;
        Ok(())
    }

    /// What is in the way of its adoption, and what to do, for `explain`.
    pub(super) fn adoption_blocker(&self) -> Option<String> {
        let AdoptionRetry { reason, again_at, .. } = self.adoption_retry.as_ref()?;
        let next = words(again_at.saturating_duration_since(Instant::now()));
        Some(format!(
            "the daemon has started and cannot adopt it, so it is left as it is: {reason}; put that right (next attempt in {next}),              or end it (`torpor stop`), which gives up its memory"
        ))
    }

    /// Sets all its images aside, so that none is used again; tells `lost` where there was one that could have been.
    pub(super) fn lose_images(&self, reason: &str) {
        if self.quarantine_images() && self.record.desired == Desired::Up {
            self.report_lost(reason);
        }
    }

    /// Sets all its images aside; whether there was one.
    pub(super) fn quarantine_images(&self) -> bool {
        let name = &self.record.spec.name;
        let kept = self.files.set_aside(self.owner()).unwrap_or_else(|error| {
            tracing::error!(app = name, %error, "setting its images aside");
            Vec::new()
        });
        for image in &kept {
            tracing::warn!(app = name, kept = %image.display(), "its image is set aside");
        }
        !kept.is_empty()
    }

    pub(super) fn report_lost(&self, reason: &str) {
        self.shared.events.emit(&self.record.spec.name, "lost", reason.to_owned(), BTreeMap::default());
    }

    /// Ends what is left of a sandbox that is not held.
    pub(super) async fn destroy_leftovers(&self) -> Result<(), Text> {
        let (shared, id, run) = (self.shared.clone(), self.record.id.clone(), self.files.run.clone());
        let destroyed = tokio::task::block_in_place(|| {
            let hierarchies = shared.launcher.hierarchies();
            torpor_sandbox::destroy_leftovers(hierarchies, &shared.config.instance, &id, &run)
        });
        destroyed.map_err(|error| text(torpor_api::error::chain(&error)))
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn only_what_is_gone_or_damaged_is_lost() {
        let os = io::Error::from_raw_os_error;
        let image = |errno| RecoverError::Image(WakeError::Image(PathBuf::new(), os(errno)));
        let look = |errno| RecoverError::Failed(Failure::Look(io::Error::other(os(errno))));
        const EIO: i32 = 5;
        const EMFILE: i32 = 24;
        assert!(is_lost(&image(ENOENT), true) && is_lost(&image(ENOENT), false));
        assert!(!is_lost(&image(EIO), true) && !is_lost(&image(EMFILE), false));
        assert!(is_lost(&look(ESRCH), true) && !is_lost(&look(EMFILE), true));
        assert!(!is_lost(&look(ESRCH), false), "the memory of one without processes is in its image");
        assert!(!is_lost(&RecoverError::Failed(Failure::End(io::Error::other("not in time"))), true));
    }
}
