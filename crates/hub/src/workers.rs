//! The registry of workers. Every call to a worker begins here.
//!
//! It has one entry for now, the worker in the hub's own process; the row of an app names its worker all the same.

use torpor_api::port::WorkerClient;
use torpor_api::validate::shown;
use torpor_api::{ApiError, ErrorKind};

use crate::store::{LOCAL_WORKER, Row};

/// One entry.
struct Entry {
    name: String,
    client: WorkerClient,
}

/// All workers.
pub(crate) struct Workers([Entry; 1]);

impl Workers {
    /// The registry of a hub whose only worker is in its own process.
    pub(crate) fn local(client: WorkerClient) -> Self {
        Self([Entry { name: LOCAL_WORKER.to_owned(), client }])
    }

    /// The worker of an app.
    ///
    /// # Errors
    /// `Internal` if it is not registered.
    pub(crate) fn of(&self, row: &Row) -> Result<&WorkerClient, ApiError> {
        let Self(entries) = self;
        let found = entries.iter().find(|entry| entry.name == row.worker);
        found.map(|entry| &entry.client).ok_or_else(|| {
            let (name, worker) = (&row.record.spec.name, shown(&row.worker));
            ApiError::new(ErrorKind::Internal, format!("{name}: its worker `{worker}` is not registered"))
        })
    }

    /// Where new apps are placed, and whose machine stores the sources of files.
    pub(crate) fn for_new_apps(&self) -> (&str, &WorkerClient) {
        let Self([entry]) = self;
        (&entry.name, &entry.client)
    }

    /// All of them, with their names.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&str, &WorkerClient)> {
        self.0.iter().map(|entry| (entry.name.as_str(), &entry.client))
    }
}
