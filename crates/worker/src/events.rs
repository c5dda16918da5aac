//! The stream of things that happened, to whoever listens.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use jiff::Timestamp;
use tokio::sync::broadcast;
use torpor_api::view::Event;
use torpor_api::worker::BoxStream;

/// Events that a slow listener may lag behind before it misses some.
const BACKLOG: usize = 4096;

/// Where events go.
#[derive(Debug)]
pub(crate) struct Events {
    sender: broadcast::Sender<Event>,
    next: AtomicU64,
}

impl Events {
    pub(crate) fn new() -> Self {
        Self { sender: broadcast::channel(BACKLOG).0, next: AtomicU64::new(1) }
    }

    /// Tells listeners. The hub numbers events for good; ours only order them within this worker.
    pub(crate) fn emit(&self, app: &str, kind: &str, message: String, fields: BTreeMap<String, serde_json::Value>) {
        tracing::info!(app, kind, "{message}");
        let seq = self.next.fetch_add(1, Ordering::Relaxed);
        let event = Event { seq, at: Timestamp::now(), app: app.to_owned(), kind: kind.to_owned(), message, fields };
        // Nobody listens: nothing to do.
        let _ = self.sender.send(event);
    }

    /// Everything from now on. A listener that lags too far skips what it missed.
    pub(crate) fn listen(&self) -> BoxStream<Event> {
        let receiver = self.sender.subscribe();
        Box::pin(futures_util::stream::unfold(receiver, |mut receiver| async move {
            loop {
                match receiver.recv().await {
                    Ok(event) => return Some((event, receiver)),
                    Err(broadcast::error::RecvError::Lagged(missed)) => {
                        tracing::warn!(missed, "a listener lags behind the events");
                    }
                    Err(broadcast::error::RecvError::Closed) => return None,
                }
            }
        }))
    }
}
