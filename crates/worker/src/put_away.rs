//! `torpor down`: every app is put away.
//!
//! ```text
//! up ─▶ warm ─▶ its sandbox is removed, its image stays ─▶ the next daemon finds it as after a reboot
//!  └──▶ cannot go warm ─▶ stopped, with the reason
//! ```
//! An app that does not end counts as stopped: the removal of its cgroups kills it, or says which process stays.
//!
//! One that is held up (`not answering`) cannot be put away by this process: nobody but the thread that is held up can let go of it, and
//! only a new worker finds out how far it is. So it is left as it is, all others are put away, and nothing is removed; the answer is
//! `Timeout`. `torpor down` then ends the daemon, and with it what holds the app, and goes on with a worker of its own
//! (`torpor::commands::down`).

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use tokio::sync::{mpsc, oneshot};
use torpor_api::error::{ApiError, ErrorKind, chain};
use torpor_api::view::{PutAway, State};
use torpor_api::worker::{AppRecord, Progress, WorkerPort};
use torpor_lifecycle::{Level, Refusal, Request};

use crate::app::{AppHandle, Order, adopts_boot_image, has_boot_image};
use crate::app_files::{self, AppFiles};
use crate::port::order;
use crate::worker::Worker;

/// How long an app that is at work is tried to be put to sleep.
const AT_WORK: Duration = Duration::from_secs(10);
/// Between two tries.
const AGAIN: Duration = Duration::from_millis(100);
/// Between two looks at whether an app that does not answer yet is held up.
const LOOK: Duration = Duration::from_secs(1);
/// How long the end of an app may take after its grace: it is killed then.
const KILLED_WITHIN: Duration = Duration::from_secs(30);

