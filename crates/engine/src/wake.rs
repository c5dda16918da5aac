//! Waking in place: refill, mark, adjust, thaw.
//!
//! Everything up to the journal's `Awake` or `Lazy` may be done twice. The journal is written before the thaw: once the program
//! runs, the image is old, and old memory must never be put under a program that has run on. With much memory only a part is refilled, and
//! a pager brings the rest to the running program ([`crate::lazy`]).

use std::io;
use std::path::PathBuf;

use torpor_image::{FormatError, Kind};
use torpor_linux::ptrace::Seized;

use crate::lazy::{Contexts, LazyApp, LazyWay, Loading, PagerThread, Split};
use crate::sleep::{Asleep, Failure, Target, remove_image};
use crate::target::Phase;
use torpor_pager::Ledger;
use torpor_pages::context::Registered;
use torpor_pages::refill::{RefillError, refill, refill_registered};
use torpor_pages::source::{FetchError, ImageFile};
use torpor_process::step::{Fault, Step, Timings};
use torpor_process::threads::{ThreadPlan, WaitHistory};
use torpor_process::trace::{Thread, TraceError};
use torpor_process::wait::since::now;
use torpor_process::wait::socket::SocketChanges;
use torpor_store::{Image, Lease};

/// Why an app was not woken. It stays asleep, with its image.
#[derive(Debug, thiserror::Error)]
pub enum WakeError {
    /// The image is not what was written: the app's memory is lost.
    #[error("image {} cannot be used", .0.display())]
    Damaged(PathBuf, #[source] FormatError),
    /// The image could not be opened or read.
    #[error("image {}", .0.display())]
    Image(PathBuf, #[source] io::Error),
    /// Memory did not come back.
    #[error("bringing its memory back")]
    Refill(#[source] RefillError),
    /// The journal could not be written.
    #[error("writing the journal")]
    Journal(#[source] io::Error),
    /// The thread that was to bring the rest of its memory has ended.
    #[error("its pager has ended before it began")]
    Pager,
    /// A thread could not be put right.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// It could not be thawed.
    #[error("thawing it")]
    Thaw(#[source] io::Error),
    /// A test asked for it.
    #[error(transparent)]
    Fault(#[from] Fault),
}

impl WakeError {
    /// The memory is gone for good: trying again is of no use.
    pub const fn is_lost(&self) -> bool {
        matches!(self, Self::Damaged(..) | Self::Refill(RefillError::Damaged { .. }))
    }
}

/// A woken app: small things that are done once it runs.
#[derive(Debug)]
pub struct Woken {
    changes: SocketChanges,
    memories: WaitHistory,
    image: Image,
    lazy: bool,
}

impl Woken {
    /// A pager brings the rest of its memory, from its image.
    pub const fn is_lazy(&self) -> bool {
        self.lazy
    }

    /// Puts socket options back, and removes the image unless it is still needed. Gives back what the next sleep must know.
    pub fn finish(self) -> Result<WaitHistory, Failure> {
        let mut memories = self.memories;
        memories.let_go_on(self.changes.undo().map_err(Failure::Look)?);
        if !self.lazy {
            remove_image(&self.image)?;
        }
        Ok(memories)
    }
}

/// Wakes a dozing app; where there is a way, before all of its memory is back if that pays.
pub fn wake(target: &Target<'_>, asleep: &Asleep, lazy: Option<LazyWay<'_>>) -> (Result<Woken, WakeError>, Timings) {
    let mut timings = Timings::begin();
    let result = try_wake(target, asleep, lazy, &mut timings);
    (result, timings)
}

fn try_wake(
    target: &Target<'_>,
    asleep: &Asleep,
    lazy: Option<LazyWay<'_>>,
    timings: &mut Timings,
) -> Result<Woken, WakeError> {
    let image = open(target, &asleep.image)?;
    timings.reached(Step::Opened, target.faults)?;
    // They go to their trace stops, still frozen, while memory comes back.
    let asked = ask(&asleep.plans);
    let lazy = match (lazy, &asleep.contexts) {
        (Some(way), Some(contexts)) if contexts.may_be_lazy() => {
            bring_first(&image, asleep, contexts, way, &Loading::of(&asleep.state.loading, &way))?
        }
        _ => None,
    };
    if lazy.is_none() {
        // Should an earlier attempt have begun to be lazy, this one is not.
        asleep.contexts.iter().filter_map(|contexts| contexts.ledger.as_ref()).for_each(Ledger::clear);
        let pages = ImageFile::through_cache(image.file());
        refill(&pages, &asleep.state.processes, asleep.contexts()).map_err(WakeError::Refill)?;
    }
    timings.reached(Step::Refilled, target.faults)?;
    let phase = match &lazy {
        Some(_) => Phase::Lazy { generation: asleep.image.generation() },
        None => Phase::Awake,
    };
    target.journal.record(phase).map_err(WakeError::Journal)?;
    let is_lazy = lazy.is_some();
    if let Some((pager, app)) = lazy {
        // Before anything that may touch its memory. The thread waits for it.
        pager.serve(app).map_err(|_| WakeError::Pager)?;
    }
    timings.reached(Step::Awake, target.faults)?;
    // From here on an error must not keep it asleep: its memory is complete.
    let changes = asked.and_then(adjust);
    timings.reached(Step::Adjusted, target.faults)?;
    target.freezer.thaw().map_err(WakeError::Thaw)?;
    let thawed = timings.reached(Step::Thawed, target.faults);
    let changes = changes?;
    thawed?;
    Ok(Woken { changes, memories: asleep.memories.clone(), image: asleep.image.clone(), lazy: is_lazy })
}

/// Brings what must be in place first, stages what is to be staged, and leaves the rest registered, for the pager; none where that does not pay
/// or cannot be: then nothing is registered.
pub(crate) fn bring_first(
    image: &Lease,
    asleep: &Asleep,
    contexts: &Contexts,
    way: LazyWay<'_>,
    loading: &Loading,
) -> Result<Option<(PagerThread, LazyApp)>, WakeError> {
    let registered: Vec<Registered<'_>> = contexts.contexts.iter().map(Registered::with).collect();
    let split = match Split::of(&asleep.state, &registered, &loading.first) {
        Ok(Some(split)) => split,
        Ok(None) => return Ok(None),
        Err(error) => {
            tracing::debug!(%error, "what a wake must bring first is not known");
            return Ok(None);
        }
    };
    let ready = way.pagers.thread().and_then(|pager| Ok((pager, split.lazy(image.file(), contexts)?)));
    let (pager, mut app) = match ready {
        Ok(ready) => ready,
        Err(error) => {
            tracing::warn!(%error, "no pager: all memory is brought back first");
            return Ok(None);
        }
    };
    let pages = ImageFile::through_cache(image.file());
    refill_registered(&pages, &split.first, &registered).map_err(WakeError::Refill)?;
    if let Some(sample) = way.sample {
        app.stage(sample, &loading.staged).map_err(|error| unstaged(error, asleep))?;
    }
    for (n, one) in registered.into_iter().enumerate() {
        let pid = one.context.pid;
        one.keep(|range| split.is_lazy(n, range)).map_err(|error| WakeError::Refill(RefillError::Write(pid, error)))?;
    }
    Ok(Some((pager, app)))
}

fn unstaged(error: FetchError, asleep: &Asleep) -> WakeError {
    match error {
        FetchError::Read(error) => WakeError::Refill(RefillError::Read(error)),
        FetchError::Damaged { error, .. } => WakeError::Damaged(asleep.image.path().to_owned(), error),
    }
}

/// Opens an image of a dozing app, of this app, epoch and boot.
pub(crate) fn open(target: &Target<'_>, image: &Image) -> Result<Lease, WakeError> {
    let wrong = |error| WakeError::Image(image.path().to_owned(), error);
    let damaged = |error| WakeError::Damaged(image.path().to_owned(), error);
    let lease = image.open().map_err(|error| error.either(wrong, damaged))?;
    let header = lease.header();
    if header.kind != Kind::Dozing {
        return Err(damaged(FormatError::Invalid("it is not one of a dozing app")));
    }
    let found = (header.app, header.epoch, header.generation, header.boot);
    if found != (target.app, target.epoch, image.generation(), target.boot) {
        return Err(damaged(FormatError::Invalid("it belongs to another app, epoch, sleep or boot")));
    }
    Ok(lease)
}

/// Opens the complete image that an app of this boot, of which pages are still missing, was built from.
pub(crate) fn open_consumed(target: &Target<'_>, image: &Image) -> Result<Lease, WakeError> {
    let wrong = |error| WakeError::Image(image.path().to_owned(), error);
    let damaged = |error| WakeError::Damaged(image.path().to_owned(), error);
    let lease = image.open_consumed().map_err(|error| error.either(wrong, damaged))?;
    let header = lease.header();
    let found = (header.kind, header.app, header.epoch, header.generation);
    if found != (Kind::Complete, target.app, target.epoch, image.generation()) {
        return Err(damaged(FormatError::Invalid("it belongs to another app, epoch or sleep")));
    }
    Ok(lease)
}

/// Asks the threads to stop whose calls would begin their time-outs anew.
fn ask(plans: &[ThreadPlan]) -> Result<Vec<(&ThreadPlan, Seized)>, TraceError> {
    let seize = |tid| Seized::seize(tid).map_err(|error| TraceError::Attach(tid, error));
    plans.iter().filter(|plan| plan.adjusts()).map(|plan| Ok((plan, seize(plan.tid)?))).collect()
}

/// Puts their time-outs right and lets them go.
fn adjust(asked: Vec<(&ThreadPlan, Seized)>) -> Result<SocketChanges, TraceError> {
    let mut changes = SocketChanges::default();
    for (plan, seized) in asked {
        let wrong = |error| TraceError::Registers(plan.tid, error);
        let tracee = seized.stopped()?;
        let mut thread = Thread {
            registers: tracee.registers().map_err(wrong)?,
            signal_mask: tracee.signal_mask().map_err(wrong)?,
            tracee,
        };
        plan.prepare(&mut thread, now(), &mut changes)?;
        thread.release()?;
    }
    Ok(changes)
}
