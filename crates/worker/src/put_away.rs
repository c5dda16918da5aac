//! `torpor down`: every app is put away.
//!
//! ```text
//! up ─▶ warm ─▶ its sandbox is removed, its image stays ─▶ the next daemon finds it as after a reboot
//!  └──▶ cannot go warm ─▶ stopped, with the reason
//! ```
//! An app that does not end counts as stopped: the removal of its cgroups kills it, or says which process stays.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use tokio::sync::{mpsc, oneshot};
use torpor_api::error::{ApiError, ErrorKind, chain};
use torpor_api::view::{PutAway, State};
use torpor_api::worker::{AppRecord, Progress, WorkerPort};
use torpor_lifecycle::{Level, Refusal, Request};

use crate::app::Order;
use crate::port::order;
use crate::worker::Worker;

/// How long an app that is at work is tried to be put to sleep.
const AT_WORK: Duration = Duration::from_secs(10);
/// Between two tries.
const AGAIN: Duration = Duration::from_millis(100);
/// How long the end of an app may take after its grace: it is killed then.
const KILLED_WITHIN: Duration = Duration::from_secs(30);

impl Worker {
    /// Puts all apps away, then removes what was set up on the machine.
    pub(crate) async fn put_all_away(
        &self,
        discard: bool,
        progress: mpsc::Sender<Progress>,
    ) -> Result<Vec<PutAway>, ApiError> {
        let records = self.records();
        let total = records.len() as u64;
        let apps = records.into_iter().map(|record| async move {
            let name = record.spec.name.clone();
            (name, self.put_one_away(record, discard).await)
        });
        let mut apps = futures_util::stream::iter(apps).buffer_unordered(crate::TEARDOWN_AT_ONCE);
        let (mut put_away, mut done) = (Vec::new(), 0);
        while let Some((name, app)) = apps.next().await {
            done += 1;
            // A full channel only loses a report in between.
            let _ = progress.try_send(Progress { what: name, done_bytes: done, total_bytes: Some(total) });
            put_away.extend(app);
        }
        drop(apps);
        put_away.sort_by(|one, other| one.app.cmp(&other.app));
        let ended = self.end_everything().await;
        ended.map_err(|error| ApiError::new(ErrorKind::Internal, chain(&error)))?;
        Ok(put_away)
    }

    /// None: it was not up.
    async fn put_one_away(&self, record: Arc<AppRecord>, discard: bool) -> Option<PutAway> {
        let (id, app) = (&record.id, record.spec.name.clone());
        // Its task has ended: it was removed meanwhile.
        let status = self.status(id).await.ok()?;
        if status.state == State::Stopped {
            if discard && let Err(error) = self.discard_images(id) {
                tracing::warn!(app, %error, "removing its image");
            }
            return None;
        }
        let mut reasons = Vec::new();
        if !discard {
            match self.keep(id).await {
                Ok(()) => return Some(PutAway { app, kept: true, reasons }),
                Err(reason) => reasons.push(reason),
            }
        }
        let within = crate::TEARDOWN_GRACE + KILLED_WITHIN;
        match tokio::time::timeout(within, self.stop(id, crate::TEARDOWN_GRACE)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => reasons.push(error.message),
            Err(_) => {
                reasons.push(format!("it has not ended within {} s and is killed with its cgroup", within.as_secs()))
            }
        }
        Some(PutAway { app, kept: false, reasons })
    }

    fn discard_images(&self, id: &str) -> std::io::Result<()> {
        match self.app(id) {
            Ok(app) => app.files.clean_images(None).map(drop),
            Err(_) => Ok(()),
        }
    }

    /// Takes it to warm and removes its sandbox, or says why not.
    async fn keep(&self, id: &str) -> Result<(), String> {
        let app = self.app(id).map_err(|error| error.message)?;
        // The hub remembers a pin; here it would only be in the way.
        order(&app, Order::Pin(false)).await.map_err(|error| error.message)?;
        let begun = Instant::now();
        loop {
            let (answer, answered) = oneshot::channel();
            let request = Request::Sleep { level: Level::Warm };
            order(&app, Order::Request(request, answer)).await.map_err(|error| error.message)?;
            let answer = answered.await.map_err(|_| "its task has ended".to_owned())?;
            let reason = match answer {
                Ok(()) => match self.ask(id, Order::PutAway).await.map_err(|error| error.message)? {
                    Ok(()) => return Ok(()),
                    Err(reason) => reason,
                },
                Err(refusal @ (Refusal::SleepAborted(_) | Refusal::SleepRefused(_) | Refusal::Busy(_))) => {
                    refusal.to_string()
                }
                Err(refusal) => return Err(refusal.to_string()),
            };
            if begun.elapsed() >= AT_WORK {
                return Err(reason);
            }
            tokio::time::sleep(AGAIN).await;
        }
    }
}
