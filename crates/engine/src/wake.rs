//! Waking in place: refill, mark, adjust, thaw.
//!
//! Everything up to the journal's `Awake` may be done twice. The journal is written before the thaw: once the program
//! runs, the image is old, and old memory must never be put under a program that has run on.

use std::io;
use std::path::PathBuf;

use torpor_image::{FormatError, Kind};
use torpor_linux::ptrace::Seized;

use crate::sleep::{Asleep, Failure, Target, remove_image};
use crate::target::Phase;
use torpor_pages::refill::{RefillError, refill};
use torpor_pages::source::ImageFile;
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
}

impl Woken {
    /// Puts socket options back and removes the image. Gives back what the next sleep must know.
    pub fn finish(self) -> Result<WaitHistory, Failure> {
        let mut memories = self.memories;
        memories.let_go_on(self.changes.undo().map_err(Failure::Look)?);
        remove_image(&self.image)?;
        Ok(memories)
    }
}

/// Wakes a dozing app.
pub fn wake(target: &Target<'_>, asleep: &Asleep) -> (Result<Woken, WakeError>, Timings) {
    let mut timings = Timings::begin();
    let result = try_wake(target, asleep, &mut timings);
    (result, timings)
}

fn try_wake(target: &Target<'_>, asleep: &Asleep, timings: &mut Timings) -> Result<Woken, WakeError> {
    let image = open(target, &asleep.image)?;
    timings.reached(Step::Opened, target.faults)?;
    // They go to their trace stops, still frozen, while memory comes back.
    let asked = ask(&asleep.plans);
    let pages = ImageFile::through_cache(image.file());
    refill(&pages, &asleep.state.processes, &asleep.contexts).map_err(WakeError::Refill)?;
    timings.reached(Step::Refilled, target.faults)?;
    target.journal.record(Phase::Awake).map_err(WakeError::Journal)?;
    timings.reached(Step::Awake, target.faults)?;
    // From here on an error must not keep it asleep: its memory is complete.
    let changes = asked.and_then(adjust);
    timings.reached(Step::Adjusted, target.faults)?;
    target.freezer.thaw().map_err(WakeError::Thaw)?;
    let thawed = timings.reached(Step::Thawed, target.faults);
    let changes = changes?;
    thawed?;
    Ok(Woken { changes, memories: asleep.memories.clone(), image: asleep.image.clone() })
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
