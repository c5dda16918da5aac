//! Archives in transit over the API: how many at the same time, and when one that makes no progress is ended.
//!
//! Each archive occupies a thread of the worker and some megabytes of buffers, so their number is bounded ([`AT_ONCE`] in each
//! direction; one more is refused). The other end of the connection must make progress: every [`LEAST_BYTES`] of an archive may
//! take at most [`STALLED_AFTER`] of waiting for the client. Time in which the client waits for this machine does not count. An upload also
//! ends when its app is removed ([`Imports::end`]).

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use torpor_api::{ApiError, ErrorKind};

/// Archives that are exported at the same time, and archives that are imported.
pub(crate) const AT_ONCE: usize = 8;
/// How long a transfer may wait for [`LEAST_BYTES`].
pub const STALLED_AFTER: Duration = Duration::from_secs(60);
/// A transfer that moves fewer bytes in that time has stalled.
pub(crate) const LEAST_BYTES: u64 = 64 << 10;

/// Places for archives in one direction.
#[derive(Debug)]
pub(crate) struct Places {
    free: Arc<Semaphore>,
    doing: &'static str,
}

impl Places {
    /// `doing` as in `archives are being {doing}`.
    pub(crate) fn new(doing: &'static str) -> Self {
        Self { free: Arc::new(Semaphore::new(AT_ONCE)), doing }
    }

    /// A place, free again when it is dropped.
    ///
    /// # Errors
    /// `Conflict` if there is none.
    pub(crate) fn take(&self) -> Result<OwnedSemaphorePermit, ApiError> {
        self.free.clone().try_acquire_owned().map_err(|_| {
            let message = format!("{AT_ONCE} archives are being {} already, which is the most", self.doing);
            let hint = format!(
                "try again when one of them is complete; one that makes no progress ends after {} s",
                STALLED_AFTER.as_secs()
            );
            ApiError::new(ErrorKind::Conflict, message).with_hint(hint)
        })
    }
}

/// How many bytes a transfer has moved, and how long it has waited for the client meanwhile.
#[derive(Debug)]
pub(crate) struct Pace {
    allowed: Duration,
    waited: Duration,
    bytes: u64,
}

impl Pace {
    /// [`LEAST_BYTES`] may take `allowed`.
    pub(crate) fn new(allowed: Duration) -> Self {
        Self { allowed, waited: Duration::ZERO, bytes: 0 }
    }

    /// How much longer the transfer may wait for the client.
    pub(crate) fn left(&self) -> Duration {
        self.allowed.saturating_sub(self.waited)
    }

    /// Notes a wait for the client and the bytes that passed after it.
    pub(crate) fn passed(&mut self, waited: Duration, bytes: u64) {
        self.waited += waited;
        self.bytes += bytes;
        if self.bytes >= LEAST_BYTES {
            *self = Self::new(self.allowed);
        }
    }
}

/// An archive that a client sends.
#[derive(Debug)]
pub(crate) struct Upload {
    /// Why it ends before its archive does.
    ended: watch::Sender<Option<ApiError>>,
    received_bytes: AtomicU64,
}

impl Upload {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { ended: watch::Sender::new(None), received_bytes: AtomicU64::new(0) })
    }

    /// Ends it; the first reason stays.
    pub(crate) fn end(&self, why: ApiError) {
        self.ended.send_if_modified(|ended| {
            let first = ended.is_none();
            ended.get_or_insert(why);
            first
        });
    }

    /// Why it was ended, if it was.
    pub(crate) fn why(&self) -> Option<ApiError> {
        self.ended.borrow().clone()
    }

    /// Resolves when it is ended.
    pub(crate) async fn ended(&self) {
        let mut ended = self.ended.subscribe();
        // We hold the sender.
        let _ = ended.wait_for(Option::is_some).await;
    }

    pub(crate) fn received(&self, bytes: u64) {
        self.received_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Bytes of the archive that have come so far.
    pub(crate) fn received_bytes(&self) -> u64 {
        self.received_bytes.load(Ordering::Relaxed)
    }
}

/// An import of which the name is known.
#[derive(Clone, Debug)]
struct Entry {
    name: String,
    id: String,
    upload: Arc<Upload>,
    /// True once nothing of it is under way.
    over: watch::Receiver<bool>,
}

/// Apps that are being imported, by name. Their names are reserved, so there is one import for each.
#[derive(Debug, Default)]
pub(crate) struct Imports(Mutex<HashMap<String, Entry>>);

/// An app that is being imported, until this is dropped.
#[derive(Debug)]
pub(crate) struct Importing<'a> {
    name: String,
    of: &'a Imports,
    over: watch::Sender<bool>,
}

impl Imports {
    fn entries(&self) -> MutexGuard<'_, HashMap<String, Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes an import; the caller has reserved the name.
    pub(crate) fn begin(&self, name: &str, id: &str, upload: Arc<Upload>) -> Importing<'_> {
        let (over, seen) = watch::channel(false);
        let (name, id) = (name.to_owned(), id.to_owned());
        self.entries().insert(name.clone(), Entry { name: name.clone(), id, upload, over: seen });
        Importing { name, of: self, over }
    }

    fn find(&self, app: &str) -> Option<Entry> {
        let entries = self.entries();
        entries.get(app).or_else(|| entries.values().find(|entry| entry.id == app)).cloned()
    }

    /// Bytes that have come of the app with this name or id; `None`: it is not being imported.
    pub(crate) fn received_bytes(&self, app: &str) -> Option<u64> {
        self.find(app).map(|entry| entry.upload.received_bytes())
    }

    /// Ends the import of the app with this name or id, and waits until nothing of it is under way. Gives its name; `None`: there
    /// is none.
    pub(crate) async fn end(&self, app: &str, why: ApiError) -> Option<String> {
        let mut entry = self.find(app)?;
        entry.upload.end(why);
        // An error means that it is over, too.
        let _ = entry.over.wait_for(|over| *over).await;
        Some(entry.name)
    }
}

impl Drop for Importing<'_> {
    fn drop(&mut self) {
        self.of.entries().remove(&self.name);
        self.over.send_replace(true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drip_stalls_and_a_slow_line_does_not() {
        let allowed = Duration::from_secs(60);
        let second = Duration::from_secs(1);
        let mut drip = Pace::new(allowed);
        (0..60).for_each(|_| drip.passed(second, 1));
        assert_eq!(drip.left(), Duration::ZERO);
        let mut slow = Pace::new(allowed);
        for _ in 0..1000 {
            slow.passed(second, LEAST_BYTES / 50);
            assert!(slow.left() > Duration::ZERO);
        }
    }

    #[test]
    fn places_are_bounded_and_come_back() {
        let places = Places::new("exported");
        let mut taken: Vec<_> = (0..AT_ONCE).map(|_| places.take().unwrap()).collect();
        let refused = places.take().unwrap_err();
        assert!(refused.kind == ErrorKind::Conflict && refused.hint.is_some(), "{refused:?}");
        taken.pop();
        drop(places.take().unwrap());
    }
}
