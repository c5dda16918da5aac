//! Capture and restore of a process tree.
//!
//! One level so far: *dozing*. Processes stay, frozen; their private memory goes into an image and comes back in place, so
//! every kernel object stays what it is. [`fall_asleep`] and [`wake`] are the two halves; their modules say how each can be
//! interrupted, fail or crash at every step and what is left then. [`recover`] is for whoever comes after a crash.
//!
//! The engine knows nothing of apps, policies or networks: a [`Freezer`], a [`Journal`], a path for the image, and a
//! [`Watch`] that tells when the app has work.
#![forbid(unsafe_code)]

mod aio;
mod checkpoint;
mod collect;
mod deepen;
mod files;
mod header;
mod home;
mod image_file;
mod login;
mod memory;
mod mounts;
mod moved;
mod obstacle;
mod plan;
mod probe;
mod proc;
mod recover;
mod restore;
mod revive;
mod sleep;
mod step;
mod stored;
mod target;
mod texts;
mod timers;
mod trace;
mod vetting;
mod view;
mod wait;
mod wake;
mod watch;

pub use checkpoint::{Checkpoint, CheckpointError, Checkpointed, IMAGE_NAME, checkpoint};
pub use collect::{CollectError, boot};
pub use deepen::{Deepen, DeepenError, Deepened, Warm, deepen};
pub use files::{CollectError as FilesError, ConnectionLock, Ends, MakeError, PASS_MARK};
pub use home::{Home, Ids};
pub use image_file::{Contents, ImageError, ImageFile, MemoryDifference, Verified, compare_memory};
pub use memory::copy::CopyError;
pub use memory::refill::RefillError;
pub use moved::{AdoptError, Adopted, Adoption, adopt, stays};
pub use obstacle::{Obstacle, Place};
pub use plan::Memories;
pub use probe::probe;
pub use recover::{RecoverError, Recovered, recover};
pub use restore::{CompileError, Restore, RestoreError, RestoreFaults, RestoreStep, Restored, compile, restore};
pub use revive::{Parked, Revive, ReviveError, Revived, revive, woken};
pub use sleep::{Abort, Asleep, Attempt, Failure, Request, SleepError, Target, fall_asleep, obstacles};
pub use step::{Fault, Faults, Named, NoFaults, Step, Timings};
pub use stored::{Reopened, Stored, StoredError};
pub use target::{Freezer, Journal, Parking, Phase};
#[doc(hidden)]
pub use texts::read_texts;
pub use timers::Deadline;
pub use trace::TraceError;
pub use vetting::{Bounds, MachineLimits};
pub use wake::{WakeError, Woken, wake};
pub use watch::{Source, Watch, WatchError, epoll_members};
