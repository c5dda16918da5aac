//! A class of Clefs: their code, and what each of them may use.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// When what a Clef has changed is on disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Durability {
    /// Before anybody is told what follows from it.
    #[default]
    Reply,
    /// When it falls asleep.
    Sleep,
    /// Some time after it has fallen asleep.
    None,
}

/// What each Clef may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of memory; 64 MiB at most.
    pub memory_bytes: usize,
    /// Processor time for a message.
    pub step: Duration,
    /// Clefs that are awake at the same time.
    pub awake: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { memory_bytes: 16 << 20, step: Duration::from_secs(1), awake: 1000 }
    }
}

/// A class.
#[derive(Clone, Debug)]
pub struct Class {
    /// In messages.
    pub name: String,
    /// Text in Lua. It runs once for each Clef, which defines its functions.
    pub source: String,
    /// Of each Clef.
    pub limits: Limits,
    /// Of all.
    pub durability: Durability,
}
