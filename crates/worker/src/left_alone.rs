//! Apps that the hub does not manage, because their row in its database cannot be read, or is gone with the database.
//!
//! A lost database must not cost apps their memory. So whatever is here of such an app stays: its processes, files, images and layers,
//! and the addresses that it uses. It goes when somebody removes the app by its id, or the row comes back.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::ops::RangeInclusive;
use std::path::Path;

use torpor_api::error::{ApiError, ErrorKind, chain};
use torpor_api::worker::is_app_id;
use torpor_network::NetworkError;
use torpor_sandbox::SandboxRecord;

use crate::app::parked_prefix;
use crate::app_files::AppFiles;
use crate::threads::blocking;
use crate::worker::Worker;

/// Entries of a directory whose names can be ids of apps. Empty if the directory does not exist.
fn ids_in(directory: &Path) -> io::Result<BTreeSet<String>> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeSet::new()),
        entries => entries?,
    };
    let names = entries.map(|entry| Ok(entry?.file_name().into_string().ok()));
    names.filter_map(|name| name.map(|name| name.filter(|name| is_app_id(name))).transpose()).collect()
}

impl Worker {
    /// Ids of all apps of which something is on the machine.
    pub(crate) async fn apps_found(&self) -> Result<BTreeSet<String>, ApiError> {
        let shared = self.shared.clone();
        let found = blocking(move || {
            let mut ids = BTreeSet::new();
            for directory in [&shared.config.data_dir, &shared.config.run_dir] {
                let directory = directory.join("apps");
                ids.extend(ids_in(&directory).map_err(|error| format!("listing {}: {error}", directory.display()))?);
            }
            let groups = shared.launcher.hierarchies().apps(&shared.config.instance);
            let groups = groups.map_err(|error| format!("listing cgroups: {}", chain(&error)))?;
            ids.extend(groups.into_iter().filter(|id| is_app_id(id)));
            Ok(ids)
        });
        found.await.map_err(|why: String| ApiError::new(ErrorKind::Internal, why))
    }

    /// Indexes of apps that are attached to the network, but not known: a new app with one of them would take their addresses.
    pub(crate) async fn indexes_left_alone(&self) -> Result<Vec<RangeInclusive<u32>>, NetworkError> {
        if self.shared.left_alone.all().is_empty() {
            return Ok(Vec::new());
        }
        let known: BTreeSet<u32> = self.records().iter().map(|record| record.index).collect();
        let attached = self.shared.network.attached().await?;
        Ok(attached.difference(&known).map(|index| *index..=*index).collect())
    }

    /// Ends what runs of an app that was not adopted, because it is left alone or its adoption failed, and removes what it has.
    pub(crate) async fn remove_not_adopted(&self, id: &str) -> Result<(), ApiError> {
        if !is_app_id(id) || self.app(id).is_ok() {
            return Err(ApiError::new(ErrorKind::Conflict, format!("app {id} is adopted, or that is no id")));
        }
        let failed = |what: &str, error: &(dyn std::error::Error + 'static)| {
            ApiError::new(ErrorKind::Internal, format!("{what} of app {id}: {}", chain(error)))
        };
        let files = AppFiles::new(&self.shared.config.data_dir, &self.shared.config.run_dir, id);
        // Only one with a user namespace has its number in its record. Elements in the rules that another one leaves go when an app
        // gets its number.
        let record = crate::files::read(&files.sandbox_record()).ok();
        let record = record.and_then(|record| serde_json::from_slice::<SandboxRecord>(&record).ok());
        let index = record.and_then(|record| crate::ids::slot_of(&record.ids?));
        let (shared, own) = (self.shared.clone(), (id.to_owned(), files.run.clone()));
        let ended = blocking(move || {
            let (id, run) = own;
            torpor_sandbox::destroy_leftovers(shared.launcher.hierarchies(), &shared.config.instance, &id, &run)
        });
        ended.await.map_err(|error| failed("ending the processes", &error))?;
        let (shared, prefix) = (self.shared.clone(), parked_prefix(id));
        let dropped = blocking(move || shared.keeper.drop_prefix(&prefix)).await;
        dropped.map_err(|error| failed("forgetting parked descriptors", &error))?;
        let is_known = |index: u32| self.records().iter().any(|record| record.index == index);
        if let Some(index) = index.filter(|index| !is_known(*index)) {
            self.shared.network.detach(index).await.map_err(|error| failed("taking down the network", &error))?;
        }
        self.shared.services.disks.forget(id);
        blocking(move || files.remove()).await.map_err(|error| failed("removing files", &error))?;
        self.shared.left_alone.all().retain(|app| app.id != id);
        crate::images::collect(&self.shared, || self.records()).await;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_that_are_ids_are_apps() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["00000000000000ff", "lost+found", "00000000000000FF", "0123456789abcdef0", "abcdef"] {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        assert_eq!(ids_in(folder.path()).unwrap(), ["00000000000000ff".to_owned()].into());
        assert!(ids_in(&folder.path().join("missing")).unwrap().is_empty());
    }
}
