//! Layers that nobody uses yet and that must stay: an app is about to.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::RwLock;

/// Layers that were fetched for an app stay for this long, if it is not made meanwhile.
const PROMISED_STAYS: Duration = Duration::from_secs(3600);

/// Layers between their fetching and the app that they were fetched for.
///
/// `fetching` is held from before they are in the store until they are among the promised; nothing is collected meanwhile.
#[derive(Debug, Default)]
pub(crate) struct Promised {
    pub(crate) fetching: RwLock<()>,
    layers: Mutex<Vec<(Vec<String>, Instant)>>,
    /// Of apps that were there when the worker started; kept until it ends, for one may never be adopted.
    expected: Mutex<Vec<Vec<String>>>,
}

impl Promised {
    /// Those that were fetched a while ago at the most, and when.
    pub(crate) fn layers(&self) -> std::sync::MutexGuard<'_, Vec<(Vec<String>, Instant)>> {
        let mut layers = self.layers.lock().unwrap_or_else(PoisonError::into_inner);
        layers.retain(|(_, at)| at.elapsed() < PROMISED_STAYS);
        layers
    }

    /// Apps with these layers will be adopted.
    pub(crate) fn expect(&self, layers: Vec<Vec<String>>) {
        *self.expected() = layers;
    }

    /// Those of apps that will be adopted.
    pub(crate) fn expected(&self) -> std::sync::MutexGuard<'_, Vec<Vec<String>>> {
        self.expected.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The app is there.
    pub(crate) fn keep(&self, layers: &[String]) {
        let mut promised = self.layers();
        if let Some(at) = promised.iter().position(|(kept, _)| kept == layers) {
            promised.swap_remove(at);
        }
        let mut expected = self.expected();
        if let Some(at) = expected.iter().position(|kept| kept == layers) {
            expected.swap_remove(at);
        }
    }
}
