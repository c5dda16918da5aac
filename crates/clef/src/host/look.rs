//! Looks at Clefs from outside, and copies them.

use serde::{Deserialize, Serialize};
use torpor_lua::{Image, Value};

use super::asks::Effect;
use super::{Host, HostError, SharedKey};
use crate::message::Outgoing;
use crate::note::{Note, Origin, Usage, Wait};
use crate::seal::Secret;
use crate::store::{self, Stored};

/// What a task waits for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiting {
    /// In words.
    pub wait: String,
    /// Until when at most, in ms since 1970; none: for ever.
    pub until_ms: Option<u64>,
}

/// What is known of a Clef.
#[derive(Clone, Debug)]
pub struct Seen {
    /// It is in memory.
    pub is_awake: bool,
    /// Bytes that its program uses; none if it is asleep.
    pub memory_bytes: Option<usize>,
    /// Bytes of its records in the log.
    pub stored_bytes: u64,
    /// What each of its tasks waits for.
    pub tasks: Vec<Waiting>,
    /// Names of its alarms, and when they are due, in ms since 1970.
    pub alarms: Vec<(String, u64)>,
    /// Connections.
    pub connections: usize,
    /// What it has `put`.
    pub values: Vec<(Vec<u8>, Value)>,
    /// What it has used.
    pub usage: Usage,
}

/// A Clef outside of a host.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Exported {
    note: Vec<u8>,
    image: Vec<u8>,
    seal: Vec<u8>,
}

/// What copies as bytes begin with.
const MAGIC: &[u8] = b"torpor clef 1\n";

impl Exported {
    /// As a file has it.
    ///
    /// # Errors
    /// [`HostError::Note`].
    pub fn to_bytes(&self) -> Result<Vec<u8>, HostError> {
        Ok(postcard::to_extend(self, MAGIC.to_vec())?)
    }

    /// What [`Exported::to_bytes`] has given.
    ///
    /// # Errors
    /// [`HostError::NotACopy`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, HostError> {
        let copy = bytes.strip_prefix(MAGIC).ok_or(HostError::NotACopy)?;
        match postcard::take_from_bytes(copy) {
            Ok((copy, [])) => Ok(copy),
            _ => Err(HostError::NotACopy),
        }
    }
}

/// What a chunk has returned, and the lines that it has printed.
type Looked = (Vec<Value>, Vec<String>);

impl Host {
    /// What is known of a Clef, which stays asleep.
    ///
    /// # Errors
    /// See [`HostError`].
    pub fn see(&self, key: &[u8]) -> Result<Seen, HostError> {
        let awake = self.awake.get(key);
        let note = match awake {
            Some(clef) => clef.note.clone(),
            None => Note::from_stored(&self.store.note(key)?.ok_or(HostError::None)?)?,
        };
        let wait = |wait: &Wait| {
            let (wait, until) = match wait {
                Wait::Until(due) => ("sleeps".to_owned(), *due),
                Wait::Receive(socket, due) => (format!("waits for a message of connection {socket}"), *due),
                Wait::Answer(_, due) => ("waits for the answer of another Clef".to_owned(), *due),
                Wait::Fetch { .. } => ("waits for an HTTP response".to_owned(), 0),
                Wait::Nothing => ("is about to go on".to_owned(), 0),
            };
            Waiting { wait, until_ms: (until > 0).then_some(until) }
        };
        let mut usage = note.usage;
        if let Some(clef) = awake {
            usage += clef.uncounted();
        }
        Ok(Seen {
            is_awake: awake.is_some(),
            memory_bytes: awake.map(|clef| clef.state.used_bytes()),
            stored_bytes: self.store.bytes_of(key)?,
            tasks: note.tasks.values().map(|task| wait(&task.wait)).collect(),
            alarms: note.alarms.iter().map(|(name, alarm)| (name.clone(), alarm.due)).collect(),
            connections: note.sockets.len(),
            values: note.values.into_iter().collect(),
            usage,
        })
    }

    pub(super) fn is_there(&self, key: &[u8]) -> Result<bool, HostError> {
        Ok(self.awake.contains_key(key) || self.store.window(key)?.is_some())
    }

    /// Runs a chunk in a Clef, which must not wait, and forgets all that it has changed.
    ///
    /// # Errors
    /// See [`HostError`].
    pub fn look(&mut self, key: &[u8], text: &str) -> Result<Looked, HostError> {
        self.chunk(key, text, false)
    }

