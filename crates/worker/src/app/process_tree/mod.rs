//! A sandboxed process tree: the workload that there is today.
//!
//! ```text
//!              ┌─▶ sandbox (start, signal, kill)
//! ProcessTree ─┼─▶ engine  (sleep, hibernate, wake, resume), on threads of their own
//!              └─▶ keeper  (park)
//!       ▲ Message: what came of it
//! ```
//! Long operations run on threads of their own and come back as [`Message`]s.

mod adopt;
mod adopt_error;
mod after_sleep;
mod boot_image;
mod connection_resets;
mod contexts;
mod describe;
mod exit;
mod export;
mod freezer;
mod hibernate;
mod hold;
mod images;
mod infer_phase;
mod kill;
mod lazy;
mod learned;
mod notifying_journal;
mod parked;
mod resume;
mod sandbox_handle;
mod sandbox_spec;
mod sleep;
mod sleep_state;
mod start;
mod start_error;
mod target;
mod texts;
mod usage;
mod wake;
mod wake_labels;
mod workload;

pub(crate) use boot_image::{adopts_boot_image, has_boot_image};
pub(crate) use parked::prefix as parked_prefix;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::SystemTime;

use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc;
use torpor_api::worker::AppRecord;
use torpor_engine::{Abort, Attempt, WaitHistory};
use torpor_lifecycle::{Event, Text};
use torpor_sandbox::Sandbox;
use torpor_store::{Folded, Owner};

use super::operation::Operation;
use crate::app_files::{self, AppFiles};
use crate::cached::CachedImage;
use crate::journal::PhaseFile;
use crate::logs::{Log, Reading};
use crate::probes::Deferred;
use crate::shared::Shared;
use boot_image::SandboxRetry;
use connection_resets::ConnectionResets;
use hibernate::Hibernated;
use kill::KillAttempts;
use lazy::LazyWake;
use learned::Learned;
use resume::Resumed;
use sleep_state::{SleepState, WarmApp};
use start::StartOutcome;

/// An app's processes, or what they are brought back from.
pub(crate) struct ProcessTree {
    record: Arc<AppRecord>,
    files: AppFiles,
    shared: Arc<Shared>,
    log: Arc<Log>,
    journal: Arc<PhaseFile>,
    run: Run,
    sleep: Sleep,
    /// What is being woken from warm, if that fails.
    resuming: Option<Box<WarmApp>>,
    /// What brings the rest of its memory, where it woke before all was back; it may have come to its end.
    lazy: Option<Arc<LazyWake>>,
    /// Set while it is warm without a sandbox; `run.sandbox` and `sleep.state` are none then.
    sandbox_retry: Option<SandboxRetry>,
    /// Closes connections to it while it cannot be woken.
    connection_resets: Option<ConnectionResets>,
    /// Stops the sleep or the hibernation under way.
    abort: Option<Abort>,
    memories: WaitHistory,
    /// Which pages it needs first as it wakes.
    learned: Arc<Learned>,
    /// Why its memory could not be brought back, until the task has been told.
    lost: Option<Text>,
    generation: u64,
    sender: mpsc::UnboundedSender<Message>,
    messages: mpsc::UnboundedReceiver<Message>,
}

/// What is held of the sandbox that it runs or sleeps in.
#[derive(Default)]
struct Run {
    sandbox: Option<Arc<Sandbox>>,
    /// Readable when the sandbox's init has ended.
    init: Option<AsyncFd<OwnedFd>>,
    /// Its output, which is being read into its log.
    output: Option<Reading>,
    /// What has come of killing the sandbox.
    kill_attempts: KillAttempts,
}

/// What is held of it while it sleeps.
struct Sleep {
    state: Option<SleepState>,
    /// When its image was written.
    since: SystemTime,
    /// Its image, as one that may lie in the page cache.
    cached_image: Option<CachedImage>,
    /// Words for each of its wake sources.
    labels: Vec<String>,
    /// Readable when something that it waits for has happened.
    watch: Option<AsyncFd<OwnedFd>>,
    /// Listeners that were told to wait for data.
    deferred: Vec<Deferred>,
    /// There until it does anything but doze: its image may be folded.
    dozes: Option<Arc<()>>,
    /// Its init holds its userfaultfd contexts: it may wake before all of its memory is back.
    contexts_held: bool,
}

/// What came of an operation.
#[expect(clippy::large_enum_variant, reason = "it is boxed as a whole")]
pub(crate) enum Outcome {
    /// The sandbox stands and the program runs, or why not.
    Started(StartOutcome),
    /// Falling asleep has ended.
    Slept(Attempt),
    /// Going warm has ended.
    Hibernated(Hibernated),
    /// Building its processes has ended.
    Resumed(Resumed),
}

/// What its threads report.
enum Message {
    Ended(Arc<Operation>, Box<Outcome>),
    /// For the state machine.
    Event(Event),
    /// The rest of the app's memory cannot be brought back.
    Unserved(Arc<LazyWake>, Text),
    /// The image that it dozes with, or did, is folded.
    Folded(Box<Folded>),
    /// Killing this sandbox has ended; what holds it, where it has not.
    Killed(Arc<Sandbox>, Option<Text>),
}

impl ProcessTree {
    /// One of which nothing is known yet.
    pub(crate) fn new(record: Arc<AppRecord>, files: AppFiles, shared: Arc<Shared>, log: Arc<Log>) -> io::Result<Self> {
        let owner = app_files::owner(&record, shared.boot);
        let journal = Arc::new(PhaseFile::open(&files.phase(), owner)?);
        let (sender, messages) = mpsc::unbounded_channel();
        // A fault that a test has asked for comes in lazy wakes.
        let may_be_full = shared.fills() && !shared.faults.is_requested();
        let learned = Arc::new(Learned::read(files.working_set(), record.spec.idle.working_set, may_be_full));
        Ok(Self {
            record,
            files,
            shared,
            log,
            journal,
            run: Run::default(),
            sleep: Sleep {
                state: None,
                since: SystemTime::UNIX_EPOCH,
                cached_image: None,
                labels: Vec::new(),
                watch: None,
                deferred: Vec::new(),
                dozes: None,
                contexts_held: false,
            },
            resuming: None,
            lazy: None,
            sandbox_retry: None,
            connection_resets: None,
            abort: None,
            memories: WaitHistory::default(),
            learned,
            lost: None,
            generation: 1,
            sender,
            messages,
        })
    }

    /// Whose phases and images are the app's.
    fn owner(&self) -> Owner {
        app_files::owner(&self.record, self.shared.boot)
    }

    /// Reports an event to the task, behind what its threads have reported.
    fn report(&self, event: Event) {
        // The receiver is our own.
        let _ = self.sender.send(Message::Event(event));
    }
}

/// Reads a text as each kind of text is read: for fuzzing.
pub(crate) fn read_texts(text: &str) {
    usage::parse(text);
    wake_labels::parse(text);
}
