//! What of an app outlives its processes and its worker: descriptors in the keeper.
//!
//! | key              | descriptors                                  | from                  | until                          |
//! |------------------|----------------------------------------------|-----------------------|--------------------------------|
//! | `app/ID/output`  | the reading ends of its output               | its start             | its end                        |
//! | `app/ID/watch`   | the epoll descriptor that everything it waits for is registered with | it sleeps | it has woken       |
//! | `app/ID/files`   | its open files, in the order of the blob     | before it goes warm   | it runs again                  |
//!
//! The sandbox's init holds the reading ends of the output as well, where a new worker finds them if the keeper was killed
//! with the old one. They are parked all the same: what an app wrote before its end must outlive its init.
//!
//! A duplicate keeps a socket open that the program closes: so the files are given up as soon as the program runs again, and
//! a new worker that finds a running app does the same.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use serde::{Deserialize, Serialize};
use torpor_engine::{Parking, Source, Watch};
use torpor_keeper::Error;
use torpor_linux::closer::AppFile;

use super::ProcessTree;
use super::sleep_state::SleepState;
use super::texts::chain;
use crate::probes::Deferred;
use crate::shared::Shared;

/// Keys of an app's parked descriptors begin with this.
pub(crate) fn prefix(id: &str) -> String {
    format!("app/{id}/")
}

fn watch_key(id: &str) -> String {
    format!("app/{id}/watch")
}

fn output_key(id: &str) -> String {
    format!("app/{id}/output")
}

fn files_key(id: &str) -> String {
    format!("app/{id}/files")
}

