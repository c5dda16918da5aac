//! What all apps of a worker share.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use torpor_api::worker::LeftAlone;
use torpor_keeper::Client;
use torpor_network::names::{Directory, NameServer};
use torpor_network::{Network, NetworkError};
use torpor_rootfs::{LayerDigest, Store};
use torpor_sandbox::{Launcher, User};

use crate::cached::CachedImages;
use crate::config::WorkerConfig;
use crate::faults::RequestedFaults;
use crate::logs::Pump;
use crate::promised::Promised;
use crate::requests::RequestThreads;
use crate::services::Services;

/// Counts of packets are read for all apps at once, and used for this long.
const PACKETS_FRESH: Duration = Duration::from_millis(100);

/// Services and settings of a worker.
pub(crate) struct Shared {
    pub(crate) config: WorkerConfig,
    pub(crate) launcher: Launcher,
    pub(crate) keeper: Client,
    pub(crate) network: Network,
    pub(crate) output: Pump,
    pub(crate) store: Store,
    /// Where requests of the API block; apps use the threads of the runtime itself.
    pub(crate) requests: RequestThreads,
    /// What the tasks of apps use, whatever they drive.
    pub(crate) services: Arc<Services>,
    pub(crate) faults: RequestedFaults,
    pub(crate) promised: Promised,
    /// Apps that the hub does not manage.
    pub(crate) left_alone: LeftAloneApps,
    pub(crate) cached_images: CachedImages,
    /// Apps by name, for those who share a network with them.
    pub(crate) directory: Arc<Directory>,
    /// Answers for them; `None`: why not.
    pub(crate) name_server: Mutex<Result<Arc<NameServer>, String>>,
    /// This boot of the machine, as images name it.
    pub(crate) boot: [u64; 2],
    pub(crate) packets: Counts,
    pub(crate) refused_packets: Counts,
}

/// The apps that are left alone.
#[derive(Debug, Default)]
pub(crate) struct LeftAloneApps(Mutex<Vec<LeftAlone>>);

impl LeftAloneApps {
    pub(crate) fn all(&self) -> MutexGuard<'_, Vec<LeftAlone>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Counts of all apps, by index, read from the kernel for many questions at once.
#[derive(Debug, Default)]
pub(crate) struct Counts(Mutex<Option<(Instant, HashMap<u32, u64>)>>);

impl Counts {
    fn of(&self, index: u32, read: impl FnOnce() -> Result<HashMap<u32, u64>, NetworkError>) -> Option<u64> {
        let mut cached = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if cached.as_ref().is_none_or(|(at, _)| at.elapsed() > PACKETS_FRESH) {
            match read() {
                Ok(counts) => *cached = Some((Instant::now(), counts)),
                Err(error) => {
                    // A table that is gone is written anew by who looks after it.
                    tracing::warn!(error = %torpor_api::error::chain(&error), "reading packet counts");
                    return None;
                }
            }
        }
        cached.as_ref().map(|(_, counts)| counts.get(&index).copied().unwrap_or(0))
    }
}

impl Shared {
    /// Whether memory that is missing after a wake comes although nobody touches it.
    pub(crate) const fn fills(&self) -> bool {
        self.config.backfill && !self.faults.only_page_faults()
    }

    /// Meaningful packets of an app since it was attached to the network; `None` if they cannot be read now.
    pub(crate) fn packets(&self, index: u32) -> Option<u64> {
        self.packets.of(index, || self.network.activity())
    }

    /// Packets of an app that were dropped because they would have begun a connection beyond its share; `None` if they
    /// cannot be read now.
    pub(crate) fn refused_packets(&self, index: u32) -> Option<u64> {
        self.refused_packets.of(index, || self.network.refused())
    }

    /// Directories of layers, lowest first.
    pub(crate) fn layer_paths(&self, layers: &[String]) -> Result<Vec<PathBuf>, torpor_rootfs::Error> {
        layer_digests::<Vec<_>>(layers)?.iter().map(|layer| self.store.layer_path(layer)).collect()
    }

    /// A user, as the app's own files know it.
    pub(crate) fn find_user(&self, layers: &[String], name: &str) -> Result<User, torpor_rootfs::Error> {
        let found = self.store.lookup_user(&layer_digests::<Vec<_>>(layers)?, name)?;
        Ok(User { uid: found.uid, gid: found.gid, groups: found.extra_gids, home: found.home })
    }
}

/// Layers by their written digests.
pub(crate) fn layer_digests<C: FromIterator<LayerDigest>>(layers: &[String]) -> Result<C, torpor_rootfs::Error> {
    let digest = |layer: &String| {
        layer
            .parse::<LayerDigest>()
            .map_err(|error| torpor_rootfs::Error::Image { what: layer.clone(), source: error.into() })
    };
    layers.iter().map(digest).collect()
}
