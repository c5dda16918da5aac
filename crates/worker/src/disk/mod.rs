//! What an app's own files take on disk, and the limit on it.
//!
//! Its own files are what it has written to its root file system: the upper and work directories of its overlay. Layers are
//! shared, volumes are the machine's; logs and images have limits of their own (`[logs]`, `[images]`).
//!
//! *By quota*, where the file system has project quotas that are enforced: both directories are of a project of the app's own,
//! whose id is made from the app's, and the kernel refuses what goes beyond the limit (`EDQUOT`). The overlay writes for the
//! app, and never with `CAP_SYS_RESOURCE`.
//!
//! *By accounting* elsewhere: the files of running apps are measured again and again, with pauses of at least [`SHORTEST`] that are
//! [`PART`] times as long as measuring took. An app that is found above its limit is told of (`disk-over`) and runs on, for nothing here could
//! stop its writes in time; but it is not started, nor started again, before it is below. So accounting keeps an app
//! from growing across restarts; only a quota keeps it from filling the disk at once.

mod walk;

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use torpor_api::spec::AppSpec;
use torpor_api::view::{DiskBy, DiskUse};
use torpor_linux::probe::{Outcome, Probe};
use torpor_linux::quota;

use crate::app_files::AppFiles;
use crate::events::Events;

/// Measuring takes at most one part in so many of the time.
const PART: u32 = 20;
/// Shortest time between two looks at the running apps.
const SHORTEST: Duration = Duration::from_secs(5);
/// Project ids of apps have this bit; people count from 1.
const PROJECT: u32 = 1 << 30;

/// Why an app may not be started.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DiskError {
    /// It has reached its limit.
    #[error(
        "its files take {} on disk, and {} is its limit: remove some below {}, or raise the limit",
        mebibytes(*.taken_bytes), mebibytes(*.limit_bytes), .files.display()
    )]
    Over { taken_bytes: u64, limit_bytes: u64, files: PathBuf },
    /// Its files cannot be measured.
    #[error("its files lie deeper within each other than can be measured: remove some below {}", .0.display())]
    TooDeep(PathBuf),
    /// Something failed.
    #[error("its disk limit could not be set on {}", .0.display())]
    Failed(PathBuf, #[source] io::Error),
}

/// An app that is measured while it runs.
#[derive(Clone, Debug)]
struct Running {
    name: String,
    upper: PathBuf,
    limit_bytes: u64,
}

#[derive(Debug, Default)]
struct Entries {
    running: HashMap<String, Running>,
    /// What was measured last, by id.
    known: HashMap<String, DiskUse>,
}

/// What is known of apps' disk use.
#[derive(Debug, Default)]
pub(crate) struct Disks {
    entries: Mutex<Entries>,
    changed: Notify,
}

/// It is measured until this is dropped.
#[derive(Debug)]
pub(crate) struct Watched {
    disks: Arc<Disks>,
    id: String,
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.disks.lock().running.remove(&self.id);
    }
}

impl Disks {
    fn lock(&self) -> std::sync::MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The app runs: it is measured from now on, where its limit is not a quota.
    pub(crate) fn watch(self: &Arc<Self>, id: &str, name: &str, files: &AppFiles, limit_bytes: u64) -> Option<Watched> {
        let upper = files.upper();
        if has_quota(&upper, id) {
            return None;
        }
        self.lock().running.insert(id.to_owned(), Running { name: name.to_owned(), upper, limit_bytes });
        self.changed.notify_one();
        Some(Watched { disks: self.clone(), id: id.to_owned() })
    }

    /// What the app takes, as far as it is known; `None` without a limit.
    pub(crate) fn of(&self, id: &str, files: &AppFiles, limit_bytes: Option<u64>) -> Option<DiskUse> {
        let limit_bytes = limit_bytes?;
        let upper = files.upper();
        if let Some(bytes) = File::open(&upper)
            .ok()
            .filter(|_| has_quota(&upper, id))
            .and_then(|directory| quota::taken_bytes(&directory, project(id)).ok())
        {
            return Some(DiskUse { bytes: Some(bytes), limit_bytes, by: DiskBy::Quota });
        }
        let bytes = self.lock().known.get(id).and_then(|known| known.bytes);
        Some(DiskUse { bytes, limit_bytes, by: DiskBy::Accounting })
    }

    fn note(&self, id: &str, found: DiskUse) -> Option<DiskUse> {
        self.lock().known.insert(id.to_owned(), found)
    }

    /// The app has gone.
    pub(crate) fn forget(&self, id: &str) {
        self.lock().known.remove(id);
    }
}

/// For people.
fn mebibytes(bytes: u64) -> String {
    match bytes {
        u64::MAX => "more than can be measured".to_owned(),
        bytes => format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20)),
    }
}

/// The project of an app: from its id, which is never used again.
fn project(id: &str) -> u32 {
    let number = u64::from_str_radix(id, 16).unwrap_or_else(|_| torpor_image::checksum(id.as_bytes()));
    PROJECT | (torpor_image::checksum(&number.to_le_bytes()) as u32 & (PROJECT - 1))
}

