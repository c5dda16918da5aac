//! A program that dozes and wakes, and pagers for it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use torpor_engine::{
    Abort, Asleep, Attempt, Contexts, Expected, Faults, LazyServed, LazyWay, NoFaults, PagerHost, PagerThread,
    ParkedByWorker, ParkedContexts, Request, Sample, ServeError, SleepError, Target, Userfault, WaitHistory,
    fall_asleep, wake,
};
use torpor_image::Epoch;
use torpor_store::Store;
use torpor_testkit::wait::soon;

use super::Program;
use super::journal::MemoryJournal;

/// It and all that its sleeps need.
pub struct App {
    pub program: Program,
    /// That it has printed.
    pub port: u16,
    pub journal: MemoryJournal,
    pub folder: tempfile::TempDir,
    /// Pages that wakes are expected to need first.
    pub expected: Vec<Expected>,
    /// The next wakes are sampled.
    pub sample: Option<Sample>,
    generation: u64,
    memories: WaitHistory,
}

impl App {
    pub fn start(command: &Command) -> Self {
        let (program, line) = Program::start(command);
        let folder = tempfile::tempdir().unwrap();
        let port = line.parse().unwrap();
        Self {
            program,
            port,
            journal: MemoryJournal::awake(),
            folder,
            expected: Vec::new(),
            sample: None,
            generation: 0,
            memories: WaitHistory::default(),
        }
    }

    pub fn target<'a>(&'a self, faults: &'a dyn Faults) -> Target<'a> {
        Target {
            app: 7,
            epoch: Epoch::FIRST,
            boot: [1, 2],
            freezer: &*self.program.cgroup,
            journal: &self.journal,
            faults,
        }
    }

    /// Puts it to sleep, as soon as it waits again after its last answer and has seen that its client is gone.
    pub fn sleep(&mut self, faults: &dyn Faults) -> Result<Asleep, SleepError> {
        let mut result = self.try_sleep(faults);
        let is_at_work = |result: &_| matches!(result, Err(SleepError::Aborted(_)));
        if is_at_work(&result) {
            soon("it waits", || {
                result = self.try_sleep(faults);
                !is_at_work(&result)
            });
        }
        result
    }

    /// Puts it to sleep, if nothing is in the way.
    pub fn try_sleep(&mut self, faults: &dyn Faults) -> Result<Asleep, SleepError> {
        self.generation += 1;
        let abort = Abort::new().unwrap();
        let request = Request {
            image: Store::of_app(self.folder.path()).image(self.generation),
            timers_over: Duration::from_secs(30),
            single_sockets: false,
            abort: &abort,
            memories: &self.memories,
            expected: &self.expected,
            lazy: None,
        };
        let Attempt { result, timings, memories } = fall_asleep(&self.target(faults), &request);
        if let Some(memories) = memories {
            self.memories = memories;
        }
        eprintln!("sleep {:?} {:?}", timings.steps(), result.as_ref().err());
        result
    }

    pub fn wake(&mut self, asleep: &Asleep, pagers: Option<&Pagers>) {
        let sample = self.sample;
        let way = pagers.map(|pagers| LazyWay { pagers, cause: "", sample });
        let (result, timings) = wake(&self.target(&NoFaults), asleep, way);
        eprintln!("wake {:?}", timings.steps());
        self.memories = result.unwrap().finish().unwrap();
    }
}

/// Threads that serve what wakes lazily, and what an earlier worker would have parked.
#[derive(Default)]
pub struct Pagers(Arc<Shared>);

#[derive(Default)]
struct Shared {
    /// Serving stops after it has been asked so often whether it is over; 0: never.
    stop_after: AtomicU64,
    children: Mutex<Vec<OwnedFd>>,
    ended: Mutex<Vec<mpsc::Receiver<Result<LazyServed, ServeError>>>>,
}

impl Pagers {
    /// As if the worker were killed after so many rounds.
    pub fn stop_after(&self, rounds: u64) {
        self.0.stop_after.store(rounds, Ordering::Relaxed);
    }

    /// What came of the pager that was started last, once it has ended.
    pub fn ended(&self) -> Result<LazyServed, ServeError> {
        let ended = self.0.ended.lock().unwrap().pop().expect("a pager was started");
        ended.recv_timeout(Duration::from_secs(60)).expect("it ends")
    }

    /// No pager was started since the last that was waited for.
    pub fn is_idle(&self) -> bool {
        self.0.ended.lock().unwrap().is_empty()
    }

    /// What a new worker finds.
    pub fn found(&self, contexts: Option<&Contexts>) -> ParkedByWorker {
        let contexts = contexts.map(|contexts| ParkedContexts {
            records: contexts.records(),
            descriptors: contexts.descriptors().into_iter().map(duplicate).collect(),
            children: self.0.children.lock().unwrap().iter().map(|child| duplicate(child.as_fd())).collect(),
        });
        ParkedByWorker { watch: None, contexts }
    }

    /// The app is complete, or gone.
    pub fn forget(&self) {
        self.0.children.lock().unwrap().clear();
    }
}

fn duplicate(descriptor: BorrowedFd<'_>) -> OwnedFd {
    descriptor.try_clone_to_owned().unwrap()
}

impl torpor_engine::Pagers for Pagers {
    fn thread(&self) -> std::io::Result<PagerThread> {
        let (thread, apps) = PagerThread::new();
        let (report, ended) = mpsc::channel();
        let host = Host { shared: self.0.clone(), asked: AtomicU64::new(0) };
        std::thread::spawn(move || {
            let Ok(app) = apps.recv() else { return };
            let result = app.serve(&host);
            eprintln!("pager: {:?}", result.as_ref().map(|served| &served.counts));
            let _ = report.send(result);
        });
        self.0.ended.lock().unwrap().push(ended);
        Ok(thread)
    }

    fn park(&self, _generation: u64, _contexts: &Contexts) -> std::io::Result<()> {
        // Nobody comes after us.
        Ok(())
    }
}

struct Host {
    shared: Arc<Shared>,
    asked: AtomicU64,
}

impl PagerHost for Host {
    fn forked(&self, child: &Userfault) -> std::io::Result<()> {
        self.shared.children.lock().unwrap().push(duplicate(child.as_fd()));
        Ok(())
    }

    fn has_room(&self, _bytes: u64) -> bool {
        true
    }

    fn stalled(&self, error: &std::io::Error) {
        eprintln!("stalled: {error}");
    }

    fn complete(&self) -> std::io::Result<()> {
        Ok(())
    }

    fn block_pages(&self) -> u64 {
        8
    }

    fn fills(&self) -> bool {
        true
    }

    fn is_awaited(&self) -> bool {
        false
    }

    fn is_over(&self) -> bool {
        let stop_after = self.shared.stop_after.load(Ordering::Relaxed);
        stop_after > 0 && self.asked.fetch_add(1, Ordering::Relaxed) >= stop_after
    }
}
