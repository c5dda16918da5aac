//! Changes of an app that is there: start, stop, restart, pin, remove, sleep, wake.
//!
//! What is wanted is written first, then done; if doing fails at once, the wish is taken back. Sleeping and waking change
//! nothing that is wanted and take no lock: a wake must not wait for a slow stop.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::sync::mpsc;
use torpor_api::view::{AppImage, AppStatus, Level, PutAway, State};
use torpor_api::worker::{AppRecord, Desired, Progress};
use torpor_api::{ApiError, ErrorKind, events};
use tracing::{debug, warn};

use crate::hub::{Hub, TeardownState};
use crate::store::{Phase, Row};

impl Hub {
    /// The row of an app, or an error that says which names there are to choose from.
    pub(crate) async fn row(&self, app: &str) -> Result<Row, ApiError> {
        if let Some(row) = self.store.find_app(app).await? {
            return Ok(row);
        }
        Err(self.orphans.refusal(app).unwrap_or_else(|| {
            let shown = torpor_api::validate::shown(app);
            ApiError::new(ErrorKind::NotFound, format!("there is no app `{shown}`"))
                .with_hint("torpor ps lists the apps")
        }))
    }

    /// The same, once the worker has adopted it; refused while it is being imported.
    pub(crate) async fn adopted_row(&self, app: &str) -> Result<Row, ApiError> {
        let row = self.row(app).await?;
        let AppRecord { id, spec, .. } = &row.record;
        self.adopting.wait(id, &spec.name).await?;
        if self.imports.received_bytes(id).is_some() {
            let name = &spec.name;
            return Err(ApiError::new(ErrorKind::Conflict, format!("{name} is being imported"))
                .with_hint(format!("torpor explain {name} says how far it is; torpor rm {name} ends the import")));
        }
        Ok(row)
    }

    /// The row of an app once nobody else changes it; changed only through this.
    async fn locked(&self, app: &str) -> Result<(Row, tokio::sync::OwnedMutexGuard<()>), ApiError> {
        let id = self.adopted_row(app).await?.record.id;
        let guard = self.locks.lock(&id).await;
        match self.store.find_app(&id).await? {
            Some(row) if row.record.id == id => Ok((row, guard)),
            // Removed while we waited.
            _ => Err(self.row(app).await.err().unwrap_or_else(|| {
                ApiError::new(ErrorKind::Conflict, format!("app `{app}` was made anew in this moment; try again"))
            })),
        }
    }

    /// Starts a stopped app.
    pub(crate) async fn start(&self, app: &str) -> Result<AppStatus, ApiError> {
        let (row, _guard) = self.locked(app).await?;
        self.start_locked(&row).await?;
        self.workers.of(&row)?.status(&row.record.id).await
    }

    async fn start_locked(&self, row: &Row) -> Result<(), ApiError> {
        let record = &row.record;
        if row.phase != Phase::Ready {
            let message = format!("app `{}` was not removed completely", record.spec.name);
            return Err(ApiError::new(ErrorKind::Conflict, message)
                .with_hint(format!("remove the rest with: torpor rm -f {}", record.spec.name)));
        }
        let worker = self.workers.of(row)?;
        self.store.set_desired(&record.id, Desired::Up).await?;
        let mut result = worker.start(&record.id).await;
        if result.as_ref().is_err_and(|error| error.kind == ErrorKind::NotFound) {
            // It could not be taken over when the hub started; perhaps the cause is gone.
            // Wanted up: what it had in memory is not to be given up.
            result = match self.adopt(row, Desired::Up).await {
                Ok(()) => worker.start(&record.id).await,
                Err(error) => Err(error),
            };
        }
        if result.is_err() && record.desired == Desired::Down {
            self.store.set_desired(&record.id, Desired::Down).await?;
        }
        result
    }

    /// Stops an app; kills it after `grace`.
    pub(crate) async fn stop(&self, app: &str, grace: Duration) -> Result<AppStatus, ApiError> {
        let (row, _guard) = self.locked(app).await?;
        self.stop_locked(&row, grace).await?;
        self.workers.of(&row)?.status(&row.record.id).await
    }

    async fn stop_locked(&self, row: &Row, grace: Duration) -> Result<(), ApiError> {
        let (record, worker) = (&row.record, self.workers.of(row)?);
        self.store.set_desired(&record.id, Desired::Down).await?;
        let result = worker.stop(&record.id, grace).await;
        if result.is_err() && record.desired == Desired::Up {
            self.store.set_desired(&record.id, Desired::Up).await?;
        }
        result
    }

    /// Stops an app if it runs, and starts it.
    pub(crate) async fn restart(&self, app: &str, grace: Duration) -> Result<AppStatus, ApiError> {
        let (row, _guard) = self.locked(app).await?;
        let worker = self.workers.of(&row)?;
        if worker.status(&row.record.id).await?.state != State::Stopped {
            self.stop_locked(&row, grace).await?;
        }
        self.start_locked(&row).await?;
        worker.status(&row.record.id).await
    }

    /// Puts an app to sleep.
    pub(crate) async fn sleep(&self, app: &str, level: Level) -> Result<AppStatus, ApiError> {
        let row = self.adopted_row(app).await?;
        let (id, worker) = (&row.record.id, self.workers.of(&row)?);
        worker.sleep(id, level).await?;
        worker.status(id).await
    }