    /// Runs a chunk in a Clef, which must not wait, and keeps what it has changed.
    ///
    /// # Errors
    /// See [`HostError`].
    pub fn change(&mut self, key: &[u8], text: &str) -> Result<Looked, HostError> {
        self.chunk(key, text, true)
    }

    fn chunk(&mut self, key: &[u8], text: &str, keeps: bool) -> Result<Looked, HostError> {
        if !self.is_there(key)? {
            return Err(HostError::None);
        }
        let key: SharedKey = key.into();
        self.wake(&key)?;
        self.store_changes(&key)?;
        let Some(mut clef) = self.awake.remove(&key) else { return Err(HostError::None) };
        let mut note = clef.note.clone();
        if !keeps {
            // What it would close or receive is not given back.
            note.sockets.clear();
        }
        let found = self.run_chunk(&key, &mut clef.state, &mut note, "=(repl)", text, &[]);
        let is_spent = clef.state.is_spent();
        let is_kept = keeps && !is_spent;
        if is_kept {
            clef.note = note;
            clef.is_changed = true;
        }
        self.awake.insert(key.clone(), clef);
        if !is_kept {
            self.forget(&key);
        }
        let (values, effects) = match found {
            Err(error) if is_kept => {
                // What it has changed before stays, as with functions that fail.
                self.update_due(&key);
                self.store_changes(&key)?;
                return Err(error);
            }
            found => found?,
        };
        let line = |effect: &Effect| match effect {
            Effect::Out(Outgoing::Printed { line, .. }) => Some(line.clone()),
            _ => None,
        };
        let lines = effects.iter().filter_map(line).collect();
        if is_kept {
            let others = effects.into_iter().filter(|effect| line(effect).is_none()).collect();
            self.perform(&key, others);
            self.update_due(&key);
            self.store_changes(&key)?;
        }
        Ok((values, lines))
    }

    /// A copy of a Clef, as it is now.
    ///
    /// # Errors
    /// See [`HostError`].
    pub fn export(&mut self, key: &[u8]) -> Result<Exported, HostError> {
        if let Some((key, _)) = self.awake.get_key_value(key) {
            self.store_changes(&key.clone())?;
        }
        let Stored { note, images, .. } = self.store.load(key)?.ok_or(HostError::None)?;
        let image = Image::folded(&images).map_err(store::StoreError::from)?.as_bytes().to_vec();
        let seal = Secret::of(&self.folder)?.seal(&[&note.bytes, &image]);
        Ok(Exported { note: note.bytes, image, seal })
    }

    /// Makes a Clef of a copy that was exported here. It has no connections, and nobody waits for what its tasks return.
    ///
    /// # Errors
    /// See [`HostError`].
    pub fn import(&mut self, key: &[u8], exported: &Exported) -> Result<(), HostError> {
        if key.is_empty() || key.len() > crate::log::MOST_KEY_BYTES {
            return Err(HostError::Key);
        }
        if self.is_there(key)? {
            return Err(HostError::Exists);
        }
        if self.store.len() >= self.class.limits.clefs {
            return Err(HostError::Full(self.class.limits.clefs));
        }
        let Exported { note, image, seal } = exported;
        if !Secret::of(&self.folder)?.is_seal(seal, &[note, image]) {
            return Err(HostError::Forged);
        }
        let image = Image::from_bytes(image.clone());
        let image = Image::folded(std::slice::from_ref(&image)).map_err(store::StoreError::from)?;
        let mut note = Note::from_stored(&store::Note { due: 0, bytes: note.clone() })?;
        note.sockets.clear();
        note.outbox.clear();
        (note.usage, note.is_copy) = (Usage::default(), true);
        for waiting in note.tasks.values_mut() {
            waiting.origin = Origin::Nobody;
            if matches!(waiting.wait, Wait::Answer(..) | Wait::Fetch { .. }) {
                waiting.wait = Wait::Nothing;
            }
        }
        self.store.put(key, &note.stored()?, &image, None)?;
        Ok(())
    }

    /// Copies a Clef.
    ///
    /// # Errors
    /// See [`HostError`].
    pub fn fork(&mut self, from: &[u8], to: &[u8]) -> Result<(), HostError> {
        let copy = self.export(from)?;
        self.import(to, &copy)
    }
}
