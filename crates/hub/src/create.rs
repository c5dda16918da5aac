//! Making an app.
//!
//! ```text
//!   validate ─▶ reserve name and ports ─▶ fetch source ─▶ row (creating) ─▶ adopt ─▶ start ─▶ row (ready)
//!      │              │                        │               │              │        │
//!      └──────────────┴── nothing to undo ─────┴───────────────┘              └────────┴─▶ discard: kill, remove, no row
//! ```
//! A client that leaves while the source is fetched stops the work; afterwards it is carried through. A crash leaves a row
//! in `creating`, which the next start takes away. If even discarding fails, the row stays, so that the name shows what
//! is left and `torpor rm` can try again; the error says so.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::Value;
use tokio::sync::mpsc;
use torpor_api::spec::AppSpec;
use torpor_api::view::AppStatus;
use torpor_api::worker::{Progress, Resolved};
use torpor_api::{ApiError, ErrorKind, document, events};

use crate::error::StoreError;
use crate::hub::Hub;
use crate::reservations::Reservation;
use crate::store::{InsertError, NewApp, Row};

/// An app that has been checked and whose name and ports are held.
#[derive(Debug)]
pub(crate) struct Prepared {
    spec: AppSpec,
    reservation: Reservation,
}

impl Prepared {
    /// The app's name.
    pub(crate) fn name(&self) -> &str {
        &self.spec.name
    }
}

impl Hub {
    /// Checks a document and holds its name and ports: everything that can be refused before the long work.
    pub(crate) async fn prepare(&self, mut document: Value) -> Result<Prepared, ApiError> {
        document::with_idle_defaults(&mut document, &self.options.idle)?;
        let spec = document::to_spec(document)?;
        spec.validate()?;
        // First against those being made, then against rows: one that finishes in between is in one or the other.
        let reservation = self.reserved.reserve(&spec).map_err(|error| refused(&spec, error))?;
        match self.store.check_free(&spec).await? {
            None => Ok(Prepared { spec, reservation }),
            Some(taken) => Err(refused(&spec, taken)),
        }
    }

    /// Fetches, makes and starts a prepared app.
    pub(crate) async fn create(
        self: Arc<Self>,
        prepared: Prepared,
        progress: mpsc::Sender<Progress>,
    ) -> Result<AppStatus, ApiError> {
        let Prepared { spec, reservation } = prepared;
        let (_, worker) = self.workers.for_new_apps();
        let resolved = tokio::select! {
            resolved = worker.resolve(&spec.source, progress.clone()) => resolved.map_err(|error| about(&spec, error))?,
            () = progress.closed() => {
                let message = format!("app `{}` was not made: the request was given up", spec.name);
                return Err(ApiError::new(ErrorKind::Conflict, message));
            }
        };
        let id = new_id()?;
        let _change = self.locks.lock(&id).await;
        let status = self.insert_and_start(&id, &spec, &resolved).await;
        // Only now: until the row is there (or gone again) nobody else may try the name.
        drop(reservation);
        status
    }

    async fn insert_and_start(&self, id: &str, spec: &AppSpec, resolved: &Resolved) -> Result<AppStatus, ApiError> {
        let (name, worker) = self.workers.for_new_apps();
        let reserved = &worker.reserved_indexes().await.map_err(|error| about(spec, error))?;
        let new = NewApp { spec, resolved, created: Timestamp::now(), reserved, worker: name };
        let row = self.store.insert_app(id, new).await.map_err(|error| refused(spec, error))?;
        if let Err(error) = self.adopt(&row, row.record.desired).await {
            return Err(self.undo(&row, about(spec, error)).await);
        }
        // Before the first event of the worker's.
        let message = format!("made from {} layers", resolved.layers.len());
        let fields = BTreeMap::from([("id".to_owned(), Value::from(id))]);
        self.events.note(&spec.name, events::CREATED, message, fields).await;
        let started = async {
            worker.start(id).await?;
            self.store.set_made(id).await?;
            worker.status(id).await
        };
        match started.await {
            Ok(status) => Ok(status),
            Err(error) => {
                let error = self.undo(&row, about(spec, error)).await;
                if let Ok(None) = self.store.find_app(id).await {
                    let message = format!("removed: {}", error.message);
                    self.events.note(&spec.name, events::REMOVED, message, BTreeMap::new()).await;
                }
                Err(error)
            }
        }
    }

    /// Takes a failed app away; gives back the error to report.
    pub(crate) async fn undo(&self, row: &Row, mut error: ApiError) -> ApiError {
        if let Err(problem) = self.discard(row).await {
            error.message.push_str(&format!("; and what was made of it could not be removed: {}", problem.message));
            error.hint =
                Some(format!("when the cause is gone, remove the rest with: torpor rm -f {}", row.record.spec.name));
        }
        error
    }
}

/// Says which app was not made; the worker's own `name: ` at the beginning is left out.
pub(crate) fn about(spec: &AppSpec, mut error: ApiError) -> ApiError {
    let name = &spec.name;
    let why = error.message.strip_prefix(&format!("{name}: ")).unwrap_or(&error.message);
    error.message = format!("app `{name}` was not made: {why}");
    error
}

pub(crate) fn refused(spec: &AppSpec, error: InsertError) -> ApiError {
    let name = &spec.name;
    match error {
        InsertError::Name => ApiError::new(ErrorKind::Conflict, format!("there is already an app `{name}`"))
            .with_hint(format!("choose another name, or remove it with: torpor rm {name}")),
        InsertError::Port { port, holder } => {
            let protocol = port.protocol;
            let message = format!("port {}/{protocol} for app `{name}` is taken by app `{holder}`", port.host);
            ApiError::new(ErrorKind::Conflict, message).with_hint("publish it on another port or address: -p HOST:APP")
        }
        InsertError::Full => ApiError::new(ErrorKind::Conflict, format!("app `{name}` was not made: {error}"))
            .with_hint("remove apps that nobody needs with: torpor rm NAME"),
        InsertError::Store(error) => error.into(),
    }
}

/// 16 random hexadecimal digits; a second use of one is as unlikely as 2^-64 for each pair, and the row's key refuses it.
pub(crate) fn new_id() -> Result<String, StoreError> {
    getrandom::u64().map(|number| format!("{number:016x}")).map_err(StoreError::Random)
}
