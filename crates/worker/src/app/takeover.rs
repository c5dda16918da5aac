//! Across a restart of the worker: what is parked in the keeper, and finding an app again.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use torpor_engine::{Freezer, Recovered, Source, Target, Watch, recover};
use torpor_lifecycle::{Event, Exit, Found};
use torpor_sandbox::cgroup::Cgroup;
use torpor_sandbox::{Sandbox, SandboxRecord};

use super::operate::{SandboxFreezer, chain, exit_of, text};
use super::task::Task;
use crate::clock;
use crate::probes::Deferred;
use crate::shared::Shared;

/// Keys of an app's parked descriptors begin with this.
pub(super) fn prefix(id: &str) -> String {
    format!("app/{id}/")
}

/// The epoll descriptor of a sleeping app.
pub(super) fn watch_key(id: &str) -> String {
    format!("app/{id}/watch")
}

fn output_key(id: &str) -> String {
    format!("app/{id}/output")
}

/// What is parked with the epoll descriptor.
#[derive(Serialize, Deserialize)]
struct Parked {
    sources: Vec<ParkedSource>,
    deferred: Vec<Deferred>,
}

/// [`Source`], in a blob.
#[derive(Serialize, Deserialize)]
struct ParkedSource {
    pid: i32,
    fd: i32,
    what: String,
    awaited: bool,
    events: u32,
}

/// Parks the epoll descriptor of a sleeping app, so that events are collected while no worker lives.
pub(super) fn park_watch(
    shared: &Shared,
    id: &str,
    watch: &Watch,
    deferred: &[Deferred],
) -> Result<(), torpor_keeper::Error> {
    let source = |source: &Source| {
        let Source { pid, fd, what, awaited, events } = source.clone();
        ParkedSource { pid, fd, what, awaited, events }
    };
    let parked = Parked { sources: watch.sources().iter().map(source).collect(), deferred: deferred.to_vec() };
    // Numbers and text always serialise. What does not fit is refused by the keeper; then a new worker wakes the app.
    let blob = serde_json::to_vec(&parked).unwrap_or_default();
    shared.keeper.put(&watch_key(id), &blob, &[watch.as_fd()])
}

fn parked_watch(shared: &Shared, id: &str) -> Result<Option<(Watch, Vec<Deferred>)>, torpor_keeper::Error> {
    let Some(parked) = shared.keeper.get(&watch_key(id))? else { return Ok(None) };
    let (Some(epoll), Ok(Parked { sources, deferred })) =
        (parked.fds.into_iter().next(), serde_json::from_slice(&parked.blob))
    else {
        return Ok(None);
    };
    let source = |source: ParkedSource| {
        let ParkedSource { pid, fd, what, awaited, events } = source;
        Source { pid, fd, what, awaited, events }
    };
    let sources = sources.into_iter().map(source).collect();
    Ok(Some((Watch::from_parts(epoll, sources), deferred)))
}

/// Parks the reading ends of an app's output.
pub(super) fn park_output(shared: &Shared, id: &str, output: &[OwnedFd; 2]) -> Result<(), torpor_keeper::Error> {
    let fds: Vec<BorrowedFd<'_>> = output.iter().map(AsFd::as_fd).collect();
    shared.keeper.put(&output_key(id), b"", &fds)
}

