//! Apps that cannot be adopted now, for a reason that says nothing of the app itself: no descriptors are left, a disk cannot be read,
//! the runtime is being shut down.
//!
//! Such an app is left as it is: nothing of it is killed, thawed, written or removed. It is shown as `adopting`, `explain` has the
//! reason, and it is tried again after [`WAKE_RETRY`], with the next command for it, and by the next start. Only `torpor stop` (and with
//! it `torpor rm -f`) ends it; its image is then quarantined.
//!
//! Two things delete an image while an app is adopted: a wake that has come to its end, and its removal. Whatever else gives an image up
//! quarantines it (`N.damaged`) and tells `lost`.

use std::collections::BTreeMap;
use std::time::Instant;

use tokio::sync::oneshot;
use torpor_api::worker::Desired;
use torpor_lifecycle::{Event, Found, Phase, Refusal, Request, StopReason, Text, WAKE_RETRY, words};

use super::{Order, Task};
use crate::app::workload::{Adoption, Workload};

/// An app that could not be adopted.
#[derive(Debug)]
pub(super) struct AdoptionRetry {
    reason: Text,
    /// Failures in a row.
    failures: u32,
    again_at: Instant,
}

impl AdoptionRetry {
    /// When its adoption is to be tried again.
    pub(super) const fn again_at(&self) -> Instant {
        self.again_at
    }

    /// What is in the way of its adoption, and what to do, for `explain`.
    pub(super) fn words(&self) -> String {
        let Self { reason, again_at, .. } = self;
        let next = words(again_at.saturating_duration_since(Instant::now()));
        format!(
            "the daemon has started and cannot adopt it, so it is left as it is: {reason}; put that right (next attempt in {next}), or end it (`torpor stop`), which gives up its memory"
        )
    }
}

impl<W: Workload> Task<W> {
    /// First thing of a task: finds what an earlier worker left of the app. Where that cannot be told now, it is tried again later.
    pub(super) async fn try_adopt(&mut self) {
        match self.workload.adopt().await {
            Ok(adoption) => {
                self.adopted(adoption).await;
                if self.adoption_retry.take().is_some() {
                    tracing::info!(app = self.record.spec.name, "adopted after all");
                    Box::pin(self.apply_desired_state()).await;
                }
            }
            Err(reason) => self.retry_adoption_later(reason),
        }
    }

    /// Tells the machine what was found, and what has happened since.
    async fn adopted(&mut self, adoption: Adoption) {
        let Adoption { found, awaited, lost } = adoption;
        let Some(found) = found else { return };
        if matches!(found, Found::Dozing { .. } | Found::Warm { .. } | Found::Stored { .. }) {
            self.wakes.fell_asleep(&self.app);
        }
        let is_warm = matches!(found, Found::Warm { .. });
        self.tell(Event::Adopted(found)).await;
        if let Some(reason) = lost {
            // Never run it with wrong memory.
            self.services.events.emit(&self.record.spec.name, "lost", reason.as_ref().to_owned(), BTreeMap::default());
            if let Some(exit) = self.workload.kill() {
                self.tell(Event::Exited(exit)).await;
            }
            return;
        }
        if is_warm && (self.wakes.is_under_way() || !self.workload.confirm_asleep()) {
            return;
        }
        if let Some(cause) = awaited {
            self.tell(Event::Packet(cause)).await;
        }
    }

    fn retry_adoption_later(&mut self, reason: Text) {
        self.workload.release();
        let known = self.adoption_retry.take();
        let failures = known.as_ref().map_or(0, |known| known.failures);
        if known.is_none_or(|known| known.reason != reason) {
            tracing::error!(app = self.record.spec.name, %reason, "it cannot be adopted now, and is left as it is");
        }
        let again_at = Instant::now() + WAKE_RETRY.delay(failures);
        self.adoption_retry = Some(AdoptionRetry { reason, failures: failures.saturating_add(1), again_at });
    }

    /// What its row says, as for an app that was adopted at once (`port`).
    async fn apply_desired_state(&mut self) {
        let rests = matches!(self.app.phase(), Phase::Stopped { why: StopReason::NotStarted });
        let request = match self.record.desired {
            _ if self.services.settings.for_teardown => return,
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
        // A user wants its end, whatever state it is in.
        match self.workload.end_unadopted(&reason).await {
            Ok(()) => {
                self.adoption_retry = None;
                None
            }
            Err(held) => Some(Refusal::NotAdopted(held)),
        }
    }
}
