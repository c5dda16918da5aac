//! Clefs in memory: woken, stored, put to sleep.

use std::time::Instant;

use torpor_lua::{MOST_WINDOWS, State, Value};

use super::asks::{Asks, Effect, NotEnded, now};
use super::{Delivery, Host, HostError, SharedKey, random};
use crate::class::Durability;
use crate::log::MOST_KEY_BYTES;
use crate::note::{Note, Usage, Wait};
use crate::store::{Chain, Restored};

/// A Clef in memory.
#[derive(Debug)]
pub(super) struct Awake {
    pub(super) state: State,
    pub(super) note: Note,
    chain: Chain,
    /// When it was last used, in steps of the host.
    pub(super) used: u64,
    /// When it is in `due`; 0: it is not.
    pub(super) due: u64,
    /// Not all of it is in the store.
    pub(super) is_changed: bool,
    /// Since when its time in memory is not counted yet.
    since: Instant,
}

impl Awake {
    /// It was never stored.
    pub(super) fn is_new(&self) -> bool {
        self.chain.is_empty()
    }

    /// Its time in memory that is not counted yet.
    pub(super) fn uncounted(&self) -> Usage {
        let time = self.since.elapsed();
        let memory_kb_s = (self.state.used_bytes() as f64 / 1024.0 * time.as_secs_f64()) as u64;
        Usage { awake_ms: time.as_millis() as u64, memory_kb_s, ..Usage::default() }
    }

    /// Counts its time in memory.
    fn count(&mut self) -> Usage {
        let used = self.uncounted();
        self.since = Instant::now();
        self.note.usage += used;
        used
    }
}

impl Host {
    /// As [`Host::wake`], of one that was not removed.
    pub(super) fn wake_existing(&mut self, key: &SharedKey) -> Result<(), HostError> {
        if self.is_there(key)? { self.wake(key) } else { Err(HostError::None) }
    }

    /// Has a Clef in memory, with the code of the class; it is created if there is none.
    pub(super) fn wake(&mut self, key: &SharedKey) -> Result<(), HostError> {
        match self.awake.get(key) {
            Some(clef) if clef.state.tag() == self.code_hash => return Ok(()),
            // Its code is old.
            Some(_) => self.put_to_sleep(key)?,
            None => {}
        }
        if key.is_empty() || key.len() > MOST_KEY_BYTES {
            return Err(HostError::Key);
        }
        if let Some(window) = self.store.window(key)? {
            self.vacate(window)?;
        }
        let windows = self.engine()?;
        match self.store.restore(key, &windows)? {
            Some(Restored { note, state, chain }) => {
                let mut note = Note::from_stored(&note)?;
                if self.class.durability != Durability::Reply {
                    // Numbers that it has used since it was stored must not come again.
                    note.next_message = random()? >> 1;
                }
                let clef = Awake { state, note, chain, used: 0, due: 0, is_changed: false, since: Instant::now() };
                self.settle(key, clef)?;
                self.drop_gone(key);
                self.take_up_messages(key);
                // It may have got new code, and told others so.
                self.store_for_reply(key)?;
            }
            None => self.create(key)?,
        }
        Ok(())
    }

    fn create(&mut self, key: &SharedKey) -> Result<(), HostError> {
        if self.store.len() >= self.class.limits.clefs {
            return Err(HostError::Full(self.class.limits.clefs));
        }
        let window = self.new_window();
        self.vacate(window)?;
        let (mut state, mut note) = (self.empty(window)?, Note { next_message: random()? >> 1, ..Note::default() });
        let mut effects = self.load(key, &mut state, &mut note, None)?;
        let create = "if create then create(...) end";
        effects.extend(self.run_chunk(key, &mut state, &mut note, "=create", create, &[(&**key).into()])?.1);
        let clef =
            Awake { state, note, chain: Chain::default(), used: 0, due: 0, is_changed: true, since: Instant::now() };
        self.place(key, clef);
        self.perform(key, effects);
        // What it has told others of so far has happened, whatever becomes of its first step.
        self.store_for_reply(key)
    }

    /// Where a new Clef is when it is awake: one after the other, so that they share page tables. Two with the same window are never awake
    /// together.
    pub(super) fn new_window(&mut self) -> u32 {
        let window = self.next_window;
        self.next_window = (window + 1) % MOST_WINDOWS;
        window
    }

