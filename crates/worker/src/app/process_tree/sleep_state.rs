//! What is kept of a sleeping app, at whatever level.

use std::collections::HashMap;

use torpor_engine::{Asleep, Parked, Warm, Watch};
use torpor_image::tree::FileId;
use torpor_linux::closer::AppFile;
use torpor_store::Image;

use crate::cached::Depth;
use crate::probes::Sockets;

/// A sleeping app: everything that waking it takes.
pub(super) enum SleepState {
    /// Its processes are frozen, their memory is in the image.
    Dozing(Box<Asleep>),
    /// It has no processes: all of it is in the image, but for the open files that are parked.
    Warm(Box<WarmApp>),
}

/// So many parked files of an app are kept at hand at most: an app with more takes longer to be built than the keeper to answer.
const HELD_FILES: usize = 16;

/// An app that has no processes.
#[derive(Debug)]
pub(super) struct WarmApp {
    pub(super) warm: Warm,
    /// What wakes it. The descriptors are registered as files, so they count although no process has them.
    pub(super) watch: Watch,
    /// Those of its parked files that wake it, by process and number; only where policy looks at single sockets.
    pub(super) sockets: HashMap<(i32, i32), AppFile>,
    /// Duplicates of its parked files, so that a wake does not have to wait for the keeper, and nothing is lost with it; none
    /// if there are many.
    held: Option<Box<[(FileId, AppFile)]>>,
}

impl WarmApp {
    /// Nothing of its parked files is at hand yet.
    pub(super) fn new(warm: Warm, watch: Watch) -> Self {
        Self { warm, watch, sockets: HashMap::new(), held: None }
    }

    /// Keeps its parked files at hand.
    pub(super) fn hold_files(&mut self, parked: Parked) {
        self.held = (1..=HELD_FILES).contains(&parked.len()).then(|| parked.into_iter().collect());
    }

    /// Those that are at hand.
    pub(super) fn held_files(&self) -> Option<&[(FileId, AppFile)]> {
        self.held.as_deref()
    }

    /// Gives those that are at hand, once.
    pub(super) fn take_files(&mut self) -> Option<Parked> {
        self.held.take().map(|held| held.into_iter().collect())
    }

    /// Picks from its parked files those that wake it: they are told apart by what they are.
    pub(super) fn pick_sockets(&mut self, parked: &Parked) {
        use std::os::fd::AsRawFd;
        let name = |fd: &AppFile| std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()));
        let mut by_name: HashMap<String, &AppFile> = HashMap::new();
        for fd in parked.values() {
            if let Ok(name) = name(fd) {
                by_name.insert(name.to_string_lossy().into_owned(), fd);
            }
        }
        for source in self.watch.sources().iter().filter(|source| source.what.starts_with("socket:")) {
            if let Some(fd) = by_name.get(&source.what).and_then(|fd| fd.try_clone().ok()) {
                self.sockets.insert((source.pid, source.fd), fd);
            }
        }
    }
}

impl SleepState {
    /// Where its sockets are found; `init`: a process in its network namespace.
    pub(super) fn sockets(&self, init: i32) -> Sockets<'_> {
        match self {
            Self::Dozing(_) => Sockets::OfProcesses,
            Self::Warm(app) => Sockets::Parked { files: &app.sockets, init },
        }
    }

    /// What wakes it.
    pub(super) fn watch(&self) -> &Watch {
        match self {
            Self::Dozing(asleep) => &asleep.watch,
            Self::Warm(app) => &app.watch,
        }
    }

    /// Its image.
    pub(super) const fn image(&self) -> &Image {
        match self {
            Self::Dozing(asleep) => &asleep.image,
            Self::Warm(app) => &app.warm.image,
        }
    }

    /// Its level, for the page cache.
    pub(super) const fn depth(&self) -> Depth {
        match self {
            Self::Dozing(_) => Depth::Dozing,
            Self::Warm(_) => Depth::Warm,
        }
    }

    /// Bytes of the image's file.
    pub(super) fn image_bytes(&self) -> u64 {
        match self {
            Self::Dozing(asleep) => asleep.image_bytes,
            Self::Warm(app) => app.warm.image_bytes,
        }
    }
}
