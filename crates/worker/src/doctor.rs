//! `torpor doctor`: what this machine and kernel offer and lack, gathered from every part.

use std::sync::Arc;

use torpor_api::error::ApiError;
use torpor_api::view::{Check, CheckOutcome};

use crate::shared::Shared;

/// Asks every part.
pub(crate) async fn checks(shared: &Arc<Shared>) -> Result<Vec<Check>, ApiError> {
    let parts = shared.clone();
    let sandbox =
        tokio::task::spawn_blocking(move || torpor_sandbox::probe(Some(&parts.launcher), &parts.config.data_dir));
    let mut checks: Vec<Check> =
        sandbox.await.map_err(|error| ApiError::internal(&error))?.into_iter().map(from_sandbox).collect();
    checks.extend(torpor_network::probe(&shared.config.network).await.into_iter().map(from_network));
    checks.extend(engine());
    Ok(checks)
}

fn from_sandbox(probe: torpor_sandbox::Probe) -> Check {
    let outcome = match probe.outcome {
        torpor_sandbox::Outcome::Ok => CheckOutcome::Ok,
        torpor_sandbox::Outcome::Degraded => CheckOutcome::Degraded,
        torpor_sandbox::Outcome::Missing => CheckOutcome::Missing,
    };
    Check { name: probe.name.to_owned(), outcome, found: probe.found, meaning: probe.meaning }
}

fn from_network(probe: torpor_network::Check) -> Check {
    let outcome = match probe.outcome {
        torpor_network::Outcome::Ok => CheckOutcome::Ok,
        torpor_network::Outcome::Degraded => CheckOutcome::Degraded,
        torpor_network::Outcome::Missing => CheckOutcome::Missing,
    };
    Check { name: probe.name, outcome, found: probe.found, meaning: probe.meaning }
}

fn engine() -> Vec<Check> {
    let probes = torpor_engine::probe().into_iter();
    probes
        .map(|probe| Check {
            name: probe.name.to_owned(),
            outcome: match (probe.works, probe.needed) {
                (true, _) => CheckOutcome::Ok,
                (false, false) => CheckOutcome::Degraded,
                (false, true) => CheckOutcome::Missing,
            },
            found: probe.found,
            meaning: probe.meaning.to_owned(),
        })
        .collect()
}
