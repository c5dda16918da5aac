//! Runs the Clefs of a class in one process: wakes those that are called, and evicts those that were called longest ago.
//!
//! ```text
//! call ─▶ asleep? restore ─▶ run until it has answered ─▶ append what has changed ─▶ commit ─▶ the answer may be told
//!         new? load the code, create(key)
//! ```
//! A host is used by one thread. After each call the changes are in the log's buffer, and one commit makes those of many calls durable. A Clef that
//! is ended for its use of time goes back to what it was before the call.

mod manage;
mod rest;

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::Path;

use torpor_lua::{MOST_WINDOWS, State, StateError, Step, Value};
use xxhash_rust::xxh3::xxh3_64;

pub use self::manage::{ClefStatus, Stats};
use self::rest::Machinery;
use crate::class::{Class, Durability};
use crate::log::MOST_KEY_BYTES;
use crate::store::{Store, StoreError};

/// Why a Clef cannot be called. Others can.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// Its state cannot be had, or not be stored.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Its state cannot be restored, or it has no place.
    #[error(transparent)]
    State(#[from] StateError),
    /// No random numbers, timers or addresses.
    #[error(transparent)]
    System(#[from] io::Error),
    /// Its key is empty or too long.
    #[error("a key has 1 to {MOST_KEY_BYTES} bytes")]
    Key,
    /// Its code cannot be run, or ends with an error.
    #[error("{0}")]
    Code(String),
}

#[derive(Debug)]
struct Awake {
    state: State,
    /// When it was last called, in calls of the host.
    called: u64,
    /// Not all of it is in the store.
    is_changed: bool,
}

/// The Clefs of a class.
#[derive(Debug)]
pub struct Host {
    class: Class,
    /// None while it rests.
    machinery: Option<Machinery>,
    store: Store,
    awake: HashMap<Vec<u8>, Awake>,
    /// By when they were last called.
    order: BTreeMap<u64, Vec<u8>>,
    /// Who has a window.
    places: HashMap<u32, Vec<u8>>,
    calls: u64,
    /// Hash of the code: the tag of states that have it.
    source_hash: u64,
}

/// Where a Clef is when it is awake. Two with the same place are never awake together.
fn window(key: &[u8]) -> u32 {
    (xxh3_64(key) % u64::from(MOST_WINDOWS)) as u32
}

fn seed() -> Result<u64, HostError> {
    getrandom::u64().map_err(|error| HostError::System(io::Error::other(error)))
}

impl Host {
    /// Opens the Clefs in a directory that nobody else changes. Only this thread can use them.
    ///
    /// # Errors
    /// See [`HostError`].
    pub fn open(class: Class, folder: &Path) -> Result<Self, HostError> {
        Ok(Self {
            // Had at once, so that what the machine lacks is told now.
            machinery: Some(Machinery::new(class.limits.step)?),
            source_hash: xxh3_64(class.source.as_bytes()),
            class,
            store: Store::open(folder)?,
            awake: HashMap::new(),
            order: BTreeMap::new(),
            places: HashMap::new(),
            calls: 0,
        })
    }

    /// How many Clefs are stored, and how many are awake.
    pub fn counts(&self) -> (usize, usize) {
        (self.store.len(), self.awake.len())
    }

    /// Calls a function of a Clef, which is created if there is none with this key. The answer may be told after the next
    /// [`Host::commit`].
    ///
    /// # Errors
    /// See [`HostError`].
    pub fn call(&mut self, key: &[u8], function: &str, arguments: &[Value]) -> Result<Vec<Value>, HostError> {
        if key.is_empty() || key.len() > MOST_KEY_BYTES {
            return Err(HostError::Key);
        }
        self.end_rest()?;
        self.wake(key)?;
        let Some(clef) = self.awake.get_mut(key) else { return Err(HostError::Key) };
        self.order.remove(&clef.called);
        self.calls += 1;
        clef.called = self.calls;
        self.order.insert(self.calls, key.to_vec());
        clef.is_changed = true;
        let (_, step) = clef.state.call(function, arguments);
        let is_spent = clef.state.is_spent();
        let answer = match step {
            Step::Ended(values) => Ok(values),
            Step::Failed(error) => Err(HostError::Code(error)),
            Step::Waits(_) => Err(HostError::Code("it waits for something that its host does not offer".to_owned())),
        };
        if is_spent {
            self.forget(key);
        } else if self.class.durability == Durability::Reply {
            self.store_changes(key)?;
        }
        self.make_room()?;
        answer
    }

    /// What was answered up to now may be told.
    ///
    /// # Errors
    /// [`HostError::Store`]: nothing of it may be told, and all Clefs are what they were at the last commit.
    pub fn commit(&mut self) -> Result<(), HostError> {
        if self.class.durability == Durability::None {
            return Ok(());
        }
        let committed = self.store.commit();
        if committed.is_err() {
            self.awake.clear();
            self.order.clear();
            self.places.clear();
        }
        Ok(committed?)
    }

    /// Puts all Clefs to sleep, and makes their states durable.
    ///
    /// # Errors
    /// See [`HostError`].
    pub fn sleep(&mut self) -> Result<(), HostError> {
        let mut result = Ok(());
        while let Some((_, key)) = self.order.pop_first() {
            result = result.and(self.put_to_sleep(&key));
        }
        self.store.commit()?;
        result
    }

    /// Collects some of the log, if there is enough in it that nobody needs.
    ///
    /// # Errors
    /// See [`HostError`].
    pub fn collect(&mut self) -> Result<bool, HostError> {
        Ok(self.store.collect()?)
    }

    /// Changes the code. A Clef gets it at its next call: it begins anew, but for its global table `state`, which is kept.
    pub fn reload(&mut self, source: String) {
        self.source_hash = xxh3_64(source.as_bytes());
        self.class.source = source;
    }

    /// Removes a Clef; false if there is none.
    ///
    /// # Errors
    /// See [`HostError`].
    pub fn remove(&mut self, key: &[u8]) -> Result<bool, HostError> {
        let was_awake = self.awake.contains_key(key);
        self.forget(key);
        Ok(self.store.remove(key)? || was_awake)
    }

    fn forget(&mut self, key: &[u8]) {
        if let Some(clef) = self.awake.remove(key) {
            self.order.remove(&clef.called);
            self.places.remove(&window(key));
        }
    }

    fn store_changes(&mut self, key: &[u8]) -> Result<(), HostError> {
        let Some(clef) = self.awake.get_mut(key).filter(|clef| clef.is_changed) else { return Ok(()) };
        let wants_whole = self.store.wants_whole(key, clef.state.used_bytes());
        let stored = wants_whole.and_then(|whole| {
            if whole {
                self.store.put(key, &clef.state.whole())
            } else {
                self.store.put_changes(key, &clef.state.changes()).map(drop)
            }
        });
        if let Err(error) = stored {
            // What has changed is not known any more: it goes back to what is stored.
            self.forget(key);
            return Err(error.into());
        }
        clef.is_changed = false;
        Ok(())
    }

    fn put_to_sleep(&mut self, key: &[u8]) -> Result<(), HostError> {
        self.store_changes(key)?;
        self.forget(key);
        Ok(())
    }

    /// Those that were called longest ago go to sleep.
    fn make_room(&mut self) -> Result<(), HostError> {
        while self.awake.len() > self.class.limits.awake.max(1) {
            let Some((_, key)) = self.order.pop_first() else { break };
            self.put_to_sleep(&key)?;
        }
        Ok(())
    }

    fn wake(&mut self, key: &[u8]) -> Result<(), HostError> {
        match self.awake.get(key) {
            Some(clef) if clef.state.tag() == self.source_hash => return Ok(()),
            // Its code is old.
            Some(_) => self.put_to_sleep(key)?,
            None => {}
        }
        if let Some(other) = self.places.get(&window(key)).cloned() {
            self.put_to_sleep(&other)?;
        }
        let images = self.store.load(key)?;
        let (state, is_changed) = match images {
            Some(images) => self.current(key, State::restore(self.windows()?, &images)?)?,
            None => (self.created(key)?, true),
        };
        self.calls += 1;
        self.order.insert(self.calls, key.to_vec());
        self.places.insert(window(key), key.to_vec());
        self.awake.insert(key.to_vec(), Awake { state, called: self.calls, is_changed });
        Ok(())
    }

    /// One with the code of the class, in which nothing has been called.
    fn loaded(&self, key: &[u8]) -> Result<State, HostError> {
        let Class { name, source, limits, .. } = &self.class;
        let mut state = State::new(self.windows()?, window(key), limits.memory_bytes, seed()?)?;
        state.set_tag(self.source_hash);
        ended(&mut state, &format!("={name}"), source, &[key.into()])?;
        Ok(state)
    }

    fn created(&self, key: &[u8]) -> Result<State, HostError> {
        let mut state = self.loaded(key)?;
        ended(&mut state, "=create", "if create then create(...) end", &[key.into()])?;
        Ok(state)
    }

    /// One that was stored, with the code of the class.
    fn current(&self, key: &[u8], mut state: State) -> Result<(State, bool), HostError> {
        if state.tag() == self.source_hash {
            return Ok((state, false));
        }
        let found = ended(&mut state, "=reload", "return state", &[])?;
        // The new one takes its place.
        drop(state);
        let mut state = self.loaded(key)?;
        if let Some(kept @ Value::Table(_)) = found.first() {
            ended(&mut state, "=reload", "state = ...", std::slice::from_ref(kept))?;
        }
        Ok((state, true))
    }
}

/// Runs a chunk that must not wait.
fn ended(state: &mut State, name: &str, text: &str, arguments: &[Value]) -> Result<Vec<Value>, HostError> {
    match state.run(name, text, arguments).1 {
        Step::Ended(values) => Ok(values),
        Step::Failed(error) => Err(HostError::Code(error)),
        Step::Waits(_) => Err(HostError::Code(format!("{name}: it waits, which code that is loaded cannot"))),
    }
}
