//! What is held of a sleeping app: its watch, its image, and words for what wakes it.

use std::os::fd::AsFd;
use std::time::SystemTime;

use torpor_api::spec::WakeOn;
use torpor_engine::Source;
use torpor_lifecycle::Event;

use super::ProcessTree;
use super::sleep_state::SleepState;
use super::texts::{chain, text};
use super::{parked, wake_labels};

impl ProcessTree {
    /// Keeps what waking takes, and parks what must outlive us. It fell asleep at `since`.
    pub(super) fn hold(&mut self, asleep: SleepState, since: SystemTime) {
        // It asks the keeper, and reads what may be much.
        tokio::task::block_in_place(|| self.hold_here(asleep, since));
    }

    fn hold_here(&mut self, mut asleep: SleepState, since: SystemTime) {
        let init = self.run.sandbox.as_ref().map_or(0, |sandbox| sandbox.init_pid());
        match &asleep {
            SleepState::Dozing(asleep) => {
                self.sleep.labels = wake_labels::labels(asleep.watch.sources()).unwrap_or_else(|error| {
                    tracing::debug!(app = self.record.spec.name, %error, "naming what wakes it");
                    Vec::new()
                });
            }
            // Those from when it dozed are better, where there are any.
            SleepState::Warm(app) if self.sleep.labels.len() != app.watch.sources().len() => {
                self.sleep.labels = wake_labels::labels_without_processes(init, app.watch.sources());
            }
            SleepState::Warm(_) => {}
        }
        if let SleepState::Warm(app) = &mut asleep {
            match parked::parked_files(&self.shared, &self.record.id) {
                Ok(parked) => {
                    if self.looks_at_single_sockets() {
                        app.pick_sockets(&parked);
                    }
                    app.hold_files(parked);
                }
                // Every event wakes it then, which asks for them again.
                Err(error) => {
                    tracing::warn!(app = self.record.spec.name, error = %chain(&error), "fetching its open files");
                }
            }
        }
        if self.record.spec.idle.wake_on == WakeOn::Data && self.sleep.deferred.is_empty() {
            self.sleep.deferred = crate::probes::listeners(asleep.watch(), &asleep.sockets(init));
        }
        let park = parked::park_watch(&self.shared, &self.record.id, asleep.watch(), &self.sleep.deferred);
        match park {
            Ok(()) => crate::probes::defer(&self.sleep.deferred, &asleep.sockets(init)),
            Err(error) => {
                // It sleeps on; a new worker would wake it for safety.
                tracing::warn!(app = self.record.spec.name, error = %chain(&error), "parking its descriptors");
                self.sleep.deferred.clear();
            }
        }
        self.sleep.contexts_held = self.deposit_contexts(&asleep);
        let watch = asleep.watch().as_fd().try_clone_to_owned();
        match watch.and_then(torpor_linux::readable::register) {
            Ok(watch) => self.sleep.watch = Some(watch),
            Err(error) => {
                tracing::error!(app = self.record.spec.name, %error, "watching its descriptors; waking it");
                self.report(Event::Packet(text("its descriptors cannot be watched")));
            }
        }
        self.sleep.since = since;
        self.sleep.state = Some(asleep);
        self.enter_cached(since);
    }

    /// Its image counts as one that lies in the page cache.
    pub(super) fn enter_cached(&mut self, since: SystemTime) {
        // One from before a wake that failed must not count twice.
        self.sleep.cached_image = None;
        let enter = |asleep: &SleepState| {
            self.shared.cached_images.enter(asleep.depth(), since, asleep.image(), asleep.image_bytes())
        };
        self.sleep.cached_image = self.sleep.state.as_ref().map(enter);
    }

    /// Something that the app waits for has happened, or seems to have.
    pub(super) fn watch_fired(&mut self) -> Option<Event> {
        let asleep = self.sleep.state.as_ref()?;
        let init = self.run.sandbox.as_ref().map_or(0, |sandbox| sandbox.init_pid());
        loop {
            match asleep.watch().fired() {
                Ok(None) => return None,
                Ok(Some(source)) => {
                    let sockets = asleep.sockets(init);
                    let single = self.looks_at_single_sockets();
                    if !single || crate::probes::counts(&source, &sockets, &self.record.spec.idle) {
                        return Some(Event::Packet(self.words_for(asleep, &source).into()));
                    }
                }
                Err(error) => {
                    tracing::error!(app = self.record.spec.name, %error, "reading what happened; waking it");
                    return Some(Event::Packet(text(error)));
                }
            }
        }
    }

    /// What happened, in words.
    fn words_for(&self, asleep: &SleepState, source: &Source) -> String {
        let place = asleep.watch().sources().iter().position(|known| known == source);
        match place.and_then(|place| self.sleep.labels.get(place)) {
            Some(label) if ["tcp ", "udp ", "a connection "].iter().any(|kind| label.starts_with(kind)) => {
                format!("packet for {label}")
            }
            Some(label) => format!("an event on {label}"),
            None => format!("an event on {} of process {}", source.what, source.pid),
        }
    }

    /// Whether policy tells the sockets apart that wake it.
    pub(super) fn looks_at_single_sockets(&self) -> bool {
        let idle = &self.record.spec.idle;
        idle.wake_on == WakeOn::Data || !idle.ignore.is_empty()
    }

    pub(super) fn discard_image(&mut self) {
        self.sleep.state = None;
        self.sleep.dozes = None;
        self.sleep.cached_image = None;
        self.sleep.watch = None;
        // One that a lazy wake reads goes with the end of that.
        let keep = self.lazy.as_ref().map(|wake| wake.generation());
        match tokio::task::block_in_place(|| self.files.images.clean(keep, self.owner())) {
            Ok(_) => {}
            Err(error) => tracing::warn!(app = self.record.spec.name, %error, "removing its image"),
        }
    }

    pub(super) fn quarantine_image(&mut self) {
        let Some(asleep) = self.sleep.state.take() else { return };
        self.sleep.cached_image = None;
        self.sleep.watch = None;
        match tokio::task::block_in_place(|| asleep.image().quarantine()) {
            Ok(kept) => tracing::warn!(app = self.record.spec.name, kept = %kept.display(), "damaged image"),
            Err(error) => tracing::warn!(app = self.record.spec.name, %error, "quarantining its damaged image"),
        }
    }
}
