//! The hub itself: opening, taking over apps at the start, closing.

use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use torpor_api::port::WorkerClient;
use torpor_api::spec::Idle;
use torpor_api::view::{Check, CheckOutcome};
use torpor_api::worker::{AppRecord, Desired};
use torpor_api::{ApiError, ErrorKind};
use tracing::{error, info, warn};

use crate::adoption::{AdoptionQueue, ONE};
use crate::error::HubError;
use crate::events::EventLog;
use crate::instance::InstanceLock;
use crate::locks::AppLocks;
use crate::orphans::{Orphans, left_alone};
use crate::reservations::Reservations;
use crate::store::{AllApps, Phase, Row, Store};
use crate::transfers::{Imports, Places};
use crate::workers::Workers;

/// Name of the database in the data directory.
const DATABASE: &str = "torpor.db";

/// Apps taken over at the same time: most of it is work of the kernel's that waits now and then.
const AT_ONCE: usize = 8;

/// What a hub needs to know.
#[derive(Clone, Debug)]
pub struct HubOptions {
    /// Name of the instance.
    pub instance: String,
    /// Where its state is: the directory that its lock is for.
    pub data_dir: PathBuf,
    /// Idle policy of apps that say nothing of their own.
    pub idle: Idle,
    /// How long a transfer of an archive may make no progress: [`STALLED_AFTER`](crate::STALLED_AFTER), less in tests.
    pub stalled_after: Duration,
}

/// How long the checks of a machine may take.
const DOCTOR: Duration = Duration::from_secs(20);

/// What a hub is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Opening {
    /// To serve: adopted apps do what their rows say.
    Serve,
    /// For a teardown: adopted apps are left as they are until it begins.
    TearDown,
}

/// How far a teardown is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TeardownState {
    /// There is none.
    None,
    /// Apps are being put away: that they end changes no desired state.
    Begun,
    /// Every app is put away, and what was set up on the machine is removed.
    Complete,
}

/// The control plane.
pub struct Hub {
    pub(crate) options: HubOptions,
    pub(crate) store: Store,
    pub(crate) workers: Workers,
    pub(crate) reserved: Reservations,
    pub(crate) locks: AppLocks,
    pub(crate) events: EventLog,
    pub(crate) exports: Places,
    /// Places for archives that are being imported.
    pub(crate) uploads: Places,
    pub(crate) imports: Imports,
    /// Apps that their workers have still to adopt.
    pub(crate) adopting: AdoptionQueue,
    pub(crate) orphans: Orphans,
    /// Why the worker does not know an app, for those that it refused to take over.
    pub(crate) adoption_errors: Mutex<HashMap<String, ApiError>>,
    teardown_state: Mutex<TeardownState>,
    /// Held by a teardown.
    pub(crate) tearing_down: tokio::sync::Mutex<()>,
    /// True once the hub is closing; streams and loops end then.
    pub(crate) closing: watch::Sender<bool>,
    _lock: Arc<InstanceLock>,
}

impl Hub {
    /// Opens the state, and begins to finish what a crash cut off and to have the worker adopt every app: see
    /// [`Hub::adopted`].
    ///
    /// An app that cannot be taken over does not keep the others from it: it is logged and shown with the reason. So is one whose row
    /// cannot be read or is gone; that one is left alone.
    pub async fn open(
        options: HubOptions,
        lock: Arc<InstanceLock>,
        worker: WorkerClient,
    ) -> Result<Arc<Self>, HubError> {
        Self::open_as(options, lock, worker, Opening::Serve).await
    }

    /// As [`Hub::open`], for a teardown without a daemon: with a worker that starts none of the apps it adopts. What is wanted of
    /// the apps stays as it is. Returns once all are adopted.
    pub async fn open_for_teardown(
        options: HubOptions,
        lock: Arc<InstanceLock>,
        worker: WorkerClient,
    ) -> Result<Arc<Self>, HubError> {
        let hub = Self::open_as(options, lock, worker, Opening::TearDown).await?;
        hub.adopted(|_| ()).await;
        Ok(hub)
    }

