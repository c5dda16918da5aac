//! `torpor up`: worker and hub in one process, until it is told to end; and what works without it.

mod logging;
mod notify;
mod worker;

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use torpor_api::port::WorkerClient;
use torpor_api::token::Token;
use torpor_api::view::{Check, PutAway};
use torpor_api::worker::Progress;
use torpor_hub::{Claim, Hub, HubError, HubOptions, InstanceLock, Listen, STALLED_AFTER, Server};
use tracing::{info, warn};

use crate::config::Config;
use crate::failure::Failure;

/// How long calls that are under way may take once everything else has ended.
const LAST_CALLS: Duration = Duration::from_secs(5);

/// Serves until SIGTERM, SIGINT or `torpor down`. Apps are left as they are, except by `torpor down`.
pub(crate) fn up(config: Config) -> Result<(), Failure> {
    only_root("up")?;
    torpor_worker::prepare_process();
    logging::start(&config);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|source| Failure::Terminal { what: "start the daemon's runtime", source })?;
    let served = runtime.block_on(serve(config));
    // A call that does not return must not keep the process: whatever it is at, the next worker finds as after a kill.
    runtime.shutdown_timeout(LAST_CALLS);
    served
}

async fn serve(config: Config) -> Result<(), Failure> {
    // Before anything is set up: a signal meanwhile must end it in order.
    let failed = |source| Failure::Terminal { what: "watch for signals", source };
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    let tcp = match (config.api.listen, &config.api.token_file) {
        (Some(address), Some(file)) => Some((address, Token::read(file)?)),
        _ => None,
    };
    let lock = claim(&config)?;
    let listen = Listen::open(config.socket(), tcp).await?;
    let worker = worker::open(&config, false).await?;
    let hub = match Hub::open(options(&config), lock.clone(), WorkerClient::in_process(worker.clone())).await {
        Ok(hub) => hub,
        Err(error) => {
            worker.give_up().await;
            return Err(error.into());
        }
    };
    let server = match Server::bind(hub.clone(), listen) {
        Ok(server) => server,
        Err(error) => {
            // Only then does the worker know whether there are apps.
            hub.adopted(|_| ()).await;
            hub.close().await;
            worker.give_up().await;
            return Err(error.into());
        }
    };
    info!(version = env!("CARGO_PKG_VERSION"), instance = config.instance, "torpor is up");
    let ready = tokio::spawn(async move { tell_when_adopted(&hub).await });
    let stop = async {
        tokio::select! {
            _ = terminate.recv() => info!("told to end by SIGTERM"),
            _ = interrupt.recv() => info!("told to end by SIGINT"),
        }
        tell_manager("STOPPING=1");
    };
    let served = server.run(stop).await;
    ready.abort();
    // Adoptions and wakes end in order: without a runtime they would fail, and an app would be taken for one that has ended.
    worker.end().await;
    Ok(served?)
}

/// Tells the service manager that we are up once every app is adopted: units that are ordered behind us find their ports
/// open and their apps where they were. Until then it hears how many are to come, and does not give us up.
async fn tell_when_adopted(hub: &Hub) {
    /// Longer than one adoption is waited for.
    const MORE_TIME: Duration = Duration::from_secs(60);
    /// How often that is said at most.
    const PAUSE: Duration = Duration::from_secs(2);
    let mut told = None::<Instant>;
    let tell = |left| {
        if told.is_none_or(|at| at.elapsed() >= PAUSE) {
            told = Some(Instant::now());
            info!(left, "adopting apps");
            let more = MORE_TIME.as_micros();
            tell_manager(&format!("EXTEND_TIMEOUT_USEC={more}\nSTATUS=adopting apps, {left} to come"));
        }
    };
    hub.adopted(tell).await;
    info!("every app is adopted");
    tell_manager("READY=1\nSTATUS=");
}

/// `torpor down` where no daemon runs.
pub(crate) async fn down(
    config: Config,
    discard: bool,
    progress: mpsc::Sender<Progress>,
) -> Result<Vec<PutAway>, Failure> {
    only_root("down")?;
    logging::start(&config);
    let lock = claim(&config)?;
    let worker = worker::open(&config, true).await?;
    let hub =
        match Hub::open_for_teardown(options(&config), lock.clone(), WorkerClient::in_process(worker.clone())).await {
            Ok(hub) => hub,
            Err(error) => {
                worker.give_up().await;
                return Err(error.into());
            }
        };
    let done = hub.teardown(discard, progress).await;
    hub.close().await;
    done.map_err(Failure::from)
}

/// `torpor doctor` where no daemon runs.
pub(crate) async fn doctor(config: &Config) -> Result<Vec<Check>, Failure> {
    only_root("doctor")?;
    Ok(worker::doctor(config).await?)
}

/// Makes sure of the directories and of being the only daemon with them and with this name, before anything is set up.
fn claim(config: &Config) -> Result<Arc<InstanceLock>, HubError> {
    let socket = config.socket();
    let (instance, data_dir, run_dir) = (&config.instance, &config.data_dir, &config.run_dir);
    InstanceLock::claim(Claim { instance, data_dir, run_dir, socket: &socket }).map(Arc::new)
}

fn options(config: &Config) -> HubOptions {
    HubOptions {
        instance: config.instance.clone(),
        data_dir: config.data_dir.clone(),
        idle: config.idle.clone(),
        stalled_after: STALLED_AFTER,
    }
}

fn only_root(command: &'static str) -> Result<(), Failure> {
    if rustix::process::geteuid().is_root() { Ok(()) } else { Err(Failure::NotRoot(command)) }
}

fn tell_manager(state: &str) {
    if let Err(error) = notify::send(state) {
        warn!(%error, state, "cannot tell the service manager");
    }
}
