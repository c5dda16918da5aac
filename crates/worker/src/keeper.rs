//! The keeper, as the worker starts it, and whether one is wanted.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;
use torpor_api::error::chain;
use torpor_api::worker::AppRecord;
use torpor_keeper::{Client, Error, Listed, StartOptions};
use torpor_linux::probe::{Outcome, Probe};
use torpor_sandbox::cgroup::Hierarchies;

use crate::config::WorkerConfig;

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
        *self.wanted() = false;
    }

    /// Whether one is wanted; held while one is started.
    pub(crate) fn wanted(&self) -> MutexGuard<'_, bool> {
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// There is a new one, which holds nothing.
    pub(crate) fn lost(&self) {
        self.losses.send_modify(|losses| *losses += 1);
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
