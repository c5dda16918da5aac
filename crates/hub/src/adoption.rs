//! The queue of apps that their workers have still to adopt after a start: to take over their processes, or what a reboot left of them.
//!
//! The API answers before that is done. Until it is, `ps` shows an app as `adopting`, and a command for it puts it first in the
//! queue and waits. An adoption that takes longer than [`ONE`] goes on by itself and holds nobody up.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use torpor_api::{ApiError, ErrorKind};

use crate::store::{Phase, Row};

/// How long one adoption is waited for before the next one takes its place.
pub(crate) const ONE: Duration = Duration::from_secs(30);
/// How long a command waits for its app.
const COMMAND: Duration = Duration::from_secs(60);

/// The queue, and which apps are in it or being adopted.
#[derive(Debug, Default)]
pub(crate) struct AdoptionQueue {
    queue: Mutex<VecDeque<Row>>,
    left: watch::Sender<BTreeSet<String>>,
}

impl AdoptionQueue {
    /// Those of these rows. What a crash left half made or half removed comes first: its name is wanted again.
    pub(crate) fn of(mut rows: Vec<Row>) -> Self {
        rows.sort_by_key(|row| row.phase == Phase::Ready);
        let left = rows.iter().map(|row| row.record.id.clone()).collect();
        Self { queue: Mutex::new(rows.into()), left: watch::Sender::new(left) }
    }

    fn queue(&self) -> MutexGuard<'_, VecDeque<Row>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next one to adopt.
    pub(crate) fn next(&self) -> Option<Row> {
        self.queue().pop_front()
    }

    /// This one is adopted, or cannot be.
    pub(crate) fn done(&self, id: &str) {
        self.left.send_modify(|left| {
            left.remove(id);
        });
    }

    /// Whether this one is still to come.
    pub(crate) fn contains(&self, id: &str) -> bool {
        self.left.borrow().contains(id)
    }

    /// How many are still to come.
    pub(crate) fn left(&self) -> usize {
        self.left.borrow().len()
    }

    /// Waits for an app, which comes next.
    ///
    /// # Errors
    /// `Timeout` if that takes longer than a command waits.
    pub(crate) async fn wait(&self, id: &str, name: &str) -> Result<(), ApiError> {
        if !self.contains(id) {
            return Ok(());
        }
        {
            let mut queue = self.queue();
            if let Some(row) = queue.iter().position(|row| row.record.id == id).and_then(|at| queue.remove(at)) {
                queue.push_front(row);
            }
        }
        let mut left = self.left.subscribe();
        let adopted = async { left.wait_for(|left| !left.contains(id)).await.is_ok() };
        if tokio::time::timeout(COMMAND, adopted).await.is_ok() {
            return Ok(());
        }
        let message = format!("{name}: the daemon has started and has not adopted it within {} s", COMMAND.as_secs());
        Err(ApiError::new(ErrorKind::Timeout, message).with_hint("torpor ps shows which apps are still to come"))
    }

    /// Calls `each` with the number that is left, now and whenever it changes, until none is.
    pub(crate) async fn all(&self, mut each: impl FnMut(usize)) {
        let mut left = self.left.subscribe();
        loop {
            let count = left.borrow_and_update().len();
            if count == 0 {
                return;
            }
            each(count);
            // The sender lives as long as we do.
            if left.changed().await.is_err() {
                return;
            }
        }
    }
}
