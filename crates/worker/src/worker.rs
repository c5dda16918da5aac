//! The worker: its services and its apps.

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use torpor_api::error::{ApiError, ErrorKind, chain};
use torpor_api::worker::AppRecord;
use torpor_keeper::Client;
use torpor_network::{Network, NetworkError};
use torpor_rootfs::Store;
use torpor_sandbox::Launcher;
use torpor_sandbox::cgroup::Hierarchies;

use crate::app::AppHandle;
use crate::app_files::AppFiles;
use crate::config::WorkerConfig;
use crate::faults::{FaultSyntax, RequestedFaults};
use crate::promised::Promised;
use crate::requests::RequestThreads;
use crate::services::{Services, Settings};
use crate::shared::{Counts, LeftAloneApps, Shared};
use crate::space::ImageSpace;
use crate::support::{self, Support, TeardownError};
use crate::threads::blocking;

/// Why a worker cannot start.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Not root.
    #[error("Torpor needs root to make sandboxes")]
    NotRoot,
    /// A directory could not be made.
    #[error("directory {}", .0.display())]
    Directory(PathBuf, #[source] io::Error),
    /// No descriptors could be opened.
    #[error("opening descriptors for later")]
    Descriptors(#[source] io::Error),
    /// Another worker uses the run directory.
    #[error("another torpor runs with {}", .0.display())]
    Running(PathBuf),
    /// The keeper could not be started.
    #[error("starting the keeper")]
    Keeper(#[source] crate::keeper::OpenKeeperError),
    /// Cgroups cannot be used.
    #[error(transparent)]
    Cgroups(#[from] torpor_sandbox::CgroupError),
    /// Sandboxes cannot be made.
    #[error(transparent)]
    Launcher(#[from] torpor_sandbox::SandboxError),
    /// The network could not be set up.
    #[error("setting up the network")]
    Network(#[source] NetworkError),
    /// The layer store could not be opened.
    #[error("opening the store of layers")]
    Store(#[source] torpor_rootfs::Error),
    /// The thread that reads apps' output could not be started.
    #[error("starting to read apps' output")]
    Output(#[source] io::Error),
    /// The threads of requests cannot be had.
    #[error("preparing threads for requests")]
    Requests(#[source] io::Error),
    /// Which boot this is could not be read.
    #[error("reading the boot id")]
    Boot(#[source] io::Error),
    /// A fault was asked for wrongly.
    #[error(transparent)]
    Fault(#[from] FaultSyntax),
}

/// A worker: the apps of this machine.
pub struct Worker {
    pub(crate) shared: Arc<Shared>,
    apps: Mutex<HashMap<String, AppHandle>>,
    /// There was no keeper, and so no app of an earlier worker that lives.
    is_new: bool,
    /// Ended with us.
    _tasks: tokio::task::JoinSet<()>,
    /// Held as long as we live: one worker per run directory.
    _lock: std::fs::File,
}

impl Worker {
    /// Starts a worker: takes over the keeper and the network, or sets them up. The caller has made both directories of `config`,
    /// and sure that nobody else can replace them or uses them.
    ///
    /// # Errors
    /// What this start has set up is taken down again, unless an earlier worker's apps may depend on it.
    pub async fn open(config: WorkerConfig) -> Result<Arc<Self>, OpenError> {
        if !rustix::process::geteuid().is_root() {
            return Err(OpenError::NotRoot);
        }
        torpor_linux::restorer::reserve().map_err(OpenError::Descriptors)?;
        let lock = lock(&config)?;
        let faults = RequestedFaults::with_keeper(crate::keeper::socket(&config))?;
        // All that can fail without a trace comes before the first thing that leaves one.
        let boot = torpor_engine::boot().map_err(OpenError::Boot)?;
        let output = crate::logs::Pump::start().map_err(OpenError::Output)?;
        let (launcher, Support { keeper, is_new }, store, config) = blocking(move || {
            let store = Store::open(config.data_dir.join("files")).map_err(OpenError::Store)?;
            let hierarchies = Hierarchies::detect(&config.run_dir.join("cgroup2"))?;
            let launcher = Launcher::new(&config.program, hierarchies)?;
            let support = Support::open(&config, launcher.hierarchies()).map_err(OpenError::Keeper)?;
            Ok::<_, OpenError>((launcher, support, store, config))
        })
        .await?;
        let guard = crate::network::parked_guard(&keeper);
        let opened = Self::open_network(&config, guard).await;
        let (network, image_space) = match opened {
            Ok(opened) => opened,
            Err(error) if is_new => {
                blocking(move || support::undo(&config, launcher.hierarchies())).await;
                return Err(error);
            }
            Err(error) => return Err(error),
        };
        crate::network::park_guard(&keeper, &network);
        let services = Services::new(Settings::of(&config), image_space, config.wakes_at_once);
        if let Err(error) = torpor_engine::start_helpers() {
            tracing::warn!(%error, "no threads that help to place pages: apps with much memory wake more slowly");
        }
        let shared = Shared {
            boot,
            cached_images: crate::cached::CachedImages::new(config.cached_image_bytes),
            config,
            launcher,
            keeper,
            network,
            output,
            store,
            requests: RequestThreads::new().map_err(OpenError::Requests)?,
            services: Arc::new(services),
            faults,
            promised: Promised::default(),
            left_alone: LeftAloneApps::default(),
            name_server: Mutex::new(Err("it has not been started yet".to_owned())),
            directory: Arc::default(),
            packets: Counts::default(),
            refused_packets: Counts::default(),
        };
        let shared = Arc::new(shared);
        let mut tasks = tokio::task::JoinSet::new();
        let own = shared.clone();
        tasks.spawn(async move {
            crate::pressure::manage(&own.services.dozers, &own.config, own.launcher.hierarchies()).await;
        });
        tasks.spawn(crate::keeper_watch::look_after(shared.clone()));
        tasks.spawn(crate::network::look_after(shared.clone()));
        let own = shared.clone();
        tasks.spawn(async move { crate::disk::manage(&own.services.disks, &own.services.events).await });
        tasks.spawn(crate::refused::manage(shared.clone()));
        Ok(Arc::new(Self { shared, apps: Mutex::default(), is_new, _tasks: tasks, _lock: lock }))
    }

    async fn open_network(
        config: &WorkerConfig,
        guard: Option<std::os::fd::OwnedFd>,
    ) -> Result<(Network, ImageSpace), OpenError> {
        let image_space =
            ImageSpace::of(config).map_err(|error| OpenError::Directory(config.data_dir.clone(), error))?;
        Ok((Network::open(config.network.clone(), guard).await.map_err(OpenError::Network)?, image_space))
    }

    /// For a daemon that cannot start although its worker could: takes down what this start has set up. Nothing is touched
    /// that an app may depend on: none has been made known, no cgroup and no interface of one is there, and the keeper is new.
    pub async fn give_up(&self) {
        let is_used = || async {
            let hierarchies = self.shared.launcher.hierarchies();
            let groups = hierarchies.apps(&self.shared.config.instance)?;
            let attached = self.shared.network.attached().await?;
            Ok::<_, TeardownError>(!groups.is_empty() || !attached.is_empty())
        };
        if !self.is_new || !self.apps().is_empty() {
            return;
        }
        let done = match is_used().await {
            Ok(true) => Ok(()),
            Ok(false) => self.end_everything().await,
            Err(error) => Err(error),
        };
        if let Err(error) = done {
            tracing::warn!(error = %chain(&error), "taking down what this start has set up");
        }
    }

    /// Before the runtime ends: the tasks of all apps come to their ends, each with what it is at. One that takes longer than
    /// [`LAST_STEPS`](crate::LAST_STEPS) is left to the runtime. Apps stay as they are; the worker is of no use afterwards.
    pub async fn end(&self) {
        self.shared.services.ending.send_replace(true);
        let apps: Vec<AppHandle> = self.apps().values().cloned().collect();
        let ended = async {
            for app in &apps {
                app.orders.closed().await;
            }
        };
        if tokio::time::timeout(crate::LAST_STEPS, ended).await.is_err() {
            let late = apps.iter().filter(|app| !app.orders.is_closed()).map(|app| app.record.spec.name.as_str());
            let late = late.collect::<Vec<_>>().join(", ");
            tracing::warn!(apps = late, "what the daemon is at with these apps takes too long, and is given up");
        }
    }

    fn apps(&self) -> std::sync::MutexGuard<'_, HashMap<String, AppHandle>> {
        self.apps.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The app with this id.
    pub(crate) fn app(&self, id: &str) -> Result<AppHandle, ApiError> {
        self.apps().get(id).cloned().ok_or_else(|| ApiError::new(ErrorKind::NotFound, format!("no app has id {id}")))
    }

    /// Starts the task of an app that the hub knows.
    pub(crate) fn make_known(&self, record: AppRecord) -> io::Result<AppHandle> {
        let mut apps = self.apps();
        if let Some(known) = apps.get(&record.id) {
            return Ok(known.clone());
        }
        let files = AppFiles::new(&self.shared.config.data_dir, &self.shared.config.run_dir, &record.id);
        let id = record.id.clone();
        self.shared.directory.insert(record.index, crate::network::member(&record.spec));
        let index = record.index;
        let spawned = crate::app::spawn(record, files, self.shared.clone());
        let handle = spawned.inspect_err(|_| self.shared.directory.remove(index))?;
        apps.insert(id, handle.clone());
        self.shared.promised.keep(&handle.record.resolved.layers);
        Ok(handle)
    }

    pub(crate) fn forget(&self, id: &str) {
        if let Some(app) = self.apps().remove(id) {
            self.shared.directory.remove(app.record.index);
        }
    }

    pub(crate) fn records(&self) -> Vec<Arc<AppRecord>> {
        self.apps().values().map(|app| app.record.clone()).collect()
    }

    /// Takes down what the worker set up on the machine; its apps are stopped.
    pub(crate) async fn end_everything(&self) -> Result<(), TeardownError> {
        crate::network::end_names(&self.shared);
        self.shared.network.teardown().await?;
        let shared = self.shared.clone();
        blocking(move || -> Result<(), TeardownError> {
            shared.services.keeper_life.end();
            // An earlier attempt may have ended it, and failed after that.
            Client::end(shared.keeper.path())?;
            let (hierarchies, instance) = (shared.launcher.hierarchies(), &shared.config.instance);
            for id in hierarchies.apps(instance)? {
                tracing::warn!(id, "removing the cgroup of an app that was never started completely");
                hierarchies.remove_app(instance, &id)?;
            }
            hierarchies.remove_parent(instance)?;
            Ok(())
        })
        .await
    }
}

/// One worker per run directory.
fn lock(config: &WorkerConfig) -> Result<std::fs::File, OpenError> {
    let path = config.run_dir.join("worker.lock");
    let wrong = |error: io::Error| OpenError::Directory(path.clone(), error);
    let file =
        std::fs::OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path).map_err(wrong)?;
    match rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(OpenError::Running(config.run_dir.clone())),
        Err(error) => Err(wrong(error.into())),
    }
}
