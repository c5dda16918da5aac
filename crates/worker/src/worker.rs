//! The worker: its services and its apps.

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use torpor_api::error::{ApiError, ErrorKind};
use torpor_api::worker::AppRecord;
use torpor_keeper::Client;
use torpor_network::{Network, NetworkError};
use torpor_rootfs::Store;
use torpor_sandbox::Launcher;
use torpor_sandbox::cgroup::Hierarchies;

use crate::app::{AppFiles, AppHandle};
use crate::config::WorkerConfig;
use crate::events::Events;
use crate::faults::{FaultSyntax, RequestedFaults};
use crate::pressure::Dozers;
use crate::requests::RequestThreads;
use crate::shared::{Counts, Shared};
use crate::space::ImageSpace;

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
    /// Ended with us.
    _tasks: tokio::task::JoinSet<()>,
    /// Held as long as we live: one worker per run directory.
    _lock: std::fs::File,
}

impl Worker {
    /// Starts a worker: takes over the keeper and the network, or sets them up.
    pub async fn open(config: WorkerConfig) -> Result<Arc<Self>, OpenError> {
        if !rustix::process::geteuid().is_root() {
            return Err(OpenError::NotRoot);
        }
        for folder in [&config.data_dir, &config.run_dir] {
            private_directory(folder).map_err(|error| OpenError::Directory(folder.clone(), error))?;
        }
        torpor_linux::restorer::reserve().map_err(OpenError::Descriptors)?;
        let lock = lock(&config)?;
        let faults = RequestedFaults::with_keeper(crate::keeper::socket(&config))?;
        let (launcher, keeper, store, config) = {
            let opened = tokio::task::spawn_blocking(move || {
                let hierarchies = Hierarchies::detect(&config.run_dir.join("cgroup2"))?;
                let launcher = Launcher::new(&config.program, hierarchies)?;
                let keeper = crate::keeper::open(&config, launcher.hierarchies()).map_err(OpenError::Keeper)?;
                let store = Store::open(config.data_dir.join("files")).map_err(OpenError::Store)?;
                Ok::<_, OpenError>((launcher, keeper, store, config))
            });
            match opened.await {
                Ok(opened) => opened?,
                Err(panic) => std::panic::resume_unwind(panic.into_panic()),
            }
        };
        let guard = crate::network::parked_guard(&keeper);
        let network = Network::open(config.network.clone(), guard).await.map_err(OpenError::Network)?;
        crate::network::park_guard(&keeper, &network);
        let image_space =
            ImageSpace::of(&config).map_err(|error| OpenError::Directory(config.data_dir.clone(), error))?;
        let cached_images = crate::cached::CachedImages::new(config.cached_image_bytes);
        let at_once = config.wakes_at_once;
        let shared = Shared {
            boot: torpor_engine::boot().map_err(OpenError::Boot)?,
            config,
            launcher,
            keeper,
            keeper_life: crate::keeper::KeeperLife::default(),
            network,
            output: crate::logs::Pump::start().map_err(OpenError::Output)?,
            store,
            requests: RequestThreads::new().map_err(OpenError::Requests)?,
            events: Events::new(),
            faults,
            promised: crate::images::Promised::default(),
            cached_images,
            image_space,
            dozers: Dozers::default(),
            name_server: Mutex::new(Err("it has not been started yet".to_owned())),
            directory: Arc::default(),
            wakes: crate::wakes::Wakes::new(at_once),
            disks: Arc::default(),
            packets: Counts::default(),
            refused_packets: Counts::default(),
        };
        let shared = Arc::new(shared);
        let mut tasks = tokio::task::JoinSet::new();
        tasks.spawn(crate::pressure::manage(shared.clone()));
        tasks.spawn(crate::keeper::look_after(shared.clone()));
        tasks.spawn(crate::network::look_after(shared.clone()));
        tasks.spawn(crate::disk::manage(shared.clone()));
        tasks.spawn(crate::refused::manage(shared.clone()));
        Ok(Arc::new(Self { shared, apps: Mutex::default(), _tasks: tasks, _lock: lock }))
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
        let ended = tokio::task::spawn_blocking(move || -> Result<(), TeardownError> {
            shared.keeper_life.end();
            // An earlier attempt may have ended it, and failed after that.
            Client::end(shared.keeper.path())?;
            let (hierarchies, instance) = (shared.launcher.hierarchies(), &shared.config.instance);
            for id in hierarchies.apps(instance)? {
                tracing::warn!(id, "removing the cgroup of an app that was never started completely");
                hierarchies.remove_app(instance, &id)?;
            }
            hierarchies.remove_parent(instance)?;
            Ok(())
        });
        match ended.await {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic.into_panic()),
        }
    }
}

/// Why not everything could be taken down.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TeardownError {
    #[error("taking down the network")]
    Network(#[from] NetworkError),
    #[error("ending the keeper")]
    Keeper(#[from] torpor_keeper::Error),
    #[error("removing the cgroups")]
    Cgroups(#[from] torpor_sandbox::CgroupError),
}

fn private_directory(path: &std::path::Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// One worker per run directory.
fn lock(config: &WorkerConfig) -> Result<std::fs::File, OpenError> {
    let path = config.run_dir.join("worker.lock");
    let wrong = |error: io::Error| OpenError::Directory(path.clone(), error);
    let file = std::fs::OpenOptions::new().write(true).create(true).truncate(false).open(&path).map_err(wrong)?;
    match rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(OpenError::Running(config.run_dir.clone())),
        Err(error) => Err(wrong(error.into())),
    }
}
