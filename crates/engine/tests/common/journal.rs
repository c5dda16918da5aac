//! A journal in memory.

use std::io;
use std::sync::Mutex;

use torpor_engine::{Journal, Phase};

/// Keeps the last phase that was recorded.
pub struct MemoryJournal(Mutex<Phase>);

impl MemoryJournal {
    pub fn new(phase: Phase) -> Self {
        Self(Mutex::new(phase))
    }

    pub fn awake() -> Self {
        Self::new(Phase::Awake)
    }

    pub fn phase(&self) -> Phase {
        *self.0.lock().unwrap()
    }
}

impl Journal for MemoryJournal {
    fn record(&self, phase: Phase) -> io::Result<()> {
        *self.0.lock().unwrap() = phase;
        Ok(())
    }
}
