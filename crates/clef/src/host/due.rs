//! What is due: alarms, waits that end by themselves, and messages between Clefs that a turn has not got to.

use std::collections::BTreeSet;

use torpor_api::error::causes;
use torpor_lua::{Task, Value};

use super::asks::now;
use super::step::Work;
use super::{Delivery, Host, HostError, SharedKey};
use crate::class::Durability;
use crate::note::{Message, Origin, Wait, What};

/// Alarms and tasks of a Clef that go on in one round of a turn: each can take the whole of its processor time.
const MOST_FIRED: usize = 1;
/// What is due and cannot be woken is tried again after so many ms.
const RETRY: u64 = 30_000;

impl Host {
    /// When a Clef is due next, and which.
    pub(super) fn next_due(&self) -> Option<(u64, SharedKey)> {
        let asleep = self.store.next_due().map(|(due, key)| (due, SharedKey::from(key)));
        let awake = self.due.first().cloned();
        asleep.into_iter().chain(awake).min()
    }

    /// Does what is due of one Clef; false if nothing is.
    pub(super) fn fire(&mut self) -> Result<bool, HostError> {
        let now = now();
        let awake = self.due.first().filter(|(due, _)| *due <= now).map(|(_, key)| (key.clone(), None));
        let asleep = || self.store.take_due(now).map(|(key, number)| (SharedKey::from(key), Some(number)));
        let Some((key, number)) = awake.or_else(asleep) else { return Ok(false) };
        if let Err(error) = self.wake_existing(&key) {
            if matches!(error, HostError::None) {
                // It was removed meanwhile.
                return Ok(true);
            }
            tracing::error!(key = %key.escape_ascii(), error = causes(&error), "it is due, and cannot be woken");
            match number {
                Some(number) => self.store.due_again(number, now + RETRY),
                None => drop(self.forget(&key)),
            }
            return Ok(true);
        }
        let Some(clef) = self.awake.get_mut(&key) else { return Ok(true) };
        let mut alarms = Vec::new();
        clef.note.alarms.retain(|name, alarm| {
            if alarm.due > now || alarms.len() >= MOST_FIRED {
                return true;
            }
            alarms.push(name.clone());
            // Those that were missed are made up for by one.
            let missed = (now - alarm.due).checked_div(alarm.every).unwrap_or(0);
            alarm.due += alarm.every * (missed + 1);
            alarm.every > 0
        });
        clef.is_changed |= !alarms.is_empty();
        let waits = |wait: &Wait| match wait {
            Wait::Until(due) if *due <= now => Some(vec![true.into()]),
            Wait::Receive(_, due) if (1..=now).contains(due) => {
                Some(vec![true.into(), Value::Nil, "no message has come".into()])
            }
            Wait::Answer(_, due) if *due <= now => Some(vec![false.into(), "no answer has come in time".into()]),
            Wait::Fetch { due, .. } if *due <= now => Some(vec![false.into(), "no response has come in time".into()]),
            Wait::Nothing => Some(vec![false.into(), "what it waits for does not come any more".into()]),
            _ => None,
        };
        let tasks = clef.note.tasks.iter();
        let tasks = tasks.filter_map(|(task, waiting)| Some((*task, waits(&waiting.wait)?)));
        let tasks: Vec<_> = tasks.take(MOST_FIRED - alarms.len()).collect();
        self.update_due(&key);
        if !alarms.is_empty() {
            // They have gone off, whatever becomes of the functions that they call.
            self.store_changes(&key)?;
        }
        for name in alarms {
            self.begin(&key, &name, &[], Origin::Nobody)?;
        }
        for (task, values) in tasks {
            self.step(&key, Work::Answer { task: Task(task), values })?;
        }
        self.make_room()?;
        Ok(true)
    }

    /// Queues the messages that an earlier run of the host has not delivered.
    pub(super) fn take_up_messages(&mut self, key: &SharedKey) {
        let outbox = self.awake.get(key).map_or_else(Vec::new, |clef| clef.note.outbox.clone());
        for message in outbox {
            if self.noted.insert((key.clone(), message.id)) {
                self.queue_message(key, message, true);
            }
        }
    }

    /// Messages between Clefs that are still in the queue are noted with their senders, so that a crash does not lose them.
    pub(super) fn note_messages(&mut self) -> Result<(), HostError> {
        if self.class.durability != Durability::Reply {
            return Ok(());
        }
        let mut new: Vec<(SharedKey, Message)> = Vec::new();
        for delivery in &mut self.queue {
            if let Delivery::Message { from, message, is_noted: is_noted @ false } = delivery
                && message.id > 0
            {
                *is_noted = true;
                new.push((from.clone(), message.clone()));
            }
        }
        new.sort_by(|(one, _), (other, _)| one.cmp(other));
        for messages in new.chunk_by(|(one, _), (other, _)| one == other) {
            let key = &messages[0].0;
            if self.wake_existing(key).is_err() {
                // They are delivered, unless the host crashes before.
                continue;
            }
            if let Some(clef) = self.awake.get_mut(key) {
                for (key, message) in messages {
                    self.noted.insert((key.clone(), message.id));
                    clef.note.outbox.push(message.clone());
                }
                clef.is_changed = true;
            }
            self.store_changes(key)?;
        }
        self.make_room()
    }

    pub(super) fn deliver_message(
        &mut self,
        from: &SharedKey,
        message: Message,
        is_noted: bool,
    ) -> Result<(), HostError> {
        let Message { id, to, what } = message;
        let to: SharedKey = to.into();
        match what {
            What::Call { function, arguments, task } => {
                let origin = task.map_or(Origin::Nobody, |task| Origin::Clef { key: from.to_vec(), task, message: id });
                self.begin(&to, &function, &arguments, origin)?;
            }
            What::Answer { task, message, result } => {
                let waits = |host: &Self| {
                    let waiting = host.awake.get(&to).and_then(|clef| clef.note.tasks.get(&task));
                    waiting.is_some_and(|waiting| matches!(waiting.wait, Wait::Answer(of, _) if of == message))
                };
                if self.wake_existing(&to).is_ok() && waits(self) {
                    let values = match result {
                        Ok(values) => std::iter::once(true.into()).chain(values).collect(),
                        Err(error) => vec![false.into(), error.as_str().into()],
                    };
                    self.step(&to, Work::Answer { task: Task(task), values })?;
                }
            }
        }
        if is_noted {
            self.delivered.entry(from.clone()).or_default().push(id);
        }
        Ok(())
    }

    /// Messages that were delivered are no longer in the notes of their senders.
    pub(super) fn forget_delivered(&mut self) -> Result<(), HostError> {
        for (from, ids) in std::mem::take(&mut self.delivered) {
            match self.wake_existing(&from) {
                Ok(()) => {}
                Err(HostError::None) => {
                    ids.into_iter().for_each(|id| _ = self.noted.remove(&(from.clone(), id)));
                    continue;
                }
                Err(_) => {
                    // Its code is broken: it is tried again at the next turn.
                    self.delivered.insert(from, ids);
                    continue;
                }
            }
            let ids: BTreeSet<u64> = ids.into_iter().collect();
            if let Some(clef) = self.awake.get_mut(&from) {
                clef.note.outbox.retain(|message| !ids.contains(&message.id));
                clef.is_changed = true;
            }
            for id in ids {
                self.noted.remove(&(from.clone(), id));
            }
            self.store_changes(&from)?;
        }
        self.make_room()
    }
}
