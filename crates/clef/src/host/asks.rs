//! What a program asks of the host, and what it waits for.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use torpor_lua::{State, Step, Task, Value};

use super::{Connection, Phase, SharedKey};
use crate::class::Class;
use crate::message::{Outgoing, Socket};
use crate::note::{Alarm, Message, Note, Wait, What, size};
use crate::store::Store;

/// Bytes that a step sends at most.
const MOST_SENT_BYTES: usize = 16 << 20;
/// Bytes of the values that can be read without waking, at most.
const MOST_VALUE_BYTES: usize = 16 << 10;
/// Alarms of a Clef at most.
const MOST_ALARMS: usize = 1000;
/// A number below is seconds from now, others are since 1970.
const RELATIVE_BELOW: f64 = 1e9;
/// A response is not waited for longer, in ms; requests themselves have a shorter limit.
const FETCH_WITHIN: u64 = 60_000;
/// Bytes of the name of a function.
const MOST_NAME_BYTES: usize = 256;
/// Messages between Clefs that wait to be delivered, when another one is sent.
const MOST_QUEUED: usize = 10_000;
const MOST_QUEUED_BYTES: usize = 32 << 20;
/// Between two times of a repeated alarm, in ms.
const LEAST_EVERY: u64 = 10;
/// The shortest wait, in ms.
const LEAST_WAIT: u64 = 1;

/// What follows from a step, unless that is rolled back.
pub(super) enum Effect {
    Out(Outgoing),
    Message(Message),
}

/// What becomes of a wait.
pub(super) enum Asked {
    /// It is answered already.
    Answer(Vec<Value>),
    Wait(Wait),
}

/// Why a task that must end at once has not.
pub(super) enum NotEnded {
    /// The error, with a traceback.
    Failed(String),
    Waits,
}

/// Answers what a Clef asks during a step.
pub(super) struct Asks<'a> {
    pub(super) class: &'a Class,
    pub(super) key: &'a SharedKey,
    /// In ms since 1970.
    pub(super) now: u64,
    /// Of this run of the host.
    pub(super) run: u64,
    pub(super) note: &'a mut Note,
    pub(super) connections: &'a mut HashMap<Socket, Connection>,
    pub(super) fetches: &'a mut u64,
    pub(super) store: &'a Store,
    /// Messages that wait to be delivered.
    pub(super) queued: usize,
    pub(super) queued_bytes: usize,
    pub(super) effects: Vec<Effect>,
    pub(super) sent_bytes: usize,
}

type Answer = Result<Vec<Value>, String>;

fn wrong(what: &str) -> String {
    what.to_owned()
}

/// Without what is of one Clef only.
fn portable(values: &[Value]) -> Vec<Value> {
    let one = |value: &Value| match value {
        Value::Handle(_) | Value::Other(_) => Value::Nil,
        Value::Table(pairs) => {
            let pair = |(key, value): &(Value, Value)| {
                let mut both = portable(&[key.clone(), value.clone()]).into_iter();
                (both.next().unwrap_or(Value::Nil), both.next().unwrap_or(Value::Nil))
            };
            Value::Table(pairs.iter().map(pair).collect())
        }
        other => other.clone(),
    };
    values.iter().map(one).collect()
}

/// The name of a function.
fn function_name(value: &Value, what: &str) -> Result<String, String> {
    let name = value.bytes().ok_or_else(|| format!("{what} has the name of a function"))?;
    if name.len() > MOST_NAME_BYTES {
        return Err(format!("the name of a function has at most {MOST_NAME_BYTES} bytes"));
    }
    Ok(String::from_utf8_lossy(name).into_owned())
}

/// Milliseconds of a number of seconds.
fn millis(seconds: f64) -> Result<u64, String> {
    if !(0.0..=1e11).contains(&seconds) {
        return Err(wrong("the time must be a number of seconds, not negative"));
    }
    Ok((seconds * 1000.0).ceil() as u64)
}

