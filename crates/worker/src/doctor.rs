//! `torpor doctor`: what this machine and kernel offer and lack, gathered from every part.

use std::path::Path;
use std::sync::Arc;

use torpor_api::error::{ApiError, chain};
use torpor_api::view::{Check, CheckOutcome};
use torpor_api::worker::AppRecord;
use torpor_linux::probe::{Outcome, Probe};
use torpor_network::NetworkConfig;
use torpor_sandbox::cgroup::Hierarchies;
use torpor_sandbox::{Launcher, SandboxError};

use crate::config::WorkerConfig;
use crate::shared::Shared;

/// What a worker with this configuration would find, without one: where a worker cannot start, this says why. Leaves
/// nothing behind (where no cgroup v2 is mounted, its mount).
///
/// # Errors
/// Where looking itself fails.
pub async fn doctor(config: WorkerConfig) -> Result<Vec<Check>, ApiError> {
    let sandbox = tokio::task::spawn_blocking(move || {
        // The place may not be there yet; what holds for it holds where it will be made.
        let directory = config.data_dir.ancestors().find(|place| place.is_dir()).unwrap_or(Path::new("/"));
        let probes = match launcher(&config) {
            Ok(launcher) => torpor_sandbox::probe(Some(&launcher), directory, &config.labels),
            Err(error) => {
                let mut probes = torpor_sandbox::probe(None, directory, &config.labels);
                probes.push(Probe::new("cgroups", Outcome::Missing, chain(&error), "apps cannot be started"));
                probes
            }
        };
        let mut probes = probes;
        probes.push(crate::disk::probe(directory));
        (probes, config)
    });
    let (mut probes, config) = sandbox.await.map_err(|error| ApiError::internal(&error))?;
    probes.push(crate::ids::probe(&[]));
    Ok(with_other_parts(probes, &config.network, None).await)
}

fn launcher(config: &WorkerConfig) -> Result<Launcher, SandboxError> {
    Launcher::new(&config.program, Hierarchies::detect(&config.run_dir.join("cgroup2"))?)
}

/// Asks every part.
pub(crate) async fn checks(shared: &Arc<Shared>, apps: &[Arc<AppRecord>]) -> Result<Vec<Check>, ApiError> {
    let (parts, records) = (shared.clone(), apps.to_vec());
    let sandbox = tokio::task::spawn_blocking(move || {
        let config = &parts.config;
        let mut probes = torpor_sandbox::probe(Some(&parts.launcher), &config.data_dir, &config.labels);
        probes.push(crate::disk::probe(&config.data_dir));
        probes.push(crate::keeper::probe(&parts.keeper, &records));
        probes
    });
    let mut probes = sandbox.await.map_err(|error| ApiError::internal(&error))?;
    probes.push(crate::ids::probe(apps));
    Ok(with_other_parts(probes, &shared.config.network, Some(shared)).await)
}

/// What the sandbox's part has found, and the network's and the engine's.
async fn with_other_parts(mut probes: Vec<Probe>, network: &NetworkConfig, open: Option<&Shared>) -> Vec<Check> {
    probes.extend(torpor_network::probe(network).await);
    if let Some(shared) = open {
        probes.extend(shared.network.health());
        probes.push(crate::network::probe_names(shared));
    }
    probes.extend(torpor_engine::probe());
    probes.push(crate::pressure::probe());
    probes.into_iter().map(check).collect()
}

fn check(probe: Probe) -> Check {
    let outcome = match probe.outcome {
        Outcome::Ok => CheckOutcome::Ok,
        Outcome::Degraded => CheckOutcome::Degraded,
        Outcome::Missing => CheckOutcome::Missing,
    };
    Check { name: probe.name, outcome, found: probe.found, meaning: probe.meaning }
}
