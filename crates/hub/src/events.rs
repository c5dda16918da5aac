//! What happened: recorded in order, kept in the database, handed to those who follow.
//!
//! ```text
//!   workers' streams ┐
//!                    ├─▶ Recorder (one task) ──▶ events table ──▶ broadcast ──▶ followers
//!   hub's own ───────┘        numbers them          kept            lossy        re-read what they missed
//! ```
//! An event is broadcast only after it is stored, so a follower that falls behind, or comes back with `since`, misses none
//! of those still kept. Where events cannot be stored, as on a full disk, up to [`UNSTORED`] of them wait and are tried again.
//! A crash loses at most the events that were not stored yet. A reader first waits until what had happened when it asked is
//! stored: who removes an app and then reads the events finds the removal. That relies on a rule of [`torpor_api::port`]: what a worker
//! emitted before it answered is ready on its stream when the answer arrives.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures_core::Stream;
use futures_util::stream;
use futures_util::{FutureExt, StreamExt};
use jiff::Timestamp;
use serde_json::Value;
use tokio::sync::{broadcast, mpsc, oneshot, watch};
use tokio_stream::wrappers::ReceiverStream;
use torpor_api::events as kinds;
use torpor_api::view::Event;
use torpor_api::wire::EventQuery;
use torpor_api::worker::BoxStream;
use tracing::{error, warn};

use crate::error::StoreError;
use crate::store::Store;

/// Events of the hub's own that may wait for the recorder.
const WAITING: usize = 256;
/// Events that a follower may be behind before it re-reads them from the database.
const BEHIND: usize = 1024;
/// Most events stored in one transaction.
const BATCH: usize = 256;
/// Events that wait while none can be stored; beyond that the oldest are lost.
const UNSTORED: usize = 4096;
/// Between two tries to store them.
const STORE_AGAIN: Duration = Duration::from_secs(1);
/// Readers that may wait for the recorder before the next one waits to wait.
const READERS: usize = 64;
/// How long a reader waits for the recorder before it reads what is stored by then.
const FLUSHED: Duration = Duration::from_secs(1);
/// Events read from the database at a time.
const PAGE: u32 = 512;

/// Where events go in and come out.
#[derive(Debug)]
pub(crate) struct EventLog {
    store: Store,
    own: mpsc::Sender<Event>,
    stored: broadcast::Sender<Arc<Event>>,
    /// Answered once everything that had happened before is stored.
    flush: mpsc::Sender<oneshot::Sender<()>>,
    /// Ends the recorder once it has nothing left to store.
    enough: watch::Sender<bool>,
    /// False once the recorder has ended.
    recording: watch::Receiver<bool>,
}

/// The task that stores events.
pub(crate) struct Recorder {
    store: Store,
    own: mpsc::Receiver<Event>,
    stored: broadcast::Sender<Arc<Event>>,
    flush: mpsc::Receiver<oneshot::Sender<()>>,
    enough: watch::Receiver<bool>,
    recording: watch::Sender<bool>,
}

impl EventLog {
    pub(crate) fn new(store: Store) -> (Self, Recorder) {
        let (own, own_out) = mpsc::channel(WAITING);
        let (stored, _) = broadcast::channel(BEHIND);
        let (flush, flush_out) = mpsc::channel(READERS);
        let (enough, enough_out) = watch::channel(false);
        let (recording_in, recording) = watch::channel(true);
        let recorder = Recorder {
            store: store.clone(),
            own: own_out,
            stored: stored.clone(),
            flush: flush_out,
            enough: enough_out,
            recording: recording_in,
        };
        (Self { store, own, stored, flush, enough, recording }, recorder)
    }

    /// Notes something that the hub did itself.
    pub(crate) async fn note(&self, app: &str, kind: &str, message: String, fields: BTreeMap<String, Value>) {
        let event = Event { seq: 0, at: Timestamp::now(), app: app.to_owned(), kind: kind.to_owned(), message, fields };
        if self.own.send(event).await.is_err() {
            error!(app, kind, "an event came after the recorder ended");
        }
    }

    /// Ends the recorder and waits until it has stored what it had.
    pub(crate) async fn end(&self) {
        self.enough.send_replace(true);
        let mut recording = self.recording.clone();
        // An error means that the recorder is gone: flushed as well.
        let _ = recording.wait_for(|recording| !*recording).await;
    }

    /// Waits until what has happened so far is stored, at most [`FLUSHED`].
    pub(crate) async fn flush(&self) {
        let (flushed_in, flushed) = oneshot::channel();
        let wait = async {
            // An error means that the recorder has ended: it has stored what it had.
            if self.flush.send(flushed_in).await.is_ok() {
                let _ = flushed.await;
            }
        };
        if tokio::time::timeout(FLUSHED, wait).await.is_err() {
            warn!("events are slow to be stored; the last ones may be missing in an answer");
        }
    }

