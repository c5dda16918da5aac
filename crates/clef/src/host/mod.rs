//! Runs the Clefs of a class in one process: wakes those that are called, and evicts those that were called longest ago.
//!
//! ```text
//! Incoming ─▶ queue ─▶ asleep? restore; new? load the code, create(key)      (awake)
//!              ▲          │
//!              │       run until it waits or ends; note what it waits for    (step, asks)
//!              │          │
//!              │       append what has changed to the log
//!              │          │
//!              └──────────┤ messages to other Clefs, alarms that are due     (due)
//!                         ▼
//!                      commit ─▶ Outgoing
//! ```
//! A host is used by one thread. A [turn](Host::turn) delivers what has come and what follows from that within the host, and commits once: the
//! changes of all Clefs are one batch of the log, which a crash keeps as a whole or not at all. So a message between two Clefs is delivered exactly
//! once, and nobody outside is told what a crash can undo. Messages that a turn does not get to are in the notes of their senders.
//!
//! A Clef that is ended for its use of time goes back to what it was before the step.

mod asks;
mod awake;
mod due;
mod look;
mod manage;
mod router;
mod step;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use torpor_lua::{Budget, MOST_WINDOWS, State, StateError, Value, Windows};

use self::asks::now;
use self::awake::Awake;
use self::step::Work;
use crate::class::{Class, Code, Durability};
use crate::log::{LogError, MOST_KEY_BYTES};
use crate::message::{Incoming, Outgoing, Socket};
use crate::note::{Message, Note, Origin, Usage};
use crate::store::{Store, StoreError};

pub use self::look::{Exported, Seen, Waiting};
pub use self::manage::{ClefStatus, Stats};

/// After so much of the log or of time, a turn ends, though more waits.
const MOST_BATCH_BYTES: usize = 8 << 20;
const MOST_TURN: Duration = Duration::from_millis(50);

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
    /// What is noted beside its state.
    #[error("what is stored beside its state cannot be read")]
    Note(#[from] postcard::Error),
    /// Its key is empty or too long.
    #[error("a key has 1 to {MOST_KEY_BYTES} bytes")]
    Key,
    /// There is none with this key.
    #[error("there is no Clef with this key")]
    None,
    /// There is one with this key.
    #[error("there is a Clef with this key already")]
    Exists,
    /// Bytes that are no copy.
    #[error("it is not a copy that a class of Clefs has exported")]
    NotACopy,
    /// A copy that was not exported by this class, or was changed.
    #[error("the copy was not exported by this class, or was changed since")]
    Forged,
    /// The class has as many as it may have.
    #[error("the class has {0} Clefs, which is its limit")]
    Full(usize),
    /// Its code cannot be run, or ends with an error.
    #[error("{0}")]
    Code(String),
    /// The function `route` waits.
    #[error("the function route waits, which it may not")]
    RouteWaits,
    /// The function `route` gives something else.
    #[error("the function route has returned neither a key of 1 to {MOST_KEY_BYTES} bytes nor nil")]
    Routed,
}

impl HostError {
    /// Nothing can be stored any more: the host must be opened anew.
    pub fn is_of_log(&self) -> bool {
        matches!(self, Self::Store(StoreError::Log(LogError::Disk(..) | LogError::Failed)))
    }
}

/// A key that is often named.
pub(crate) type SharedKey = Arc<[u8]>;

/// A connection to a Clef.
#[derive(Debug)]
struct Connection {
    key: SharedKey,
    /// Messages that it has not taken yet.
    inbox: VecDeque<Vec<u8>>,
    phase: Phase,
}

/// What the other side of a connection still does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// It sends and reads.
    Open,
    /// It sends nothing more, and reads.
    Ended,
    Closed,
}

/// What is to be done.
#[derive(Debug)]
enum Delivery {
    Incoming(Incoming),
    Message {
        from: SharedKey,
        message: Message,
        is_noted: bool,
    },
    /// A task waits for what does not come any more.
    Gone {
        key: SharedKey,
        task: i64,
    },
}

/// Where states are while they are awake, and what limits them.
#[derive(Debug)]
struct Engine {
    windows: Arc<Windows>,
    _budget: Budget,
}

