//! An app that runs while a thread of ours brings the rest of its memory.
//!
//! ```text
//! dozing: contexts left with init ─▶ journal: Lazy ─▶ the thread serves ─▶ journal: Awake ─▶ all contexts closed ─▶ image removed
//! ```
//! The thread records the end itself: until every descriptor of the contexts is closed, the program waits wherever it touches memory that
//! it has never used. From then on it says nothing to anybody. If pages cannot be had, it tells the task, which kills the app; init holds
//! the contexts until that has happened ([`super::contexts`]).
//!
//! The next sleep need not wait for the end ([`LazySleep`]). The end of the worker does, for a while: what is left then waits for the next worker.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use tokio::sync::mpsc::UnboundedSender;
use torpor_engine::{
    Abort, BLOCK_PAGES, Contexts, Journal, LazyProgram, LazyServed, MissingPart, PagerHost, PagerThread, Pagers, Phase,
    Told, Userfault, missing_parts,
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
/// How long to wait until a thread says what is missing; the app may be frozen meanwhile.
const ANSWER: Duration = Duration::from_secs(2);

/// Memory that comes back while an app runs.
#[derive(Debug)]
pub(super) struct LazyWake {
    /// Where it is.
    image: Image,
    /// The app has ended, or the worker ends: nothing is recorded any more.
    over: AtomicBool,
    /// Somebody waits for the end.
    awaited: AtomicBool,
    /// It is about to sleep.
    held: AtomicBool,
    /// Readable when any of the above has changed, or something is asked.
    bell: OwnedFd,
    /// Where it is learned what the wake has touched, and its cause; none once it is, or where nothing can be.
    learning: Mutex<Option<(Arc<Learned>, Arc<str>)>>,
    progress: Mutex<Progress>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Progress {
    /// The app has been thawed. Until then its image stays: without its phase it would be taken for one whose image is lost.
    thawed: bool,
    /// How the thread has ended.
    ended: Option<End>,
    /// Somebody wants to know what is missing.
    is_asked: bool,
    /// The answer.
    told: Option<SoFar>,
}

/// What a pager has to say before its end.
#[derive(Debug)]
pub(super) struct SoFar {
    /// None where a child misses pages that was forked meanwhile.
    pub(super) missing: Option<Vec<MissingPart>>,
    pub(super) served: LazyServed,
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
    fn new(image: Image, learning: Option<(Arc<Learned>, Arc<str>)>) -> io::Result<Self> {
        Ok(Self {
            image,
            over: AtomicBool::new(false),
            awaited: AtomicBool::new(false),
            held: AtomicBool::new(false),
            bell: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            learning: Mutex::new(learning),
            progress: Mutex::default(),
            changed: Condvar::new(),
        })
    }

    /// Has the thread look at what has changed.
    fn ring(&self) {
        // A full counter is readable all the same.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
        self.changed.notify_all();
    }

    /// Generation of its image.
    pub(super) const fn generation(&self) -> u64 {
        self.image.generation()
    }

    /// Its image while that is needed: where it is, and what it takes on disk.
    pub(super) fn image(&self) -> Option<(PathBuf, u64)> {
        let found = (!self.has_ended()).then(|| self.image.find())?;
        found.ok().map(|(path, info)| (path, info.allocated_bytes))
    }

    /// Whether it was stopped, or is about to be.
    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// What is missing, and what came so far. From here on nothing comes but what is touched, until it [goes on](Self::go_on).
    ///
    /// # Errors
    /// Where the thread has ended, or does not answer.
    pub(super) fn ask(&self) -> io::Result<SoFar> {
        self.held.store(true, Ordering::Release);
        let mut progress = self.progress();
        (progress.is_asked, progress.told) = (true, None);
        self.ring();
        let waits = |progress: &mut Progress| progress.told.is_none() && progress.ended.is_none();
        let (mut progress, _) =
            self.changed.wait_timeout_while(progress, ANSWER, waits).unwrap_or_else(PoisonError::into_inner);
        progress.is_asked = false;
        let ended = progress.ended.is_some();
        progress.told.take().filter(|_| !ended).ok_or_else(|| match ended {
            true => io::ErrorKind::BrokenPipe.into(),
            false => io::Error::new(io::ErrorKind::TimedOut, "its pager does not answer"),
        })
    }

    /// Learns from what it has touched, once.
    pub(super) fn learn(&self, served: &LazyServed) {
        let learning = self.learning.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((learned, cause)) = learning {
            learned.observe(&cause, served);
        }
    }

    /// It does not sleep: its memory comes back.
    pub(super) fn go_on(&self) {
        self.held.store(false, Ordering::Release);
        self.ring();
    }

    /// All of it is to come back, though nobody touches it.
    fn bring_back(&self) {
        self.awaited.store(true, Ordering::Release);
        self.ring();
    }

    /// Whether all of it is coming back, because somebody waits for it.
    pub(super) fn is_awaited(&self) -> bool {
        self.awaited.load(Ordering::Acquire)
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
        self.bring_back();
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
        self.bring_back();
        self.wait_for(FINISH);
        self.stop();
    }

    /// Stops it where it is. What is missing stays so, for the next worker; where the app has ended, nobody needs it.
    pub(super) fn stop(&self) {
        self.over.store(true, Ordering::Release);
        self.ring();
        self.wait_for(STOP);
    }
}

/// Makes the thread for a wake, or for an app that an earlier worker has left so.
pub(super) struct LazyPagers {
    host: HostParts,
    messages: UnboundedSender<Message>,
    image: Image,
    learned: Arc<Learned>,
    cause: Arc<str>,
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
        };
        let (messages, learned, cause) = (tree.sender.clone(), tree.learned.clone(), cause.into());
        Self { host, messages, image, learned, cause, wake: Mutex::new(None) }
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
        let learning = (!self.cause.is_empty()).then(|| (self.learned.clone(), self.cause.clone()));
        let wake = Arc::new(LazyWake::new(self.image.clone(), learning)?);
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
        self.ring();
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
        self.wake.learn(served);
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
        self.parts.shared.fills()
    }

    fn is_held(&self) -> bool {
        self.wake.held.load(Ordering::Acquire)
    }

    fn is_asked(&self) -> bool {
        self.wake.progress().is_asked
    }

    fn tell(&self, told: Told<'_>) {
        let so_far = SoFar { missing: missing_parts(&told), served: LazyServed::so_far(&told) };
        let mut progress = self.wake.progress();
        (progress.is_asked, progress.told) = (false, Some(so_far));
        self.wake.changed.notify_all();
    }

    fn bell(&self) -> Option<BorrowedFd<'_>> {
        Some(self.wake.bell.as_fd())
    }

    fn is_awaited(&self) -> bool {
        self.wake.is_awaited()
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

/// A lazy app that is about to sleep.
pub(super) struct LazySleep {
    pub(super) wake: Arc<LazyWake>,
    pub(super) sandbox: Arc<Sandbox>,
}

impl LazyProgram for LazySleep {
    fn image(&self) -> &Image {
        &self.wake.image
    }

    fn missing(&self) -> io::Result<Vec<MissingPart>> {
        let forked = || io::Error::other("it was forked while pages were missing");
        self.wake.ask()?.missing.ok_or_else(forked)
    }

    fn go_on(&self) {
        self.wake.go_on();
    }

    fn bring_back(&self) {
        self.wake.bring_back();
    }

    fn close(&self) -> io::Result<()> {
        self.wake.stop();
        if !self.wake.has_ended() {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "its pager does not end"));
        }
        self.sandbox.clear_deposits().map_err(io::Error::other)
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
            // The rest of its memory is to stay where it is.
            let end = || if self.shared.config.backfill { wake.finish() } else { wake.stop() };
            tokio::task::block_in_place(end);
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
