//! A step of a Clef: from a call, or an answer to what a task has waited for, to the next wait.

use std::collections::BTreeMap;
use std::time::Instant;

use torpor_lua::{Step, Task, Value};

use super::asks::{Asked, Effect, shared};
use super::{Delivery, Host, HostError, Phase, SharedKey};
use crate::message::{Outgoing, Socket};
use crate::note::{Message, Note, Origin, Usage, Wait, Waiting, What};

/// A step may take so many times the limit of processor time, answers that it does not wait for included.
const MOST_TIMES: u32 = 2;

/// Bytes of an error that are told.
const MOST_ERROR_BYTES: usize = 16 << 10;
/// Tasks of a Clef that wait at the same time.
const MOST_TASKS: usize = 1000;

/// What a step begins with.
pub(super) enum Work<'a> {
    Begin { function: &'a str, arguments: &'a [Value], origin: Origin },
    Answer { task: Task, values: Vec<Value> },
}

impl Host {
    /// Runs a step, and what follows from it. Errors that concern the Clef are told to whoever it is for.
    ///
    /// # Errors
    /// Of the store, where nothing can be stored any more.
    pub(super) fn step(&mut self, key: &SharedKey, work: Work<'_>) -> Result<(), HostError> {
        if let Err(error) = self.wake(key) {
            if let Work::Begin { origin, .. } = work {
                let error = torpor_api::error::causes(&error);
                self.tell(key, None, origin, Err(error));
            }
            return Ok(());
        }
        self.touch(key);
        let work = match work {
            Work::Begin { origin, .. }
                if self.awake.get(key).is_some_and(|clef| clef.note.tasks.len() >= MOST_TASKS) =>
            {
                self.tell(key, None, origin, Err(format!("{MOST_TASKS} of its tasks wait already")));
                return Ok(());
            }
            work => work,
        };
        let begun = Instant::now();
        let Some(mut clef) = self.awake.remove(key) else { return Ok(()) };
        let mut answered = None;
        if let Work::Begin { origin: Origin::Socket(socket), .. } = &work {
            clef.note.sockets.insert(*socket);
        }
        let mut note = std::mem::take(&mut clef.note);
        let mut asks = self.asks(key, &mut note);
        let (origin, task, mut step) = match work {
            Work::Begin { function, arguments, origin } => {
                let (task, step) = clef.state.call_with(&mut asks, function, arguments);
                (origin, task, step)
            }
            Work::Answer { task, values } => {
                answered = Some(task);
                let origin = asks.note.tasks.remove(&task.0).map_or(Origin::Nobody, |waiting| waiting.origin);
                let step = asks.answered(&mut clef.state, task, &values);
                (origin, task, step)
            }
        };
        let most = asks.class.limits.step * MOST_TIMES;
        let mut is_spent = clef.state.is_spent();
        let wait = loop {
            let Step::Waits(request) = &step else { break None };
            match asks.wait(task, request) {
                Asked::Wait(wait) => break Some(wait),
                Asked::Answer(_) if begun.elapsed() > most => {
                    is_spent = true;
                    break None;
                }
                Asked::Answer(values) => {
                    step = asks.answered(&mut clef.state, task, &values);
                    is_spent |= clef.state.is_spent();
                }
            }
        };
        let (effects, sent) = (asks.effects, asks.sent_bytes);
        if is_spent {
            // Nothing of the step has happened.
            let tasks = std::mem::take(&mut note.tasks);
            clef.note = note;
            self.awake.insert(key.clone(), clef);
            self.forget(key);
            self.undo_of_connections(effects);
            let error = "it takes too much processor time".to_owned();
            self.tell(key, None, origin, Err(error));
            self.tell_lost(key, tasks);
            return answered.map_or(Ok(()), |task| self.cancel(key, task));
        }
        let busy_us = begun.elapsed().as_micros() as u64;
        let failed = u64::from(matches!(step, Step::Failed(_)));
        let used = Usage { steps: 1, busy_us, sent_bytes: sent as u64, failed, ..Usage::default() };
        note.usage += used;
        self.used += used;
        clef.is_changed = true;
        self.perform(key, effects);
        match (step, wait) {
            (Step::Waits(_), wait) => {
                let waiting = Waiting { origin, wait: wait.unwrap_or(Wait::Nothing) };
                note.tasks.insert(task.0, waiting);
            }
            (Step::Ended(values), _) => self.tell(key, Some(&mut note), origin, Ok(values)),
            (Step::Failed(error), _) => self.tell(key, Some(&mut note), origin, Err(error)),
        }
        clef.note = note;
        self.awake.insert(key.clone(), clef);
        self.update_due(key);
        self.store_for_reply(key)?;
        self.make_room()
    }