/// Why an app is left as it is.
enum Left {
    /// A call of ours for it does not return.
    HeldUp,
    /// It cannot be adopted now.
    Unadopted,
}

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
        let (mut put_away, mut held_up, mut unadopted, mut done) = (Vec::new(), Vec::new(), Vec::new(), 0);
        while let Some((name, app)) = apps.next().await {
            done += 1;
            // A full channel only loses a report in between.
            let _ = progress.try_send(Progress { what: name.clone(), done_bytes: done, total_bytes: Some(total) });
            match app {
                Ok(app) => put_away.extend(app),
                Err(Left::HeldUp) => held_up.push(name),
                Err(Left::Unadopted) => unadopted.push(name),
            }
        }
        drop(apps);
        if !held_up.is_empty() {
            let message =
                format!("calls of the daemon's for {} do not return; all other apps are put away", held_up.join(", "));
            let hint = "end the daemon (systemctl stop torpor), then torpor down again: it takes the app over as after a crash";
            return Err(ApiError::new(ErrorKind::Timeout, message).with_hint(hint));
        }
        if !unadopted.is_empty() {
            let names = unadopted.join(", ");
            let message = format!(
                "all apps are put away but {names}, which cannot be adopted now; nothing was removed from the machine"
            );
            let hint = "torpor explain says why, while the daemon runs; put that right, or end these apps with torpor stop, which gives up \
                        their memory, then torpor down again";
            return Err(ApiError::new(ErrorKind::Conflict, message).with_hint(hint));
        }
        // Their processes would lose what they run in.
        let left_alone: Vec<String> = self.shared.left_alone.all().iter().map(|app| app.name.clone()).collect();
        if !left_alone.is_empty() {
            let names = left_alone.join(", ");
            let message = format!(
                "all apps are put away but {names}, whose rows in the database cannot be read or are lost; nothing was removed from the machine"
            );
            let hint = "repair torpor.db or put it back from a backup and restart the daemon, or remove these apps with torpor rm -f, \
                        then torpor down again";
            return Err(ApiError::new(ErrorKind::Conflict, message).with_hint(hint));
        }
        put_away.sort_by(|one, other| one.app.cmp(&other.app));
        for record in self.records() {
            let kept = put_away.iter_mut().find(|one| one.kept && one.app == record.spec.name);
            if let Some(app) = kept
                && !self.looks(&record, has_boot_image).await
            {
                app.kept = false;
                app.reasons.push("its image cannot be used any more".to_owned());
            }
        }
        let ended = self.end_everything().await;
        ended.map_err(|error| ApiError::new(ErrorKind::Internal, chain(&error)))?;
        Ok(put_away)
    }

    /// None: it was not up.
    async fn put_one_away(&self, record: Arc<AppRecord>, discard: bool) -> Result<Option<PutAway>, Left> {
        let (id, app) = (&record.id, record.spec.name.clone());
        // Its task has ended: it was removed meanwhile.
        let Ok(status) = self.status(id).await else { return Ok(None) };
        match status.state {
            State::NotAnswering => return Err(Left::HeldUp),
            State::Adopting if !discard => return Err(Left::Unadopted),
            State::Stopped => {
                if discard && let Err(error) = self.discard_images(id) {
                    tracing::warn!(app, %error, "removing its image");
                }
                // Put away before, by a daemon that could not go on to the end.
                let kept = !discard && self.shared.config.for_teardown && self.looks(&record, adopts_boot_image).await;
                return Ok(kept.then(|| PutAway { app, kept, reasons: Vec::new() }));
            }
            _ => {}
        }
        let mut reasons = Vec::new();
        // One that waits for its restart has no memory.
        if !discard && status.state != State::Restarting {
            match self.keep(id).await {
                Ok(()) => return Ok(Some(PutAway { app, kept: true, reasons })),
                Err(_) if self.is_held_up(id).await => return Err(Left::HeldUp),
                Err(reason) => reasons.push(reason),
            }
        }
        let within = crate::TEARDOWN_GRACE + KILLED_WITHIN;
        match tokio::time::timeout(within, self.stop(id, crate::TEARDOWN_GRACE)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => reasons.push(error.message),
            Err(_) if self.is_held_up(id).await => return Err(Left::HeldUp),
            Err(_) => {
                reasons.push(format!("it has not ended within {} s and is killed with its cgroup", within.as_secs()))
            }
        }
        Ok(Some(PutAway { app, kept: false, reasons }))
    }

    async fn is_held_up(&self, id: &str) -> bool {
        self.status(id).await.is_ok_and(|status| status.state == State::NotAnswering)
    }

    /// What one of these says of an app's files.
    async fn looks(&self, record: &Arc<AppRecord>, how: fn(&AppRecord, &AppFiles, [u64; 2]) -> bool) -> bool {
        let Ok(AppHandle { record, files, .. }) = self.app(&record.id) else { return false };
        let boot = self.shared.boot;
        tokio::task::spawn_blocking(move || how(&record, &files, boot)).await.unwrap_or(false)
    }

    fn discard_images(&self, id: &str) -> std::io::Result<()> {
        match self.app(id) {
            Ok(app) => {
                let owner = app_files::owner(&app.record, self.shared.boot);
                app.files.images.clean(None, owner).map(drop)
            }
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
            let reason = match self.while_it_answers(id, answered).await? {
                Ok(()) => match self.put_away(&app).await? {
                    Ok(()) => return Ok(()),
                    Err(reason) => reason,
                },
                Err(refusal @ (Refusal::SleepAborted(_) | Refusal::SleepRefused(_))) => refusal.to_string(),
                Err(refusal) => return Err(refusal.to_string()),
            };
            if begun.elapsed() >= AT_WORK {
                return Err(reason);
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    /// Removes the sandbox of a warm app.
    async fn put_away(&self, app: &AppHandle) -> Result<Result<(), String>, String> {
        let (answer, answered) = oneshot::channel();
        order(app, Order::PutAway(answer)).await.map_err(|error| error.message)?;
        self.while_it_answers(&app.record.id, answered).await
    }

    /// An answer of an app's task. It may take long, for memory is written; but nobody waits for one that is held up, which its own
    /// deadlines tell (see `app::deadlines`).
    async fn while_it_answers<T>(&self, id: &str, mut answered: oneshot::Receiver<T>) -> Result<T, String> {
        loop {
            match tokio::time::timeout(LOOK, &mut answered).await {
                Ok(answer) => return answer.map_err(|_| "its task has ended".to_owned()),
                Err(_) if self.is_held_up(id).await => return Err("it does not answer".to_owned()),
                Err(_) => {}
            }
        }
    }
}
