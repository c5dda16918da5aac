//! Keeping our table in place while others change the machine's rules.
//!
//! ```text
//! kernel: something of our table was removed ──▶ is it whole? ──yes──▶ (it was ourselves)
//!                                                    │ no
//!                            back-off ──▶ write all of it anew ──▶ report
//! ```
//! The first removal is mended at once, later ones after a delay that grows to some seconds; the [`crate::guard`] keeps
//! traffic closed meanwhile. Whoever changes the table finds it missing, too, and writes it anew first.

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use torpor_linux::probe::{Outcome, Probe};

use crate::error::NetworkError;
use crate::monitor::{Backoff, Removal};
use crate::{guard, nft, ruleset, sets};

use super::{Network, State};

/// Between two tries to write the table, where the first failed without being removed again.
const AGAIN: Duration = Duration::from_secs(1);

/// Our table, or a part of it, was missing.
#[derive(Debug)]
pub struct Incident {
    /// The table.
    pub table: String,
    /// Who removed it, as `nft (pid 12)`, where the kernel has told.
    pub by: Option<String>,
    /// How long it was missing, in microseconds.
    pub missing_us: u64,
    /// How often this has happened since the worker started, this time included.
    pub times: u64,
    /// Whether it is there again.
    pub outcome: Result<(), NetworkError>,
}

/// What has happened to the table so far.
#[derive(Debug, Default)]
pub(crate) struct Record {
    times: u64,
    last_by: Option<String>,
    /// Why it could not be written.
    failure: Option<String>,
}

impl Network {
    /// Watches over our table for ever: writes it anew when somebody has removed it or rules of it, and reports each such
    /// incident, also one in which that failed (it is tried again).
    pub async fn look_after(&self, mut report: impl FnMut(Incident)) {
        let mut backoff = Backoff::default();
        let mut failed = false;
        loop {
            let removal = if failed {
                tokio::time::sleep(AGAIN).await;
                Removal::default()
            } else {
                match self.monitor.removal().await {
                    Ok(removal) => removal,
                    Err(error) => {
                        tracing::error!(%error, "hearing of changes to nftables");
                        tokio::time::sleep(AGAIN).await;
                        Removal::default()
                    }
                }
            };
            let noticed = Instant::now();
            if self.is_whole(&*self.state.lock().await).unwrap_or(false) {
                failed = false;
                continue;
            }
            tokio::time::sleep(backoff.next(noticed)).await;
            let mut state = self.state.lock().await;
            // An app that was attached meanwhile has found it missing.
            let outcome = match self.is_whole(&state) {
                Ok(true) => Ok(()),
                Ok(false) | Err(_) => self.rewrite(&mut state).await,
            };
            drop(state);
            failed = outcome.is_err();
            let missing_us = u64::try_from(noticed.elapsed().as_micros()).unwrap_or(u64::MAX);
            let times = self.note(removal.by.as_ref(), &outcome);
            report(Incident { table: self.config.instance.clone(), by: removal.by, missing_us, times, outcome });
        }
    }

    /// What `torpor doctor` says of our tables.
    pub fn health(&self) -> Vec<Probe> {
        let table = &self.config.instance;
        let record = self.record.lock().unwrap_or_else(PoisonError::into_inner);
        let found = match (&record.failure, record.times) {
            (Some(failure), _) => Probe::new(
                "nftables table",
                Outcome::Missing,
                format!("{table} is missing and cannot be written: {failure}"),
                "nothing passes from or to apps until it is there; it is tried again every second",
            ),
            (None, 0) => Probe::new("nftables table", Outcome::Ok, format!("{table} is there"), ""),
            (None, times) => Probe::new(
                "nftables table",
                Outcome::Degraded,
                format!(
                    "{table} was removed {times} times since the daemon started, last by {}, and written anew",
                    record.last_by.as_deref().unwrap_or("an unknown process")
                ),
                "another program removes the machine's rules (`nft flush ruleset`, as nftables.service does when it is \
                 reloaded). Apps have no network for some milliseconds each time, and up to 5 s where it happens again \
                 and again: let that program flush its own tables only",
            ),
        };
        drop(record);
        let meaning = "traffic of apps is open for the milliseconds between a removal of our table and its repair; the \
                       kernel needs tables with owners (Linux 5.12)";
        let name = guard::table_name(&self.config);
        let guard = self.guard.lock().unwrap_or_else(PoisonError::into_inner);
        let guard = match &guard.failure {
            None => {
                Probe::new("nftables guard", Outcome::Ok, format!("{name} closes what {table} would leave open"), "")
            }
            Some(failure) => Probe::new("nftables guard", Outcome::Degraded, failure.clone(), meaning),
        };
        vec![found, guard]
    }

    /// Remembers an incident; how many there were.
    fn note(&self, by: Option<&String>, outcome: &Result<(), NetworkError>) -> u64 {
        let mut record = self.record.lock().unwrap_or_else(PoisonError::into_inner);
        // A try that follows one that failed belongs to the same incident.
        record.times += u64::from(record.failure.is_none());
        record.last_by = by.cloned().or(record.last_by.take());
        record.failure = outcome.as_ref().err().map(|error| match std::error::Error::source(error) {
            Some(cause) => format!("{error}: {cause}"),
            None => error.to_string(),
        });
        record.times
    }

    /// Whether every rule is there. A rule that refers to a set or chain keeps that in place.
    pub(crate) fn is_whole(&self, state: &State) -> Result<bool, NetworkError> {
        if state.down {
            return Ok(true);
        }
        let wanted = ruleset::rule_count(self.limit, &ruleset::networks(&state.apps));
        let mut reader = self.reader.lock().unwrap_or_else(PoisonError::into_inner);
        let found = sets::rule_count(&mut reader, &self.config);
        found.map(|found| found == wanted).map_err(NetworkError::netlink("count the rules of our table"))
    }

    /// Writes the table anew with all apps; counts start at zero.
    pub(crate) async fn rewrite(&self, state: &mut State) -> Result<(), NetworkError> {
        // What is left of it goes in the same transaction: a set may be missing elements, too.
        let script = ruleset::remove_table(&self.config) + &ruleset::whole(&self.config, self.limit, &state.apps);
        let script = script + &ruleset::lead_queries(&self.config, &state.queries);
        nft::apply(&self.config.instance, "write the rules anew", &script).await?;
        state.guards = None;
        self.forward(state).await?;
        // Flows of UDP clients that sent meanwhile are not translated; they would never find the app again.
        for app in state.apps.values() {
            self.forget_strays(app)?;
        }
        Ok(())
    }
}
