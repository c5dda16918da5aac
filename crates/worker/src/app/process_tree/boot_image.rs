//! After a reboot: an app of which only its complete image is left gets its sandbox, its addresses and its open ports again.
//!
//! Which image counts? Only the newest of an app's, and only one whose wake has not begun: a wake renames it on the disk before the
//! app runs. After a crash of the worker alone the journal says more: an image that it does not call the truth is not.
//!
//! ```text
//! image ──▶ sandbox, network, listeners ──▶ warm
//!   │  ▲            │ one of them cannot be made: what there is of them is removed
//!   │  └── again ── warm without a sandbox (`Unhoused`): nobody reaches it, its image is untouched
//!   └─ damaged, or of another app or machine: quarantined, the app starts afresh
//! ```
//! Only what is wrong with the image itself costs an app its memory. A port that another process has, an address or a volume that is
//! missing, and a disk that cannot be read may be there later: the app keeps its image, `explain` says what is in the way, and it is
//! tried again after [`WAKE_RETRY`], or at once when somebody wakes it. Whatever fails or is killed here leaves no process behind, so
//! that the next attempt, and `torpor down`, find the machine as it was.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use torpor_api::spec::WakeBlocked;
use torpor_api::worker::{AppRecord, Desired};
use torpor_engine::{BootImage, BootImageError, Journal, Parking, Phase, Reopened, Warm};
use torpor_lifecycle::{Exit, Found, Millis, Text, WAKE_RETRY, WakeFailure, words};
use torpor_sandbox::{Clocks, Sandbox};
use torpor_store::{ImageError, Owner};

use super::adopt_error::is_ours;
use super::parked::{self, KeeperParking};
use super::sandbox_handle::sandbox_handle;
use super::sandbox_spec::sandbox_spec;
use super::sleep_state::{SleepState, WarmApp};
use super::start_error::StartError;
use super::texts::{chain, text};
use super::{ProcessTree, start};
use crate::app_files::{self, AppFiles};
use crate::clock;
use crate::faults::SandboxStep;
use crate::journal::PhaseFile;
use crate::shared::Shared;

/// What was made for a stored app.
struct RestoredSandbox {
    sandbox: Sandbox,
    output: [OwnedFd; 2],
    reopened: Reopened,
}

/// Why an app that is nothing but an image has no sandbox.
#[derive(Debug)]
pub(super) enum NoSandbox {
    /// Its image is damaged, another's, or of another machine: no attempt can succeed.
    Unusable(Text),
    /// The image is whole; something that its sandbox needs is not there.
    Prevented {
        /// What.
        reason: Text,
        /// It is a listener that cannot be made: an app that starts afresh may do without.
        listener: bool,
    },
}

impl NoSandbox {
    pub(super) fn reason(&self) -> &Text {
        match self {
            Self::Unusable(reason) | Self::Prevented { reason, .. } => reason,
        }
    }

    fn prevented(error: impl Into<Text>) -> Self {
        Self::Prevented { reason: error.into(), listener: false }
    }

    fn of_image(error: &BootImageError) -> Self {
        match error {
            // What cannot be read now need not be damaged.
            BootImageError::Image(ImageError::Read(_, read)) if is_ours(read) => Self::prevented(chain(error)),
            _ => Self::Unusable(chain(error)),
        }
    }

    fn of_start(error: &StartError) -> Self {
        Self::Prevented { reason: chain(error), listener: matches!(error, StartError::Stored(_)) }
    }
}

/// A warm app without a sandbox. No process of it exists, nothing of it is parked.
#[derive(Debug)]
pub(super) struct SandboxRetry {
    reason: Text,
    /// Failures in a row.
    failures: u32,
    again_at: Instant,
}

impl SandboxRetry {
    pub(super) const fn reason(&self) -> &Text {
        &self.reason
    }

    /// When its sandbox is to be tried again.
    pub(super) const fn again_at(&self) -> Instant {
        self.again_at
    }

