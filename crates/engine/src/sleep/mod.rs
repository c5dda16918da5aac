//! Falling asleep: freeze, capture, commit, drop.
//!
//! ```text
//!            ┌────────────── abortable: thaw and carry on ───────────────┐
//! running ─▶ prepared ─▶ frozen ─▶ stopped ─▶ watched ─▶ copied ─▶ synced ─▶ committed
//!                                                                              │ journal: Dropping
//!                        dozing ◀─ released ◀─ dropped ◀─ parked ◀─────────────┘
//!                        journal: Dozing
//! ```
//!
//! Until `committed` nothing of the app has been changed but for interrupted calls put right, and any event on a watched
//! descriptor aborts. So does a thread that was stopped while it ran: it may be in the middle of an answer, and nothing that
//! is still to come would wake it. From `committed` on the image is the truth: an error refills from it and lets the app run, and a
//! crash leaves threads that are frozen, stopped or in the park loop, never running with memory missing.

mod blockers;
mod capture;
mod drop_memory;
mod error;
pub(crate) mod events;
mod new_image;

use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use torpor_image::{Epoch, State};

pub use self::blockers::obstacles;
pub(crate) use self::error::Stop;
pub use self::error::{Failure, SleepError};
pub(crate) use self::new_image::{NewImage, remove_image};
use crate::lazy::{Contexts, LazyProgram, Names};
use crate::target::{Freezer, Journal, Phase};
use crate::watch::Watch;
use torpor_pages::context::{Context, PlacedArea};
use torpor_pages::parts::Expected;
use torpor_pages::source::Stored;
use torpor_proc::maps::areas;
use torpor_process::step::{Fault, Faults, Step, Timings};
use torpor_process::threads::{ThreadPlan, WaitHistory, let_go};
use torpor_process::trace::Process;
use torpor_store::{Image, Scattered, Trim};

/// An app that is to sleep, and what its worker gives for it.
pub struct Target<'a> {
    /// Its id, in the image's header.
    pub app: u64,
    /// Since when this machine has it, in the image's header.
    pub epoch: Epoch,
    /// This boot of the machine.
    pub boot: [u64; 2],
    /// Freezes and thaws it.
    pub freezer: &'a dyn Freezer,
    /// Keeps its phase.
    pub journal: &'a dyn Journal,
    /// Told of every step.
    pub faults: &'a dyn Faults,
}

/// How it is to sleep.
pub struct Request<'a> {
    /// The image that it makes; its generation is higher than all before.
    pub image: Image,
    /// Timers longer than this wake it.
    pub timers_over: Duration,
    /// Watch the members of epoll descriptors one by one.
    pub single_sockets: bool,
    /// Tells it to give up.
    pub abort: &'a Abort,
    /// What is remembered of its last sleep.
    pub memories: &'a WaitHistory,
    /// Pages that its wakes are expected to need first. The first are those of every wake.
    pub expected: &'a [Expected],
    /// It misses pages, and sleeps without them.
    pub lazy: Option<&'a dyn LazyProgram>,
}

/// Asks a sleep that has not committed to give up; usable from any thread.
#[derive(Clone, Debug)]
pub struct Abort(Arc<(AtomicBool, OwnedFd)>);

impl Abort {
    /// One that has not been asked for.
    pub fn new() -> io::Result<Self> {
        Ok(Self(Arc::new((AtomicBool::new(false), eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))))
    }

    /// Asks.
    pub fn ask(&self) {
        self.0.0.store(true, Ordering::Release);
        // A full counter is readable all the same.
        let _ = rustix::io::write(&self.0.1, &1_u64.to_ne_bytes());
    }

    fn asked(&self) -> bool {
        self.0.0.load(Ordering::Acquire)
    }

    /// Waits `time` at most; says whether it was asked for.
    pub fn asked_within(&self, time: Duration) -> bool {
        let time = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() };
        // Interrupted or not: the flag has the answer.
        let _ = poll(&mut [PollFd::new(&self.0.1, PollFlags::IN)], Some(&time));
        self.asked()
    }
}

/// A dozing app: everything that waking it takes.
#[derive(Debug)]
pub struct Asleep {
    /// What the image holds.
    pub state: State,
    /// What wakes it.
    pub watch: Watch,
    /// When a timer must wake it, by `CLOCK_MONOTONIC`.
    pub wake_at: Option<Duration>,
    /// The image.
    pub image: Image,
    /// Bytes of the image's file.
    pub image_bytes: u64,
    /// Private memory that stays, shared copy-on-write between processes or in swap, bytes.
    pub kept_bytes: u64,
    /// For the next sleep.
    pub memories: WaitHistory,
    pub(crate) plans: Vec<ThreadPlan>,
    /// By which pages come back quickly, or while it runs; none where it is small.
    pub contexts: Option<Contexts>,
}

