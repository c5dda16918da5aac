//! The one order in which a tree is built, enforced by types.
//!
//! ```text
//! Launched ──fork──▶ Forked ──fill──▶ Filled ──build──▶ Built ──connect──▶ Connected ──freeze──▶ Frozen ──▶ Complete ──release──▶ runs
//! └──────────────────── an error, or dropping any of these: all processes of the tree are killed ─────────────┘
//! ```
//! Each state consumes the one before it, so no caller can give threads their registers before the connections are made, or release
//! processes that are not frozen. A plain restore, the resume of a warm app and its first wake after a reboot differ only in their
//! [`Seed`] and [`Source`], and in what they do between the states: there the callers have work of their own (the guard of a
//! plain tree; the journal and the image of an app).

use std::path::Path;
use std::time::Duration;

use torpor_descriptors::EachRestored;
use torpor_image::tree::Tree;
use torpor_linux::restorer::Entered;
use torpor_pages::source::PageSource;
use torpor_planner::plan::Plan;
use torpor_process::step::RestoreStep;
use torpor_process::wait::socket::SocketWait;

use crate::RestoreError;
use crate::finish::{self, Inherited};
use crate::lazy::{Late, Lazy};
use crate::logins::Logins;
use crate::open::Opened;
use crate::run::Building;

/// What the first process of a tree is made from.
pub enum Seed {
    /// A child of the calling thread, with the id that the plan names.
    Child,
    /// A process that waits in the namespaces of an app ([`run::enter`](crate::run::enter)).
    Entered(Entered),
}

/// What the states share.
pub struct Source<'a> {
    /// The state of the image.
    pub tree: &'a Tree,
    /// Its plan, adapted to what is there.
    pub plan: &'a Plan,
    /// The image.
    pub path: &'a Path,
    /// Its pages.
    pub pages: &'a dyn PageSource,
    /// How much time has passed for the programs since the capture.
    pub passed: Duration,
}

/// Told of each step that is reached; an error, which only tests inject, ends the restore there.
pub type Reached<'r> = &'r mut dyn FnMut(RestoreStep) -> Result<(), RestoreError>;

struct Parts<'a> {
    source: Source<'a>,
    building: Building<'a>,
}

/// The first process is there.
pub struct Launched<'a>(Parts<'a>);

/// All processes are there, in their sessions and groups; those that are to have ended have.
pub struct Forked<'a>(Parts<'a>);

/// The stored pages are verified and in place, but for those that come later.
pub struct Filled<'a> {
    parts: Parts<'a>,
    page_bytes: u64,
    late: Vec<Late>,
}

/// Every thread has made all its calls, and stands at the end of its list.
pub struct Built<'a> {
    parts: Parts<'a>,
    page_bytes: u64,
}

/// Connections have left repair mode, and the restorer's mappings are gone from every process.
pub struct Connected<'a> {
    parts: Parts<'a>,
    page_bytes: u64,
    waits: Vec<SocketWait>,
}

/// Nothing of the tree can run, even if it is no longer traced.
pub struct Frozen<'a>(Connected<'a>);

/// Every thread has its own registers: nothing of the restorer is left in the tree.
pub struct Complete<'a>(Connected<'a>);

impl<'a> Launched<'a> {
    /// Starts the first process, with everything that is `opened`.
    ///
    /// # Errors
    /// If it cannot be started or traced; it is gone then.
    pub fn launch(source: Source<'a>, opened: &Opened, seed: Seed, reached: Reached<'_>) -> Result<Self, RestoreError> {
        let building = match seed {
            Seed::Child => Building::launch(source.tree, source.plan, opened)?,
            Seed::Entered(entered) => Building::begin_inside(source.tree, source.plan, opened, entered)?,
        };
        reached(RestoreStep::Launched)?;
        Ok(Self(Parts { source, building }))
    }