fn has_quota(upper: &Path, id: &str) -> bool {
    File::open(upper).is_ok_and(|directory| {
        quota::is_enforced(&directory) && quota::project(&directory).is_ok_and(|found| found == project(id))
    })
}

/// What an app's own files may take on disk; `default_bytes`: that of one that says nothing.
pub(crate) fn limit_of(spec: &AppSpec, default_bytes: Option<u64>) -> Option<u64> {
    spec.limits.disk.map(|limit| limit.0).or(default_bytes)
}

/// Sets the limit of an app that is about to be started, or refuses that. Its directories are there.
pub(crate) fn prepare(disks: &Disks, id: &str, files: &AppFiles, limit_bytes: Option<u64>) -> Result<(), DiskError> {
    let upper = files.upper();
    let failed = |error| DiskError::Failed(upper.clone(), error);
    let directory = File::open(&upper).map_err(failed)?;
    if quota::is_enforced(&directory) {
        let is_set = has_quota(&upper, id);
        if is_set || limit_bytes.is_some() {
            set_quota(&directory, id, files, limit_bytes.unwrap_or(0), is_set).map_err(failed)?;
        }
        return Ok(());
    }
    let Some(limit_bytes) = limit_bytes else { return Ok(()) };
    let measured = walk::measure(&upper).map_err(failed)?;
    disks.note(id, DiskUse { bytes: Some(measured.bytes), limit_bytes, by: DiskBy::Accounting });
    match measured {
        found if found.too_deep => Err(DiskError::TooDeep(upper)),
        found if found.bytes > limit_bytes => {
            Err(DiskError::Over { taken_bytes: found.bytes, limit_bytes, files: upper })
        }
        _ => Ok(()),
    }
}

fn set_quota(directory: &File, id: &str, files: &AppFiles, limit_bytes: u64, is_set: bool) -> io::Result<()> {
    let project = project(id);
    if !is_set {
        // The upper directory is the last: it says that all is done.
        walk::set_project(&files.work(), project)?;
        walk::set_project(&files.upper(), project)?;
    }
    quota::set_limit(directory, project, limit_bytes)
}

/// Measures the running apps that have no quota, again and again.
pub(crate) async fn manage(disks: &Disks, events: &Events) {
    loop {
        let running: Vec<_> = disks.lock().running.clone().into_iter().collect();
        if running.is_empty() {
            disks.changed.notified().await;
            continue;
        }
        let begun = Instant::now();
        for (id, app) in running {
            let upper = app.upper.clone();
            let measured = tokio::task::spawn_blocking(move || walk::measure(&upper)).await;
            match measured {
                Ok(Ok(found)) => tell(disks, events, &id, &app, found),
                Ok(Err(error)) => tracing::debug!(app = app.name, %error, "measuring its files"),
                // The runtime ends.
                Err(_) => return,
            }
        }
        let pause = (begun.elapsed() * PART).max(SHORTEST);
        // Whoever begins to run meanwhile waits for it: apps wake more often than they can be measured.
        tokio::time::sleep(pause).await;
    }
}

/// Tells of an app that has passed its limit, and of one that is below it again.
fn tell(disks: &Disks, events: &Events, id: &str, app: &Running, found: walk::Measured) {
    // Whatever lies too deep counts as too much.
    let bytes = if found.too_deep { u64::MAX } else { found.bytes };
    let now = DiskUse { bytes: Some(bytes), limit_bytes: app.limit_bytes, by: DiskBy::Accounting };
    let was_over = disks.note(id, now).is_some_and(DiskUse::is_over);
    if now.is_over() == was_over {
        return;
    }
    let (kind, message) = if now.is_over() {
        let message = format!(
            "its files take {} on disk, more than its limit of {}; it runs on, but is not started again before it is below",
            mebibytes(bytes),
            mebibytes(app.limit_bytes)
        );
        ("disk-over", message)
    } else {
        (
            "disk-under",
            format!("its files take {} on disk, within its limit of {}", mebibytes(bytes), mebibytes(app.limit_bytes)),
        )
    };
    let fields =
        BTreeMap::from([("bytes".to_owned(), bytes.into()), ("limit_bytes".to_owned(), app.limit_bytes.into())]);
    events.emit(&app.name, kind, message, fields);
}

/// Whether limits are quotas where `directory` is.
pub(crate) fn probe(directory: &Path) -> Probe {
    let meaning = "disk limits (--disk) are not enforced by the kernel: files of running apps are measured, and an app above its \
                   limit is told of and not started again; mount ext4 or xfs with `prjquota` for quotas (ext4: made with \
                   `-O project,quota`)";
    match File::open(directory) {
        Ok(found) if quota::is_enforced(&found) => Probe::new("disk limits", Outcome::Ok, "project quotas", ""),
        Ok(_) => Probe::new("disk limits", Outcome::Degraded, "no project quotas", meaning),
        Err(error) => Probe::new("disk limits", Outcome::Degraded, error.to_string(), meaning),
    }
}

#[cfg(test)]
mod tests;
