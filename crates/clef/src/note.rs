//! What the host knows of a Clef beside its state, stored with it: what its tasks wait for, its alarms, its connections.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::AddAssign;

use serde::{Deserialize, Serialize};
use torpor_lua::{Task, Value};

use crate::message::Socket;
use crate::store;

/// Due at once.
const NOW: u64 = 1;

/// Who is told how a task has ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Origin {
    /// Nobody: an alarm, or a message.
    Nobody,
    /// A caller outside of the host, of this run of it.
    Call { run: u64, call: u64 },
    /// Another Clef, whose task waits for the answer to a message.
    Clef { key: Vec<u8>, task: i64, message: u64 },
    /// The connection is closed.
    Socket(Socket),
}

/// What a task waits for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Wait {
    /// A time, in ms since 1970.
    Until(u64),
    /// A message of a connection, until then; 0: for ever.
    Receive(Socket, u64),
    /// The answer to a message to another Clef, until then.
    Answer(u64, u64),
    /// The response to an HTTP request of this run of the host, until then.
    Fetch { run: u64, fetch: u64, due: u64 },
    /// Nothing: the host is about to answer.
    Nothing,
}

impl Wait {
    /// When it ends by itself; 0: never.
    fn due(&self) -> u64 {
        match self {
            Self::Until(due) | Self::Receive(_, due) | Self::Answer(_, due) | Self::Fetch { due, .. } => *due,
            Self::Nothing => NOW,
        }
    }
}

/// A task that waits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Waiting {
    pub(crate) origin: Origin,
    pub(crate) wait: Wait,
}

/// Calls a function at a time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Alarm {
    /// In ms since 1970.
    pub(crate) due: u64,
    /// Then again after so many ms; 0: once.
    pub(crate) every: u64,
}

/// A message to another Clef of the host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Message {
    /// Its number, among those of its sender.
    pub(crate) id: u64,
    pub(crate) to: Vec<u8>,
    pub(crate) what: What,
}

impl Message {
    /// What it takes in memory.
    pub(crate) fn bytes(&self) -> usize {
        let values = match &self.what {
            What::Call { function, arguments, .. } => function.len() + size(arguments),
            What::Answer { result: Ok(values), .. } => size(values),
            What::Answer { result: Err(error), .. } => error.len(),
        };
        size_of::<Self>() + self.to.len() + values
    }
}

/// What values take in memory.
pub(crate) fn size(values: &[Value]) -> usize {
    let one = |value: &Value| match value {
        Value::String(bytes) => bytes.len(),
        Value::Table(pairs) => {
            pairs.iter().map(|(key, value)| size(std::slice::from_ref(key)) + size(std::slice::from_ref(value))).sum()
        }
        _ => 0,
    };
    values.iter().map(|value| size_of::<Value>() + one(value)).sum()
}

/// What a message wants.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum What {
    /// A function is called. `task` of the sender waits for what it returns, if there is one.
    Call { function: String, arguments: Vec<Value>, task: Option<i64> },
    /// A task has its answer.
    Answer { task: i64, message: u64, result: Result<Vec<Value>, String> },
}

/// What a Clef has used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Steps: calls, and answers to what tasks have waited for.
    pub steps: u64,
    /// Time that steps have taken, in µs.
    pub busy_us: u64,
    /// Time in memory, in ms.
    pub awake_ms: u64,
    /// Memory × time in memory, in kB × s.
    pub memory_kb_s: u64,
    /// Bytes sent by connections and answers.
    pub sent_bytes: u64,
    /// Bytes written to the log.
    pub stored_bytes: u64,
    /// Functions that have failed.
    pub failed: u64,
}

impl AddAssign for Usage {
    fn add_assign(&mut self, more: Self) {
        let Self { steps, busy_us, awake_ms, memory_kb_s, sent_bytes, stored_bytes, failed } = more;
        self.steps += steps;
        self.busy_us += busy_us;
        self.awake_ms += awake_ms;
        self.memory_kb_s += memory_kb_s;
        self.sent_bytes += sent_bytes;
        self.stored_bytes += stored_bytes;
        self.failed += failed;
    }
}

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Note {
    pub(crate) tasks: BTreeMap<i64, Waiting>,
    pub(crate) alarms: BTreeMap<String, Alarm>,
    pub(crate) sockets: BTreeSet<Socket>,
    /// Messages that had not been delivered when the host stopped to deliver.
    pub(crate) outbox: Vec<Message>,
    /// The number of its next message.
    pub(crate) next_message: u64,
    pub(crate) values: BTreeMap<Vec<u8>, Value>,
    pub(crate) usage: Usage,
    /// It is a copy that has not run yet: it must not draw the random numbers of the other one.
    pub(crate) is_copy: bool,
}

impl Note {
    /// When the host has to look after it, messages apart; 0: never.
    pub(crate) fn due(&self) -> u64 {
        let tasks = self.tasks.values().map(|task| task.wait.due());
        let alarms = self.alarms.values().map(|alarm| alarm.due);
        tasks.chain(alarms).filter(|due| *due > 0).min().unwrap_or(0)
    }

    /// As it is stored: with messages in it, it is due at once.
    pub(crate) fn stored(&self) -> Result<store::Note, postcard::Error> {
        let due = if self.outbox.is_empty() { self.due() } else { NOW };
        Ok(store::Note { due, bytes: postcard::to_stdvec(self)? })
    }

    pub(crate) fn from_stored(note: &store::Note) -> Result<Self, postcard::Error> {
        if note.bytes.is_empty() { Ok(Self::default()) } else { postcard::from_bytes(&note.bytes) }
    }

    /// The task that waits for a message of a connection.
    pub(crate) fn reader(&self, socket: Socket) -> Option<Task> {
        let waits = |waiting: &Waiting| matches!(waiting.wait, Wait::Receive(of, _) if of == socket);
        self.tasks.iter().find(|(_, waiting)| waits(waiting)).map(|(task, _)| Task(*task))
    }
}