    /// A step is undone, but not what it did to connections: what it took is gone, and what it closed is closed.
    fn undo_of_connections(&mut self, effects: Vec<Effect>) {
        let of_connection = |effect| match effect {
            Effect::Out(outgoing @ (Outgoing::Taken(_) | Outgoing::Close(_))) => Some(outgoing),
            Effect::Out(_) | Effect::Message(_) => None,
        };
        self.outgoing.extend(effects.into_iter().filter_map(of_connection));
    }

    /// A Clef is again what was stored of it: tasks that have begun since are no more, and whoever waits for them is told.
    fn tell_lost(&mut self, key: &SharedKey, tasks: BTreeMap<i64, Waiting>) {
        let stored = self.store.note(key).ok().flatten().and_then(|note| Note::from_stored(&note).ok());
        let stored = stored.unwrap_or_default();
        for (task, waiting) in tasks {
            if stored.tasks.get(&task).is_none_or(|other| other.origin != waiting.origin) {
                let error = "its Clef has gone back to what was stored of it".to_owned();
                self.tell(key, None, waiting.origin, Err(error));
            }
        }
    }

    /// What follows from a step.
    pub(super) fn perform(&mut self, key: &SharedKey, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Out(outgoing) => {
                    if let Outgoing::Fetch { fetch, .. } = &outgoing {
                        self.fetching.insert(*fetch, key.clone());
                    }
                    self.outgoing.push(outgoing);
                }
                Effect::Message(message) => {
                    self.queue_message(key, message, false);
                }
            }
        }
    }

    pub(super) fn queue_message(&mut self, from: &SharedKey, message: Message, is_noted: bool) {
        self.queued_bytes += message.bytes();
        self.queue.push_back(Delivery::Message { from: from.clone(), message, is_noted });
    }

    /// Tells how a task has ended. `note` is that of its Clef, if that goes on.
    pub(super) fn tell(
        &mut self,
        key: &SharedKey,
        note: Option<&mut Note>,
        origin: Origin,
        result: Result<Vec<Value>, String>,
    ) {
        let result = result.map_err(cut);
        if let Err(error) = &result {
            self.outgoing.push(Outgoing::Failed { key: key.clone(), error: shared(error) });
        }
        match origin {
            Origin::Nobody => {}
            Origin::Call { run, call } => {
                if run == self.run {
                    let result = result.map_err(|error| shared(&error));
                    self.outgoing.push(Outgoing::Answered { call, result });
                }
            }
            Origin::Clef { key: to, task, message } => {
                // An answer without a note has no number of its own: it is lost where a crash comes between, and its caller's time ends.
                let id = note.map_or(0, |note| {
                    note.next_message += 1;
                    note.next_message
                });
                // The traceback stays where the error was.
                let result = result.map_err(|error| error.lines().next().unwrap_or_default().to_owned());
                let message = Message { id, to, what: What::Answer { task, message, result } };
                self.queue_message(key, message, false);
            }
            Origin::Socket(socket) => {
                if let Some(note) = note {
                    note.sockets.remove(&socket);
                }
                if self.connections.remove(&socket).is_some() {
                    self.outgoing.push(Outgoing::Close(socket));
                }
            }
        }
    }

    /// Ends a task that waits.
    fn cancel(&mut self, key: &SharedKey, task: Task) -> Result<(), HostError> {
        if self.wake_existing(key).is_err() {
            return Ok(());
        }
        if let Some(clef) = self.awake.get_mut(key) {
            clef.state.cancel(task);
            if clef.state.is_spent() {
                // Closing it takes too long as well: it stays where it is, and is answered no more.
                self.forget(key);
                if self.wake_existing(key).is_err() {
                    return Ok(());
                }
            }
        }
        if let Some(clef) = self.awake.get_mut(key) {
            clef.note.tasks.remove(&task.0);
            clef.is_changed = true;
        }
        self.update_due(key);
        self.store_changes(key)
    }

    /// A message of a connection.
    pub(super) fn received(&mut self, socket: Socket, message: Vec<u8>) -> Result<(), HostError> {
        let connection = self.connections.get_mut(&socket).filter(|connection| connection.phase == Phase::Open);
        let Some(connection) = connection else { return Ok(()) };
        let key = connection.key.clone();
        connection.inbox.push_back(message);
        self.read(&key, socket)
    }

    /// Gives a task that waits for a connection what there is.
    fn read(&mut self, key: &SharedKey, socket: Socket) -> Result<(), HostError> {
        if self.wake(key).is_err() {
            // It cannot be woken: the other side is told.
            self.connections.remove(&socket);
            self.outgoing.push(Outgoing::Close(socket));
            return Ok(());
        }
        let Some(task) = self.awake.get(key).and_then(|clef| clef.note.reader(socket)) else { return Ok(()) };
        let Some(connection) = self.connections.get_mut(&socket) else { return Ok(()) };
        let values = match connection.inbox.pop_front() {
            Some(message) => {
                self.outgoing.push(Outgoing::Taken(socket));
                vec![true.into(), Value::String(message)]
            }
            None if connection.phase != Phase::Open => vec![true.into(), Value::Nil],
            None => return Ok(()),
        };
        self.step(key, Work::Answer { task, values })
    }

    /// The other side has closed a connection, or its half of it. What has come before is still read.
    pub(super) fn ended(&mut self, socket: Socket, phase: Phase) -> Result<(), HostError> {
        let Some(connection) = self.connections.get_mut(&socket) else { return Ok(()) };
        if connection.phase == Phase::Closed {
            return Ok(());
        }
        connection.phase = phase;
        let key = connection.key.clone();
        self.read(&key, socket)
    }

    /// The response to an HTTP request.
    pub(super) fn fetched(&mut self, fetch: u64, result: Result<Value, String>) -> Result<(), HostError> {
        let run = self.run;
        let Some(key) = self.fetching.remove(&fetch) else { return Ok(()) };
        if self.wake_existing(&key).is_err() {
            return Ok(());
        }
        let waits = |clef: &super::Awake| {
            let is_it = |wait: &Wait| matches!(wait, Wait::Fetch { run: of, fetch: number, .. } if *of == run && *number == fetch);
            clef.note.tasks.iter().find(|(_, waiting)| is_it(&waiting.wait)).map(|(task, _)| Task(*task))
        };
        let Some(task) = self.awake.get(&key).and_then(waits) else { return Ok(()) };
        let values = match result {
            Ok(response) => vec![true.into(), response],
            Err(error) => vec![false.into(), error.as_str().into()],
        };
        self.step(&key, Work::Answer { task, values })
    }

    /// A task waits for what does not come any more.
    pub(super) fn gone(&mut self, key: &SharedKey, task: i64) -> Result<(), HostError> {
        if self.wake_existing(key).is_err() {
            return Ok(());
        }
        let Some(waiting) = self.awake.get(key).and_then(|clef| clef.note.tasks.get(&task)) else { return Ok(()) };
        let values = match &waiting.wait {
            Wait::Receive(socket, _) if !self.connections.contains_key(socket) => vec![true.into(), Value::Nil],
            Wait::Fetch { run, .. } if *run != self.run => {
                vec![false.into(), "the host was started anew while it waited for the response".into()]
            }
            Wait::Nothing => vec![false.into(), "what it waits for does not come any more".into()],
            _ => return Ok(()),
        };
        self.step(key, Work::Answer { task: Task(task), values })
    }
}

/// An error without what is too much of it.
fn cut(mut error: String) -> String {
    if error.len() > MOST_ERROR_BYTES {
        error.truncate(error.floor_char_boundary(MOST_ERROR_BYTES));
        error.push('…');
    }
    error
}
