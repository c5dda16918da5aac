//! Questions about apps.

use std::sync::PoisonError;

use futures_core::Stream;
use futures_util::{StreamExt, stream};
use torpor_api::units::Span;
use torpor_api::view::{AppDetail, AppImage, AppStatus, Event, Exit, Explanation, State, Stats};
use torpor_api::wire::EventQuery;
use torpor_api::worker::{AppRecord, BoxStream, ExecRequest, ExecSession, LogLine, LogRequest};
use torpor_api::{ApiError, ErrorKind};

use crate::hub::Hub;
use crate::store::{AllApps, Phase, Row};

/// Apps asked about at the same time.
const AT_ONCE: usize = 256;

impl Hub {
    /// All apps by name. One that the worker does not know is shown too, with the reason as its last end.
    pub(crate) async fn statuses(&self) -> Result<Vec<AppStatus>, ApiError> {
        let AllApps { rows, unreadable } = self.store.read_apps().await?;
        let statuses = stream::iter(rows).map(|row| async move { self.status(&row).await }).buffered(AT_ONCE);
        let mut statuses: Vec<_> = statuses.collect().await;
        let left_alone = self.statuses_left_alone(unreadable);
        if !left_alone.is_empty() {
            statuses.extend(left_alone);
            statuses.sort_by(|one, other| one.name.cmp(&other.name));
        }
        Ok(statuses)
    }

    async fn status(&self, row: &Row) -> AppStatus {
        let id = &row.record.id;
        let busy = if self.adopting.contains(id) {
            Some(State::Adopting)
        } else {
            self.imports.received_bytes(id).map(|_| State::Importing)
        };
        if let Some(state) = busy {
            let nothing = ApiError::new(ErrorKind::Timeout, "not adopted yet");
            return AppStatus { state, last_exit: None, stop_reason: None, ..self.unknown(row, nothing) };
        }
        let status = match self.workers.of(row) {
            Ok(worker) => worker.status(id).await,
            Err(error) => Err(error),
        };
        status.unwrap_or_else(|error| self.unknown(row, error))
    }

    fn unknown(&self, row: &Row, error: ApiError) -> AppStatus {
        let record = &row.record;
        let adoption_errors = self.adoption_errors.lock().unwrap_or_else(PoisonError::into_inner);
        let trouble = adoption_errors.get(&record.id).cloned().unwrap_or(error);
        let state = match row.phase {
            Phase::Creating => State::Starting,
            Phase::Ready => State::Stopped,
            Phase::Removing => State::Stopping,
        };
        let reason = format!("not taken over: {}", trouble.message);
        let creating = row.phase == Phase::Creating;
        let last_exit = Exit { code: None, signal: None, reason: reason.clone(), at: record.created };
        AppStatus {
            id: record.id.clone(),
            name: record.spec.name.clone(),
            state,
            since: record.created,
            pid: None,
            addresses: Vec::new(),
            ports: record.spec.ports.iter().map(ToString::to_string).collect(),
            memory_bytes: None,
            sleeps: 0,
            last_exit: (!creating).then_some(last_exit),
            stop_reason: (!creating).then_some(reason),
            restarts: 0,
            pinned: record.pinned,
            disk: None,
        }
    }

    /// All about one app.
    pub(crate) async fn detail(&self, app: &str) -> Result<AppDetail, ApiError> {
        let row = self.row(app).await?;
        let status = self.status(&row).await;
        let AppRecord { spec, created, resolved, .. } = row.record;
        Ok(AppDetail { status, spec, created, layers: resolved.layers })
    }

    /// Why an app is where it is.
    pub(crate) async fn explain(&self, app: &str) -> Result<Explanation, ApiError> {
        let row = self.row(app).await?;
        if let Some(received) = self.imports.received_bytes(&row.record.id) {
            return Ok(self.importing(&row, received).await);
        }
        let row = self.adopted_row(app).await?;
        self.workers.of(&row)?.explain(&row.record.id).await
    }

    /// What there is to say of an app that is being imported.
    async fn importing(&self, row: &Row, received_bytes: u64) -> Explanation {
        let name = &row.record.spec.name;
        let why = format!(
            "importing: {} KiB of its archive have been received; torpor rm {name} ends the import",
            received_bytes >> 10
        );
        Explanation::only(self.status(row).await, why)
    }

    /// What one app costs.
    pub(crate) async fn stats(&self, app: &str) -> Result<Stats, ApiError> {
        let row = self.adopted_row(app).await?;
        self.workers.of(&row)?.stats(&row.record.id).await
    }

    /// What all apps cost; those that the worker does not know are left out.
    pub(crate) async fn all_stats(&self) -> Result<Vec<Stats>, ApiError> {
        let rows = self.store.all_apps().await?;
        let stats = stream::iter(rows).map(|row| async move { self.workers.of(&row)?.stats(&row.record.id).await });
        let mut known = Vec::new();
        let mut stats = std::pin::pin!(stats.buffered(AT_ONCE));
        while let Some(stats) = stats.next().await {
            match stats {
                Ok(stats) => known.push(stats),
                Err(error) if error.kind == ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(known)
    }

    /// Images of the processes of all apps; those that the worker does not know are left out.
    pub(crate) async fn app_images(&self) -> Result<Vec<AppImage>, ApiError> {
        let mut all = Vec::new();
        for row in self.store.all_apps().await? {
            match self.workers.of(&row)?.app_images(&row.record.id).await {
                Ok(images) => all.extend(images),
                Err(error) if error.kind == ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(all)
    }

    /// The events that a query asks for.
    ///
    /// # Errors
    /// `NotFound` for an app that is not there and that no stored event names, unless new events are to follow: it may be made yet.
    pub(crate) async fn read_events(
        &self,
        mut query: EventQuery,
    ) -> Result<impl Stream<Item = Event> + Send + use<>, ApiError> {
        self.events.flush().await;
        if let Some(app) = &query.app
            && self.store.events_after(0, Some(app), 1).await?.is_empty()
        {
            match self.store.find_app(app).await? {
                // Events have names; this may have been an id.
                Some(row) => query.app = Some(row.record.spec.name),
                None if query.follow => {}
                None => {
                    let shown = torpor_api::validate::shown(app);
                    let message = format!("there is no app `{shown}`, and none of the events that are kept is of one");
                    return Err(ApiError::new(ErrorKind::NotFound, message).with_hint(
                        "torpor ps lists the apps; with --follow, events of an app that is made later are shown",
                    ));
                }
            }
        }
        Ok(self.events.read(query).await?)
    }

    /// An app's output.
    pub(crate) async fn logs(&self, app: &str, request: LogRequest) -> Result<BoxStream<LogLine>, ApiError> {
        let row = self.adopted_row(app).await?;
        self.workers.of(&row)?.logs(&row.record.id, request).await
    }

    /// A command in an app.
    pub(crate) async fn exec(&self, app: &str, request: ExecRequest) -> Result<ExecSession, ApiError> {
        request.validate()?;
        let found = self.adopted_row(app);
        let row = match request.timeout {
            Some(Span(within)) => tokio::time::timeout(within, found).await.unwrap_or_else(|_| {
                let message = format!("{}: not adopted within {}", torpor_api::validate::shown(app), Span(within));
                Err(ApiError::new(ErrorKind::Timeout, message))
            })?,
            None => found.await?,
        };
        self.workers.of(&row)?.exec(&row.record.id, request).await
    }
}