    async fn open_as(
        options: HubOptions,
        lock: Arc<InstanceLock>,
        worker: WorkerClient,
        opening: Opening,
    ) -> Result<Arc<Self>, HubError> {
        let store = Store::open(&options.data_dir.join(DATABASE)).await?;
        let apps = store.read_apps().await?;
        let workers = Workers::local(worker);
        let mut found = BTreeSet::new();
        for (_, worker) in workers.all() {
            found.extend(worker.found().await.map_err(HubError::Apps)?);
        }
        let orphans = Orphans::among(found, &apps);
        let AllApps { rows, unreadable } = apps;
        let left_alone = left_alone(&orphans, &unreadable);
        let mut worker_events = Vec::new();
        for (name, worker) in workers.all() {
            let failed = |problem| HubError::Worker { worker: name.to_owned(), problem };
            let own = rows.iter().filter(|row| row.worker == name);
            // Before anything can be collected, and before anybody asks for a name: layers and names of an app that is not adopted
            // yet are in use, too.
            worker.expect(own.map(|row| row.record.clone()).collect(), left_alone.clone()).await.map_err(failed)?;
            // Subscribed before the first app is taken over, so that nothing of it is missed.
            worker_events.push(worker.events().await.map_err(failed)?);
        }
        let (closing, _) = watch::channel(false);
        let (events, recorder) = EventLog::new(store.clone());
        let hub = Arc::new(Self {
            options,
            store,
            workers,
            reserved: Reservations::default(),
            locks: AppLocks::default(),
            events,
            exports: Places::new("exported"),
            uploads: Places::new("imported"),
            imports: Imports::default(),
            adopting: AdoptionQueue::of(rows),
            orphans,
            adoption_errors: Mutex::default(),
            tearing_down: tokio::sync::Mutex::default(),
            teardown_state: Mutex::new(if opening == Opening::TearDown {
                TeardownState::Begun
            } else {
                TeardownState::None
            }),
            closing,
            _lock: lock,
        });
        let settling = Arc::downgrade(&hub);
        let ended = move |app: String| {
            if let Some(hub) = settling.upgrade() {
                tokio::spawn(async move { hub.settle(&app).await });
            }
        };
        tokio::spawn(recorder.run(worker_events, ended));
        for _ in 0..AT_ONCE {
            tokio::spawn(Arc::clone(&hub).adopt_next());
        }
        Ok(hub)
    }

    /// Waits until every app that was there when the hub opened is adopted, or cannot be, or takes longer than [`ONE`]. Calls
    /// `each` with the number that is left whenever it changes.
    pub async fn adopted(&self, each: impl FnMut(usize)) {
        self.adopting.all(each).await;
    }

    /// Adopts apps as long as there are any, several at the same time.
    async fn adopt_next(self: Arc<Self>) {
        while !*self.closing.borrow()
            && let Some(row) = self.adopting.next()
        {
            let (id, name) = (row.record.id.clone(), row.record.spec.name.clone());
            // In a task of its own: it goes on when nobody waits for it any more.
            let (hub, begun) = (Arc::clone(&self), std::time::Instant::now());
            let mut taken = tokio::spawn(async move { hub.take_over(row).await });
            if tokio::time::timeout(ONE, &mut taken).await.is_err() {
                let seconds = begun.elapsed().as_secs();
                let message = format!("{name}: adopting it has taken {seconds} s and goes on");
                error!(
                    app = name,
                    "adopting it takes longer than {seconds} s and goes on; the others do not wait for it"
                );
                let slow = ApiError::new(ErrorKind::Timeout, message);
                self.adoption_errors.lock().unwrap_or_else(PoisonError::into_inner).insert(id.clone(), slow);
            }
            self.adopting.done(&id);
        }
    }