    /// Adds one that was stored, with the code of the class.
    fn settle(&mut self, key: &SharedKey, mut clef: Awake) -> Result<(), HostError> {
        if clef.state.tag() != self.code_hash {
            let of = "return state";
            let (found, _) = self.run_chunk(key, &mut clef.state, &mut Note::default(), "=reload", of, &[])?;
            let window = clef.state.window();
            // The new one takes its place.
            drop(clef.state);
            let mut note = clef.note.clone();
            let tasks = std::mem::take(&mut note.tasks);
            note.sockets.clear();
            clef.state = self.empty(window)?;
            let effects = self.load(key, &mut clef.state, &mut note, found.first())?;
            self.perform(key, effects);
            for waiting in tasks.into_values() {
                let error = "its Clef has got new code".to_owned();
                self.tell(key, Some(&mut note), waiting.origin, Err(error));
            }
            (clef.note, clef.chain, clef.is_changed) = (note, Chain::default(), true);
        }
        if std::mem::take(&mut clef.note.is_copy) {
            let seed = Value::Integer(random()?.cast_signed());
            let reseed = "math.randomseed(...)";
            self.run_chunk(key, &mut clef.state, &mut Note::default(), "=copy", reseed, &[seed])?;
            clef.is_changed = true;
        }
        self.place(key, clef);
        Ok(())
    }

    fn place(&mut self, key: &SharedKey, mut clef: Awake) {
        self.steps += 1;
        (clef.used, clef.due) = (self.steps, clef.note.due());
        self.order.insert(clef.used, key.clone());
        self.places.insert(clef.state.window(), key.clone());
        self.store.hold(&clef.chain);
        if clef.due > 0 {
            self.due.insert((clef.due, key.clone()));
        }
        self.awake.insert(key.clone(), clef);
    }

    pub(super) fn empty(&mut self, window: u32) -> Result<State, HostError> {
        let windows = self.engine()?;
        Ok(State::new(&windows, window, self.class.limits.memory_bytes, random()?)?)
    }

    /// Loads the code of the class into an empty state, and what is kept of an earlier one.
    fn load(
        &mut self,
        key: &SharedKey,
        state: &mut State,
        note: &mut Note,
        kept: Option<&Value>,
    ) -> Result<Vec<Effect>, HostError> {
        let mut effects = self.load_program(key, state, note, &[(&**key).into()])?;
        if let Some(kept @ Value::Table(_)) = kept {
            effects.extend(self.run_chunk(key, state, note, "=reload", "state = ...", std::slice::from_ref(kept))?.1);
        }
        Ok(effects)
    }

    /// Runs the program of the class in an empty state.
    pub(super) fn load_program(
        &mut self,
        key: &SharedKey,
        state: &mut State,
        note: &mut Note,
        arguments: &[Value],
    ) -> Result<Vec<Effect>, HostError> {
        state.set_tag(self.code_hash);
        let (name, main) = (format!("@{}.lua", self.class.name), self.class.code.main.clone());
        Ok(self.run_chunk(key, state, note, &name, &main, arguments)?.1)
    }

    /// Runs a chunk that must not wait, but for `require`. Gives what it returns, and what follows from it.
    pub(super) fn run_chunk(
        &mut self,
        key: &SharedKey,
        state: &mut State,
        note: &mut Note,
        name: &str,
        text: &str,
        arguments: &[Value],
    ) -> Result<(Vec<Value>, Vec<Effect>), HostError> {
        let mut asks = self.asks(key, note);
        let begun = state.run_with(&mut asks, name, text, arguments);
        let values = asks.end_at_once(state, begun).map_err(|ended| match ended {
            NotEnded::Failed(error) => HostError::Code(error),
            NotEnded::Waits => {
                let name = name.trim_start_matches(['=', '@']);
                HostError::Code(format!("{name}: it waits, which code that is loaded cannot"))
            }
        })?;
        Ok((values, asks.effects))
    }

