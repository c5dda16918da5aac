//! Across a restart of the worker: finding an app again.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;

use torpor_engine::{Freezer, Phase, Recovered, Source, Target, Warm, Watch, recover};
use torpor_lifecycle::{Event, Exit, Found};
use torpor_sandbox::cgroup::Cgroup;
use torpor_sandbox::{Sandbox, SandboxRecord};

use super::freezer::SandboxFreezer;
use super::inferred::infer;
use super::operate::{chain, exit_of, text};
use super::parking;
use super::sleeping::{Sleeping, WarmApp};
use super::task::Task;
use crate::clock;
use crate::faults::SandboxStep;
use crate::probes::Sockets;

impl Task {
    /// First thing of a task: finds what an earlier worker left of the app.
    pub(super) async fn take_over(&mut self) {
        let shared = self.shared.clone();
        if let Err(error) = tokio::task::block_in_place(|| shared.faults.made(SandboxStep::Begun)) {
            tracing::error!(app = self.record.spec.name, %error, "adopting it");
            return;
        }
        let record = match crate::files::read(&self.files.sandbox_record()) {
            Ok(bytes) => bytes,
            // What the next daemon makes a sandbox for needs none to be put away.
            Err(error) if error.kind() == io::ErrorKind::NotFound && self.shared.config.for_teardown => return,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let lost = self.end_unrecorded().await;
                if !self.take_up_stored().await {
                    match lost {
                        true => self.gone(Exit::Unknown).await,
                        false => self.nothing_found(),
                    }
                }
                return;
            }
            Err(error) => {
                tracing::error!(app = self.record.spec.name, %error, "reading the record of its sandbox");
                return;
            }
        };
        let record: SandboxRecord = match serde_json::from_slice(&record) {
            Ok(record) => record,
            Err(error) => {
                tracing::error!(app = self.record.spec.name, %error, "reading the record of its sandbox");
                self.gone(Exit::Unknown).await;
                return;
            }
        };
        let sandbox = match Sandbox::adopt(self.shared.launcher.hierarchies(), record.clone()) {
            Ok(sandbox) => sandbox,
            Err(error) => {
                tracing::info!(app = self.record.spec.name, error = %chain(&error), "its processes have ended");
                let hierarchies = self.shared.launcher.hierarchies();
                let cgroup = Cgroup::at(hierarchies, &self.shared.config.instance, &self.record.id);
                let limit = self.record.spec.limits.memory.map(|limit| limit.0);
                let exit = exit_of(record.exit_status().ok(), cgroup.oom_kills().unwrap_or(0), limit);
                tokio::task::block_in_place(|| self.take_over_output(None));
                // A warm app has no processes that could have ended: its sandbox is gone, its image is not.
                if self.shared.config.for_teardown {
                    self.clean_up_sandbox().await;
                } else if !self.take_up_stored().await {
                    self.gone(exit).await;
                }
                return;
            }
        };
        tokio::task::block_in_place(|| self.take_over_output(Some(&sandbox)));
        if let Err(error) = self.hold_sandbox(Arc::new(sandbox)) {
            tracing::error!(app = self.record.spec.name, %error, "taking over its sandbox");
        }
        self.adopt_network().await;
        self.settle().await;
    }

    /// Ends processes of an app of whose sandbox there is no record: they cannot be taken over. Whether it was asleep, so that its
    /// memory is lost; the image is kept for inspection.
    async fn end_unrecorded(&mut self) -> bool {
        let name = self.record.spec.name.clone();
        let cgroup = Cgroup::at(self.shared.launcher.hierarchies(), &self.shared.config.instance, &self.record.id);
        match cgroup.processes() {
            Ok(pids) if pids.is_empty() => return false,
            Ok(pids) => {
                tracing::error!(
                    app = name,
                    processes = pids.len(),
                    "the record of its sandbox is lost: its processes are ended"
                );
            }
            Err(error) if error.is_gone() => return false,
            Err(error) => tracing::warn!(app = name, error = %chain(&error), "looking for its processes"),
        }
        self.clean_up_sandbox().await;
        let complete = |path: &Path| torpor_engine::ImageFile::open(path).is_ok_and(|image| image.is_complete());
        match self.files.newest_image() {
            Ok(Some((image, _))) if !complete(&image) => {}
            Ok(_) => return false,
            Err(error) => {
                tracing::warn!(app = name, %error, "looking for its image");
                return false;
            }
        }
        self.set_newest_image_aside();
        self.nothing_found();
        let reason = "the record of its sandbox was lost while it dozed".to_owned();
        self.shared.events.emit(&name, "lost", reason, std::collections::BTreeMap::default());
        true
    }

    /// Its rules may have been removed while no worker lived.
    async fn adopt_network(&self) {
        let wanted = super::start::network(&self.record.spec);
        if let Err(error) = self.shared.network.adopt(self.record.index, &wanted).await {
            tracing::error!(app = self.record.spec.name, error = %chain(&error), "taking over its network");
        }
    }

    /// Goes on reading what the app writes, beginning with what it wrote while no worker lived. Where the keeper was killed
    /// too, the reading ends are found at the init of its sandbox, and parked again.
    fn take_over_output(&mut self, sandbox: Option<&Sandbox>) {
        let (id, name) = (&self.record.id, &self.record.spec.name);
        match parking::parked_output(&self.shared, id) {
            Ok(Some(output)) => return self.pump_output(output),
            Ok(None) => {}
            Err(error) => tracing::warn!(app = name, error = %chain(&error), "finding its output"),
        }
        match sandbox.map(Sandbox::output) {
            Some(Ok(Some(output))) => {
                let held = [output[0].as_fd(), output[1].as_fd()];
                if let Err(error) = parking::park_output(&self.shared, id, held) {
                    tracing::warn!(app = name, error = %chain(&error), "parking its output again");
                }
                self.pump_output(output);
            }
            // Its sandbox has ended, or was made by a version whose init holds no output.
            None | Some(Ok(None)) => tracing::warn!(app = name, "its output is lost with the keeper"),
            Some(Err(error)) => tracing::warn!(app = name, %error, "finding its output at its init"),
        }
    }

    /// No processes of it: images that lie here belong to nobody.
    fn nothing_found(&mut self) {
        match self.files.clean_images(None) {
            Ok(next) => self.generation = next,
            Err(error) => tracing::warn!(app = self.record.spec.name, %error, "cleaning up its images"),
        }
    }

    async fn gone(&mut self, exit: Exit) {
        self.nothing_found();
        self.clean_up_sandbox().await;
        if self.record.desired == torpor_api::worker::Desired::Up {
            self.tell(Event::TakenOver(Found::Gone(exit))).await;
        }
    }

    /// Removes what is left of a sandbox whose init is gone.
    async fn clean_up_sandbox(&mut self) {
        let shared = self.shared.clone();
        let (id, run) = (self.record.id.clone(), self.files.run.clone());
        let cleaned = tokio::task::block_in_place(|| {
            let hierarchies = shared.launcher.hierarchies();
            torpor_sandbox::destroy_leftovers(hierarchies, &shared.config.instance, &id, &run)
        });
        if let Err(error) = cleaned {
            tracing::warn!(app = self.record.spec.name, error = %chain(&error), "cleaning up its sandbox");
        }
        self.after_exit().await;
    }

    /// Brings the app to a known state by its journal.
    async fn settle(&mut self) {
        let found = tokio::task::block_in_place(|| self.recovered());
        match found {
            Ok((Recovered::Running, _)) => {
                self.nothing_found();
                // Whatever is parked of its files, it has itself.
                self.forget_parked();
                if let Some(sandbox) = &self.sandbox
                    && let Err(error) = sandbox.processes_are_back()
                {
                    tracing::error!(app = self.record.spec.name, error = %chain(&error), "telling its init");
                }
                self.tell(Event::TakenOver(Found::Running)).await;
            }
            Ok((Recovered::Dozing(asleep), _)) => {
                self.keep_only(asleep.generation);
                let next_timer = asleep.wake_at.map(clock::millis);
                // The old worker may have taken an event and died before it had woken the app.
                let ready = asleep.watch.ready_now();
                self.hold_since_written(Sleeping::Dozing(asleep));
                self.tell(Event::TakenOver(Found::Dozing { next_timer })).await;
                self.wake_if(ready).await;
            }
            Ok((Recovered::Warm(warm), watch)) => self.found_warm(warm, watch).await,
            Err(reason) => {
                // Never run it with wrong memory.
                tracing::error!(app = self.record.spec.name, %reason, "its memory cannot be brought back");
                self.tell(Event::TakenOver(Found::Running)).await;
                self.shared.events.emit(&self.record.spec.name, "lost", reason, Default::default());
                self.kill();
            }
        }
    }

    /// Its processes are ended. Where the keeper has ended too, its open files are lost, and it is housed as after a reboot.
    /// Without what an earlier worker has watched, nobody knows what came: it is woken.
    async fn found_warm(&mut self, warm: Warm, watch: Option<Watch>) {
        self.keep_only(warm.generation);
        let next_timer = warm.wake_at.map(clock::millis);
        let lost = watch.is_none();
        let watch = match watch.map_or_else(Watch::none, Ok) {
            Ok(watch) => watch,
            Err(error) => {
                // Without a descriptor for us there is none for it either.
                tracing::error!(app = self.record.spec.name, %error, "watching what it waits for");
                return;
            }
        };
        let ready = match parking::parked_files(&self.shared, &self.record.id) {
            Ok(files) => watch.ready_among(files.values().map(|file| &**file)),
            Err(error) => Err(io::Error::other(error)),
        };
        self.hold_since_written(Sleeping::Warm(Box::new(WarmApp::new(warm, watch))));
        self.tell(Event::TakenOver(Found::Warm { next_timer })).await;
        if self.reviving.is_some() || !self.check_parked() {
            return;
        }
        if lost {
            self.tell(Event::Packet(text("what wakes it was lost"))).await;
        } else {
            self.wake_if(ready).await;
        }
    }

    pub(super) fn keep_only(&mut self, generation: u64) {
        match self.files.clean_images(Some(generation)) {
            Ok(next) => self.generation = next,
            Err(error) => tracing::warn!(app = self.record.spec.name, %error, "cleaning up its images"),
        }
    }

    fn hold_since_written(&mut self, asleep: Sleeping) {
        let written = std::fs::metadata(asleep.image()).and_then(|file| file.modified());
        // Where the file system tells no time, it counts as the one that sleeps longest.
        let since = written.unwrap_or(std::time::SystemTime::UNIX_EPOCH);
        self.hold(asleep, since);
    }

    /// The old worker may have taken an event and died before it had woken the app.
    async fn wake_if(&mut self, ready: io::Result<Option<Source>>) {
        let cause = match ready {
            Ok(None) => return,
            Ok(Some(source)) => format!("an event on {} of process {}", source.what, source.pid),
            Err(error) => format!("its descriptors cannot be looked at: {error}"),
        };
        self.tell(Event::Packet(cause.into())).await;
    }

    /// What the engine makes of it, and what was watched where that outlives its processes.
    pub(super) fn recovered(&mut self) -> Result<(Recovered, Option<Watch>), String> {
        let Some(sandbox) = self.sandbox.clone() else { return Err("it has no processes".to_owned()) };
        let freezer = SandboxFreezer::of(&sandbox);
        let known = self.journal.read().map_err(|error| text(error).to_string())?;
        let phase = match known {
            Some(phase) => phase,
            None => self.infer_phase(&freezer)?,
        };
        let mut watch = match parking::parked_watch(&self.shared, &self.record.id) {
            Ok(parked) => parked.map(|(watch, deferred)| {
                self.deferred = deferred;
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
            Phase::Dropping { generation } | Phase::Dozing { generation, .. } => (generation, false),
            Phase::Ending { generation, .. } | Phase::Warm { generation, .. } => (generation, true),
        };
        let kept = if warm { watch.take() } else { None };
        let image = self.files.image(generation);
        if warm {
            // The old worker may have died on the way to `Awake`.
            self.files.take_back(generation).map_err(|error| format!("{}: {error}", image.display()))?;
        }
        let target = Target {
            app: self.app_number(),
            boot: self.shared.boot,
            freezer: &freezer,
            journal: &*self.journal,
            faults: &self.shared.faults,
        };
        let recovered = recover(&target, phase, &image, watch);
        if !matches!(recovered, Ok(Recovered::Dozing(_) | Recovered::Warm(_))) {
            crate::probes::undefer(&std::mem::take(&mut self.deferred), &Sockets::OfProcesses);
        }
        match recovered {
            Ok(recovered) => Ok((recovered, kept)),
            // Nothing to freeze any more: it has ended, which its init will tell.
            Err(_) if !warm && freezer.processes().is_ok_and(|pids| pids.is_empty()) => Ok((Recovered::Running, None)),
            Err(error) => Err(chain(&error).to_string()),
        }
    }

    /// The phase of an app whose phase file is lost. Where it cannot be known, its image is kept for inspection.
    fn infer_phase(&mut self, freezer: &SandboxFreezer<'_>) -> Result<Phase, String> {
        let name = self.record.spec.name.clone();
        match infer(&self.files, freezer) {
            Ok(Phase::Awake) => Ok(Phase::Awake),
            Ok(phase) => {
                tracing::error!(
                    app = name,
                    ?phase,
                    "its phase was lost, and is inferred from its image and its processes"
                );
                Ok(phase)
            }
            Err(reason) => {
                self.set_newest_image_aside();
                self.nothing_found();
                Err(reason)
            }
        }
    }
}