impl torpor_lua::Host for Asks<'_> {
    fn ask(&mut self, request: Vec<Value>) -> Answer {
        let (operation, arguments) = request.split_first().ok_or_else(|| wrong("it asks for nothing"))?;
        match (operation.bytes().unwrap_or_default(), arguments) {
            (b"print", [Value::String(line)]) => {
                let line = String::from_utf8_lossy(line).into_owned();
                self.send(line.len(), Effect::Out(Outgoing::Printed { key: self.key.clone(), line }))?;
                Ok(Vec::new())
            }
            (b"now", []) => Ok(vec![Value::Number(self.now as f64 / 1000.0)]),
            (b"handle.send", [Value::Handle(socket), message]) => self.send_to(*socket, message),
            (b"handle.close", [Value::Handle(socket), ..]) => {
                if let Some(connection) = self.connection(*socket) {
                    connection.phase = Phase::Closed;
                    connection.inbox.clear();
                    self.send(0, Effect::Out(Outgoing::Close(*socket)))?;
                }
                Ok(Vec::new())
            }
            (b"send", [target, function, arguments @ ..]) => {
                self.message(target, function, arguments, None)?;
                Ok(Vec::new())
            }
            (b"alarm", [when, name, rest @ ..]) => self.alarm(when, name, rest.first()),
            (b"kv.put", [Value::String(name), value]) => self.put(name, value),
            (b"kv.get", [Value::String(name)] | [Value::String(name), Value::Nil]) => {
                Ok(vec![self.note.values.get(name).cloned().unwrap_or(Value::Nil)])
            }
            (b"kv.get", [Value::String(name), target]) => {
                Ok(vec![self.of_other(target)?.values.remove(name).unwrap_or(Value::Nil)])
            }
            (b"kv.list", arguments) => {
                let prefix = arguments.first().and_then(Value::bytes).unwrap_or_default();
                let other;
                let note = match arguments.get(1) {
                    None | Some(Value::Nil) => &*self.note,
                    Some(target) => {
                        other = self.of_other(target)?;
                        &other
                    }
                };
                let all = note.values.iter().filter(|(name, _)| name.starts_with(prefix));
                Ok(vec![Value::Table(all.map(|(name, value)| (name.as_slice().into(), value.clone())).collect())])
            }
            (operation, _) => {
                Err(format!("{} does not take these arguments", String::from_utf8_lossy(operation).replace('.', ":")))
            }
        }
    }
}

