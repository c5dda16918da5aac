//! What the hub asks of this worker.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use tokio::sync::{mpsc, oneshot};
use torpor_api::archive::{Manifest, Reader};
use torpor_api::error::{ApiError, ErrorKind};
use torpor_api::spec::Source;
use torpor_api::view::{AppImage, AppStatus, Check, Event, Explanation, Level, PutAway, State, Stats, StoredImage};
use torpor_api::worker::{
    AppRecord, BoxStream, Desired, ExecRequest, ExecSession, Import, LeftAlone, LogLine, LogRequest, Progress,
    Resolved, WorkerPort,
};
use torpor_lifecycle::{Refusal, Request};

use crate::app::{
    AppFiles, AppHandle, Order, explanation_of_unanswered, not_answering, stats_of_unanswered, status_of_unanswered,
};
use crate::exec::{Granted, TimeOut};
use crate::faults::ImportStep;
use crate::worker::Worker;

/// An app's task has ended in the middle of a call: the worker is shutting down.
fn gone(name: &str) -> ApiError {
    ApiError::new(ErrorKind::Internal, format!("{name}: the worker is shutting down"))
}

/// What a refusal means to a user.
fn refused(name: &str, refusal: &Refusal) -> ApiError {
    let kind = match refusal {
        Refusal::StartFailed(_) | Refusal::WakeFailed(_) | Refusal::Lost(_) | Refusal::Ended(_) => ErrorKind::Internal,
        Refusal::TooMany
        | Refusal::Stopped(_)
        | Refusal::Restarting
        | Refusal::BeingStopped
        | Refusal::Pinned
        | Refusal::ExecSessions(_)
        | Refusal::SleepAborted(_)
        | Refusal::SleepRefused(_)
        | Refusal::WarmRefused(_)
        | Refusal::WakeRefused(_)
        | Refusal::NotAdopted(_) => ErrorKind::Conflict,
    };
    let error = ApiError::new(kind, format!("{name}: {refusal}"));
    match refusal {
        Refusal::Stopped(_) => error.with_hint(format!("start it with `torpor start {name}`")),
        Refusal::Pinned => error.with_hint(format!("let it sleep again with `torpor unpin {name}`")),
        Refusal::WakeRefused(_) => error.with_hint(format!(
            "put that right and try again, or give up its memory: `torpor restart {name}` starts it afresh on its files"
        )),
        Refusal::Ended(_) => error.with_hint(format!("see `torpor logs {name}`")),
        Refusal::WakeFailed(_) | Refusal::NotAdopted(_) => error.with_hint(format!("see `torpor explain {name}`")),
        Refusal::SleepRefused(_) | Refusal::WarmRefused(_) | Refusal::SleepAborted(_) => {
            error.with_hint(format!("see `torpor explain {name}`"))
        }
        _ => error,
    }
}

/// How often an export puts an app to sleep that is awake again before its image is open.
const EXPORT_TRIES: usize = 3;

impl Worker {
    async fn request(&self, id: &str, request: Request) -> Result<(), ApiError> {
        let app = self.app(id)?;
        let (answer, answered) = oneshot::channel();
        order(&app, Order::Request(request, answer)).await?;
        self.told(id, answered.await.map_err(|_| gone(&app.record.spec.name))?)
    }

    /// A task's answer as users read it.
    fn told<T>(&self, id: &str, answer: Result<T, Refusal>) -> Result<T, ApiError> {
        let refusal = match answer {
            Ok(answer) => return Ok(answer),
            Err(refusal) => refusal,
        };
        let app = self.app(id)?;
        let mut error = refused(&app.record.spec.name, &refusal);
        if matches!(refusal, Refusal::StartFailed(_)) {
            let fault = *app.start_failure.lock().unwrap_or_else(PoisonError::into_inner);
            (error.kind, error.exit_status) = (fault.kind, fault.exit_status);
        }
        Err(error)
    }

    /// Asks a question that a task answers at once unless it is held up.
    ///
    /// # Errors
    /// `Timeout` where it is.
    pub(crate) async fn question<T>(
        &self,
        id: &str,
        make: impl FnOnce(oneshot::Sender<T>) -> Order,
    ) -> Result<T, ApiError> {
        let app = self.app(id)?;
        // One that has been held up for so long is not waited for again.
        let held_up = app.busy.since().is_some_and(|since| crate::clock::now().since(since) >= crate::ANSWER);
        let within = if held_up { crate::ANSWER_OF_HELD_UP } else { crate::ANSWER };
        let answered = tokio::time::timeout(within, self.ask(id, make)).await;
        answered.unwrap_or_else(|_| Err(not_answering(&app)))
    }

    pub(crate) async fn ask<T>(&self, id: &str, make: impl FnOnce(oneshot::Sender<T>) -> Order) -> Result<T, ApiError> {
        let app = self.app(id)?;
        let (answer, answered) = oneshot::channel();
        order(&app, make(answer)).await?;
        answered.await.map_err(|_| gone(&app.record.spec.name))
    }