    /// What is in the way of its sandbox, and what to do, for `explain`.
    pub(super) fn words(&self) -> String {
        let Self { reason, again_at, .. } = self;
        let next = words(again_at.saturating_duration_since(Instant::now()));
        format!(
            "warm, but its sandbox cannot be made, so nobody reaches it: {reason}; put that right (next attempt in {next}, or \
             `torpor wake`), or restart it on its files (`torpor restart`), which gives up its memory"
        )
    }
}

impl ProcessTree {
    /// Takes up an app of which only its image is left, as one that is warm; none: there is no such image, or it cannot be used.
    pub(super) async fn adopt_boot_image(&mut self) -> Option<Found> {
        if self.record.desired != Desired::Up {
            return None;
        }
        self.restore_sandbox().await.map(|next_timer| Found::Stored { next_timer })
    }

    /// Makes a sandbox for an app of which only its image is left, and holds it as a warm one; gives when it wakes by itself.
    /// Where the sandbox cannot be made now, it is warm without one. None: there is no image that can be used.
    pub(super) async fn restore_sandbox(&mut self) -> Option<Option<Millis>> {
        match self.try_restore_sandbox().await {
            Ok(housed) => housed,
            Err(NoSandbox::Prevented { reason, listener }) if !(listener && self.prefers_restart()) => {
                self.retry_sandbox_later(reason);
                Some(None)
            }
            Err(error) => {
                self.lose_boot_image(error.reason());
                None
            }
        }
    }

    /// As [`ProcessTree::restore_sandbox`], but touches nothing of an image that cannot be used, and says why it cannot. After an error
    /// nothing of it is running or set up.
    pub(super) async fn try_restore_sandbox(&mut self) -> Result<Option<Option<Millis>>, NoSandbox> {
        let Some(stored) = tokio::task::block_in_place(|| stored(&self.files, self.owner(), &self.journal))? else {
            return Ok(None);
        };
        // Before there is a record of its sandbox: who finds one without this would take it for an app that runs.
        let warm = Phase::Warm { generation: stored.image().generation(), wake_at: stored.wake_at() };
        self.journal.record(warm).map_err(|error| NoSandbox::prevented(text(error)))?;
        let stored = Arc::new(stored);
        let housed = match build_sandbox(&self.record, &self.files, &self.shared, &stored).await {
            Ok(taken) => self.hold_stored(&stored, taken).await,
            Err(error) => Err(NoSandbox::of_start(&error)),
        };
        match housed {
            Ok(next_timer) => {
                self.sandbox_retry = None;
                Ok(Some(next_timer))
            }
            Err(error) => {
                // Its place in the network, what is parked of it, and the record of its sandbox.
                self.after_exit().await;
                Err(error)
            }
        }
    }

    fn prefers_restart(&self) -> bool {
        self.record.spec.idle.wake_blocked == WakeBlocked::Restart
    }

    /// It is warm, and has no sandbox for now.
    fn retry_sandbox_later(&mut self, reason: Text) {
        let known = self.sandbox_retry.take();
        let failures = known.as_ref().map_or(0, |known| known.failures);
        let again_at = Instant::now() + WAKE_RETRY.delay(failures);
        if known.is_none_or(|known| known.reason != reason) {
            let message = format!("its sandbox cannot be made, and its image is kept: {reason}");
            self.shared.services.events.emit(&self.record.spec.name, "wake-refused", message, BTreeMap::default());
        }
        self.sandbox_retry = Some(SandboxRetry { reason, failures: failures.saturating_add(1), again_at });
    }

    /// Tries again to make the sandbox of an app that has none. With it the app can be reached, and sleeps on.
    /// How it ended, where its image cannot be used.
    pub(super) async fn retry_sandbox(&mut self) -> Option<Exit> {
        match self.attempt_sandbox().await {
            Ok(()) => {
                let message = "its sandbox is made; it can be reached and woken again".to_owned();
                self.shared.services.events.emit(&self.record.spec.name, "warm", message, BTreeMap::default());
                None
            }
            Err(NoSandbox::Unusable(reason)) => Some(Exit::Lost(reason)),
            Err(NoSandbox::Prevented { .. }) => None,
        }
    }