    pub(crate) fn teardown_state(&self) -> TeardownState {
        *self.teardown_state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_teardown_state(&self, state: TeardownState) {
        *self.teardown_state.lock().unwrap_or_else(PoisonError::into_inner) = state;
    }

    async fn take_over(&self, row: Row) {
        let name = row.record.spec.name.clone();
        if row.phase == Phase::Ready {
            match self.adopt(&row, row.record.desired).await {
                Ok(()) => info!(app = name, "taken over"),
                Err(problem) => error!(app = name, error = %problem, "cannot take over the app"),
            }
            return;
        }
        if let Err(problem) = self.adopt(&row, Desired::Down).await {
            // Removing may still work: it is what decides.
            warn!(app = name, error = %problem, "cannot take over an unfinished app");
        }
        match self.discard(&row).await {
            Ok(()) => info!(app = name, "an unfinished app was taken away"),
            Err(problem) => error!(app = name, error = %problem, "cannot take away an unfinished app"),
        }
    }

    /// Makes an app known to its worker, in this desired state, and remembers why not.
    pub(crate) async fn adopt(&self, row: &Row, desired: Desired) -> Result<(), ApiError> {
        let id = row.record.id.clone();
        let result = match self.workers.of(row) {
            Ok(worker) => worker.adopt(AppRecord { desired, ..row.record.clone() }).await,
            Err(error) => Err(error),
        };
        let mut adoption_errors = self.adoption_errors.lock().unwrap_or_else(PoisonError::into_inner);
        match &result {
            Ok(()) => drop(adoption_errors.remove(&id)),
            Err(problem) => drop(adoption_errors.insert(id, problem.clone())),
        }
        result
    }

    /// Ends an app at once and removes it from its worker and the store, also one that the worker could not adopt.
    pub(crate) async fn discard(&self, row: &Row) -> Result<(), ApiError> {
        let (id, worker) = (row.record.id.as_str(), self.workers.of(row)?);
        let ended = match worker.stop(id, Duration::ZERO).await {
            Ok(()) => worker.remove(id).await,
            Err(error) => Err(error),
        };
        match ended {
            // It may have files, images and processes all the same.
            Err(error) if error.kind == ErrorKind::NotFound => worker.remove_unknown(id).await?,
            ended => ended?,
        }
        self.store.delete_app(id).await?;
        self.adoption_errors.lock().unwrap_or_else(PoisonError::into_inner).remove(id);
        Ok(())
    }

    /// What the machine offers and lacks, and what the daemon is still at.
    pub(crate) async fn doctor(&self) -> Result<Vec<Check>, ApiError> {
        let (_, worker) = self.workers.for_new_apps();
        let checks = tokio::time::timeout(DOCTOR, worker.doctor()).await;
        let mut checks = checks.unwrap_or_else(|_| {
            let message = format!("the checks of the machine take longer than {} s", DOCTOR.as_secs());
            Err(ApiError::new(ErrorKind::Timeout, message))
        })?;
        let left = self.adopting.left();
        if left > 0 {
            checks.push(Check {
                name: "apps to adopt".to_owned(),
                outcome: CheckOutcome::Degraded,
                found: left.to_string(),
                meaning:
                    "the daemon has just started: `torpor ps` shows them as `adopting`, and what is asked of them waits"
                        .to_owned(),
            });
        }
        checks.extend(self.checks_of_left_alone().await?);
        Ok(checks)
    }

    /// Resolves when the hub is closing.
    pub(crate) fn closed(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut closing = self.closing.subscribe();
        async move {
            // An error means that the hub is gone: closed as well.
            let _ = closing.wait_for(|closing| *closing).await;
        }
    }

    /// Ends streams and loops, writes out the last events and closes the database. Apps are left alone.
    pub async fn close(&self) {
        self.closing.send_replace(true);
        self.events.end().await;
        self.store.close().await;
    }
}
