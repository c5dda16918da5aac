//! After a reboot: an app of which only its complete image is left gets its sandbox, its addresses and its open ports again.
//!
//! Which image counts? Only the newest of an app's, and only one whose wake has not begun: a wake renames it on the disk before the
//! app runs. After a crash of the worker alone the journal says more: an image that it does not call the truth is not.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::SystemTime;

use torpor_api::worker::{AppRecord, Desired};
use torpor_engine::{Journal, Parking, Phase, Reopened, Stored, Warm};
use torpor_lifecycle::{Event, Found, Millis, Text};
use torpor_sandbox::{Clocks, Sandbox};

use super::AppFiles;
use super::deepen::home;
use super::operate::{app_number, chain, text};
use super::parking::{self, KeeperParking};
use super::sleeping::{Sleeping, WarmApp};
use super::start::{self, StartError};
use super::task::Task;
use crate::clock;
use crate::shared::Shared;

/// What was made for a stored app.
struct TakenUp {
    sandbox: Sandbox,
    output: [OwnedFd; 2],
    reopened: Reopened,
}

impl Task {
    /// Takes up an app of which only its image is left, as one that is warm; `false`: there is no such image, or it cannot be
    /// used.
    pub(super) async fn take_up_stored(&mut self) -> bool {
        if self.record.desired != Desired::Up {
            return false;
        }
        let Some(next_timer) = self.house_stored().await else { return false };
        self.tell(Event::TakenOver(Found::Stored { next_timer })).await;
        true
    }

    /// Makes a sandbox for an app of which only its image is left, and holds it as a warm one; gives when it wakes by itself.
    pub(super) async fn house_stored(&mut self) -> Option<Option<Millis>> {
        match self.try_to_house().await {
            Ok(housed) => housed,
            Err(reason) => {
                self.lose_stored(&reason);
                None
            }
        }
    }

    /// As [`Task::house_stored`], but touches nothing of an image that cannot be used, and says why it cannot.
    pub(super) async fn try_to_house(&mut self) -> Result<Option<Option<Millis>>, Text> {
        let Some(stored) = tokio::task::block_in_place(|| self.stored())? else { return Ok(None) };
        let stored = Arc::new(stored);
        let taken = take_up(&self.record, &self.files, &self.shared, &stored).await.map_err(|error| chain(&error))?;
        self.hold_stored(&stored, taken).map(Some).map_err(text)
    }

    /// The newest image, if it is complete and nobody has begun to wake from it.
    fn stored(&self) -> Result<Option<Stored>, String> {
        let phase = self.journal.read().map_err(|error| error.to_string())?;
        if matches!(phase, Some(Phase::Awake | Phase::Dropping { .. } | Phase::Dozing { .. })) {
            return Ok(None);
        }
        if let Some(Phase::Warm { generation, .. }) = phase {
            // A wake that did not come to its end.
            self.files.take_back(generation).map_err(|error| error.to_string())?;
        }
        let Some((image, generation)) = self.files.newest_image().map_err(|error| error.to_string())? else {
            return Ok(None);
        };
        match phase {
            Some(Phase::Ending { generation: named, .. } | Phase::Warm { generation: named, .. })
                if named != generation =>
            {
                Ok(None)
            }
            _ => Stored::open_complete(&image, app_number(&self.record.id)).map_err(|error| chain(&error).to_string()),
        }
    }

    /// Its memory is gone; it starts afresh on its files.
    fn lose_stored(&mut self, reason: &str) {
        tracing::error!(app = self.record.spec.name, %reason, "its image cannot be used; it starts afresh");
        self.shared.events.emit(&self.record.spec.name, "lost", reason.to_owned(), BTreeMap::default());
        match self.files.set_newest_aside() {
            Ok(Some(kept)) => tracing::warn!(app = self.record.spec.name, kept = %kept.display(), "image kept"),
            Ok(None) => {}
            Err(error) => tracing::warn!(app = self.record.spec.name, %error, "setting its image aside"),
        }
    }

    /// Removes the sandbox of a warm app. Its image and its journal stay, as a crash of its init would leave them: the next
    /// daemon makes it a new sandbox.
    pub(super) async fn put_away(&mut self) -> Result<(), String> {
        if !matches!(self.app.phase(), torpor_lifecycle::Phase::Warm(_)) {
            return Err(format!("it is {}", self.app.phase().name()));
        }
        (self.watch, self.asleep, self.cached_image, self.init) = (None, None, None, None);
        if let Some(sandbox) = self.sandbox.take() {
            let destroyed = tokio::task::spawn_blocking(move || sandbox.destroy()).await;
            let destroyed = destroyed.map_err(|error| error.to_string())?;
            destroyed.map_err(|error| chain(&error).to_string())?;
        }
        self.after_exit().await;
        Ok(())
    }

