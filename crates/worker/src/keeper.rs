//! The keeper's life: where it ends before its time, or is killed because it does not answer, a new one is started, and every app's task parks again what it still
//! holds. What the old one alone held is lost: the open files of warm apps, whose sandboxes are then made again from their
//! images, as after a reboot.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::sync::{Notify, watch};
use torpor_api::error::chain;
use torpor_api::worker::AppRecord;
use torpor_keeper::{Client, Error, Listed, StartOptions};
use torpor_linux::probe::{Outcome, Probe};
use torpor_sandbox::cgroup::Hierarchies;

use crate::config::WorkerConfig;
use crate::shared::Shared;

/// Between two tries to start a new one.
const AGAIN: Duration = Duration::from_secs(1);

/// Apps that `doctor` names.
const NAMED: usize = 3;

/// How often the keeper was lost, and whether one is wanted.
#[derive(Debug)]
pub(crate) struct KeeperLife {
    losses: watch::Sender<u64>,
    /// Held while one is started.
    wanted: Mutex<bool>,
}

impl Default for KeeperLife {
    fn default() -> Self {
        Self { losses: watch::Sender::new(0), wanted: Mutex::new(true) }
    }
}

impl KeeperLife {
    /// Changes with every keeper that was lost, once there is a new one.
    pub(crate) fn losses(&self) -> watch::Receiver<u64> {
        self.losses.subscribe()
    }

    /// From now on none is started any more.
    pub(crate) fn end(&self) {
        *self.wanted.lock().unwrap_or_else(PoisonError::into_inner) = false;
    }
}

/// Where it listens.
pub(crate) fn socket(config: &WorkerConfig) -> PathBuf {
    config.run_dir.join("keeper.sock")
}

/// Connects to the keeper, or starts it where none runs.
pub(crate) fn open(config: &WorkerConfig, hierarchies: &Hierarchies) -> Result<Client, OpenKeeperError> {
    let options = StartOptions {
        cgroup_procs: hierarchies.support(&config.instance)?,
        log: Some(config.run_dir.join("keeper.log")),
    };
    Ok(Client::connect_or_spawn(&socket(config), &config.program, &["keeper".as_ref()], &options)?)
}