impl Asks<'_> {
    /// What a task asks for by waiting.
    pub(super) fn wait(&mut self, task: Task, request: &[Value]) -> Asked {
        match self.waits(task, request) {
            Ok(asked) => asked,
            Err(error) => Asked::Answer(vec![false.into(), error.as_str().into()]),
        }
    }

    fn waits(&mut self, task: Task, request: &[Value]) -> Result<Asked, String> {
        let (operation, arguments) = request.split_first().ok_or_else(|| wrong("it waits for nothing"))?;
        match (operation.bytes().unwrap_or_default(), arguments) {
            (b"sleep", [seconds]) => {
                let time = millis(seconds.number().unwrap_or(-1.0))?;
                Ok(Asked::Wait(Wait::Until(self.now + time.max(LEAST_WAIT))))
            }
            (b"receive", [Value::Handle(socket), rest @ ..]) => {
                let due = match rest.first() {
                    None | Some(Value::Nil) => 0,
                    Some(seconds) => self.now + millis(seconds.number().unwrap_or(-1.0))?.max(LEAST_WAIT),
                };
                let Some(connection) = self.connection(*socket) else {
                    return Ok(Asked::Answer(vec![true.into(), Value::Nil]));
                };
                if let Some(message) = connection.inbox.pop_front() {
                    self.effects.push(Effect::Out(Outgoing::Taken(*socket)));
                    return Ok(Asked::Answer(vec![true.into(), Value::String(message)]));
                }
                if connection.phase != Phase::Open {
                    return Ok(Asked::Answer(vec![true.into(), Value::Nil]));
                }
                if self.note.reader(*socket).is_some() {
                    return Err(wrong("another task waits for a message of this connection"));
                }
                Ok(Asked::Wait(Wait::Receive(*socket, due)))
            }
            (b"call", [target, function, arguments @ ..]) => {
                let id = self.message(target, function, arguments, Some(task.0))?;
                Ok(Asked::Wait(Wait::Answer(id, self.now + self.class.limits.answer.as_millis() as u64)))
            }
            (b"fetch", [request @ (Value::String(_) | Value::Table(_))]) => {
                *self.fetches += 1;
                let (run, fetch) = (self.run, *self.fetches);
                let request = request.clone();
                self.send(size(std::slice::from_ref(&request)), Effect::Out(Outgoing::Fetch { fetch, request }))?;
                Ok(Asked::Wait(Wait::Fetch { run, fetch, due: self.now + FETCH_WITHIN }))
            }
            (b"require", [Value::String(name)]) => {
                let name = String::from_utf8_lossy(name).into_owned();
                let Some(text) = self.class.code.files.get(&name) else {
                    return Err(format!("the class has no file {}.lua", name.replace('.', "/")));
                };
                Ok(Asked::Answer(vec![true.into(), name.as_str().into(), text.as_str().into()]))
            }
            (operation, _) => Err(format!("{} does not take these arguments", String::from_utf8_lossy(operation))),
        }
    }

    /// Goes on with a task until it ends. It may not wait, but for `require`.
    pub(super) fn end_at_once(&mut self, state: &mut State, begun: (Task, Step)) -> Result<Vec<Value>, NotEnded> {
        let (since, (task, mut step)) = (Instant::now(), begun);
        loop {
            let request = match step {
                Step::Ended(values) => return Ok(values),
                Step::Failed(error) => return Err(NotEnded::Failed(error)),
                Step::Waits(request) => request,
            };
            let is_require = request.first().and_then(Value::bytes) == Some(b"require");
            if !is_require || since.elapsed() > self.class.limits.step {
                // Nobody would answer it.
                state.cancel(task);
                return Err(NotEnded::Waits);
            }
            let values = match self.wait(task, &request) {
                Asked::Answer(values) => values,
                Asked::Wait(_) => vec![false.into(), "it cannot wait".into()],
            };
            step = self.answered(state, task, &values);
        }
    }

    /// Answers a task that waits.
    pub(super) fn answered(&mut self, state: &mut State, task: Task, values: &[Value]) -> Step {
        let step = state.answer_with(self, task, values);
        step.unwrap_or_else(|| Step::Failed("it does not wait any more".to_owned()))
    }

    /// A connection of this Clef, if it is there.
    fn connection(&mut self, socket: Socket) -> Option<&mut Connection> {
        let is_own = self.note.sockets.contains(&socket);
        self.connections.get_mut(&socket).filter(|_| is_own)
    }

    fn send(&mut self, bytes: usize, effect: Effect) -> Result<(), String> {
        if self.effects.len() >= self.class.limits.messages {
            return Err(format!("it sends more than {} messages at once", self.class.limits.messages));
        }
        self.sent_bytes += bytes;
        if self.sent_bytes > MOST_SENT_BYTES {
            return Err(format!("it sends more than {MOST_SENT_BYTES} bytes at once"));
        }
        self.effects.push(effect);
        Ok(())
    }

    /// False where the connection is closed.
    fn send_to(&mut self, socket: Socket, message: &Value) -> Answer {
        let bytes = match message {
            Value::String(bytes) => bytes.clone(),
            Value::Integer(number) => number.to_string().into_bytes(),
            Value::Number(number) => number.to_string().into_bytes(),
            _ => return Err(wrong("a message is a string")),
        };
        let is_open = self.connection(socket).is_some_and(|connection| connection.phase != Phase::Closed);
        if is_open {
            self.send(bytes.len(), Effect::Out(Outgoing::Sent(socket, bytes)))?;
        }
        Ok(vec![is_open.into()])
    }

    /// The key in `class/key`.
    fn target(&self, target: &Value) -> Result<Vec<u8>, String> {
        let text = target.bytes().ok_or_else(|| wrong("a Clef is named by a string, as class/key"))?;
        let class = self.class.name.as_bytes();
        let key = text.strip_prefix(class).and_then(|rest| rest.strip_prefix(b"/"));
        let key = key.filter(|key| (1..=crate::log::MOST_KEY_BYTES).contains(&key.len()));
        key.map(<[u8]>::to_vec).ok_or_else(|| {
            format!("there is no Clef {} here: name one as {}/KEY", String::from_utf8_lossy(text), self.class.name)
        })
    }

    fn message(
        &mut self,
        target: &Value,
        function: &Value,
        arguments: &[Value],
        task: Option<i64>,
    ) -> Result<u64, String> {
        let to = self.target(target)?;
        let function = function_name(function, "a message")?;
        if self.queued >= MOST_QUEUED || self.queued_bytes >= MOST_QUEUED_BYTES {
            return Err(wrong("too many messages wait for Clefs of this class already"));
        }
        let arguments = portable(arguments);
        let bytes = size(&arguments);
        self.note.next_message += 1;
        let id = self.note.next_message;
        self.send(bytes, Effect::Message(Message { id, to, what: What::Call { function, arguments, task } }))?;
        Ok(id)
    }

    /// Sets, changes or cancels an alarm.
    fn alarm(&mut self, when: &Value, name: &Value, every: Option<&Value>) -> Answer {
        let name = function_name(name, "an alarm")?;
        if matches!(when, Value::Nil | Value::Boolean(false)) {
            return Ok(vec![self.note.alarms.remove(&name).is_some().into()]);
        }
        let seconds = when.number().ok_or_else(|| wrong("the time of an alarm is a number"))?;
        let due = if seconds < RELATIVE_BELOW { self.now + millis(seconds)?.max(LEAST_WAIT) } else { millis(seconds)? };
        let every = match every {
            None | Some(Value::Nil) => 0,
            Some(every) => millis(every.number().unwrap_or(-1.0))?.max(LEAST_EVERY),
        };
        if self.note.alarms.len() >= MOST_ALARMS && !self.note.alarms.contains_key(&name) {
            return Err(format!("it has {MOST_ALARMS} alarms already"));
        }
        self.note.alarms.insert(name, Alarm { due, every });
        Ok(vec![true.into()])
    }

    fn put(&mut self, name: &[u8], value: &Value) -> Answer {
        if matches!(value, Value::Nil) {
            self.note.values.remove(name);
            return Ok(Vec::new());
        }
        let value = portable(std::slice::from_ref(value)).pop().unwrap_or(Value::Nil);
        let others = self.note.values.iter().filter(|(other, _)| other.as_slice() != name);
        let bytes: usize = others.map(|(name, value)| name.len() + size(std::slice::from_ref(value))).sum();
        if bytes + name.len() + size(std::slice::from_ref(&value)) > MOST_VALUE_BYTES {
            return Err(format!("its values have more than {MOST_VALUE_BYTES} bytes"));
        }
        self.note.values.insert(name.to_vec(), value);
        Ok(Vec::new())
    }

    /// The note of another Clef, as it is stored.
    fn of_other(&self, target: &Value) -> Result<Note, String> {
        let key = self.target(target)?;
        let note = self.store.note(&key).map_err(|error| error.to_string())?;
        note.map_or(Ok(Note::default()), |note| Note::from_stored(&note).map_err(|error| error.to_string()))
    }
}

/// Time since 1970, in ms.
pub(super) fn now() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.unwrap_or(Duration::ZERO).as_millis() as u64
}

/// An error for a caller, shared.
pub(super) fn shared(error: &str) -> Arc<str> {
    Arc::from(error)
}