    /// Wakes an app.
    pub(crate) async fn wake(&self, app: &str) -> Result<AppStatus, ApiError> {
        let row = self.adopted_row(app).await?;
        let (id, worker) = (&row.record.id, self.workers.of(&row)?);
        worker.wake(id).await?;
        worker.status(id).await
    }

    /// Removes those of an app's images that nothing uses.
    pub(crate) async fn remove_app_images(&self, app: &str) -> Result<Vec<AppImage>, ApiError> {
        let (row, _guard) = self.locked(app).await?;
        self.workers.of(&row)?.remove_app_images(&row.record.id).await
    }

    /// Keeps an app awake, or no longer.
    pub(crate) async fn pin(&self, app: &str, pinned: bool) -> Result<AppStatus, ApiError> {
        let (row, _guard) = self.locked(app).await?;
        let (record, worker) = (&row.record, self.workers.of(&row)?);
        self.store.set_pinned(&record.id, pinned).await?;
        if let Err(error) = worker.pin(&record.id, pinned).await {
            self.store.set_pinned(&record.id, record.pinned).await?;
            return Err(error);
        }
        let (kind, message) =
            if pinned { (events::PINNED, "kept awake") } else { (events::UNPINNED, "may sleep again") };
        self.events.note(&record.spec.name, kind, message.to_owned(), BTreeMap::new()).await;
        worker.status(&record.id).await
    }

    /// Removes an app; one that runs or is left alone only with `force`. Ends the import of one that is being imported.
    pub(crate) async fn remove(&self, app: &str, force: bool) -> Result<(), ApiError> {
        let why = ApiError::new(ErrorKind::Conflict, "the import was ended by torpor rm");
        if let Some(name) = self.imports.end(app, why).await
            && self.store.find_app(app).await?.is_none()
        {
            self.events
                .note(&name, events::REMOVED, "removed while it was being imported".to_owned(), BTreeMap::new())
                .await;
            return Ok(());
        }
        // A row that can be read is not left alone; all rows need not be read for it.
        if !matches!(self.store.find_app(app).await, Ok(Some(_))) && self.remove_left_alone(app, force).await? {
            return Ok(());
        }
        let (row, _guard) = self.locked(app).await?;
        let record = &row.record;
        let name = &record.spec.name;
        let state = match self.workers.of(&row)?.status(&record.id).await {
            Ok(status) => Some(status.state),
            Err(error) if error.kind == ErrorKind::NotFound => None,
            Err(error) if force => {
                warn!(app = name, error = %error, "removing an app whose state is not known");
                None
            }
            Err(error) => return Err(error),
        };
        let rests = state.is_none_or(|state| state == State::Stopped);
        if row.phase == Phase::Ready && !rests && !force {
            return Err(ApiError::new(ErrorKind::Conflict, format!("app `{name}` is not stopped")).with_hint(format!(
                "stop it with: torpor stop {name}, or remove it at once with: torpor rm -f {name}"
            )));
        }
        self.store.set_phase(&record.id, Phase::Removing).await?;
        if state.is_none() {
            // The worker may hold files of an app that it could not take over; let it try again before it removes them.
            let known = self.adopt(&row, Desired::Down).await;
            if let Err(error) = known {
                debug!(app = name, error = %error, "removing an app that cannot be taken over");
            }
        }
        self.discard(&row).await?;
        self.events.note(name, events::REMOVED, "removed".to_owned(), BTreeMap::new()).await;
        Ok(())
    }

    /// After an app's program ended: if the worker will not start it again, neither will the next hub.
    pub(crate) async fn settle(&self, app: &str) {
        if let Err(error) = self.try_settle(app).await
            && error.kind != ErrorKind::NotFound
        {
            warn!(app, error = %error, "cannot note that the app rests");
        }
    }

    async fn try_settle(&self, app: &str) -> Result<(), ApiError> {
        if self.imports.received_bytes(app).is_some() {
            return Ok(());
        }
        let (row, _guard) = self.locked(app).await?;
        let resting = self.teardown_state() != TeardownState::None || *self.closing.borrow();
        if row.phase != Phase::Ready || resting {
            return Ok(());
        }
        if self.workers.of(&row)?.status(&row.record.id).await?.state == State::Stopped {
            self.store.set_desired(&row.record.id, Desired::Down).await?;
        }
        Ok(())
    }

    /// Puts every app away and removes what was set up on the machine. What is wanted stays: the next start brings it back.
    pub async fn teardown(&self, discard: bool, progress: mpsc::Sender<Progress>) -> Result<Vec<PutAway>, ApiError> {
        /// How long apps that are being adopted are waited for. One that takes longer is stopped with the rest.
        const ADOPTING: Duration = Duration::from_secs(60);
        // Whoever asks a second time waits for the first.
        let _one = self.tearing_down.lock().await;
        self.set_teardown_state(TeardownState::Begun);
        if tokio::time::timeout(ADOPTING, self.adopted(|_| ())).await.is_err() {
            warn!(left = self.adopting.left(), "putting apps away before all are adopted");
        }
        let (_, worker) = self.workers.for_new_apps();
        let done = worker.teardown(discard, progress).await;
        self.set_teardown_state(if done.is_ok() { TeardownState::Complete } else { TeardownState::None });
        done
    }
}