    fn hold_stored(&mut self, stored: &Stored, taken: TakenUp) -> io::Result<Option<Millis>> {
        let TakenUp { sandbox, output, reopened } = taken;
        let wake_at = stored.wake_at();
        self.journal.record(Phase::Warm { generation: stored.generation(), wake_at })?;
        self.pump_output(output);
        self.hold_sandbox(Arc::new(sandbox))?;
        self.keep_only(stored.generation());
        let warm = Warm {
            image: stored.path().to_owned(),
            generation: stored.generation(),
            image_bytes: stored.bytes(),
            wake_at,
            warnings: Vec::new(),
        };
        let app = WarmApp::new(warm, reopened.watch);
        let written = std::fs::metadata(stored.path()).and_then(|file| file.modified());
        self.hold(Sleeping::Warm(Box::new(app)), written.unwrap_or(SystemTime::UNIX_EPOCH));
        Ok(wake_at.map(clock::millis))
    }
}

async fn take_up(
    record: &Arc<AppRecord>,
    files: &AppFiles,
    shared: &Arc<Shared>,
    stored: &Arc<Stored>,
) -> Result<TakenUp, StartError> {
    let (prepared, output_stdio, output) = {
        let (record, files, shared, stored) = (record.clone(), files.clone(), shared.clone(), stored.clone());
        start::blocking(move || {
            // What a worker that was killed may have left, or a sandbox whose init is gone.
            let hierarchies = shared.launcher.hierarchies();
            torpor_sandbox::destroy_leftovers(hierarchies, &shared.config.instance, &record.id, &files.run)?;
            let spec = start::sandbox_spec(&record, &files, &shared)?;
            // Its memory is worth more than the limit, which holds again when it is started afresh.
            let limit = start::disk_limit(&record, &shared);
            if let Err(error) = crate::disk::prepare(&shared.disks, &record.id, &files, limit) {
                tracing::warn!(app = record.spec.name, error = %torpor_api::error::chain(&error), "its disk limit");
            }
            let (stdio, output) = start::stdio().map_err(StartError::Pipe)?;
            let [monotonic_ns, boottime_ns] = stored.clock_offsets_ns();
            let clocks = Some(Clocks { monotonic_ns, boottime_ns });
            let held = Some([output[0].as_fd(), output[1].as_fd()]);
            let prepared = Sandbox::prepare_empty(&shared.launcher, &spec, stored.initial(), clocks, held)?;
            Ok((prepared, stdio, output))
        })
        .await?
    };
    let prepared = start::attach(record, shared, prepared).await?;
    let (record, files, shared, stored) = (record.clone(), files.clone(), shared.clone(), stored.clone());
    start::blocking(move || {
        start::write_record(&files, prepared.record())?;
        let sandbox = prepared.start()?;
        let home = home(&sandbox).map_err(|error| StartError::Files(files.run.clone(), error))?;
        let mut reopened = stored.reopen(&home).map_err(|error| StartError::Stored(Box::new(error)))?;
        let [_, output_end, error_end] = output_stdio;
        let standard = stored.standard().into_iter().zip([sandbox.null_device()?, output_end, error_end]);
        let standard = standard.filter_map(|(place, fd)| Some((place?, fd)));
        let outside: Vec<(u32, OwnedFd)> = standard.collect();
        let all = reopened.files.iter().map(|(place, fd)| (*place, fd.as_fd()));
        let all: Vec<_> = all.chain(outside.iter().map(|(place, fd)| (*place, fd.as_fd()))).collect();
        let parked = KeeperParking { shared: &shared, id: &record.id }.park(&all);
        parked.map_err(|error| StartError::Files(files.run.clone(), error))?;
        if let Err(error) = parking::park_output(&shared, &record.id, [output[0].as_fd(), output[1].as_fd()]) {
            tracing::warn!(app = record.spec.name, error = %chain(&error), "parking its output");
        }
        reopened.files.clear();
        Ok(TakenUp { sandbox, output, reopened })
    })
    .await
}