    /// The stored events that a query asks for.
    pub(crate) async fn read(&self, query: EventQuery) -> Result<impl Stream<Item = Event> + Send + use<>, StoreError> {
        // Subscribed before the first read, so that nothing falls between.
        let follow = query.follow.then(|| self.stored.subscribe());
        let tail = match query.tail {
            Some(count) => self.store.events_tail(count, query.app.as_deref()).await?,
            None => 0,
        };
        let last = query.since.unwrap_or(0).max(tail);
        let reader =
            Reader { store: self.store.clone(), app: query.app, last, page: VecDeque::new(), behind: true, follow };
        Ok(stream::unfold(reader, |mut reader| async move { reader.next().await.map(|event| (event, reader)) }))
    }
}

/// One reader: first pages from the database, then what is broadcast, then pages again where it fell behind.
struct Reader {
    store: Store,
    app: Option<String>,
    last: u64,
    page: VecDeque<Event>,
    behind: bool,
    follow: Option<broadcast::Receiver<Arc<Event>>>,
}

impl Reader {
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.page.pop_front() {
                self.last = event.seq;
                return Some(event);
            }
            if self.behind {
                match self.store.events_after(self.last, self.app.as_deref(), PAGE).await {
                    Ok(page) => {
                        self.behind = page.len() == PAGE as usize;
                        self.page = page.into();
                    }
                    Err(problem) => {
                        error!(error = torpor_api::error::chain(&problem), "cannot read events");
                        return None;
                    }
                }
                continue;
            }
            match self.follow.as_mut()?.recv().await {
                Ok(event) if event.seq <= self.last => {}
                Ok(event) if self.app.as_ref().is_some_and(|app| *app != event.app) => {}
                Ok(event) => {
                    self.last = event.seq;
                    return Some(Event::clone(&event));
                }
                Err(broadcast::error::RecvError::Lagged(_)) => self.behind = true,
                Err(broadcast::error::RecvError::Closed) => return None,
            }
        }
    }
}

impl Recorder {
    /// Stores the events of the workers and of the hub until it is told to end, then those that are already there. Calls `ended` with
    /// the app of each event that says that its program has ended.
    pub(crate) async fn run(self, workers: Vec<BoxStream<Event>>, ended: impl Fn(String)) {
        let Self { store, own, stored, mut flush, mut enough, recording } = self;
        // The hub's own channel never ends before the hub; a worker's stream that ends must not end it.
        let own: BoxStream<Event> = Box::pin(ReceiverStream::new(own));
        let merged = workers.into_iter().fold(own, |all, worker| Box::pin(stream::select(worker, all)));
        let mut batches = std::pin::pin!(merged.ready_chunks(BATCH));
        let mut unstored: Vec<Event> = Vec::new();
        let mut readers: Vec<oneshot::Sender<()>> = Vec::new();
        loop {
            let next = if readers.is_empty() {
                tokio::select! {
                    biased;
                    next = batches.next() => next,
                    Some(reader) = flush.recv() => {
                        readers.push(reader);
                        continue;
                    }
                    _ = enough.wait_for(|enough| *enough) => break,
                    () = tokio::time::sleep(STORE_AGAIN), if !unstored.is_empty() => Some(Vec::new()),
                }
            } else {
                // What had happened when they asked is ready by now. Unconstrained, or the task's budget could hide it.
                match tokio::task::unconstrained(batches.next()).now_or_never() {
                    Some(next) => next,
                    // What could not be stored before is tried for them.
                    None if !unstored.is_empty() => Some(Vec::new()),
                    None => {
                        for reader in readers.drain(..) {
                            // An error means that the reader is gone.
                            let _ = reader.send(());
                        }
                        continue;
                    }
                }
            };
            let Some(mut events) = next else { break };
            // The streams take turns, whichever event came first.
            events.sort_by_key(|event| event.at);
            let failed_before = !unstored.is_empty();
            unstored.extend(events);
            if let Err(problem) = store.append_events(&mut unstored).await {
                if !failed_before {
                    error!(error = torpor_api::error::chain(&problem), "cannot store events now; they are tried again");
                }
                let lost = unstored.len().saturating_sub(UNSTORED);
                if lost > 0 {
                    error!(lost, "too many events cannot be stored");
                    unstored.drain(..lost);
                }
                // Who reads gets what is stored.
                readers.clear();
                continue;
            }
            for event in unstored.drain(..) {
                if [kinds::EXITED, kinds::LOST].contains(&event.kind.as_str()) {
                    ended(event.app.clone());
                }
                // An error means that nobody follows.
                let _ = stored.send(Arc::new(event));
            }
        }
        if !unstored.is_empty() {
            error!(lost = unstored.len(), "the last events could not be stored");
        }
        recording.send_replace(false);
    }
}
