//! One lock for each app, so that changes of the same app follow each other.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::OwnedMutexGuard;

/// Locks by app id; those that nobody holds are forgotten.
#[derive(Debug, Default)]
pub(crate) struct AppLocks(Mutex<HashMap<String, Weak<tokio::sync::Mutex<()>>>>);

impl AppLocks {
    /// Waits until no one else changes the app.
    pub(crate) async fn lock(&self, id: &str) -> OwnedMutexGuard<()> {
        let lock = {
            let mut locks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            match locks.get(id).and_then(Weak::upgrade) {
                Some(lock) => lock,
                None => {
                    locks.retain(|_, lock| lock.strong_count() > 0);
                    let lock = Arc::new(tokio::sync::Mutex::new(()));
                    locks.insert(id.to_owned(), Arc::downgrade(&lock));
                    lock
                }
            }
        };
        lock.lock_owned().await
    }
}
