//! The machine's network: its guard's socket in the keeper, and what happens to its rules told as events.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, PoisonError};

use torpor_api::error::chain;
use torpor_api::events::NETWORK_REPAIRED;
use torpor_api::spec::AppSpec;
use torpor_keeper::Client;
use torpor_linux::probe::{Outcome, Probe};
use torpor_network::names::{Member, NameServer};
use torpor_network::{Incident, Network, NetworkConfig};

use crate::shared::Shared;

/// Where the guard's socket is parked.
const GUARD_KEY: &str = "network/guard";

/// The socket of an earlier worker's guard.
pub(crate) fn parked_guard(keeper: &Client) -> Option<OwnedFd> {
    match keeper.get(GUARD_KEY) {
        Ok(parked) => parked.and_then(|parked| parked.fds.into_iter().next()).map(OwnedFd::from),
        Err(error) => {
            tracing::warn!(error = %chain(&error), "finding the socket of the nftables guard");
            None
        }
    }
}

/// Parks the guard's socket, so that the guard outlives this worker.
pub(crate) fn park_guard(keeper: &Client, network: &Network) {
    let parked = network.guard_socket().map_err(|error| chain(&error)).and_then(|socket| match socket {
        Some(socket) => keeper.put(GUARD_KEY, b"", &[socket.as_fd()]).map_err(|error| chain(&error)),
        None => Ok(()),
    });
    if let Err(error) = parked {
        tracing::warn!(error, "parking the socket of the nftables guard: it does not outlive this process");
    }
}

/// Begins to answer apps' queries for each other's names. The directory holds all apps by then: a name that is missing
/// is asked of the machine's name servers, and programs remember for long that those do not know it.
pub(crate) async fn serve_names(shared: &Shared) {
    let started = NameServer::start(&shared.network, shared.directory.clone()).await;
    let started = started.map(Arc::new).map_err(|error| chain(&error)).inspect_err(|error| {
        tracing::warn!(error, "apps of one network do not find each other by name");
    });
    *shared.name_server.lock().unwrap_or_else(PoisonError::into_inner) = started;
}

/// Intercepts queries to name servers that the machine's `resolv.conf` has got since. To be called before the program of an app runs
/// that has a copy of this file.
pub(crate) async fn renew_names(shared: &Shared) {
    let server = shared.name_server.lock().unwrap_or_else(PoisonError::into_inner).as_ref().ok().cloned();
    if let Some(server) = server
        && let Err(error) = server.renew(&shared.network).await
    {
        tracing::warn!(error = chain(&error), "apps do not find each other by way of new name servers");
    }
}

/// From now on apps' queries go to the machine's name servers.
pub(crate) fn end_names(shared: &Shared) {
    *shared.name_server.lock().unwrap_or_else(PoisonError::into_inner) = Err("it is taken down".to_owned());
}

/// What `torpor doctor` says of names.
pub(crate) fn probe_names(shared: &Shared) -> Probe {
    let meaning = "apps of one network reach each other by address only";
    match &*shared.name_server.lock().unwrap_or_else(PoisonError::into_inner) {
        Ok(_) => Probe::new("names of apps", Outcome::Ok, "apps of one network find each other by name", meaning),
        Err(error) => Probe::new("names of apps", Outcome::Degraded, error.clone(), meaning),
    }
}

/// An app, for those who look for it by name.
pub(crate) fn member(spec: &AppSpec) -> Member {
    Member { name: spec.name.clone(), join: spec.network.join.clone(), outgoing: spec.network.outgoing }
}

/// The addresses of an app in the machine's network, written.
pub(crate) fn addresses(network: &NetworkConfig, index: u32) -> Vec<String> {
    let addresses = network.addresses(index);
    addresses.map(|found| found.ips().map(|ip| ip.to_string()).to_vec()).unwrap_or_default()
}

/// Looks after the network's rules as long as the worker lives.
pub(crate) async fn look_after(shared: Arc<Shared>) {
    shared.network.look_after(|incident| tell(&shared, incident)).await;
}

fn tell(shared: &Shared, incident: Incident) {
    let Incident { table, by, missing_us, times, outcome } = incident;
    let by = by.as_deref().unwrap_or("an unknown process");
    let mut fields = std::collections::BTreeMap::from([
        ("times".to_owned(), times.into()),
        ("missing_us".to_owned(), missing_us.into()),
    ]);
    let message = match outcome {
        Ok(()) => {
            let missing_ms = missing_us.div_ceil(1000);
            format!("rules of the nftables table {table} were removed by {by}; written anew after {missing_ms} ms")
        }
        Err(error) => {
            let error = chain(&error);
            fields.insert("error".to_owned(), error.as_str().into());
            format!("rules of the nftables table {table} were removed by {by} and cannot be written: {error}")
        }
    };
    tracing::warn!("{message}");
    shared.services.events.emit("", NETWORK_REPAIRED, message, fields);
}
