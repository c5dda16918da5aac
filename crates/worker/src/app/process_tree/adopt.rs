//! Across a restart of the worker: finding an app again.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;

use torpor_api::worker::Desired;
use torpor_engine::{Freezer, ParkedByWorker, Phase, Recovered, Source, Target, Warm, Watch, recover};
use torpor_lifecycle::{Exit, Found, Text};
use torpor_sandbox::cgroup::Cgroup;
use torpor_sandbox::{Sandbox, SandboxError, SandboxRecord};
use torpor_store::{ImageError, ImageFile};

use super::adopt_error::{AdoptError, is_lost, is_ours};
use super::exit::exit_of;
use super::freezer::{SandboxFreezer, is_to_be_frozen};
use super::infer_phase::infer;
use super::lazy::LazyPagers;
use super::sleep_state::{SleepState, WarmApp};
use super::texts::{chain, text};
use super::{ProcessTree, contexts, parked};
use crate::app::workload::Adoption;
use crate::clock;
use crate::faults::SandboxStep;
use crate::probes::Sockets;

impl ProcessTree {
    /// Finds what an earlier worker left of the app.
    ///
    /// # Errors
    /// Why that cannot be told now. Nothing of the app was changed then, or only so that it can be tried again.
    pub(super) async fn find(&mut self) -> Result<Adoption, Text> {
        let shared = self.shared.clone();
        tokio::task::block_in_place(|| shared.faults.made(SandboxStep::Begun)).map_err(text)?;
        let record = read_record(&self.files.sandbox_record(), &self.record.id)
            .map_err(|error| text(format!("reading the record of its sandbox: {error}")))?;
        let Some(record) = record else { return self.adopt_unrecorded().await };
        let sandbox = match Sandbox::adopt(self.shared.launcher.hierarchies(), record.clone()) {
            Ok(sandbox) => Arc::new(sandbox),
            Err(error @ SandboxError::Gone { .. }) => {
                tracing::info!(app = self.record.spec.name, error = %chain(&error), "its processes have ended");
                return Ok(self.adopt_ended(&record).await);
            }
            Err(error) => return Err(chain(&error)),
        };
        self.hold_sandbox(sandbox.clone()).map_err(|error| text(format!("watching its sandbox: {error}")))?;
        tokio::task::block_in_place(|| self.adopt_output(Some(&sandbox)));
        self.adopt_network().await;
        self.settle().await
    }

    /// Its sandbox has ended.
    async fn adopt_ended(&mut self, record: &SandboxRecord) -> Adoption {
        let hierarchies = self.shared.launcher.hierarchies();
        let cgroup = Cgroup::at(hierarchies, &self.shared.config.instance, &self.record.id);
        let limit = self.record.spec.limits.memory.map(|limit| limit.0);
        let exit = exit_of(record.exit_status().ok(), cgroup.oom_kills().unwrap_or(0), limit);
        tokio::task::block_in_place(|| self.adopt_output(None));
        // A warm app has no processes that could have ended: its sandbox is gone, its image is not.
        if self.shared.config.for_teardown {
            self.clean_up_sandbox().await;
            return Adoption::default();
        }
        match self.adopt_boot_image().await {
            Some(found) => Adoption::found(found),
            None => self.gone(exit).await,
        }
    }

    /// There is no record of its sandbox.
    async fn adopt_unrecorded(&mut self) -> Result<Adoption, Text> {
        if self.shared.config.for_teardown {
            // What the next daemon makes a sandbox for needs none to be put away.
            return Ok(Adoption::default());
        }
        let ended = self.end_unrecorded().await?;
        if let Some(found) = self.adopt_boot_image().await {
            return Ok(Adoption::found(found));
        }
        if ended {
            return Ok(self.gone(Exit::Unknown).await);
        }
        self.give_up_images("nothing but this image was left of it, and it cannot be used");
        Ok(Adoption::default())
    }