/// The Clefs of a class.
#[derive(Debug)]
pub struct Host {
    class: Class,
    folder: PathBuf,
    /// Of the code: the tag of states that have it.
    code_hash: u64,
    store: Store,
    /// None while all sleep.
    engine: Option<Engine>,
    awake: HashMap<SharedKey, Awake>,
    /// Says which Clef a request is for; none where nobody has asked it.
    router: Option<State>,
    /// By when they were last used.
    order: BTreeMap<u64, SharedKey>,
    /// Who has a window.
    places: HashMap<u32, SharedKey>,
    /// When those that are awake are due.
    due: BTreeSet<(u64, SharedKey)>,
    steps: u64,
    next_window: u32,
    /// Of this run of the host, random.
    run: u64,
    fetches: u64,
    /// Who waits for the response to a request.
    fetching: HashMap<u64, SharedKey>,
    connections: HashMap<Socket, Connection>,
    /// What has come from outside.
    incoming: VecDeque<Incoming>,
    /// What Clefs have told each other. Both are served in turn.
    queue: VecDeque<Delivery>,
    /// Of its messages.
    queued_bytes: usize,
    /// Messages of the queue that were delivered in this turn, by sender.
    delivered: BTreeMap<SharedKey, Vec<u64>>,
    /// Messages of the queue that are in the notes of their senders.
    noted: HashSet<(SharedKey, u64)>,
    outgoing: Vec<Outgoing>,
    /// What all Clefs together have used since `begun`, in ms since 1970.
    used: Usage,
    begun: u64,
}

fn random() -> Result<u64, HostError> {
    getrandom::u64().map_err(|error| HostError::System(io::Error::other(error)))
}

impl Host {
    /// Opens the Clefs in a directory that nobody else changes. Only this thread can use them.
    ///
    /// # Errors
    /// See [`HostError`].
    pub fn open(class: Class, folder: &Path) -> Result<Self, HostError> {
        let store = Store::open(folder)?;
        Ok(Self {
            code_hash: class.code.hash(),
            class,
            folder: folder.to_owned(),
            next_window: (store.len() % MOST_WINDOWS as usize) as u32,
            store,
            engine: None,
            awake: HashMap::new(),
            router: None,
            order: BTreeMap::new(),
            places: HashMap::new(),
            due: BTreeSet::new(),
            steps: 0,
            run: random()?,
            fetches: 0,
            fetching: HashMap::new(),
            connections: HashMap::new(),
            incoming: VecDeque::new(),
            queue: VecDeque::new(),
            queued_bytes: 0,
            delivered: BTreeMap::new(),
            noted: HashSet::new(),
            outgoing: Vec::new(),
            used: Usage::default(),
            begun: now(),
        })
    }

    /// How many Clefs are stored, and how many are awake.
    pub fn counts(&self) -> (usize, usize) {
        (self.store.len(), self.awake.len())
    }

    /// Takes what the next [`Host::turn`] delivers.
    pub fn take(&mut self, incoming: Incoming) {
        self.incoming.push_back(incoming);
    }

    /// Delivers what was taken, what follows from it, and what is due; commits, and gives what may be told now. If more waits,
    /// [`Host::is_ready`].
    ///
    /// # Errors
    /// [`HostError::Store`]: nothing of it may be told. All Clefs are what they were at the last commit, and the host must be opened anew.
    pub fn turn(&mut self) -> Result<Vec<Outgoing>, HostError> {
        let begun = Instant::now();
        let is_over = |store: &Store| store.batch_bytes() > MOST_BATCH_BYTES || begun.elapsed() > MOST_TURN;
        // One of each, so that neither alarms nor Clefs that talk to each other hold up what has come.
        loop {
            let has_fired = self.fire()?;
            let incoming = self.incoming.pop_front().map(Delivery::Incoming);
            let message = self.queue.pop_front();
            if let Some(Delivery::Message { message, .. }) = &message {
                self.queued_bytes = self.queued_bytes.saturating_sub(message.bytes());
            }
            let is_idle = !has_fired && incoming.is_none() && message.is_none();
            for delivery in incoming.into_iter().chain(message) {
                self.deliver(delivery)?;
            }
            if is_idle || is_over(&self.store) {
                break;
            }
        }
        self.forget_delivered()?;
        self.note_messages()?;
        if self.class.durability != Durability::None || self.store.batch_bytes() > MOST_BATCH_BYTES / 2 {
            self.store.commit()?;
        }
        Ok(std::mem::take(&mut self.outgoing))
    }

    /// How much has come and waits for a turn.
    pub fn waiting(&self) -> usize {
        self.incoming.len()
    }

    /// Whether the next turn has something to deliver.
    pub fn is_ready(&self) -> bool {
        !self.queue.is_empty() || !self.incoming.is_empty()
    }

    /// In which time the next turn is due; none: only when something comes.
    pub fn due_in(&self) -> Option<Duration> {
        let next = self.next_due()?.0;
        Some(Duration::from_millis(next.saturating_sub(now())))
    }

