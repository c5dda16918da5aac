//! System V semaphores and message queues: they belong to a namespace and not to processes.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

use super::Bytes;
use super::check::{Checked, sure};
use super::frugal;

/// Semaphores of one set that the kernel allows at most (`SEMMSL` can be set no higher).
const MOST_SEMAPHORES: usize = 65_536;
/// Highest value of a semaphore (`SEMVMX`).
const MOST_VALUE: u16 = 32_767;

/// How a System V object is found, and who may use it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IpcObject {
    /// Key; 0 if it has none.
    pub key: i32,
    /// Id.
    pub id: i32,
    /// Permission bits.
    pub mode: u32,
    /// Owner's user and group, and its maker's.
    pub owners: [u32; 4],
}

/// `semget(2)`. Nobody has operated on it, so nothing is to be undone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SemaphoreSet {
    /// What it is.
    pub object: IpcObject,
    /// Values.
    #[serde(deserialize_with = "frugal::list")]
    pub values: Vec<u16>,
}

/// `msgget(2)`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MessageQueue {
    /// What it is.
    pub object: IpcObject,
    /// Bytes that it may hold.
    pub most_bytes: u64,
    /// What waits in it, the oldest first: type and text.
    #[serde(deserialize_with = "frugal::list")]
    pub messages: Vec<(i64, Bytes)>,
}

impl SemaphoreSet {
    pub(super) fn check(&self, ids: &mut HashSet<i32>) -> Checked {
        self.object.check(ids)?;
        let count = (1..=MOST_SEMAPHORES).contains(&self.values.len());
        sure(count && self.values.iter().all(|value| *value <= MOST_VALUE), "a set of semaphores")
    }
}

impl MessageQueue {
    pub(super) fn check(&self, ids: &mut HashSet<i32>) -> Checked {
        self.object.check(ids)?;
        sure(self.messages.iter().all(|(kind, _)| *kind > 0), "a message of a queue")
    }
}

impl IpcObject {
    fn check(&self, ids: &mut HashSet<i32>) -> Checked {
        sure(self.id >= 0 && self.mode & !0o777 == 0 && ids.insert(self.id), "a System V object")
    }
}