    /// Ends processes of an app of whose sandbox there is no record: they cannot be taken over. Whether its memory was lost with them;
    /// its images are kept for inspection then.
    async fn end_unrecorded(&mut self) -> Result<bool, Text> {
        let name = self.record.spec.name.clone();
        let cgroup = Cgroup::at(self.shared.launcher.hierarchies(), &self.shared.config.instance, &self.record.id);
        let processes = match cgroup.processes() {
            Ok(pids) => pids.len(),
            Err(error) if error.is_gone() => 0,
            Err(error) => return Err(chain(&error)),
        };
        if processes == 0 {
            return Ok(false);
        }
        let unknown = |error: io::Error| text(format!("looking for its image: {error}"));
        let image_is_truth = match self.journal.read().map_err(unknown)? {
            Some(Phase::Ending { .. } | Phase::Warm { .. }) => true,
            Some(Phase::Awake | Phase::Dropping { .. } | Phase::Dozing { .. } | Phase::Lazy { .. }) => false,
            // As it is inferred where there is a record.
            None => match self.files.images.newest(self.owner()).map_err(unknown)? {
                Some(newest) => match ImageFile::open_generation(&newest.path, newest.generation()) {
                    Ok(image) => image.is_complete() && is_to_be_frozen(&cgroup).map_err(unknown)?,
                    Err(ImageError::Read(_, error)) if is_ours(&error) => return Err(unknown(error)),
                    Err(_) => false,
                },
                None => false,
            },
        };
        tracing::error!(app = name, processes, "the record of its sandbox is lost: its processes are ended");
        self.clean_up_sandbox().await;
        let had_image = self.files.images.newest(self.owner()).is_ok_and(|newest| newest.is_some());
        if image_is_truth || !had_image {
            return Ok(false);
        }
        self.lose_images("the record of its sandbox was lost while it dozed");
        Ok(true)
    }

    /// Its rules may have been removed while no worker lived.
    async fn adopt_network(&self) {
        let wanted = super::sandbox_spec::network(&self.record.spec);
        if let Err(error) = self.shared.network.adopt(self.record.index, &wanted).await {
            tracing::error!(app = self.record.spec.name, error = %chain(&error), "taking over its network");
        }
    }

    /// Goes on reading what the app writes, beginning with what it wrote while no worker lived. Where the keeper was killed
    /// too, the reading ends are found at the init of its sandbox, and parked again.
    fn adopt_output(&mut self, sandbox: Option<&Sandbox>) {
        let (id, name) = (&self.record.id, &self.record.spec.name);
        match parked::parked_output(&self.shared, id) {
            Ok(Some(output)) => return self.pump_output(output),
            Ok(None) => {}
            Err(error) => tracing::warn!(app = name, error = %chain(&error), "finding its output"),
        }
        match sandbox.map(Sandbox::output) {
            Some(Ok(Some(output))) => {
                let held = [output[0].as_fd(), output[1].as_fd()];
                if let Err(error) = parked::park_output(&self.shared, id, held) {
                    tracing::warn!(app = name, error = %chain(&error), "parking its output again");
                }
                self.pump_output(output);
            }
            // Its sandbox has ended, or was made by a version whose init holds no output.
            None | Some(Ok(None)) => tracing::warn!(app = name, "its output is lost with the keeper"),
            Some(Err(error)) => tracing::warn!(app = name, %error, "finding its output at its init"),
        }
    }

    /// Its memory is complete: images that lie here are of wakes and sleeps that are over.
    fn nothing_found(&mut self) {
        match self.files.images.clean(None, self.owner()) {
            Ok(next) => self.generation = next,
            Err(error) => tracing::warn!(app = self.record.spec.name, %error, "cleaning up its images"),
        }
    }

    /// It has no processes, and no image that can be used: what lies here is kept for inspection, unless it ran.
    fn give_up_images(&mut self, reason: &str) {
        if !matches!(self.journal.read(), Ok(Some(Phase::Awake | Phase::Lazy { .. }))) {
            self.lose_images(reason);
        }
        self.nothing_found();
    }