    /// Until all processes are there.
    ///
    /// # Errors
    /// If a process does not come to its next stop.
    pub fn fork(mut self, reached: Reached<'_>) -> Result<Forked<'a>, RestoreError> {
        self.0.building.born()?;
        reached(RestoreStep::Forked)?;
        Ok(Forked(self.0))
    }
}

impl<'a> Forked<'a> {
    /// Until all pages are verified and in place, but for those that may be `lazy`; `piece` is told of each batch of this thread. Afterwards the processes make
    /// their last calls: what can be done meanwhile is begun before [`Filled::build`].
    ///
    /// # Errors
    /// If the image is damaged or cannot be read.
    pub fn fill(
        mut self,
        piece: Option<EachRestored<'_>>,
        lazy: Option<&Lazy<'_>>,
    ) -> Result<Filled<'a>, RestoreError> {
        let Parts { source, building } = &mut self.0;
        let (page_bytes, late) = crate::fill::pages(building, source.path, source.pages, piece, lazy)?;
        Ok(Filled { parts: self.0, page_bytes, late })
    }
}

impl<'a> Filled<'a> {
    /// Takes the processes that miss pages. Somebody must serve their faults when the tree is released.
    pub fn take_late(&mut self) -> Vec<Late> {
        std::mem::take(&mut self.late)
    }

    /// Until every thread stands at the end of its list, with the attributes that are set from outside.
    ///
    /// # Errors
    /// If a call of a thread fails.
    pub fn build(mut self, reached: Reached<'_>, warnings: &mut Vec<String>) -> Result<Built<'a>, RestoreError> {
        reached(RestoreStep::Verified)?;
        // Read while the processes still work.
        let inherited = Inherited::look()?;
        self.parts.building.built()?;
        // Not before: until it has executed its seed, a first process that has entered namespaces shares our address space, and
        // what goes with that is ours.
        finish::attributes(&self.parts.building, &inherited, warnings)?;
        reached(RestoreStep::Built)?;
        Ok(Built { parts: self.parts, page_bytes: self.page_bytes })
    }
}

impl<'a> Built<'a> {
    /// Completes what is open, lets connections leave repair mode, and removes the restorer from every process.
    ///
    /// # Errors
    /// If something cannot be set from outside.
    pub fn connect(
        self,
        opened: &mut Opened,
        logins: Logins,
        warnings: &mut Vec<String>,
    ) -> Result<Connected<'a>, RestoreError> {
        let Self { parts, page_bytes } = self;
        let Parts { source, building } = &parts;
        opened.made.finish(source.tree, |id| building.id_of(id))?;
        opened.made.reconnect(source.tree)?;
        finish::clear(building, source.plan, (source.pages, source.passed), (logins, opened.blob()), warnings)?;
        let waits = finish::socket_waits(building, &opened.made, source.passed)?;
        Ok(Connected { parts, page_bytes, waits })
    }
}

impl<'a> Connected<'a> {
    /// The processes, to be counted and named.
    pub fn building(&self) -> &Building<'a> {
        &self.parts.building
    }

    /// Bytes of pages that were verified.
    pub const fn page_bytes(&self) -> u64 {
        self.page_bytes
    }

    /// `freeze` sees to it that nothing runs when the tracer lets go, or that nothing is left if it is killed then.
    ///
    /// # Errors
    /// Those of `freeze`.
    pub fn freeze<E>(self, freeze: impl FnOnce(&Building<'a>) -> Result<(), E>) -> Result<Frozen<'a>, E> {
        freeze(&self.parts.building)?;
        Ok(Frozen(self))
    }
}

impl<'a> Frozen<'a> {
    /// Gives every thread its registers and its signal mask.
    ///
    /// # Errors
    /// If a thread is gone.
    pub fn give_registers(self) -> Result<Complete<'a>, RestoreError> {
        finish::give_all(&self.0.parts.building, self.0.parts.source.passed)?;
        Ok(Complete(self.0))
    }
}

impl<'a> Complete<'a> {
    /// The processes; the first one's descriptor can be taken from it.
    pub fn building(&mut self) -> &mut Building<'a> {
        &mut self.0.parts.building
    }

    /// Waits on time-outs of sockets, which are to be shortened before the threads run.
    pub fn socket_waits(&mut self) -> Vec<SocketWait> {
        std::mem::take(&mut self.0.waits)
    }

    /// Lets all threads go: the stopped processes first, the root last.
    ///
    /// # Errors
    /// If a thread cannot be let go. What was let go before runs then.
    pub fn release(self, warnings: &mut Vec<String>) -> Result<(), RestoreError> {
        self.0.parts.building.release(warnings)
    }
}