impl Asleep {
    /// What of its image's file no page of it is in; none where its image is the first in its file.
    ///
    /// # Errors
    /// As of [`Image::trim`].
    pub fn trim(&self) -> io::Result<Option<Trim>> {
        let regions = self.state.processes.iter().flat_map(|process| &process.regions);
        let stored = regions.filter_map(Stored::of);
        self.image.trim(stored.map(|stored| stored.offset..stored.offset + stored.bytes))
    }

    /// Its image, if that may be worth folding.
    ///
    /// # Errors
    /// If the areas of its processes cannot be read.
    pub fn scattered(&self) -> io::Result<Option<Scattered>> {
        let of_process = |process: &torpor_image::Process| {
            Ok((process.pid, areas(process.pid)?.into_iter().map(|area| area.start..area.end).collect()))
        };
        Scattered::of(&self.image, &self.state, || self.state.processes.iter().map(of_process).collect())
    }

    pub(crate) fn contexts(&self) -> &[Context] {
        self.contexts.as_ref().map_or(&[], |contexts| &contexts.contexts)
    }
}

/// What came of putting an app to sleep.
#[derive(Debug)]
pub struct Attempt {
    /// It sleeps, or why not.
    pub result: Result<Asleep, SleepError>,
    /// How long each step took.
    pub timings: Timings,
    /// For the next attempt, where this one has stopped the app and let it run again: the kernel then goes on with calls
    /// whose number only we know.
    pub memories: Option<WaitHistory>,
}

struct Sleep<'a> {
    target: &'a Target<'a>,
    request: &'a Request<'a>,
    timings: Timings,
    image: NewImage,
    frozen: bool,
    /// The journal may say that memory is being dropped.
    journaled: bool,
    /// Its pager serves it; none once its contexts are closed.
    lazy: Option<&'a dyn LazyProgram>,
    names: Names,
    processes: Vec<Process>,
    plans: Vec<ThreadPlan>,
    memories: Option<WaitHistory>,
}

/// What the first part has made.
struct Captured {
    state: State,
    drops: Vec<Drops>,
    watch: Watch,
    image_bytes: u64,
    kept_bytes: u64,
}

/// What is to be dropped of a process.
struct Drops {
    ranges: Vec<Range<u64>>,
    /// Areas of anonymous memory that much of is stored.
    anonymous: Vec<PlacedArea>,
}

/// Puts an app to sleep. Runs on one thread from beginning to end, since tracing belongs to a thread.
pub fn fall_asleep(target: &Target<'_>, request: &Request<'_>) -> Attempt {
    let mut sleep = Sleep {
        target,
        request,
        timings: Timings::begin(),
        image: NewImage::of(&request.image),
        frozen: false,
        journaled: false,
        lazy: request.lazy,
        names: Names::default(),
        processes: Vec::new(),
        plans: Vec::new(),
        memories: None,
    };
    let result = match sleep.capture() {
        Ok(captured) => sleep.drop_memory(captured),
        Err(stop) => Err(sleep.give_up(stop)),
    };
    Attempt { result, timings: sleep.timings, memories: sleep.memories }
}

impl Sleep<'_> {
    fn reached(&mut self, step: Step) -> Result<(), Fault> {
        self.timings.reached(step, self.target.faults)
    }

    fn at(&self) -> Step {
        self.timings.steps().last().map_or(Step::Prepared, |(step, _)| *step)
    }

    /// Undoes everything: the app goes on as if nothing had been.
    fn give_up(&mut self, stop: Stop) -> SleepError {
        let at = self.at();
        stop.told(at, self.undo())
    }

    fn undo(&mut self) -> Result<(), Failure> {
        let released = let_go(std::mem::take(&mut self.processes), &self.plans);
        if self.journaled {
            // Before the thaw, as in waking: the image must never be put under a program that has run on.
            let phase = match self.lazy {
                Some(lazy) => Phase::Lazy { generation: lazy.image().generation() },
                None => Phase::Awake,
            };
            self.target.journal.record(phase).map_err(Failure::Journal)?;
        }
        if let Some(lazy) = self.lazy {
            lazy.go_on();
        }
        // Whatever fails from here on, the app is thawed; an image that stays behind is removed by the next start.
        let thawed = if self.frozen { self.target.freezer.thaw().map_err(Failure::Freeze) } else { Ok(()) };
        self.image.remove()?;
        thawed?;
        let let_go_on = released?.undo().map_err(Failure::Look)?;
        if !self.plans.is_empty() {
            let timers = self.request.memories.timers.clone();
            let mut memories = WaitHistory { waits: carried(&self.plans), timers, ..WaitHistory::default() };
            memories.let_go_on(let_go_on);
            self.memories = Some(memories);
        }
        Ok(())
    }
}

/// What is remembered of the threads' waits.
pub(crate) fn carried(
    plans: &[ThreadPlan],
) -> std::collections::HashMap<i32, torpor_process::wait::restart::PriorWait> {
    plans.iter().filter_map(|plan| Some((plan.tid, plan.carried()?))).collect()
}