    async fn gone(&mut self, exit: Exit) -> Adoption {
        self.give_up_images("its processes have ended while it slept");
        self.clean_up_sandbox().await;
        let found = (self.record.desired == Desired::Up).then_some(Found::Gone(exit));
        Adoption { found, ..Adoption::default() }
    }

    /// Removes what is left of a sandbox whose init is gone.
    async fn clean_up_sandbox(&mut self) {
        if let Err(error) = self.destroy_leftovers().await {
            tracing::warn!(app = self.record.spec.name, %error, "cleaning up its sandbox");
        }
        self.after_exit().await;
    }

    /// Brings the app to a known state by its journal.
    async fn settle(&mut self) -> Result<Adoption, Text> {
        let found = tokio::task::block_in_place(|| self.recovered());
        match found {
            Ok((Recovered::Running, _)) => {
                self.nothing_found();
                self.runs_again();
                Ok(Adoption::found(Found::Running))
            }
            Ok((Recovered::Lazy, _)) => {
                if let Some(wake) = &self.lazy {
                    self.keep_only(wake.generation());
                }
                self.runs_again();
                Ok(Adoption::found(Found::Running))
            }
            Ok((Recovered::Dozing(asleep), _)) => {
                self.keep_only(asleep.image.generation());
                let next_timer = asleep.wake_at.map(clock::millis);
                // The old worker may have taken an event and died before it had woken the app.
                let awaited = since_then(asleep.watch.ready_now());
                self.hold_since_written(SleepState::Dozing(asleep));
                Ok(Adoption { awaited, ..Adoption::found(Found::Dozing { next_timer }) })
            }
            Ok((Recovered::Warm(warm), watch)) => self.found_warm(warm, watch),
            Err(AdoptError::Unknown(reason)) => Err(reason),
            Err(AdoptError::Lost(reason)) => {
                tracing::error!(app = self.record.spec.name, %reason, "its memory cannot be brought back");
                let reason = if self.quarantine_images() { self.lost_because(&reason) } else { reason };
                self.nothing_found();
                Ok(Adoption { lost: Some(reason), ..Adoption::found(Found::Running) })
            }
        }
    }

    /// Its processes are there, however deep it slept.
    fn runs_again(&mut self) {
        // Whatever is parked of its files, it has itself.
        self.forget_parked();
        if let Some(sandbox) = &self.run.sandbox
            && let Err(error) = sandbox.processes_are_back()
        {
            tracing::error!(app = self.record.spec.name, error = %chain(&error), "telling its init");
        }
    }

    /// Its processes are ended. Where the keeper has ended too, its open files are lost, and it is housed as after a reboot.
    /// Without what an earlier worker has watched, nobody knows what came: it is woken.
    fn found_warm(&mut self, warm: Warm, watch: Option<Watch>) -> Result<Adoption, Text> {
        let lost = watch.is_none();
        let watch =
            watch.map_or_else(Watch::none, Ok).map_err(|error| text(format!("watching what it waits for: {error}")))?;
        self.keep_only(warm.image.generation());
        let next_timer = warm.wake_at.map(clock::millis);
        let ready = match parked::parked_files(&self.shared, &self.record.id) {
            Ok(files) => watch.ready_among(files.values().map(|file| &**file)),
            Err(error) => Err(io::Error::other(error)),
        };
        self.hold_since_written(SleepState::Warm(Box::new(WarmApp::new(warm, watch))));
        let awaited = if lost { Some(text("what wakes it was lost")) } else { since_then(ready) };
        Ok(Adoption { awaited, ..Adoption::found(Found::Warm { next_timer }) })
    }

    pub(super) fn keep_only(&mut self, generation: u64) {
        match self.files.images.clean(Some(generation), self.owner()) {
            Ok(next) => self.generation = next,
            Err(error) => tracing::warn!(app = self.record.spec.name, %error, "cleaning up its images"),
        }
    }