    fn deliver(&mut self, delivery: Delivery) -> Result<(), HostError> {
        match delivery {
            Delivery::Incoming(Incoming::Call { key, function, arguments, call }) => {
                let origin = Origin::Call { run: self.run, call };
                self.begin(&key.into(), &function, &arguments, origin)
            }
            Delivery::Incoming(Incoming::Opened { socket, key, function, request }) => {
                let key: SharedKey = key.into();
                let connection = Connection { key: key.clone(), inbox: VecDeque::new(), phase: Phase::Open };
                self.connections.insert(socket, connection);
                self.begin(&key, function, &[Value::Handle(socket), request], Origin::Socket(socket))
            }
            Delivery::Incoming(Incoming::Received(socket, message)) => self.received(socket, message),
            Delivery::Incoming(Incoming::Ended(socket)) => self.ended(socket, Phase::Ended),
            Delivery::Incoming(Incoming::Closed(socket)) => self.ended(socket, Phase::Closed),
            Delivery::Incoming(Incoming::Fetched { fetch, result }) => self.fetched(fetch, result),
            Delivery::Message { from, message, is_noted } => self.deliver_message(&from, message, is_noted),
            Delivery::Gone { key, task } => self.gone(&key, task),
        }
    }

    /// Calls a function of a Clef.
    fn begin(&mut self, key: &SharedKey, function: &str, arguments: &[Value], origin: Origin) -> Result<(), HostError> {
        self.step(key, Work::Begin { function, arguments, origin })
    }

    /// Puts all Clefs to sleep, and makes their states durable.
    ///
    /// # Errors
    /// See [`HostError`].
    pub fn sleep(&mut self) -> Result<(), HostError> {
        self.forget_delivered()?;
        self.note_messages()?;
        let mut result = Ok(());
        while let Some((_, key)) = self.order.first_key_value() {
            result = result.and(self.put_to_sleep(&key.clone()));
        }
        self.store.commit()?;
        result
    }

    /// Puts all Clefs to sleep, and gives back all that only those need that are awake: addresses, and the timer of processor time.
    ///
    /// # Errors
    /// See [`HostError`].
    pub fn rest(&mut self) -> Result<(), HostError> {
        self.sleep()?;
        self.router = None;
        self.engine = None;
        Ok(())
    }

    /// Collects some of the log, if there is enough in it that nobody needs.
    ///
    /// # Errors
    /// See [`HostError`].
    pub fn collect(&mut self) -> Result<bool, HostError> {
        Ok(self.store.collect()?)
    }

    /// Changes the code. A Clef gets it when it is next used: it begins anew, but for its global table `state`, its alarms and its values.
    pub fn reload(&mut self, code: Code) {
        self.code_hash = code.hash();
        self.class.code = code;
        self.router = None;
    }

    /// Removes a Clef; false if there is none.
    ///
    /// # Errors
    /// See [`HostError`].
    pub fn remove(&mut self, key: &[u8]) -> Result<bool, HostError> {
        let sockets: Vec<Socket> =
            self.connections.iter().filter(|(_, of)| *of.key == *key).map(|(socket, _)| *socket).collect();
        for socket in sockets {
            self.connections.remove(&socket);
            self.outgoing.push(Outgoing::Close(socket));
        }
        let clef = self.forget(key);
        let was_awake = clef.is_some();
        let note = match clef {
            Some(clef) => Some(clef.note),
            None => self.store.note(key)?.and_then(|note| Note::from_stored(&note).ok()),
        };
        for waiting in note.unwrap_or_default().tasks.into_values() {
            self.tell(&key.into(), None, waiting.origin, Err("its Clef was removed".to_owned()));
        }
        Ok(self.store.remove(key)? || was_awake)
    }

    /// Whether no Clef can be awake before the next turn.
    pub fn is_resting(&self) -> bool {
        self.engine.is_none()
    }

    /// Lets go of the directory. Nothing can be done with this host any more.
    pub(crate) fn close(&mut self) {
        self.awake.clear();
        self.router = None;
        self.store.close();
    }

    fn engine(&mut self) -> Result<Arc<Windows>, HostError> {
        if let Some(engine) = &self.engine {
            return Ok(engine.windows.clone());
        }
        let windows = Arc::new(Windows::reserve(0, MOST_WINDOWS)?);
        let budget = Budget::of_steps(self.class.limits.step)?;
        self.engine = Some(Engine { windows: windows.clone(), _budget: budget });
        Ok(windows)
    }
}