/// What is parked with the epoll descriptor.
#[derive(Serialize, Deserialize)]
struct ParkedWatch {
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
pub(super) fn park_watch(shared: &Shared, id: &str, watch: &Watch, deferred: &[Deferred]) -> Result<(), Error> {
    let source = |source: &Source| {
        let Source { pid, fd, what, awaited, events } = source.clone();
        ParkedSource { pid, fd, what, awaited, events }
    };
    let parked = ParkedWatch { sources: watch.sources().iter().map(source).collect(), deferred: deferred.to_vec() };
    // Numbers and text always serialise. What does not fit is refused by the keeper; then a new worker wakes the app.
    let blob = serde_json::to_vec(&parked).unwrap_or_default();
    shared.keeper.put(&watch_key(id), &blob, &[watch.as_fd()])
}

/// The epoll descriptor that an earlier worker has parked.
pub(super) fn parked_watch(shared: &Shared, id: &str) -> Result<Option<(Watch, Vec<Deferred>)>, Error> {
    let Some(parked) = shared.keeper.get(&watch_key(id))? else { return Ok(None) };
    let (Some(epoll), Ok(ParkedWatch { sources, deferred })) =
        (parked.fds.into_iter().next(), serde_json::from_slice(&parked.blob))
    else {
        return Ok(None);
    };
    let source = |source: ParkedSource| {
        let ParkedSource { pid, fd, what, awaited, events } = source;
        Source { pid, fd, what, awaited, events }
    };
    let sources = sources.into_iter().map(source).collect();
    Ok(Some((Watch::from_parts(epoll.into(), sources), deferred)))
}

/// Parks the reading ends of an app's output.
pub(super) fn park_output(shared: &Shared, id: &str, output: [BorrowedFd<'_>; 2]) -> Result<(), Error> {
    shared.keeper.put(&output_key(id), b"", &output)
}

/// The reading ends of an app's output; `None` if they are not parked.
pub(super) fn parked_output(shared: &Shared, id: &str) -> Result<Option<[OwnedFd; 2]>, Error> {
    let parked = shared.keeper.get(&output_key(id))?;
    Ok(parked.and_then(|parked| <[AppFile; 2]>::try_from(parked.fds).ok().map(|both| both.map(OwnedFd::from))))
}

/// An app's place for open files in the keeper.
pub(super) struct KeeperParking<'a> {
    pub(super) shared: &'a Shared,
    pub(super) id: &'a str,
}

impl Parking for KeeperParking<'_> {
    fn park(&self, files: &[(u32, BorrowedFd<'_>)]) -> io::Result<()> {
        let (ids, fds): (Vec<u32>, Vec<BorrowedFd<'_>>) = files.iter().copied().unzip();
        let blob = serde_json::to_vec(&ids).map_err(io::Error::other)?;
        self.shared.keeper.put(&files_key(self.id), &blob, &fds).map_err(io::Error::other)
    }

    fn has_room(&self, files: usize) -> io::Result<()> {
        self.shared.keeper.has_room(&files_key(self.id), files).map_err(io::Error::other)
    }
}

/// The parked open files of an app by their place in its image; empty if there are none.
pub(super) fn parked_files(shared: &Shared, id: &str) -> Result<BTreeMap<u32, AppFile>, Error> {
    let Some(parked) = shared.keeper.get(&files_key(id))? else { return Ok(BTreeMap::new()) };
    let ids: Vec<u32> = serde_json::from_slice(&parked.blob).unwrap_or_default();
    if ids.len() != parked.fds.len() {
        tracing::error!(id, "what the keeper has of an app's files is not what was parked");
        return Ok(BTreeMap::new());
    }
    Ok(ids.into_iter().zip(parked.fds).collect())
}

/// Whether its open files are parked.
pub(super) fn has_files(shared: &Shared, id: &str) -> Result<bool, Error> {
    let key = files_key(id);
    Ok(shared.keeper.list(&key)?.iter().any(|listed| listed.key == key))
}

/// Gives up an app's parked files: its program has them again.
pub(super) fn drop_files(shared: &Shared, id: &str) -> Result<(), Error> {
    shared.keeper.drop_key(&files_key(id)).map(drop)
}

/// Gives up what wakes it: it is awake.
pub(super) fn drop_watch(shared: &Shared, id: &str) -> Result<(), Error> {
    shared.keeper.drop_key(&watch_key(id)).map(drop)
}

impl ProcessTree {
    /// There is a new keeper, which holds nothing: what is at hand is parked again. A warm app with more open files than are
    /// kept at hand becomes what it would be after a reboot.
    pub(super) fn keeper_lost(&mut self) {
        let (shared, id, name) = (&self.shared, &self.record.id, &self.record.spec.name);
        let output = self.run.output.as_ref().map(|output| park_output(shared, id, output.pipes()));
        let asleep = match &self.sleep.state {
            Some(SleepState::Dozing(asleep)) => Some(park_watch(shared, id, &asleep.watch, &self.sleep.deferred)),
            _ => None,
        };
        for parked in [output, asleep].into_iter().flatten() {
            if let Err(error) = parked {
                tracing::warn!(app = name, error = %chain(&error), "parking its descriptors again");
            }
        }
        if matches!(self.sleep.state, Some(SleepState::Warm(_))) && !self.park_held_files() {
            self.end_without_files();
        }
    }

    /// Parks a warm app's open files again, if they are at hand, with what wakes it.
    fn park_held_files(&self) -> bool {
        let Some(SleepState::Warm(app)) = &self.sleep.state else { return false };
        let Some(held) = app.held_files() else { return false };
        let (shared, id) = (&self.shared, &self.record.id);
        let files: Vec<_> = held.iter().map(|(file, fd)| (*file, fd.as_fd())).collect();
        let parked = KeeperParking { shared, id }
            .park(&files)
            .and_then(|()| park_watch(shared, id, &app.watch, &self.sleep.deferred).map_err(io::Error::other));
        if let Err(error) = &parked {
            tracing::warn!(app = self.record.spec.name, error = %chain(error), "parking its open files again");
        }
        parked.is_ok()
    }

    /// Whether a warm app's open files are there: the keeper may have ended after they were parked and before this task knew.
    pub(super) fn check_parked(&mut self) -> bool {
        if self.resuming.is_some() {
            // It has them, or fails without them.
            return true;
        }
        match tokio::task::block_in_place(|| has_files(&self.shared, &self.record.id)) {
            Ok(true) => true,
            Ok(false) if tokio::task::block_in_place(|| self.park_held_files()) => true,
            Ok(false) => {
                self.end_without_files();
                false
            }
            // The task hears of a new one.
            Err(error) => {
                tracing::warn!(app = self.record.spec.name, error = %chain(&error), "looking for its open files");
                false
            }
        }
    }

    /// Ends the sandbox of a warm app whose open files are lost; it is made again from the image.
    fn end_without_files(&mut self) {
        tracing::error!(app = self.record.spec.name, "its open files are lost with the keeper: its connections end");
        self.kill_sandbox();
    }

    /// Its program runs: what is parked of it is given up.
    pub(super) fn forget_parked(&self) {
        let (shared, id) = (&self.shared, &self.record.id);
        for dropped in [drop_files(shared, id), drop_watch(shared, id)] {
            if let Err(error) = dropped {
                let name = &self.record.spec.name;
                tracing::warn!(app = name, error = %chain(&error), "forgetting its parked descriptors");
            }
        }
        // Those of a lazy wake are needed until all of its memory is back; then its pager gives them up.
        if self.lazy.as_ref().is_none_or(|lazy| lazy.is_back()) {
            self.clear_contexts();
        }
    }
}
