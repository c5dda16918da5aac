//! An app that runs while a thread of ours brings the rest of its memory.
//!
//! ```text
//! dozing: contexts left with init ─▶ journal: Lazy ─▶ the thread serves ─▶ journal: Awake ─▶ all contexts closed ─▶ image removed
//! ```
//! The thread records the end itself: until every descriptor of the contexts is closed, the program waits wherever it touches memory that
//! it has never used. From then on it says nothing to anybody. If pages cannot be had, it tells the task, which kills the app; init holds
//! the contexts until that has happened ([`super::contexts`]).
//!
//! The next sleep waits for the end. So does the end of the worker, for a while: what is left then waits for the next worker.

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::mpsc::UnboundedSender;
use torpor_engine::{
    Abort, BLOCK_PAGES, Contexts, Journal, LazyServed, PagerHost, PagerThread, Pagers, Phase, Userfault,
};
use torpor_lifecycle::Text;
use torpor_linux::meminfo::Memory;
use torpor_sandbox::Sandbox;
use torpor_store::Image;

use super::learned::Learned;
use super::texts::chain;
use super::{Message, ProcessTree, contexts};
use crate::app::abort_on_panic::AbortOnPanic;
use crate::faults::LazyStep;
use crate::journal::PhaseFile;
use crate::shared::Shared;

/// Between two looks at whether a sleep that waits is to be given up.
const LOOK: Duration = Duration::from_millis(20);
/// How long the end of the worker waits for the rest of an app's memory.
const FINISH: Duration = Duration::from_secs(2);
/// How long to wait for a thread to stop.
const STOP: Duration = Duration::from_secs(2);

