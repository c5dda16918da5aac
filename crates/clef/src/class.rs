//! A class of Clefs: their code, and what each of them may use.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

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

/// What Clefs may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of memory of each; 64 MiB at most.
    pub memory_bytes: usize,
    /// Processor time for a step: from a message or an answer to the next wait.
    pub step: Duration,
    /// Clefs that are awake at the same time.
    pub awake: usize,
    /// Clefs of the class.
    pub clefs: usize,
    /// Messages that a step sends to others: Clefs, connections, the log.
    pub messages: usize,
    /// How long a call waits for the answer of another Clef.
    pub answer: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            memory_bytes: 16 << 20,
            step: Duration::from_secs(1),
            awake: 1000,
            clefs: usize::MAX,
            messages: 10_000,
            answer: Duration::from_secs(30),
        }
    }
}

/// The program of a class.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Code {
    /// Text in Lua. It runs once for each Clef, and defines its functions.
    pub main: String,
    /// What `require` finds, by name: texts in Lua.
    pub files: BTreeMap<String, String>,
}

impl From<&str> for Code {
    fn from(main: &str) -> Self {
        Self { main: main.to_owned(), files: BTreeMap::new() }
    }
}

impl Code {
    /// Names what states that were made with it depend on.
    pub(crate) fn hash(&self) -> u64 {
        let mut hash = Xxh3::new();
        let names = self.files.iter().flat_map(|(name, text)| [name, text]);
        for text in std::iter::once(&self.main).chain(names) {
            hash.update(&(text.len() as u64).to_le_bytes());
            hash.update(text.as_bytes());
        }
        hash.digest()
    }
}

/// A class.
#[derive(Clone, Debug)]
pub struct Class {
    /// In messages to and of Clefs: `NAME/KEY` is one of them.
    pub name: String,
    /// What they do.
    pub code: Code,
    /// What they may use.
    pub limits: Limits,
    /// Of all.
    pub durability: Durability,
}
