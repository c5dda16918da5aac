//! From dozing to warm: the app's processes are ended, a complete image and its parked files stay.
//!
//! ```text
//!        ┌ it dozes on ┐ ┌──────────────── it is awake ─────────────────┐
//! dozing ─▶ examined ─▶ resident ─▶ activated ─▶ held ─▶ collected ─▶ written ─▶ kept ─▶ named ─▶ ending
//!                                   journal: Awake                                              │ journal: Ending
//!                                                     warm ◀─ ended ◀───────────────────────────┘
//!                                                     journal: Warm
//! ```

//!
//! Where the app can wake lazily, only that comes back which must be there first. The rest stays missing: if the description touches it, a pager
//! brings it, and the complete image, which is written behind the dozing image into the same file, refers to the pages there. The journal
//! says `Lazy` then in place of `Awake`, and where this is given up the app runs on as after a lazy wake.
//!
//! Everything up to `resident` leaves the app dozing: its dozing image is the truth, and memory may be refilled twice. From
//! `activated` on it counts as awake, though none of its instructions runs: every thread is in the freezer or in a trace stop, and a
//! crash lets it run on by itself, as after a wake. Anything that it waits for, and any error, ends this, and it runs. Before
//! `ending` it is frozen again, so that nothing of it runs if we die behind that; from there on the complete image is the
//! truth, and a crash leaves an app whose processes are still to be ended ([`crate::recover`]).
//!
//! System V segments that went into the image are removed with the processes. A crash may leave them, without anybody
//! attached; then they are used again.

mod activate;
mod capture;
mod end;
mod error;

use std::sync::{Mutex, PoisonError};

use torpor_image::Region;
use torpor_image::tree::FileId;
use torpor_linux::closer::AppFile;

pub use self::error::HibernateError;
use crate::lazy::Pagers;
use crate::sleep::{Abort, Asleep, NewImage, Stop, Target, events};
use crate::target::Parking;
use crate::warm::Warm;
use torpor_capture::Stopped;
use torpor_pages::parts::Expected;
use torpor_process::sandbox::SandboxHandle;
use torpor_process::step::{Fault, Step, Timings};
use torpor_process::threads::WaitHistory;
use torpor_store::Image;

/// How an app is to become warm.
pub struct HibernateRequest<'a> {
    /// Where it lives.
    pub home: &'a SandboxHandle,
    /// The complete image that it makes; its generation is higher than all before.
    pub image: Image,
    /// Tells it to give up.
    pub abort: &'a Abort,
    /// Takes its open files.
    pub parking: &'a dyn Parking,
    /// Pages that its wakes are expected to need first. The first are those of every wake.
    pub expected: &'a [Expected],
    /// Runs the pager, if its contexts are parked.
    pub pagers: Option<&'a dyn Pagers>,
}

/// What came of hibernating an app's sleep.
#[derive(Debug)]
pub struct HibernateOutcome {
    /// It is warm, or why not and where it is.
    pub result: Result<Warm, HibernateError>,
    /// How long each step took.
    pub timings: Timings,
    /// For the next sleep, where it is awake.
    pub memories: Option<WaitHistory>,
    /// Where it is awake, a pager brings the rest of its memory.
    pub is_lazy: bool,
}

/// Makes a dozing app warm. Runs on one thread from beginning to end, since tracing belongs to a thread.
pub fn hibernate(target: &Target<'_>, asleep: &Asleep, request: &HibernateRequest<'_>) -> HibernateOutcome {
    let mut hibernating = Hibernating {
        target,
        asleep,
        request,
        timings: Timings::begin(),
        image: NewImage::of(&request.image),
        stopped: Vec::new(),
        parked: false,
        journaled: false,
        memories: None,
        missing: None,
    };
    let result = hibernating.run();
    let is_lazy = hibernating.missing.is_some();
    HibernateOutcome { result, timings: hibernating.timings, memories: hibernating.memories, is_lazy }
}

struct Hibernating<'a> {
    target: &'a Target<'a>,
    asleep: &'a Asleep,
    request: &'a HibernateRequest<'a>,
    timings: Timings,
    image: NewImage,
    /// Processes whose threads are in trace stops.
    stopped: Vec<Stopped>,
    /// Files may have been parked.
    parked: bool,
    /// The journal may say that its processes are being ended.
    journaled: bool,
    memories: Option<WaitHistory>,
    /// What it misses, by process; none where all of its memory is back.
    missing: Option<Vec<(i32, Vec<Region>)>>,
}

/// What the part that can be given up has made.
struct Captured {
    image_bytes: u64,
    /// System V segments in the image.
    segments: Vec<i32>,
    warnings: Vec<String>,
    /// Duplicates of what was parked.
    _kept: Vec<(FileId, AppFile)>,
}

impl Hibernating<'_> {
    fn run(&mut self) -> Result<Warm, HibernateError> {
        let examined = match self.examine()? {
            Ok(family) => self.sync_files()?.map_or(Ok(family), Err),
            happened => happened,
        };
        self.activate()?;
        // What has happened is told only once: it must run for it.
        let captured = examined.map_err(Stop::Aborted).and_then(|family| self.capture(&family));
        match captured {
            Ok(captured) => self.end(captured),
            Err(Stop::Failed(error)) if self.ending() => Err(HibernateError::Ending(Box::new(error))),
            Err(stop) => Err(HibernateError::Awake(self.give_up(stop))),
        }
    }

    fn reached(&mut self, step: Step) -> Result<(), Fault> {
        self.timings.reached(step, self.target.faults)
    }

    /// Does something that asks whether to go on; gives what has happened, where that has ended it.
    fn heeding<T>(&self, work: impl FnOnce(&(dyn Fn() -> bool + Sync)) -> T) -> (T, Option<String>) {
        let by = Mutex::new(None);
        let go_on = || match events::happened(&self.asleep.watch, self.request.abort) {
            Ok(None) => true,
            Ok(Some(what)) => {
                *by.lock().unwrap_or_else(PoisonError::into_inner) = Some(what);
                false
            }
            // Asked again, and told, afterwards.
            Err(_) => true,
        };
        let done = work(&go_on);
        (done, by.into_inner().unwrap_or_else(PoisonError::into_inner))
    }

    fn at(&self) -> Step {
        self.timings.steps().last().map_or(Step::Examined, |(step, _)| *step)
    }

    /// The complete image is the truth.
    fn ending(&self) -> bool {
        self.at() >= Step::Ending
    }
}
