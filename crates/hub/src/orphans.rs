//! Orphans: apps without a row of which something is on a machine.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use torpor_api::error::chain;
use torpor_api::worker::LeftAlone;
use torpor_api::{ApiError, ErrorKind};
use tracing::error;

use crate::store::{AllApps, Unreadable};

/// Why an orphan is left alone.
pub(crate) const NO_ROW: &str = "torpor.db has no row of it, but its files or processes are on the machine";

/// Ids of apps without a row.
#[derive(Debug, Default)]
pub(crate) struct Orphans(Mutex<BTreeSet<String>>);

impl Orphans {
    /// Those of the apps that were found on the machine which have no row.
    pub(crate) fn among(found: BTreeSet<String>, apps: &AllApps) -> Self {
        let rows = apps.rows.iter().map(|row| row.record.id.as_str());
        let known: BTreeSet<&str> = rows.chain(apps.unreadable.iter().map(|app| app.id.as_str())).collect();
        Self(Mutex::new(found.into_iter().filter(|id| !known.contains(id.as_str())).collect()))
    }

    /// Their ids.
    pub(crate) fn ids(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The refusal of a command for one of them.
    pub(crate) fn refusal(&self, app: &str) -> Option<ApiError> {
        let told = |id: &String| {
            ApiError::new(ErrorKind::Conflict, format!("app `{id}`: {NO_ROW}")).with_hint(format!(
                "it is left as it is: put torpor.db back from a backup and restart the daemon, or remove it with torpor rm -f {id}"
            ))
        };
        self.ids().get(app).map(told)
    }
}

/// All that are left alone, as workers are told of them; each is logged.
pub(crate) fn left_alone(orphans: &Orphans, unreadable: &[Unreadable]) -> Vec<LeftAlone> {
    for app in unreadable {
        let error = chain(&app.why);
        error!(app = app.name, id = app.id, error, "its row cannot be read; the app is left alone");
    }
    let unreadable = unreadable.iter().map(|app| LeftAlone {
        id: app.id.clone(),
        name: app.name.clone(),
        layers: app.resolved.as_ref().map(|resolved| resolved.layers.clone()),
    });
    let orphans = orphans.ids();
    for id in &*orphans {
        error!(id, "torpor.db has no row of this app; the app is left alone");
    }
    unreadable.chain(orphans.iter().map(|id| LeftAlone { id: id.clone(), name: id.clone(), layers: None })).collect()
}
