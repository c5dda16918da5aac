//! What the worker knows of an app's sleep: that it could go warm when memory is short, and what its images take on disk.
//!
//! Set behind each event, off the way to a first answer, from the state machine alone.

use std::sync::Arc;
use std::time::SystemTime;

use tokio::sync::{mpsc, oneshot};
use torpor_lifecycle::{Action, Event, Level, Millis, Phase, Retry, SleepCause, Text};

use super::{Order, Task};
use crate::app::workload::Workload;
use crate::disk::Watched;
use crate::pressure::{Dozer, Dozing};
use crate::space::{Held, taken};

/// What the worker was told last.
#[derive(Debug)]
pub(super) struct Accounting<P> {
    /// The way to our own task; weak, or it would never end.
    orders: mpsc::WeakSender<Order<P>>,
    /// Since when it could go warm, and the entry that says so.
    dozing: Option<(Millis, Dozing)>,
    /// Which sleep, the space that its images take, and when the newest was written.
    images: Option<((Millis, Level), Held, SystemTime)>,
    /// Whoever waits for the end of a hibernating.
    demotion: Option<oneshot::Sender<()>>,
    /// While it runs with a disk limit, whether it is measured.
    disk: Option<Option<Watched>>,
}

impl<P> Accounting<P> {
    pub(super) const fn new(orders: mpsc::WeakSender<Order<P>>) -> Self {
        Self { orders, dozing: None, images: None, demotion: None, disk: None }
    }
}

impl<W: Workload> Task<W> {
    /// Tells the worker what has changed.
    pub(super) fn update_accounting(&mut self) {
        let refused = matches!(self.app.phase(), Phase::Warm(asleep) if asleep.is_refused());
        self.workload.refuse_clients(refused);
        match (self.app.phase(), self.disk_limit()) {
            (Phase::Running(_), Some(limit)) if self.accounting.disk.is_none() => {
                let (record, disks) = (&self.record, &self.services.disks);
                self.accounting.disk = Some(disks.watch(&record.id, &record.spec.name, &self.files, limit));
            }
            (Phase::Running(_), _) => {}
            _ => self.accounting.disk = None,
        }
        let phase = self.app.phase();
        match phase {
            Phase::Dozing(asleep) | Phase::Warm(asleep) => {
                let sleep = (asleep.since, asleep.level());
                if self.accounting.images.as_ref().is_none_or(|(known, ..)| *known != sleep) {
                    self.hold_image_space(sleep);
                }
            }
            // Its image is still there, or a new one is not yet.
            Phase::Capturing { .. }
            | Phase::Aborting { .. }
            | Phase::Dropping { .. }
            | Phase::Hibernating { .. }
            | Phase::Waking { .. } => {}
            Phase::Stopped { .. }
            | Phase::Starting { .. }
            | Phase::Running(_)
            | Phase::Stopping { .. }
            | Phase::Backoff { .. } => self.accounting.images = None,
        }
        let from = self.app.hibernates_from();
        if self.accounting.dozing.as_ref().map(|(from, _)| *from) != from {
            self.accounting.dozing = None;
            self.accounting.dozing = from.map(|from| (from, self.enter_dozing(from)));
        }
        if !matches!(self.app.phase(), Phase::Hibernating { .. }) {
            self.accounting.demotion = None;
        }
    }

    fn hold_image_space(&mut self, sleep: (Millis, Level)) {
        let (bytes, written) = taken(&self.files.images).unwrap_or_else(|error| {
            tracing::warn!(app = self.record.spec.name, %error, "measuring its image");
            (0, None)
        });
        let written = written.unwrap_or_else(SystemTime::now);
        self.accounting.images = Some((sleep, self.services.image_space.hold(bytes), written));
    }

    /// What its own files may take on disk.
    pub(super) fn disk_limit(&self) -> Option<u64> {
        crate::disk::limit_of(&self.record.spec, self.services.settings.disk_limit_bytes)
    }

    fn enter_dozing(&self, from: Millis) -> Dozing {
        let asleep_since = if let Phase::Dozing(asleep) = self.app.phase() { asleep.since } else { from };
        // As the image says it, so that a restart of the worker changes no order.
        let images = self.accounting.images.as_ref().map(|(_, held, written)| (held.bytes(), *written));
        let (bytes, since) = images.unwrap_or_else(|| (0, SystemTime::now()));
        self.services.dozers.enter(Dozer {
            since,
            from: from.max(asleep_since + self.services.settings.min_dozing),
            bytes: self.workload.memory_to_hibernate(bytes),
            app: Arc::new(self.accounting.orders.clone()),
        })
    }

    /// Memory is short.
    pub(super) async fn demote_for_memory(&mut self, done: oneshot::Sender<()>) {
        self.accounting.demotion = Some(done);
        self.tell(Event::Hibernate(SleepCause::Memory)).await;
    }

    /// Refuses to write another image.
    pub(super) fn no_space(&self, action: &Action) -> Event {
        Self::no_sleep(action, self.services.image_space.words().into())
    }

    /// Refuses to put it to sleep, or deeper.
    pub(super) fn no_sleep(action: &Action, reason: Text) -> Event {
        let reasons = vec![reason];
        match action {
            Action::BeginDeepen { .. } => Event::HibernateRefused { reasons, retry: Retry::Later, dozes: true },
            _ => Event::CaptureRefused { reasons, retry: Retry::Later },
        }
    }
}
