//! What those who look after Clefs want of their host.

use serde::{Deserialize, Serialize};

use super::{Host, HostError, SharedKey};
use crate::key::Key;
use crate::note::Usage;

/// A Clef, as far as is known without waking it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClefStatus {
    /// Its key.
    pub key: Key,
    /// It has memory.
    pub awake: bool,
    /// What is stored of it, in bytes.
    pub bytes: u64,
}

/// The Clefs of a class in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stats {
    /// Clefs that are stored.
    pub clefs: u64,
    /// Clefs that are awake.
    pub awake: u64,
    /// Bytes of the log.
    pub log_bytes: u64,
    /// Bytes of the log that are needed.
    pub needed_bytes: u64,
    /// When the host was started, in ms since 1970; absent: it does not say.
    #[serde(default)]
    pub host_started_ms: Option<u64>,
    /// What all Clefs together have used since then, those that were removed too.
    #[serde(default)]
    pub used_since_host_start: Usage,
}

impl Host {
    /// All Clefs, those that are not stored yet too, by key.
    ///
    /// # Errors
    /// [`HostError::Store`].
    pub fn list(&self) -> Result<Vec<ClefStatus>, HostError> {
        let mut clefs = Vec::new();
        for key in self.store.keys() {
            let (awake, bytes) = (self.awake.contains_key(key.as_slice()), self.store.bytes_of(&key).unwrap_or(0));
            clefs.push(ClefStatus { key: Key(key), awake, bytes });
        }
        let unstored = self.awake.iter().filter(|(_, clef)| clef.is_new());
        clefs.extend(unstored.map(|(key, _)| ClefStatus { key: Key(key.to_vec()), awake: true, bytes: 0 }));
        clefs.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        Ok(clefs)
    }

    /// In numbers.
    pub fn stats(&self) -> Stats {
        let ((clefs, awake), (log_bytes, needed_bytes)) = (self.counts(), self.store.bytes());
        let mut used = self.used;
        self.awake.values().for_each(|clef| used += clef.uncounted());
        Stats {
            clefs: clefs as u64,
            awake: awake as u64,
            log_bytes,
            needed_bytes,
            host_started_ms: Some(self.begun),
            used_since_host_start: used,
        }
    }

    /// Has a Clef in memory, but creates none; false if it was awake.
    ///
    /// # Errors
    /// [`HostError::None`], or others.
    pub fn wake_one(&mut self, key: &[u8]) -> Result<bool, HostError> {
        if !self.is_there(key)? {
            return Err(HostError::None);
        }
        let was_awake = self.awake.contains_key(key);
        let key: SharedKey = key.into();
        self.wake(&key)?;
        self.touch(&key);
        self.make_room()?;
        Ok(!was_awake)
    }

    /// Puts one Clef to sleep; false if it was not awake.
    ///
    /// # Errors
    /// See [`HostError`].
    pub fn sleep_one(&mut self, key: &[u8]) -> Result<bool, HostError> {
        let Some((key, _)) = self.awake.get_key_value(key) else { return Ok(false) };
        self.put_to_sleep(&key.clone())?;
        Ok(true)
    }
}