    /// Before a wake: makes the sandbox of an app that has none.
    pub(super) async fn restore_sandbox_for_wake(&mut self) -> Result<(), WakeFailure> {
        if self.sandbox_retry.is_none() {
            return Ok(());
        }
        self.attempt_sandbox().await.map_err(|error| match error {
            NoSandbox::Unusable(reason) => WakeFailure::Damaged(reason),
            NoSandbox::Prevented { reason, listener } if listener && self.prefers_restart() => {
                WakeFailure::Refused(reason)
            }
            NoSandbox::Prevented { reason, .. } => WakeFailure::Passing(reason),
        })
    }

    /// One attempt; after it, what is known of it is up to date.
    async fn attempt_sandbox(&mut self) -> Result<(), NoSandbox> {
        let error = match self.try_restore_sandbox().await {
            Ok(Some(_)) => return Ok(()),
            Ok(None) => NoSandbox::Unusable(text("its image is gone")),
            Err(error) => error,
        };
        match &error {
            NoSandbox::Unusable(reason) => self.lose_boot_image(reason),
            NoSandbox::Prevented { reason, .. } => self.retry_sandbox_later(reason.clone()),
        }
        Err(error)
    }

    /// Its memory is gone; it starts afresh on its files.
    fn lose_boot_image(&mut self, reason: &str) {
        self.sandbox_retry = None;
        tracing::error!(app = self.record.spec.name, %reason, "its image cannot be used; it starts afresh");
        self.report_lost(reason);
        self.quarantine_images();
    }

    /// Removes the sandbox of a warm app. Its image and its journal stay, as a crash of its init would leave them: the next
    /// daemon makes it a new sandbox.
    pub(super) async fn remove_sandbox(&mut self) -> Result<(), String> {
        (self.sleep.watch, self.sleep.state, self.sleep.cached_image, self.run.init) = (None, None, None, None);
        // Peers hear of the end of connections only while the app's network exists. The output ends once the keeper has closed
        // its duplicates.
        tokio::task::block_in_place(|| self.forget_parked());
        if let Some(sandbox) = self.run.sandbox.take() {
            let destroyed = tokio::task::spawn_blocking(move || sandbox.destroy()).await;
            let destroyed = destroyed.map_err(|error| error.to_string())?;
            destroyed.map_err(|error| chain(&error).to_string())?;
        }
        self.after_exit().await;
        Ok(())
    }

    async fn hold_stored(&mut self, stored: &BootImage, taken: RestoredSandbox) -> Result<Option<Millis>, NoSandbox> {
        let RestoredSandbox { sandbox, output, reopened } = taken;
        let wake_at = stored.wake_at();
        let sandbox = Arc::new(sandbox);
        if let Err(error) = self.hold_sandbox(sandbox.clone()) {
            self.take_down(sandbox).await;
            return Err(NoSandbox::prevented(text(error)));
        }
        self.pump_output(output);
        self.keep_only(stored.image().generation());
        let warm = Warm { image: stored.image().clone(), image_bytes: stored.bytes(), wake_at, warnings: Vec::new() };
        let app = WarmApp::new(warm, reopened.watch);
        self.hold_since_written(SleepState::Warm(Box::new(app)));
        Ok(wake_at.map(clock::millis))
    }
}

/// The newest image, if it is complete and nobody has begun to wake from it.
fn stored(files: &AppFiles, owner: Owner, journal: &PhaseFile) -> Result<Option<BootImage>, NoSandbox> {
    let unread = |error: io::Error| NoSandbox::prevented(text(error));
    let image = match journal.read().map_err(unread)? {
        Some(Phase::Awake | Phase::Dropping { .. } | Phase::Dozing { .. } | Phase::Lazy { .. }) => return Ok(None),
        Some(Phase::Ending { generation, .. }) => files.images.image(generation),
        Some(Phase::Warm { generation, .. }) => {
            // A wake that did not come to its end.
            let image = files.images.image(generation);
            image.unconsume().map_err(unread)?;
            image
        }
        None => match files.images.newest_committed(owner).map_err(unread)? {
            Some(newest) => newest,
            None => return Ok(None),
        },
    };
    match BootImage::open_complete(&image, owner.app, owner.epoch) {
        Err(BootImageError::Image(ImageError::Read(_, error))) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        opened => opened.map_err(|error| NoSandbox::of_image(&error)),
    }
}