/// Memory that comes back while an app runs.
#[derive(Debug)]
pub(super) struct LazyWake {
    /// Where it is.
    image: Image,
    /// The app has ended, or the worker ends: nothing is recorded any more.
    over: AtomicBool,
    /// Somebody waits for the end.
    awaited: AtomicBool,
    progress: Mutex<Progress>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Progress {
    /// The app has been thawed. Until then its image stays: without its phase it would be taken for one whose image is lost.
    thawed: bool,
    /// How the thread has ended.
    ended: Option<End>,
}

/// How serving an app has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
enum End {
    /// All of its memory is back.
    Back,
    /// It was stopped where it was.
    Stopped,
    /// What is missing cannot be brought back.
    Failed(Text),
}

impl LazyWake {
    fn new(image: Image) -> Self {
        Self {
            image,
            over: AtomicBool::new(false),
            awaited: AtomicBool::new(false),
            progress: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// Generation of its image.
    pub(super) const fn generation(&self) -> u64 {
        self.image.generation()
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether nobody serves it any more.
    pub(super) fn has_ended(&self) -> bool {
        self.progress().ended.is_some()
    }

    /// Whether nothing is missing any more.
    pub(super) fn is_back(&self) -> bool {
        self.progress().ended == Some(End::Back)
    }

    /// Why its memory cannot be brought back, if that is so.
    pub(super) fn failure(&self) -> Option<Text> {
        match &self.progress().ended {
            Some(End::Failed(reason)) => Some(reason.clone()),
            _ => None,
        }
    }

    /// Waits until all of its memory is back; false where that was given up, or cannot be.
    pub(super) fn wait(&self, abort: &Abort) -> bool {
        self.awaited.store(true, Ordering::Release);
        let mut progress = self.progress();
        while progress.ended.is_none() {
            if abort.asked_within(Duration::ZERO) {
                return false;
            }
            (progress, _) = self.changed.wait_timeout(progress, LOOK).unwrap_or_else(PoisonError::into_inner);
        }
        progress.ended == Some(End::Back)
    }

    fn wait_for(&self, time: Duration) {
        // One that has not ended then is killed with the worker, as after a crash.
        drop(self.changed.wait_timeout_while(self.progress(), time, |progress| progress.ended.is_none()));
    }

    /// Lets it come to its end, if that is soon; else stops it where it is.
    pub(super) fn finish(&self) {
        self.awaited.store(true, Ordering::Release);
        self.wait_for(FINISH);
        self.stop();
    }

    /// Stops it where it is. What is missing stays so, for the next worker; where the app has ended, nobody needs it.
    pub(super) fn stop(&self) {
        self.over.store(true, Ordering::Release);
        self.changed.notify_all();
        self.wait_for(STOP);
    }
}

/// Makes the thread for a wake, or for an app that an earlier worker has left so.
pub(super) struct LazyPagers {
    host: HostParts,
    messages: UnboundedSender<Message>,
    image: Image,
    /// Set once there is a thread; and whether that was sent an app.
    wake: Mutex<Option<(Arc<LazyWake>, Arc<AtomicBool>)>>,
}

impl LazyPagers {
    /// For a wake from `image`; the empty cause: for one that was begun by another worker, of which nothing can be learned.
    pub(super) fn new(tree: &ProcessTree, sandbox: &Arc<Sandbox>, image: Image, cause: &str) -> Self {
        let host = HostParts {
            shared: tree.shared.clone(),
            sandbox: sandbox.clone(),
            name: tree.record.spec.name.clone(),
            journal: tree.journal.clone(),
            learned: tree.learned.clone(),
            cause: cause.into(),
        };
        Self { host, messages: tree.sender.clone(), image, wake: Mutex::new(None) }
    }

    /// What was begun; none where the app was brought back without a pager.
    pub(super) fn into_wake(self) -> Option<Arc<LazyWake>> {
        let (wake, has_app) = self.wake.into_inner().unwrap_or_else(PoisonError::into_inner)?;
        has_app.load(Ordering::Acquire).then_some(wake)
    }
}

impl Pagers for LazyPagers {
    fn thread(&self) -> io::Result<PagerThread> {
        let (thread, apps) = PagerThread::new();
        let wake = Arc::new(LazyWake::new(self.image.clone()));
        let (host, messages) = (Host { parts: self.host.clone(), wake: wake.clone() }, self.messages.clone());
        std::thread::Builder::new().name(format!("pager-{}", self.host.name)).spawn(move || {
            let _abort = AbortOnPanic;
            // None: all of its memory was brought back first.
            let Ok(app) = apps.recv() else { return host.wake.end(End::Back) };
            let (missing, begun) = (app.missing_bytes(), Instant::now());
            match app.serve(&host) {
                Ok(served) => host.served(&served, missing, begun.elapsed()),
                Err(error) => {
                    let reason = chain(&error);
                    host.failed(&reason);
                    // The task may have ended with the worker: the next one comes to the same.
                    let _ = messages.send(Message::Unserved(host.wake.clone(), reason));
                }
            }
        })?;
        *self.wake.lock().unwrap_or_else(PoisonError::into_inner) = Some((wake, thread.has_app()));
        Ok(thread)
    }

    fn park(&self, generation: u64, contexts: &Contexts) -> io::Result<()> {
        contexts::deposit_built(&self.host.sandbox, generation, contexts)
    }
}

impl LazyWake {
    /// The app has been thawed.
    pub(super) fn thawed(&self) {
        self.progress().thawed = true;
        self.changed.notify_all();
    }

    /// Waits until the app has been thawed, or it is over.
    fn wait_for_thaw(&self) {
        let waits = |progress: &mut Progress| !progress.thawed && !self.is_over();
        let mut progress = self.progress();
        while waits(&mut progress) {
            // Looked at from time to time: whoever ends it may do so between the look and the wait.
            let waited = self.changed.wait_timeout_while(progress, LOOK, |progress| waits(progress));
            (progress, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Nobody needs it any more.
    fn remove_image(&self, app: &str) {
        match self.image.remove().and_then(|()| self.image.remove_consumed()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(app, image = %self.image.path().display(), %error, "removing an old image");
            }
            _ => {}
        }
    }

    /// The thread ends.
    fn end(&self, how: End) {
        self.progress().ended = Some(how);
        self.changed.notify_all();
    }
}

/// What the thread needs of the worker.
#[derive(Clone)]
struct HostParts {
    shared: Arc<Shared>,
    sandbox: Arc<Sandbox>,
    name: String,
    journal: Arc<PhaseFile>,
    learned: Arc<Learned>,
    cause: Arc<str>,
}

struct Host {
    parts: HostParts,
    wake: Arc<LazyWake>,
}

impl Host {
    fn reached(&self, step: LazyStep) -> io::Result<()> {
        self.parts.shared.faults.served(step)
    }

    /// It is served no more, and our descriptors are closed.
    fn served(&self, served: &LazyServed, missing: u64, took: Duration) {
        let app = &self.parts.name;
        self.wake.wait_for_thaw();
        // If it was stopped, the next worker needs the image, or the app has ended and its task removes it.
        if self.wake.is_over() {
            return self.wake.end(End::Stopped);
        }
        self.wake.remove_image(app);
        let took_ms = took.as_millis() as u64;
        tracing::debug!(app, missing, took_ms, counts = ?served.counts, "all of its memory is back");
        // Nobody waits for a hint.
        self.wake.end(End::Back);
        if !self.parts.cause.is_empty() {
            self.parts.learned.observe(&self.parts.cause, served);
        }
    }

    /// What is missing cannot be brought back. An app that does not run yet is being described for going warm, and the description may wait for
    /// a page: the app is killed at once. A running app is killed by its task.
    fn failed(&self, reason: &Text) {
        if !self.has_begun()
            && let Err(error) = self.parts.sandbox.cgroup().kill()
        {
            tracing::error!(app = self.parts.name, error = %chain(&error), "ending its processes");
        }
        self.wake.end(End::Failed(reason.clone()));
    }
}

impl PagerHost for Host {
    fn forked(&self, child: &Userfault) -> io::Result<()> {
        self.reached(LazyStep::Forked)?;
        contexts::deposit_child(&self.parts.sandbox, child.as_fd())?;
        self.reached(LazyStep::Parked)
    }

    fn has_room(&self, bytes: u64) -> bool {
        Memory::now().is_ok_and(|memory| memory.available / 2 > bytes)
    }

    fn stalled(&self, error: &io::Error) {
        tracing::warn!(app = self.parts.name, %error, "its image cannot be read; it waits for its memory");
    }

    fn complete(&self) -> io::Result<()> {
        self.reached(LazyStep::Complete)?;
        if self.wake.is_over() {
            return Ok(());
        }
        self.parts.journal.record(Phase::Awake)?;
        self.reached(LazyStep::Recorded)?;
        if let Err(error) = self.parts.sandbox.clear_deposits() {
            // With its init the app ends.
            tracing::warn!(app = self.parts.name, error = %chain(&error), "giving up its userfaultfd contexts");
        }
        Ok(())
    }

    fn has_begun(&self) -> bool {
        self.wake.progress().thawed
    }

    fn block_pages(&self) -> u64 {
        if self.parts.shared.faults.only_page_faults() { 1 } else { BLOCK_PAGES }
    }

    fn fills(&self) -> bool {
        !self.parts.shared.faults.only_page_faults()
    }

    fn is_awaited(&self) -> bool {
        self.wake.awaited.load(Ordering::Acquire)
    }

    fn is_over(&self) -> bool {
        if self.has_begun()
            && let Err(error) = self.reached(LazyStep::Round)
        {
            tracing::warn!(%error, "there is no such fault of a round");
        }
        self.wake.is_over()
    }
}

impl ProcessTree {
    /// Its memory is not whole and cannot be: it must not run on.
    pub(super) fn unserved(&mut self, wake: &Arc<LazyWake>, reason: &Text) {
        // Told once: the thread's message may come before the task knows of the wake, or after it has looked itself.
        if self.lazy.take_if(|own| Arc::ptr_eq(own, wake)).is_none() {
            return;
        }
        tracing::error!(app = self.record.spec.name, %reason, "the rest of its memory cannot be brought back; killing it");
        self.quarantine_images();
        self.report_lost(reason);
        self.kill_sandbox();
    }

    /// Its memory comes back while it runs. Serving may have failed by now.
    pub(super) fn runs_lazily(&mut self, lazy: Option<Arc<LazyWake>>) {
        self.lazy = lazy;
        if let Some(wake) = self.lazy.clone()
            && let Some(reason) = wake.failure()
        {
            self.unserved(&wake, &reason);
        }
    }

    /// The worker ends.
    pub(super) fn stop_lazy(&mut self) {
        if let Some(wake) = self.lazy.take() {
            tokio::task::block_in_place(|| wake.finish());
        }
    }

    /// Its processes have ended.
    pub(super) fn end_lazy(&mut self) {
        let Some(wake) = self.lazy.take() else { return };
        tokio::task::block_in_place(|| {
            wake.stop();
            wake.remove_image(&self.record.spec.name);
        });
    }
}