impl Task {
    /// First thing of a task: finds what an earlier worker left of the app.
    pub(super) async fn take_over(&mut self) {
        let record = match fs::read(self.files.sandbox_record()) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.nothing_found();
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
                self.take_over_output();
                self.gone(exit).await;
                return;
            }
        };
        self.take_over_output();
        if let Err(error) = self.hold_sandbox(Arc::new(sandbox)) {
            tracing::error!(app = self.record.spec.name, %error, "taking over its sandbox");
        }
        self.settle().await;
    }

    /// Goes on reading what the app writes, beginning with what it wrote while no worker lived.
    fn take_over_output(&mut self) {
        match self.shared.keeper.get(&output_key(&self.record.id)) {
            Ok(Some(parked)) => {
                if let Ok(output) = <[OwnedFd; 2]>::try_from(parked.fds) {
                    self.pump_output(output);
                }
            }
            Ok(None) => tracing::warn!(app = self.record.spec.name, "its output was not parked"),
            Err(error) => tracing::warn!(app = self.record.spec.name, error = %chain(&error), "finding its output"),
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
        if self.record.desired == torpor_api::worker::Desired::Up {
            self.tell(Event::TakenOver(Found::Gone(exit))).await;
        }
    }

    /// Brings the app to a known state by its journal.
    async fn settle(&mut self) {
        let found = tokio::task::block_in_place(|| self.recovered());
        match found {
            Ok(Recovered::Running) => {
                self.nothing_found();
                self.tell(Event::TakenOver(Found::Running)).await;
            }
            Ok(Recovered::Dozing(asleep)) => {
                match self.files.clean_images(Some(asleep.generation)) {
                    Ok(next) => self.generation = next,
                    Err(error) => tracing::warn!(app = self.record.spec.name, %error, "cleaning up its images"),
                }
                let next_timer = asleep.wake_at.map(clock::millis);
                // The old worker may have taken an event and died before it had woken the app.
                let ready = asleep.watch.ready_now();
                let written = fs::metadata(&asleep.image).and_then(|file| file.modified());
                // Where the file system tells no time, it counts as the one that sleeps longest.
                let since = written.unwrap_or(std::time::SystemTime::UNIX_EPOCH);
                self.hold_asleep(*asleep, since);
                self.tell(Event::TakenOver(Found::Dozing { next_timer })).await;
                let cause = match ready {
                    Ok(None) => return,
                    Ok(Some(source)) => format!("an event on {} of process {}", source.what, source.pid),
                    Err(error) => format!("its descriptors cannot be looked at: {error}"),
                };
                self.tell(Event::Packet(cause.into())).await;
            }
            Ok(Recovered::Warm(_)) => {
                // Nothing puts an app there yet.
                tracing::error!(app = self.record.spec.name, "found warm, which this version cannot wake");
            }
            Err(reason) => {
                // Never run it with wrong memory.
                tracing::error!(app = self.record.spec.name, %reason, "its memory cannot be brought back");
                self.tell(Event::TakenOver(Found::Running)).await;
                self.shared.events.emit(&self.record.spec.name, "lost", reason, Default::default());
                self.kill();
            }
        }
    }

    fn recovered(&mut self) -> Result<Recovered, String> {
        let Some(sandbox) = self.sandbox.clone() else { return Err("it has no processes".to_owned()) };
        let freezer = SandboxFreezer(&sandbox);
        let phase = self.journal.read().map_err(|error| text(error).to_string())?;
        let phase = phase.unwrap_or(torpor_engine::Phase::Awake);
        let watch = match parked_watch(&self.shared, &self.record.id) {
            Ok(parked) => parked.map(|(watch, deferred)| {
                self.deferred = deferred;
                watch
            }),
            Err(error) => {
                tracing::warn!(app = self.record.spec.name, error = %chain(&error), "finding its descriptors");
                None
            }
        };
        let generation = match phase {
            torpor_engine::Phase::Awake => 0,
            torpor_engine::Phase::Dropping { generation }
            | torpor_engine::Phase::Dozing { generation, .. }
            | torpor_engine::Phase::Ending { generation, .. }
            | torpor_engine::Phase::Warm { generation, .. } => generation,
        };
        let target = Target {
            app: self.app_number(),
            boot: self.shared.boot,
            freezer: &freezer,
            journal: &*self.journal,
            faults: &self.shared.faults,
        };
        let recovered = recover(&target, phase, &self.files.image(generation), watch);
        if !matches!(recovered, Ok(Recovered::Dozing(_))) {
            crate::probes::undefer(&std::mem::take(&mut self.deferred));
        }
        match recovered {
            Ok(recovered) => Ok(recovered),
            // Nothing to freeze any more: it has ended, which its init will tell.
            Err(_) if freezer.processes().is_ok_and(|pids| pids.is_empty()) => Ok(Recovered::Running),
            Err(error) => Err(chain(&error).to_string()),
        }
    }
}
