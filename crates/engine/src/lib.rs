//! Capture and restore of a process tree.
//!
//! Four ways lead between the levels of sleep, and two to and from a directory of its own:
//!
//! ```text
//!          fall_asleep            hibernate
//! running ────────────▶ dozing ───────────▶ warm      checkpoint: a plain process tree into an image
//!         ◀────────────        ◀─ ─ ─ ─ ─ ─           restore:    and back
//!             wake                resume (to running)
//! ```
//! - [`fall_asleep`], [`wake`]: the processes stay, frozen. Their private memory goes into an image and comes back in place, so every
//!   kernel object stays what it is.
//! - [`hibernate`], [`resume`]: the processes end as well. A complete image describes them, and their open files are parked.
//! - [`BootImage`]: an image without a sandbox, as after a reboot. [`adopt`]: an image from another machine.
//! - [`recover`] is for the next worker after a crash.
//!
//! The modules say how each can be interrupted, fail or crash at every step, and what is left then. The engine knows nothing of apps,
//! policies or networks, only of a [`Freezer`], a [`Journal`], an [`Image`](torpor_store::Image) of a store, and a [`Watch`] that tells when the app has work.
#![forbid(unsafe_code)]

mod boot_image;
mod checkpoint;
mod hibernate;
mod import;
mod lazy;
mod probe;
mod recover;
pub mod restored;
mod resume;
mod sleep;
mod target;
mod texts;
mod wake;
mod warm;
mod watch;

pub use boot_image::{BootImage, BootImageError, Reopened};
pub use checkpoint::{Checkpoint, CheckpointError, Checkpointed, checkpoint};
pub use hibernate::{HibernateError, HibernateOutcome, HibernateRequest, hibernate};
pub use import::{Import, ImportError, Imported, adopt, stays};
pub use lazy::{
    ContextRecord, Contexts, LazyApp, LazyLost, LazyProgram, LazyServed, LazyWay, MissingPart, PagerThread, Pagers,
    ParkedContexts, Sample, Touched, missing_parts,
};
pub use probe::probe;
pub use recover::{ParkedByWorker, RecoverError, Recovered, recover};
pub use resume::{Parked, ResumeError, ResumeOutcome, ResumeRequest, resume};
pub use sleep::{Abort, Asleep, Attempt, Failure, Request, SleepError, Target, fall_asleep, obstacles};
pub use target::{Freezer, Journal, Parking, Phase};
#[doc(hidden)]
pub use texts::read_texts;
pub use torpor_capture::CaptureError;
pub use torpor_descriptors::{ConnectionLock, DumpError as FilesError, Ends, PASS_MARK, RestoreFileError};
pub use torpor_linux::userfault::Userfault;
pub use torpor_pager::{BLOCK_PAGES, Host as PagerHost, ServeError, Served, Told};
pub use torpor_pages::copy::CopyError;
pub use torpor_pages::helpers::start as start_helpers;
pub use torpor_pages::parts::Expected;
pub use torpor_pages::refill::RefillError;
pub use torpor_planner::bounds::{Bounds, MachineLimits};
pub use torpor_proc::boot;
pub use torpor_process::blocker::{Blocker, Place};
pub use torpor_process::sandbox::{Ids, SandboxHandle};
pub use torpor_process::step::{Fault, Faults, Named, NoFaults, Step, Timings};
pub use torpor_process::threads::WaitHistory;
pub use torpor_process::timers::Deadline;
pub use torpor_process::trace::TraceError;
pub use torpor_restore::lazy::{Late, LatePages, MOST_CONTEXTS};
pub use torpor_restore::{CompileError, Restore, RestoreError, RestoreFaults, RestoreStep, Restored, compile, restore};
pub use wake::{WakeError, Woken, wake};
pub use warm::Warm;
pub use watch::{Source, Watch, WatchError, epoll_members};

/// What this machine lets programs without privileges have.
pub fn machine_limits() -> MachineLimits {
    MachineLimits::of(|name| torpor_proc::read(&format!("/proc/sys/{name}")).ok())
}
