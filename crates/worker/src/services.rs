//! What the tasks of all apps use of their worker, and what they are told of its configuration.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::config::{Deadlines, WorkerConfig};
use crate::disk::Disks;
use crate::events::Events;
use crate::keeper::KeeperLife;
use crate::pressure::Dozers;
use crate::space::ImageSpace;
use crate::wakes::Wakes;

/// Services of a worker for the tasks of its apps, of whatever kind these are.
#[derive(Debug)]
pub(crate) struct Services {
    pub(crate) settings: Settings,
    pub(crate) events: Events,
    /// True once the worker ends: no task of an app begins anything then.
    pub(crate) ending: watch::Sender<bool>,
    pub(crate) keeper_life: KeeperLife,
    pub(crate) image_space: ImageSpace,
    pub(crate) dozers: Dozers,
    /// Wakes by packets and timers.
    pub(crate) wakes: Arc<Wakes>,
    pub(crate) disks: Arc<Disks>,
}

/// What of the configuration the tasks follow.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) deadlines: Deadlines,
    /// An app dozes at least this long before it goes warm for want of memory.
    pub(crate) min_dozing: Duration,
    /// Apps are only to be put away.
    pub(crate) for_teardown: bool,
    /// What the own files of an app that says nothing may take on disk, in bytes.
    pub(crate) disk_limit_bytes: Option<u64>,
}

impl Services {
    pub(crate) fn new(settings: Settings, image_space: ImageSpace, wakes_at_once: usize) -> Self {
        Self {
            settings,
            events: Events::new(),
            ending: watch::Sender::new(false),
            keeper_life: KeeperLife::default(),
            image_space,
            dozers: Dozers::default(),
            wakes: Wakes::new(wakes_at_once),
            disks: Arc::default(),
        }
    }
}

impl Settings {
    pub(crate) fn of(config: &WorkerConfig) -> Self {
        Self {
            deadlines: config.deadlines,
            min_dozing: config.memory.min_dozing,
            for_teardown: config.for_teardown,
            disk_limit_bytes: config.disk_limit_bytes,
        }
    }
}
