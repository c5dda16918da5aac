//! Across a restart of the worker: what is parked in the keeper, and finding an app again.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use serde::{Deserialize, Serialize};
use torpor_engine::{Freezer, Recovered, Source, Target, Watch, recover};
use torpor_lifecycle::{Event, Exit, Found};
use torpor_sandbox::{Sandbox, SandboxRecord};

use super::operate::{SandboxFreezer, chain, text};
use super::task::Task;
use crate::clock;
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

/// [`Source`], in a blob.
#[derive(Serialize, Deserialize)]
struct ParkedSource {
    pid: i32,
    fd: i32,
    what: String,
    awaited: bool,
}

/// Parks the epoll descriptor of a sleeping app, so that events are collected while no worker lives.
pub(super) fn park_watch(shared: &Shared, id: &str, watch: &Watch) -> Result<(), torpor_keeper::Error> {
    let sources: Vec<ParkedSource> = watch
        .sources()
        .iter()
        .map(|source| ParkedSource {
            pid: source.pid,
            fd: source.fd,
            what: source.what.clone(),
            awaited: source.awaited,
        })
        .collect();
    let mut blob = serde_json::to_vec(&sources).unwrap_or_default();
    if blob.len() > torpor_keeper::limits::BLOB_BYTES {
        // Only descriptions: without them an event is still an event.
        blob = b"[]".to_vec();
    }
    shared.keeper.put(&watch_key(id), &blob, &[watch.as_fd()])
}

fn parked_watch(shared: &Shared, id: &str) -> Result<Option<Watch>, torpor_keeper::Error> {
    let Some(parked) = shared.keeper.get(&watch_key(id))? else { return Ok(None) };
    let sources: Vec<ParkedSource> = serde_json::from_slice(&parked.blob).unwrap_or_default();
    let sources = sources
        .into_iter()
        .map(|source| Source { pid: source.pid, fd: source.fd, what: source.what, awaited: source.awaited })
        .collect();
    Ok(parked.fds.into_iter().next().map(|epoll| Watch::from_parts(epoll, sources)))
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
                self.gone(super::operate::exit_of(record.exit_status().ok(), 0, None)).await;
                return;
            }
        };
        match self.shared.keeper.get(&output_key(&self.record.id)) {
            Ok(Some(parked)) => {
                if let Ok(output) = <[OwnedFd; 2]>::try_from(parked.fds) {
                    self.pump_output(output);
                }
            }
            Ok(None) => tracing::warn!(app = self.record.spec.name, "its output was not parked"),
            Err(error) => tracing::warn!(app = self.record.spec.name, error = %chain(&error), "finding its output"),
        }
        if let Err(error) = self.hold_sandbox(sandbox) {
            tracing::error!(app = self.record.spec.name, %error, "taking over its sandbox");
        }
        self.settle().await;
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
                self.hold_asleep(*asleep);
                self.tell(Event::TakenOver(Found::Dozing { next_timer })).await;
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
            Ok(watch) => watch,
            Err(error) => {
                tracing::warn!(app = self.record.spec.name, error = %chain(&error), "finding its descriptors");
                None
            }
        };
        let generation = match phase {
            torpor_engine::Phase::Awake => 0,
            torpor_engine::Phase::Dropping { generation } | torpor_engine::Phase::Dozing { generation, .. } => generation,
        };
        let target = Target {
            app: self.app_number(),
            boot: self.shared.boot,
            freezer: &freezer,
            journal: &*self.journal,
            faults: &self.shared.faults,
        };
        match recover(&target, phase, &self.files.image(generation), watch) {
            Ok(recovered) => Ok(recovered),
            // Nothing to freeze any more: it has ended, which its init will tell.
            Err(_) if freezer.processes().is_ok_and(|pids| pids.is_empty()) => Ok(Recovered::Running),
            Err(error) => Err(chain(&error).to_string()),
        }
    }
}
