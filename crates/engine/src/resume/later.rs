//! Pages that come after a resumed app runs.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc;

use torpor_image::tree::Tree;
use torpor_image::{Region, lazy_size};
use torpor_linux::userfault;
use torpor_pages::source::{FetchError, Stored};
use torpor_restore::lazy::{Late, Lazy};

use super::{Errand, awaited};
use crate::lazy::{Contexts, LazyApp, LazyWay, Loading, PagerThread, Pagers};

/// What is known before processes are filled.
pub(super) struct Later<'a> {
    way: LazyWay<'a>,
    /// Made before this thread enters the app's namespaces, so that it does not stay in them, and early, so that nothing waits for its start.
    pager: PagerThread,
    device: OwnedFd,
    loading: Loading,
}

/// An app that misses pages, until it runs.
pub(super) struct Missing<'a> {
    pagers: &'a dyn Pagers,
    pager: PagerThread,
    app: LazyApp,
    contexts: Contexts,
}

impl<'a> Later<'a> {
    /// None where it is not allowed, not possible here, or does not pay.
    pub(super) fn of(tree: &Tree, way: Option<LazyWay<'a>>) -> Option<Self> {
        let way = way?;
        let lives = tree.processes.iter().filter_map(|process| process.alive());
        let regions = lives.flat_map(|life| &life.space.areas).flat_map(|area| &area.pages);
        let stored: u64 = regions.filter(|region| Stored::of(region).is_some()).map(Region::bytes).sum();
        if stored < lazy_size::least_bytes() {
            return None;
        }
        let device = userfault::device().inspect_err(|error| tracing::debug!(%error, "{}", userfault::DEVICE)).ok()?;
        let warn = |error: &io::Error| tracing::warn!(%error, "no pager: all memory is brought back first");
        let pager = way.pagers.thread().inspect_err(warn).ok()?;
        let loading = Loading::of(&tree.loading, &way);
        Some(Self { way, pager, device, loading })
    }

    /// For those who fill the processes.
    pub(super) fn lazy(&self) -> Lazy<'_> {
        Lazy { device: self.device.as_fd(), loading: &self.loading.first }
    }

    /// What is served from `image`, once the processes run.
    pub(super) fn missing(self, image: &File, late: Vec<Late>) -> io::Result<Missing<'a>> {
        let contexts = Contexts::of_built(late)?;
        let mut app = LazyApp::of_built(image, &contexts)?;
        if let Some(sample) = self.way.sample {
            app.stage(sample, &self.loading.staged).map_err(|error| match error {
                FetchError::Read(error) => error,
                FetchError::Damaged { error, .. } => io::Error::new(io::ErrorKind::InvalidData, error),
            })?;
        }
        Ok(Missing { pagers: self.way.pagers, pager: self.pager, app, contexts })
    }
}

impl<'a> Missing<'a> {
    /// Parks the contexts, in the caller's thread.
    pub(super) fn park(self, errands: &mpsc::Sender<Errand<'a>>, generation: u64) -> Parking<'a> {
        Parking(awaited(errands, move || {
            self.pagers.park(generation, &self.contexts)?;
            Ok(self)
        }))
    }

    /// Hands it to its pager.
    pub(super) fn serve(self) -> io::Result<()> {
        self.pager.serve(self.app)
    }
}

/// An app that misses pages, while its contexts are parked.
pub(super) struct Parking<'a>(mpsc::Receiver<io::Result<Missing<'a>>>);

impl<'a> Parking<'a> {
    /// Waits until they are: from then on the app may run.
    pub(super) fn wait(self) -> io::Result<Missing<'a>> {
        self.0.recv().unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into()))
    }
}