    /// Waits until the app is awake and has granted an exec session. One that nobody waits for any more ends at once.
    async fn exec_session(&self, app: &AppHandle, time_out: Option<&TimeOut>) -> Result<Granted, ApiError> {
        let name = &app.record.spec.name;
        let (answer, answered) = oneshot::channel();
        order(app, Order::Request(Request::Exec, answer)).await?;
        // A task of its own, which takes the answer in any case: what it gives to nobody is dropped.
        let asked = app.clone();
        let granting = tokio::spawn(async move { Some(answered.await.ok()?.map(|()| Granted::by(&asked))) });
        let granted = match time_out {
            Some(time_out) => tokio::time::timeout_at(time_out.at.into(), granting).await.map_err(|_| {
                let hint = format!("the wake goes on; torpor explain {name} says where it is");
                time_out.error("it is not awake").with_hint(hint)
            })?,
            None => granting.await,
        };
        self.told(&app.record.id, granted.ok().flatten().ok_or_else(|| gone(name))?)
    }
}

pub(crate) async fn order(app: &AppHandle, order: Order) -> Result<(), ApiError> {
    app.orders.send(order).await.map_err(|_| gone(&app.record.spec.name))
}

#[async_trait]
impl WorkerPort for Worker {
    async fn reserved_indexes(&self) -> Result<Vec<RangeInclusive<u32>>, ApiError> {
        let why =
            |error: std::io::Error| ApiError::new(ErrorKind::Internal, format!("reading the ids of users: {error}"));
        let mut reserved = crate::ids::taken_slots().map_err(why)?;
        reserved.extend(self.indexes_left_alone().await.map_err(|error| ApiError::internal(&error))?);
        Ok(reserved)
    }

    async fn found(&self) -> Result<BTreeSet<String>, ApiError> {
        self.apps_found().await
    }

    async fn remove_unknown(&self, id: &str) -> Result<(), ApiError> {
        self.remove_not_adopted(id).await
    }

    async fn resolve(&self, source: &Source, progress: mpsc::Sender<Progress>) -> Result<Resolved, ApiError> {
        crate::images::resolve(&self.shared, source, progress).await
    }

    async fn expect(&self, apps: Vec<AppRecord>, left_alone: Vec<LeftAlone>) {
        *self.shared.left_alone.all() = left_alone;
        for app in &apps {
            self.shared.directory.insert(app.index, crate::network::member(&app.spec));
        }
        self.shared.promised.expect(apps.into_iter().map(|app| app.resolved.layers).collect());
        crate::network::serve_names(&self.shared).await;
    }

    async fn adopt(&self, app: AppRecord) -> Result<(), ApiError> {
        let desired = app.desired;
        let handle = self.make_known(app).map_err(|error| ApiError::internal(&error))?;
        let (answer, answered) = oneshot::channel();
        order(&handle, Order::NotStarted(answer)).await?;
        // The answer comes behind the taking over. One that has ended in the meantime is its restart policy's.
        let not_started = answered.await.map_err(|_| gone(&handle.record.spec.name))?;
        let request = match desired {
            _ if self.shared.config.for_teardown => return Ok(()),
            Desired::Up if not_started => Request::Start,
            Desired::Up => return Ok(()),
            Desired::Down if not_started => return Ok(()),
            Desired::Down => match self.status(&handle.record.id).await?.state {
                // One that cannot be adopted is tried again by its task.
                State::Stopped | State::Adopting => return Ok(()),
                _ => Request::Stop { grace: crate::TEARDOWN_GRACE },
            },
        };
        // How it goes is told by events; nobody waits for it here.
        let (answer, _unheard) = oneshot::channel();
        order(&handle, Order::Request(request, answer)).await
    }

    async fn start(&self, id: &str) -> Result<(), ApiError> {
        self.request(id, Request::Start).await
    }

    async fn stop(&self, id: &str, grace: Duration) -> Result<(), ApiError> {
        self.request(id, Request::Stop { grace }).await
    }

    async fn sleep(&self, id: &str, level: Level) -> Result<(), ApiError> {
        let level = match level {
            Level::Dozing => torpor_lifecycle::Level::Dozing,
            Level::Warm => torpor_lifecycle::Level::Warm,
        };
        self.request(id, Request::Sleep { level }).await
    }

    async fn wake(&self, id: &str) -> Result<(), ApiError> {
        self.request(id, Request::Wake).await
    }

    async fn pin(&self, id: &str, pinned: bool) -> Result<(), ApiError> {
        order(&self.app(id)?, Order::Pin(pinned)).await
    }

    async fn remove(&self, id: &str) -> Result<(), ApiError> {
        let app = self.app(id)?;
        let status = self.status(id).await?;
        if status.state != State::Stopped {
            let name = &status.name;
            return Err(ApiError::new(ErrorKind::Conflict, format!("{name} is not stopped"))
                .with_hint(format!("stop it with `torpor stop {name}`, or use `torpor rm -f {name}`")));
        }
        self.ask(id, Order::End).await?;
        self.forget(id);
        self.shared.services.disks.forget(id);
        let files: AppFiles = app.files.clone();
        let log = app.log.clone();
        let removed = tokio::task::spawn_blocking(move || log.remove().and_then(|()| files.remove())).await;
        removed.map_err(|error| ApiError::internal(&error))?.map_err(|error| {
            ApiError::new(ErrorKind::Internal, format!("removing files of {}: {error}", status.name))
        })?;
        crate::images::collect(&self.shared, || self.records()).await;
        Ok(())
    }