    pub(super) fn asks<'a>(&'a mut self, key: &'a SharedKey, note: &'a mut Note) -> Asks<'a> {
        Asks {
            class: &self.class,
            key,
            now: now(),
            run: self.run,
            note,
            connections: &mut self.connections,
            fetches: &mut self.fetches,
            store: &self.store,
            queued: self.queue.len(),
            queued_bytes: self.queued_bytes,
            effects: Vec::new(),
            sent_bytes: 0,
        }
    }

    /// Tasks that wait for what an earlier run of the host has had are told.
    fn drop_gone(&mut self, key: &SharedKey) {
        let (run, connections) = (self.run, &self.connections);
        let Some(clef) = self.awake.get_mut(key) else { return };
        let is_there = |socket: &i64| connections.get(socket).is_some_and(|connection| connection.key == *key);
        clef.note.sockets.retain(is_there);
        for (task, waiting) in &clef.note.tasks {
            let is_gone = match &waiting.wait {
                Wait::Receive(socket, _) => !is_there(socket),
                Wait::Fetch { run: of, .. } => *of != run,
                Wait::Nothing => true,
                Wait::Until(_) | Wait::Answer(..) => false,
            };
            if is_gone {
                self.queue.push_back(Delivery::Gone { key: key.clone(), task: *task });
            }
        }
    }

    /// A window is free, or of nobody who is awake.
    pub(super) fn vacate(&mut self, window: u32) -> Result<(), HostError> {
        self.router.take_if(|router| router.window() == window);
        match self.places.get(&window).cloned() {
            Some(other) => self.put_to_sleep(&other),
            None => Ok(()),
        }
    }

    /// Not in memory any more; what was not stored is lost.
    pub(super) fn forget(&mut self, key: &[u8]) -> Option<Awake> {
        let (key, clef) = self.awake.remove_entry(key)?;
        self.order.remove(&clef.used);
        self.places.remove(&clef.state.window());
        if clef.due > 0 {
            self.due.remove(&(clef.due, key.clone()));
        }
        self.store.release(&key);
        Some(clef)
    }

    /// It is used now.
    pub(super) fn touch(&mut self, key: &SharedKey) {
        if let Some(clef) = self.awake.get_mut(key) {
            self.steps += 1;
            self.order.remove(&clef.used);
            clef.used = self.steps;
            self.order.insert(self.steps, key.clone());
        }
    }

    /// Its note has changed.
    pub(super) fn update_due(&mut self, key: &SharedKey) {
        let Some(clef) = self.awake.get_mut(key) else { return };
        let due = clef.note.due();
        if due != clef.due {
            let before = std::mem::replace(&mut clef.due, due);
            if before > 0 {
                self.due.remove(&(before, key.clone()));
            }
            if due > 0 {
                self.due.insert((due, key.clone()));
            }
        }
    }

    /// Appends what has changed of it to the log, where nobody is told before that.
    pub(super) fn store_for_reply(&mut self, key: &SharedKey) -> Result<(), HostError> {
        if self.class.durability == Durability::Reply { self.store_changes(key) } else { Ok(()) }
    }

    /// Appends what has changed of it to the log.
    pub(super) fn store_changes(&mut self, key: &SharedKey) -> Result<(), HostError> {
        let Some(clef) = self.awake.get_mut(key).filter(|clef| clef.is_changed) else { return Ok(()) };
        let note = clef.note.stored()?;
        let chain = &mut clef.chain;
        let before = self.store.batch_bytes();
        let stored = if chain.wants_whole(clef.state.used_bytes()) {
            self.store.put(key, &note, &clef.state.whole(), Some(chain)).map(Some)
        } else {
            self.store.put_changes(key, &note, &clef.state.changes(), Some(chain))
        };
        match stored {
            Ok(new) => *chain = new.unwrap_or_default(),
            Err(error) => {
                // What has changed is not known any more: it goes back to what is stored.
                self.forget(key);
                return Err(error.into());
            }
        }
        self.store.hold(chain);
        let stored_bytes = self.store.batch_bytes().saturating_sub(before) as u64;
        clef.note.usage.stored_bytes += stored_bytes;
        self.used.stored_bytes += stored_bytes;
        clef.is_changed = false;
        Ok(())
    }

    /// Stores it, and forgets it.
    pub(super) fn put_to_sleep(&mut self, key: &SharedKey) -> Result<(), HostError> {
        if let Some(clef) = self.awake.get_mut(key) {
            self.used += clef.count();
            if clef.state.is_swollen() {
                clef.state.collect();
                // Stored as a whole, it is smaller. Where finalizers take too long, it stays as it was stored.
                (clef.is_changed, clef.chain) = (!clef.state.is_spent(), Chain::default());
            }
        }
        self.store_changes(key)?;
        self.forget(key);
        Ok(())
    }

    /// Those that were used longest ago go to sleep.
    pub(super) fn make_room(&mut self) -> Result<(), HostError> {
        while self.awake.len() > self.class.limits.awake.max(1) {
            let Some((_, key)) = self.order.first_key_value() else { break };
            self.put_to_sleep(&key.clone())?;
        }
        Ok(())
    }
}