    pub(super) fn hold_since_written(&mut self, asleep: SleepState) {
        let written = asleep.image().info().ok().and_then(|info| info.written);
        // Where the file system tells no time, it counts as the one that sleeps longest.
        let since = written.unwrap_or(std::time::SystemTime::UNIX_EPOCH);
        self.hold(asleep, since);
    }

    /// What the engine makes of it, and what was watched where that outlives its processes.
    pub(super) fn recovered(&mut self) -> Result<(Recovered, Option<Watch>), AdoptError> {
        let Some(sandbox) = self.run.sandbox.clone() else {
            return Err(AdoptError::Unknown(text("its sandbox is not held")));
        };
        let freezer = SandboxFreezer::of(&sandbox);
        let unknown = |what: &str, error: io::Error| AdoptError::Unknown(text(format!("{what}: {error}")));
        let known = self.journal.read().map_err(|error| unknown("reading its phase", error))?;
        let phase = match known {
            Some(phase) => phase,
            None => self.infer_phase(&freezer)?,
        };
        let mut watch = match parked::parked_watch(&self.shared, &self.record.id) {
            Ok(parked) => parked.map(|(watch, deferred)| {
                self.sleep.deferred = deferred;
                watch
            }),
            Err(error) => {
                tracing::warn!(app = self.record.spec.name, error = %chain(&error), "finding its descriptors");
                None
            }
        };
        if known.is_none() {
            // When its timers are due is lost as well: it is woken.
            watch = None;
        }
        let (generation, warm) = match phase {
            Phase::Awake => (0, false),
            Phase::Dropping { generation } | Phase::Dozing { generation, .. } | Phase::Lazy { generation } => {
                (generation, false)
            }
            Phase::Ending { generation, .. } | Phase::Warm { generation, .. } => (generation, true),
        };
        let kept = if warm { watch.take() } else { None };
        let image = self.files.images.image(generation);
        // One that is lazy has run since: its image must stay consumed.
        if !matches!(phase, Phase::Awake | Phase::Lazy { .. }) {
            // The old worker may have died on the way to `Awake`.
            image.unconsume().map_err(|error| unknown(&image.path().display().to_string(), error))?;
        }
        let owner = self.owner();
        // A complete image that the app has outrun must not be found after a power cut that comes when it has run on.
        let outrun = match phase {
            Phase::Awake => Some(None),
            Phase::Lazy { generation } => Some(Some(generation)),
            _ => None,
        };
        if let Some(keep) = outrun {
            let cleaned = self.files.images.clean(keep, owner).and_then(|_| self.files.images.sync());
            cleaned.map_err(|error| unknown("removing old images", error))?;
        }
        let target = Target {
            app: owner.app,
            epoch: owner.epoch,
            boot: owner.boot,
            freezer: &freezer,
            journal: &*self.journal,
            faults: &self.shared.faults,
        };
        let contexts = match phase {
            Phase::Dozing { .. } | Phase::Lazy { .. } => contexts::deposited(&sandbox, generation),
            _ => Ok(None),
        };
        // An app that is lazy cannot go on without them.
        let contexts = contexts.map_err(|error| unknown("finding its userfaultfd contexts", error))?;
        if contexts.is_none() && matches!(phase, Phase::Dropping { .. } | Phase::Dozing { .. }) {
            // It may have fallen asleep while it missed pages of an earlier image: what this one brings back would wait for a pager.
            sandbox.clear_deposits().map_err(|error| unknown("closing its userfaultfd contexts", error))?;
        }
        let pagers = LazyPagers::new(self, &sandbox, image, "");
        let parked = ParkedByWorker { watch, contexts };
        let recovered = recover(&target, phase, &self.files.images, parked, &pagers);
        self.lazy = pagers.into_wake();
        match (&recovered, &self.lazy) {
            (Ok(_), Some(lazy)) => lazy.thawed(),
            // The next attempt has a thread of its own.
            (Err(_), Some(lazy)) => lazy.stop(),
            (_, None) => {}
        }
        let found = match recovered {
            Ok(recovered) => Ok((recovered, kept)),
            // Nothing to freeze any more: it has ended, which its init will tell.
            Err(_) if !warm && freezer.processes().is_ok_and(|pids| pids.is_empty()) => {
                if !matches!(phase, Phase::Awake | Phase::Lazy { .. }) {
                    self.lose_images("its processes have ended while it slept");
                }
                Ok((Recovered::Running, None))
            }
            Err(error) if is_lost(&error, !warm) => Err(AdoptError::Lost(chain(&error))),
            Err(error) => return Err(AdoptError::Unknown(chain(&error))),
        };
        if !matches!(found, Ok((Recovered::Dozing(_) | Recovered::Warm(_), _))) {
            crate::probes::undefer(&std::mem::take(&mut self.sleep.deferred), &Sockets::OfProcesses);
        }
        found
    }