/// Whether the next daemon finds the app warm, of which no process and no sandbox is there.
pub(crate) fn adopts_boot_image(record: &AppRecord, files: &AppFiles, boot: [u64; 2]) -> bool {
    record.desired == Desired::Up && has_boot_image(record, files, boot)
}

/// Whether an app of which no process and no sandbox is there has an image that the next daemon can use.
pub(crate) fn has_boot_image(record: &AppRecord, files: &AppFiles, boot: [u64; 2]) -> bool {
    let owner = app_files::owner(record, boot);
    let journal = PhaseFile::open(&files.phase(), owner);
    journal.is_ok_and(|journal| matches!(stored(files, owner, &journal), Ok(Some(_))))
}

/// Makes what others can reach of the app. After an error, and after a crash in the middle, there is no process of it that the
/// next attempt does not end.
async fn build_sandbox(
    record: &Arc<AppRecord>,
    files: &AppFiles,
    shared: &Arc<Shared>,
    stored: &Arc<BootImage>,
) -> Result<RestoredSandbox, StartError> {
    let (prepared, output_stdio, output) = {
        let (record, files, shared, stored) = (record.clone(), files.clone(), shared.clone(), stored.clone());
        start::blocking(move || {
            // What a worker that was killed may have left, or a sandbox whose init is gone.
            let hierarchies = shared.launcher.hierarchies();
            torpor_sandbox::destroy_leftovers(hierarchies, &shared.config.instance, &record.id, &files.run)?;
            let spec = sandbox_spec(&record, &files, &shared)?;
            // Its memory is worth more than the limit, which holds again when it is started afresh.
            let limit = crate::disk::limit_of(&record.spec, shared.config.disk_limit_bytes);
            if let Err(error) = crate::disk::prepare(&shared.services.disks, &record.id, &files, limit) {
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
        shared.faults.made(SandboxStep::Recorded).map_err(|error| StartError::Files(files.run.clone(), error))?;
        let sandbox = prepared.start()?;
        match reopen(&sandbox, &record, &files, &shared, &stored, output_stdio, &output) {
            Ok(reopened) => Ok(RestoredSandbox { sandbox, output, reopened }),
            Err(error) => {
                // Nothing ends with it by itself: its init would stay, and keep its name and its cgroup.
                if let Err(error) = sandbox.destroy() {
                    tracing::error!(app = record.spec.name, error = %chain(&error), "taking down its sandbox");
                }
                Err(error)
            }
        }
    })
    .await
}

/// Makes the app's listeners in its sandbox, and parks them with the writing ends of its output.
fn reopen(
    sandbox: &Sandbox,
    record: &AppRecord,
    files: &AppFiles,
    shared: &Shared,
    stored: &BootImage,
    output_stdio: [OwnedFd; 3],
    output: &[OwnedFd; 2],
) -> Result<Reopened, StartError> {
    let failed = |error| StartError::Files(files.run.clone(), error);
    let home = sandbox_handle(sandbox).map_err(failed)?;
    let mut reopened = stored.reopen(&home).map_err(|error| StartError::Stored(Box::new(error)))?;
    let [_, output_end, error_end] = output_stdio;
    let standard = stored.standard().into_iter().zip([sandbox.null_device()?, output_end, error_end]);
    let standard = standard.filter_map(|(place, fd)| Some((place?, fd)));
    let outside: Vec<(u32, OwnedFd)> = standard.collect();
    let all = reopened.files.iter().map(|(place, fd)| (*place, fd.as_fd()));
    let all: Vec<_> = all.chain(outside.iter().map(|(place, fd)| (*place, fd.as_fd()))).collect();
    let fault = |error| StartError::Stored(Box::new(BootImageError::Enter("making its listeners", error)));
    shared.faults.made(SandboxStep::Reopened).map_err(fault)?;
    KeeperParking { shared, id: &record.id }.park(&all).map_err(failed)?;
    if let Err(error) = parked::park_output(shared, &record.id, [output[0].as_fd(), output[1].as_fd()]) {
        tracing::warn!(app = record.spec.name, error = %chain(&error), "parking its output");
    }
    reopened.files.clear();
    Ok(reopened)
}
