//! Lazy wakes at their worst: programs of any size are lazy, each page comes alone and only when it is touched, nothing is expected to
//! be needed, and pagers end at random and are followed by others.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};

use torpor_engine::{
    ContextRecord, Contexts, LazyServed, LazyWay, NoFaults, PagerHost, PagerThread, Pagers, ParkedByWorker,
    ParkedContexts, Recovered, ServeError, Userfault, recover,
};
use torpor_store::Store;
use torpor_testkit::error::chain;

use super::app::App;

/// Rounds after which a pager ends, at most. Each is a message or a few milliseconds.
const MOST_ROUNDS: u64 = 40;
/// In what [`Torture::told`] says.
pub const SERVED: &str = " faults";

/// Pagers of an app, and what a worker would have parked.
#[derive(Default)]
pub struct Torture(Arc<Shared>);

type Ended = mpsc::Receiver<Result<LazyServed, ServeError>>;

#[derive(Default)]
struct Shared {
    parked: Mutex<Option<(Vec<ContextRecord>, Vec<OwnedFd>)>>,
    children: Mutex<Vec<OwnedFd>>,
    pager: Mutex<Option<Ended>>,
    /// Pagers live on: nobody would follow them.
    is_steady: bool,
    is_over: AtomicBool,
    is_complete: AtomicBool,
    pagers: AtomicU64,
    faults: AtomicU64,
}

impl Torture {
    /// For an app whose memory is described: its pagers do not end before that.
    pub fn steady() -> Self {
        Self(Arc::new(Shared { is_steady: true, ..Shared::default() }))
    }

    /// For a wake.
    pub fn way(&self) -> LazyWay<'_> {
        LazyWay { pagers: self, cause: "", sample: None }
    }

    /// Parks the contexts of an app, as a worker does before it may be lazy.
    pub fn keep(&self, contexts: Option<&Contexts>) {
        let kept = contexts.filter(|contexts| contexts.may_be_lazy()).map(|contexts| {
            let descriptors = contexts.descriptors().into_iter().map(|fd| fd.try_clone_to_owned().unwrap());
            (contexts.records(), descriptors.collect())
        });
        *self.0.parked.lock().unwrap() = kept;
    }

    /// What a worker would find that comes after one that was killed.
    fn found(&self) -> ParkedByWorker {
        let twin = |fds: &Vec<OwnedFd>| fds.iter().map(|fd| fd.try_clone().unwrap()).collect();
        let parked = self.0.parked.lock().unwrap();
        let contexts = parked.as_ref().map(|(records, descriptors)| ParkedContexts {
            records: records.clone(),
            descriptors: twin(descriptors),
            children: twin(&self.0.children.lock().unwrap()),
        });
        ParkedByWorker { watch: None, contexts }
    }

    /// Has one pager after the other serve an app until its memory is complete, or [`Self::end`] was called.
    pub fn serve(&self, app: &App) -> Result<(), String> {
        loop {
            let Some(pager) = self.0.pager.lock().unwrap().take() else { return Ok(()) };
            // It was sent no app.
            let Ok(ended) = pager.recv() else { return Ok(()) };
            if self.0.is_over.load(Ordering::Acquire) {
                // Its processes may be gone.
                return Ok(());
            }
            let served = ended.map_err(|error| chain(&error))?;
            self.0.faults.fetch_add(served.counts.faults, Ordering::Relaxed);
            if self.0.is_complete.load(Ordering::Acquire) {
                return Ok(());
            }
            let store = Store::of_app(&app.path("images"));
            let recovered =
                app.with_target(&NoFaults, |target| recover(target, app.phase(), &store, self.found(), self));
            match recovered.map_err(|error| chain(&error))? {
                Recovered::Lazy => {}
                other => return Err(format!("after the end of a pager: {other:?}")),
            }
        }
    }

    /// Nothing needs a pager any more.
    pub fn end(&self) {
        self.0.is_over.store(true, Ordering::Release);
    }

    /// What it took; none where nothing was missing.
    pub fn told(&self) -> Option<String> {
        let [pagers, faults] = [&self.0.pagers, &self.0.faults].map(|count| count.load(Ordering::Relaxed));
        (pagers > 0).then(|| format!("{pagers} pagers, {faults}{SERVED}"))
    }
}

impl Pagers for Torture {
    fn thread(&self) -> io::Result<PagerThread> {
        let (thread, apps) = PagerThread::new();
        let (report, ended) = mpsc::channel();
        let random = RandomState::new().build_hasher().finish() % MOST_ROUNDS;
        let rounds = if self.0.is_steady { u64::MAX } else { random };
        let host = Host { shared: self.0.clone(), rounds: AtomicU64::new(rounds) };
        std::thread::spawn(move || {
            if let Ok(app) = apps.recv() {
                host.shared.pagers.fetch_add(1, Ordering::Relaxed);
                let _ = report.send(app.serve(&host));
            }
        });
        *self.0.pager.lock().unwrap() = Some(ended);
        Ok(thread)
    }

    fn park(&self, _generation: u64, contexts: &Contexts) -> io::Result<()> {
        self.keep(Some(contexts));
        Ok(())
    }
}

struct Host {
    shared: Arc<Shared>,
    /// That are left.
    rounds: AtomicU64,
}

impl PagerHost for Host {
    fn forked(&self, child: &Userfault) -> io::Result<()> {
        self.shared.children.lock().unwrap().push(child.as_fd().try_clone_to_owned()?);
        Ok(())
    }

    fn has_room(&self, _bytes: u64) -> bool {
        true
    }

    fn stalled(&self, error: &io::Error) {
        eprintln!("stalled: {error}");
    }

    fn complete(&self) -> io::Result<()> {
        self.shared.is_complete.store(true, Ordering::Release);
        *self.shared.parked.lock().unwrap() = None;
        self.shared.children.lock().unwrap().clear();
        Ok(())
    }

    fn block_pages(&self) -> u64 {
        1
    }

    fn fills(&self) -> bool {
        false
    }

    fn is_awaited(&self) -> bool {
        false
    }

    fn is_over(&self) -> bool {
        let left = self.rounds.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        left.is_err() || self.shared.is_over.load(Ordering::Acquire)
    }
}