    async fn status(&self, id: &str) -> Result<AppStatus, ApiError> {
        match self.question(id, Order::Status).await {
            Err(error) if error.kind == ErrorKind::Timeout => {
                Ok(status_of_unanswered(&self.app(id)?, &self.shared.config.network))
            }
            answer => answer,
        }
    }

    async fn explain(&self, id: &str) -> Result<Explanation, ApiError> {
        match self.question(id, Order::Explain).await {
            Err(error) if error.kind == ErrorKind::Timeout => {
                Ok(explanation_of_unanswered(&self.app(id)?, &self.shared.config.network))
            }
            answer => answer,
        }
    }

    async fn stats(&self, id: &str) -> Result<Stats, ApiError> {
        match self.question(id, Order::Stats).await {
            Err(error) if error.kind == ErrorKind::Timeout => Ok(stats_of_unanswered(&self.app(id)?)),
            answer => answer,
        }
    }

    async fn app_images(&self, id: &str) -> Result<Vec<AppImage>, ApiError> {
        self.question(id, Order::Images).await?
    }

    async fn remove_app_images(&self, id: &str) -> Result<Vec<AppImage>, ApiError> {
        self.ask(id, Order::RemoveImages).await?
    }

    async fn export(&self, id: &str, sleep: bool) -> Result<BoxStream<std::io::Result<bytes::Bytes>>, ApiError> {
        let app = self.app(id)?;
        crate::archive::check_volumes(&app.record.spec)?;
        let name = app.record.spec.name.clone();
        // It may be awake again before its image is open.
        for _ in 0..if sleep { EXPORT_TRIES } else { 1 } {
            if sleep && self.status(id).await?.state != State::Warm {
                self.sleep(id, Level::Warm).await?;
            }
            if let Some(archive) = crate::archive::export(&self.shared, app.clone()).await? {
                return Ok(archive);
            }
        }
        if sleep {
            let explained = self.explain(id).await.ok();
            return Err(crate::archive::woke(&name, "before its export began", explained.as_ref()));
        }
        Err(crate::archive::not_warm(&name))
    }

    async fn import_layers(&self, archive: Reader, manifest: &Manifest) -> Result<(Reader, Resolved), ApiError> {
        crate::images::receive(&self.shared, archive, manifest).await
    }

    async fn import_app(&self, id: &str, archive: Reader, import: Import) -> Result<Vec<String>, ApiError> {
        let app = self.app(id)?;
        let lowered = crate::archive::import(&self.shared, &app, archive, import).await?;
        let taken = self.ask(id, Order::AdoptImport).await?;
        let shared = self.shared.clone();
        let taken = taken.and_then(|()| shared.faults.imported(ImportStep::Taken).map_err(|error| error.to_string()));
        taken.map_err(|reason| ApiError::new(ErrorKind::Conflict, reason))?;
        Ok(lowered)
    }

    async fn exec(&self, id: &str, request: ExecRequest) -> Result<ExecSession, ApiError> {
        let app = self.app(id)?;
        let name = app.record.spec.name.clone();
        let time_out = request.timeout.map(|within| TimeOut { at: Instant::now() + within.0, app: name, within });
        let granted = self.exec_session(&app, time_out.as_ref()).await?;
        let sandbox = self.ask(id, Order::Place).await?;
        let ended = || ApiError::new(ErrorKind::Conflict, format!("{}: it has ended", app.record.spec.name));
        let sandbox = sandbox.ok_or_else(ended)?;
        crate::exec::run(self.shared.clone(), app.record.clone(), sandbox, request, time_out, granted).await
    }

    async fn logs(&self, id: &str, request: LogRequest) -> Result<BoxStream<LogLine>, ApiError> {
        let log = self.app(id)?.log;
        let read = self.shared.requests.handle().spawn_blocking(move || log.read(&request)).await;
        read.map_err(|error| ApiError::internal(&error))?.map_err(|error| ApiError::internal(&error))
    }

    fn events(&self) -> BoxStream<Event> {
        self.shared.services.events.listen()
    }

    async fn store_image(
        &self,
        name: &str,
        source: &Source,
        progress: mpsc::Sender<Progress>,
    ) -> Result<Resolved, ApiError> {
        crate::images::store(&self.shared, name, source, progress).await
    }

    async fn images(&self) -> Result<Vec<StoredImage>, ApiError> {
        crate::images::list(&self.shared, &self.records()).await
    }

    async fn remove_image(&self, name: &str) -> Result<(), ApiError> {
        crate::images::remove(&self.shared, name, || self.records()).await
    }

    async fn doctor(&self) -> Result<Vec<Check>, ApiError> {
        crate::doctor::checks(&self.shared, &self.records()).await
    }

    async fn teardown(&self, discard: bool, progress: mpsc::Sender<Progress>) -> Result<Vec<PutAway>, ApiError> {
        self.put_all_away(discard, progress).await
    }
}
