//! A journal that also reports commits to the task.

use std::io;
use std::sync::Arc;

use tokio::sync::mpsc::UnboundedSender;
use torpor_engine::{Journal, Phase};
use torpor_lifecycle::Event;

use super::Message;
use crate::journal::PhaseFile;

/// The phase file of an operation that commits.
pub(super) struct NotifyingJournal {
    pub(super) file: Arc<PhaseFile>,
    pub(super) sender: UnboundedSender<Message>,
}

impl Journal for NotifyingJournal {
    fn record(&self, phase: Phase) -> io::Result<()> {
        self.file.record(phase)?;
        let committed = match phase {
            Phase::Dropping { .. } => Event::CaptureCommitted,
            Phase::Ending { .. } => Event::HibernateCommitted,
            Phase::Awake | Phase::Dozing { .. } | Phase::Lazy { .. } | Phase::Warm { .. } => return Ok(()),
        };
        // The task lives as long as an operation of its own runs.
        let _ = self.sender.send(Message::Event(committed));
        Ok(())
    }
}