    /// Quarantines all its images, so that none is used again; tells `lost` where there was one that could have been.
    pub(super) fn lose_images(&self, reason: &str) {
        if self.quarantine_images() && self.record.desired == Desired::Up {
            self.report_lost(reason);
        }
    }

    /// Quarantines all its images; whether there was one.
    pub(super) fn quarantine_images(&self) -> bool {
        let name = &self.record.spec.name;
        let kept = self.files.images.quarantine_all(self.owner()).unwrap_or_else(|error| {
            tracing::error!(app = name, %error, "quarantining its images");
            Vec::new()
        });
        for image in &kept {
            tracing::warn!(app = name, kept = %image.display(), "its image is quarantined");
        }
        !kept.is_empty()
    }

    pub(super) fn report_lost(&self, reason: &str) {
        let reason = self.lost_because(reason).to_string();
        self.shared.services.events.emit(&self.record.spec.name, "lost", reason, BTreeMap::default());
    }

    /// Why its memory is lost, and what is left of it.
    pub(super) fn lost_because(&self, reason: &str) -> Text {
        text(format!("{reason}. The file is kept for inspection (`torpor image ls`); nothing uses it"))
    }

    /// The phase of an app whose phase file is lost.
    fn infer_phase(&self, freezer: &SandboxFreezer<'_>) -> Result<Phase, AdoptError> {
        let lazy = self.run.sandbox.as_ref().map_or(Ok(None), |sandbox| contexts::found_lazy(sandbox));
        let lazy =
            lazy.map_err(|error| AdoptError::Unknown(text(format!("finding its userfaultfd contexts: {error}"))))?;
        let phase = infer(&self.files, self.owner(), freezer, lazy)?;
        if phase != Phase::Awake {
            let app = &self.record.spec.name;
            tracing::error!(app, ?phase, "its phase was lost, and is inferred from its image and its processes");
        }
        Ok(phase)
    }
}

/// What has happened since it fell asleep: the old worker may have taken an event and died before it had woken the app.
fn since_then(ready: io::Result<Option<Source>>) -> Option<Text> {
    match ready {
        Ok(None) => None,
        Ok(Some(source)) => Some(text(format!("an event on {} of process {}", source.what, source.pid))),
        Err(error) => Some(text(format!("its descriptors cannot be looked at: {error}"))),
    }
}

/// The record of the sandbox of app `id`. None: there is none, or there is something else in its place, which counts as lost.
fn read_record(path: &Path, id: &str) -> io::Result<Option<SandboxRecord>> {
    let read = crate::files::read(path).and_then(|bytes| Ok(serde_json::from_slice::<SandboxRecord>(&bytes)?));
    let error = match read {
        Ok(record) if record.id == id => return Ok(Some(record)),
        Ok(_) => io::Error::new(io::ErrorKind::InvalidData, "it is the record of another app's sandbox"),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) if is_ours(&error) => return Err(error),
        Err(error) => error,
    };
    // No regular file, or contents that are no record of this app's.
    tracing::error!(path = %path.display(), %error, "the record of a sandbox is damaged");
    Ok(None)
}