/// Why there is no keeper.
#[derive(Debug, thiserror::Error)]
pub enum OpenKeeperError {
    /// It has no cgroup.
    #[error(transparent)]
    Cgroup(#[from] torpor_sandbox::SandboxError),
    /// It does not start, or does not answer.
    #[error(transparent)]
    Keeper(#[from] Error),
}

/// Readable when the keeper has ended; `None`: it has already.
fn process(keeper: &Client) -> Result<Option<OwnedFd>, Error> {
    let found = || keeper.ping().map(|info| info.pid);
    let pid = match found() {
        Ok(pid) => pid,
        Err(Error::NotRunning { .. } | Error::Closed { .. }) => return Ok(None),
        Err(error) => return Err(error),
    };
    let Some(fd) = Pid::from_raw(pid.cast_signed()).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()) else {
        return Ok(None);
    };
    // Had it ended meanwhile, the number could be another's.
    Ok(found().is_ok_and(|again| again == pid).then_some(fd))
}

/// Looks after the keeper as long as the worker lives.
pub(crate) async fn look_after(shared: Arc<Shared>) {
    let silent = Arc::new(Notify::new());
    let told = silent.clone();
    shared.keeper.when_silent(move || told.notify_one());
    loop {
        let keeper = shared.clone();
        match tokio::task::spawn_blocking(move || process(&keeper.keeper)).await {
            Ok(Ok(Some(process))) => {
                if let Err(error) = ended(process, &silent, &shared).await {
                    tracing::error!(%error, "watching the keeper");
                    tokio::time::sleep(AGAIN).await;
                    continue;
                }
            }
            Ok(Ok(None)) => {}
            Ok(Err(error)) => {
                tracing::error!(error = %chain(&error), "asking the keeper");
                end_silent(&shared).await;
                tokio::time::sleep(AGAIN).await;
                continue;
            }
            Err(_) => return,
        }
        let starting = shared.clone();
        match tokio::task::spawn_blocking(move || start(&starting)).await {
            Ok(Ok(true)) => {
                tracing::error!("the keeper has ended; a new one is there, and what only the old one held is lost");
                shared.keeper_life.losses.send_modify(|losses| *losses += 1);
            }
            // It is not wanted any more.
            Ok(Ok(false)) | Err(_) => return,
            Ok(Err(error)) => {
                tracing::error!(error = %chain(&error), "starting a new keeper");
                tokio::time::sleep(AGAIN).await;
            }
        }
    }
}

/// Waits for its end, which it gets here where it does not answer.
async fn ended(process: OwnedFd, silent: &Notify, shared: &Arc<Shared>) -> io::Result<()> {
    let process = torpor_linux::readable::register(process)?;
    loop {
        tokio::select! {
            ended = process.readable() => return ended.map(drop),
            () = silent.notified() => end_silent(shared).await,
        }
    }
}

/// Kills the keeper if it still does not answer.
async fn end_silent(shared: &Arc<Shared>) {
    let path = shared.keeper.path().to_owned();
    if let Ok(Err(error)) = tokio::task::spawn_blocking(move || Client::end_silent(&path)).await {
        tracing::error!(error = %chain(&error), "killing a keeper that does not answer");
    }
}

/// Starts a new one; `false`: none is wanted.
fn start(shared: &Shared) -> Result<bool, OpenKeeperError> {
    let wanted = shared.keeper_life.wanted.lock().unwrap_or_else(PoisonError::into_inner);
    if *wanted {
        // The worker's own client connects to it by itself.
        open(&shared.config, shared.launcher.hierarchies())?;
        crate::network::park_guard(&shared.keeper, &shared.network);
    }
    Ok(*wanted)
}

/// How many descriptors the keeper holds, for `torpor doctor`; near its limit, also of which apps.
pub(crate) fn probe(keeper: &Client, apps: &[Arc<AppRecord>]) -> Probe {
    const NAME: &str = "parked descriptors";
    const FULL: &str = "once they are used up, only apps with few open files go warm: restart or stop apps that have many, or \
                        raise LimitNOFILE of the service (and fs.nr_open); the keeper has the new limit after `torpor down` \
                        and a start";
    const SILENT: &str = "apps neither go warm nor wake from it: the daemon replaces a keeper that does not answer, and warm \
                          apps may lose their connections";
    let info = match keeper.ping() {
        Ok(info) => info,
        Err(error) => return Probe::new(NAME, Outcome::Degraded, chain(&error), SILENT),
    };
    let mut probe = Probe::use_of(NAME, info.fds, info.fds_limit, FULL);
    if probe.outcome != Outcome::Ok
        && let Ok(listed) = keeper.list("app/")
    {
        let name = |id: &str| apps.iter().find(|app| app.id == id).map_or(id, |app| &app.spec.name).to_owned();
        let most: Vec<String> = most(&listed).iter().map(|(id, fds)| format!("`{}` {fds}", name(id))).collect();
        probe.found += &format!("; most by {}", most.join(", "));
    }
    probe
}

/// The apps that have the most descriptors, by id, and how many each.
fn most(listed: &[Listed]) -> Vec<(&str, u64)> {
    let mut by_app = BTreeMap::<&str, u64>::new();
    for entry in listed {
        if let Some(id) = entry.key.split('/').nth(1) {
            *by_app.entry(id).or_default() += u64::from(entry.fds);
        }
    }
    let mut apps: Vec<_> = by_app.into_iter().collect();
    apps.sort_by_key(|(_, fds)| std::cmp::Reverse(*fds));
    apps.truncate(NAMED);
    apps
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_apps_with_the_most_descriptors_come_first() {
        let entry = |key: &str, fds| Listed { key: key.to_owned(), blob_bytes: 0, fds };
        let listed = [
            entry("app/a/files", 3),
            entry("app/b/files", 4),
            entry("app/b/watch", 1),
            entry("app/c/output", 2),
            entry("app/d/files", 2_400),
        ];
        assert_eq!(most(&listed), [("d", 2_400), ("b", 5), ("a", 3)]);
        assert_eq!(most(&[]), []);
    }
}
