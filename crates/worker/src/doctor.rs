//! `torpor doctor`: what this machine and kernel offer and lack, gathered from every part.

use std::sync::Arc;

use torpor_api::error::ApiError;
use torpor_api::view::{Check, CheckOutcome};
use torpor_linux::probe::{Outcome, Probe};

use crate::shared::Shared;

/// Asks every part.
pub(crate) async fn checks(shared: &Arc<Shared>) -> Result<Vec<Check>, ApiError> {
    let parts = shared.clone();
    let sandbox =
        tokio::task::spawn_blocking(move || torpor_sandbox::probe(Some(&parts.launcher), &parts.config.data_dir));
    let mut probes = sandbox.await.map_err(|error| ApiError::internal(&error))?;
    probes.extend(torpor_network::probe(&shared.config.network).await);
    probes.extend(torpor_engine::probe());
    Ok(probes.into_iter().map(check).collect())
}

fn check(probe: Probe) -> Check {
    let outcome = match probe.outcome {
        Outcome::Ok => CheckOutcome::Ok,
        Outcome::Degraded => CheckOutcome::Degraded,
        Outcome::Missing => CheckOutcome::Missing,
    };
    Check { name: probe.name, outcome, found: probe.found, meaning: probe.meaning }
}
