//! The keeper and its cgroup at the start of a worker, and what undoes them where the start fails later.

use torpor_api::error::chain;
use torpor_keeper::{Client, Error};
use torpor_network::NetworkError;
use torpor_sandbox::cgroup::Hierarchies;

use crate::config::WorkerConfig;
use crate::keeper::{self, OpenKeeperError};

/// What apps need beside the worker.
pub(crate) struct Support {
    pub(crate) keeper: Client,
    /// No keeper ran before.
    pub(crate) is_new: bool,
}

impl Support {
    /// Connects to the keeper, or makes its cgroup and starts it.
    pub(crate) fn open(config: &WorkerConfig, hierarchies: &Hierarchies) -> Result<Self, OpenKeeperError> {
        let is_new = matches!(Client::connect(&keeper::socket(config)), Err(Error::NotRunning { .. }));
        match keeper::open(config, hierarchies) {
            Ok(keeper) => Ok(Self { keeper, is_new }),
            Err(error) => {
                if is_new {
                    undo(config, hierarchies);
                }
                Err(error)
            }
        }
    }
}

/// Ends a keeper that this start has started and removes the cgroups around it, unless apps have groups. A failure is logged: the
/// start has failed already, and `torpor down` can do it again.
pub(crate) fn undo(config: &WorkerConfig, hierarchies: &Hierarchies) {
    let instance = &config.instance;
    let undone = || -> Result<(), TeardownError> {
        if hierarchies.apps(instance)?.is_empty() {
            Client::end(&keeper::socket(config))?;
            hierarchies.remove_parent(instance)?;
        }
        Ok(())
    };
    if let Err(error) = undone() {
        tracing::warn!(error = %chain(&error), "taking down what this start has set up");
    }
}

/// Why not everything could be taken down.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TeardownError {
    #[error("taking down the network")]
    Network(#[from] NetworkError),
    #[error("ending the keeper")]
    Keeper(#[from] Error),
    #[error("removing the cgroups")]
    Cgroups(#[from] torpor_sandbox::CgroupError),
}
