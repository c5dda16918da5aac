//! What is done with an image of several generations once its app dozes: dead pages are given back, and scattered ones are folded.
//!
//! Both take time in which the app may wake, so they run on the thread of the sleep, behind its end. The app's task commits a fold, and
//! only if the app still dozes with the same image.

use std::io;
use std::sync::Weak;

use tokio::sync::mpsc::UnboundedSender;
use torpor_engine::Asleep;
use torpor_store::{Folded, Scattered, Trim};

use super::sleep_state::SleepState;
use super::{Message, ProcessTree};

/// What there may be to do.
#[derive(Debug, Default)]
pub(super) struct AfterSleep {
    trim: Option<Trim>,
    scattered: Option<Scattered>,
}

impl AfterSleep {
    /// Looks at an app that has just fallen asleep, and does not change anything yet.
    pub(super) fn of(asleep: &Asleep) -> Self {
        let path = asleep.image.path().display();
        let failed = |error: &io::Error| tracing::warn!(image = %path, %error, "looking for dead and scattered pages");
        let trim = asleep.trim().inspect_err(failed).unwrap_or_default();
        Self { trim, scattered: asleep.scattered().inspect_err(failed).unwrap_or_default() }
    }

    /// Does it. A fold is given up when the app does not doze any more, and told to its task when it is written.
    pub(super) fn run(self, dozes: &Weak<()>, task: &UnboundedSender<Message>) {
        match self.trim.map_or(Ok(0), Trim::run) {
            Ok(0) => {}
            Ok(bytes) => tracing::debug!(bytes, "dead pages of its image are given back"),
            Err(error) => tracing::warn!(%error, "giving back dead pages of its image"),
        }
        let go_on = || dozes.strong_count() > 0;
        match self.scattered.map_or(Ok(None), |scattered| scattered.fold(go_on)) {
            Ok(None) => {}
            Ok(Some(folded)) => {
                // A task that has ended drops the message, which removes the file.
                let _ = task.send(Message::Folded(Box::new(folded)));
            }
            Err(error) => tracing::warn!(%error, "folding its image, which stays as it is"),
        }
    }
}

impl ProcessTree {
    /// Its image is folded: from here on it is woken from the new file, if it still dozes with that image.
    pub(super) fn folded(&mut self, folded: Box<Folded>) {
        let Some(SleepState::Dozing(asleep)) = &mut self.sleep.state else { return };
        if asleep.image.generation() != folded.generation() {
            return;
        }
        match tokio::task::block_in_place(|| folded.commit()) {
            Ok((state, bytes)) => {
                tracing::debug!(app = self.record.spec.name, bytes, "its image is folded");
                (asleep.state, asleep.image_bytes) = (state, bytes);
                self.enter_cached(self.sleep.since);
            }
            Err(error) => tracing::warn!(app = self.record.spec.name, %error, "replacing its image by the folded one"),
        }
    }
}
