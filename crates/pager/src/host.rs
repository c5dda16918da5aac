//! What a pager needs of its worker, and why it gives up.

use std::io;
use std::os::fd::BorrowedFd;

use torpor_image::FormatError;
use torpor_linux::userfault::Userfault;
use torpor_pages::source::Stored;

use crate::served::Served;
use crate::space::Space;

/// Address spaces of an app that are served: no program forks so often in so short a time, but to use up descriptors.
pub(crate) const MOST_SPACES: usize = 4096;

/// Pages of an aligned block that usually come with a faulting page: what is beside a page is likely to be touched next.
pub const BLOCK_PAGES: u64 = 8;

/// What whoever serves an app needs of the worker.
pub trait Host {
    /// Keeps a child's context beyond our own end.
    ///
    /// # Errors
    /// Why not: should we be killed, its memory is lost, for there is one context less than the ledger has children.
    fn forked(&self, child: &Userfault) -> io::Result<()>;
    /// Whether there is room for so many bytes more: children are filled only then.
    fn has_room(&self, bytes: u64) -> bool;
    /// The source cannot be read now; it is tried again.
    fn stalled(&self, error: &io::Error);
    /// Nothing is missing any more: records that, before the contexts are closed.
    ///
    /// # Errors
    /// Why not; it is tried again, and the contexts are still needed.
    fn complete(&self) -> io::Result<()>;
    /// Whether the program runs, or is about to: until then only faults are served, and nothing is recorded.
    fn has_begun(&self) -> bool {
        true
    }
    /// Pages that come with a faulting page: those of the aligned block around it that are missing too.
    fn block_pages(&self) -> u64;
    /// Whether pages come that nobody has touched. Otherwise an app stays lazy until it has touched all of its memory.
    fn fills(&self) -> bool;
    /// Somebody waits until nothing is missing.
    fn is_awaited(&self) -> bool;
    /// Whether to stop: what is missing stays missing.
    fn is_over(&self) -> bool;
    /// The program is about to sleep, or frozen for that: only faults are served, nothing comes to an end, and [`Host::tell`] is called when it is
    /// [asked](Host::is_asked).
    fn is_held(&self) -> bool {
        false
    }
    /// Somebody wants to know what is missing.
    fn is_asked(&self) -> bool {
        false
    }
    /// What is missing, with all messages applied that were there when it was asked.
    fn tell(&self, _told: Told<'_>) {}
    /// A non-blocking eventfd(2) that is written to when any of the answers above has changed. The pager reads it.
    fn bell(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// What is missing, and what came so far.
#[derive(Clone, Copy, Debug)]
pub struct Told<'a> {
    /// What pieces name.
    pub regions: &'a [Stored],
    /// All address spaces, those of ended processes as well.
    pub spaces: &'a [Space],
    /// What it took.
    pub served: &'a Served,
}

/// Why an app cannot be served any further: its memory is not whole.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Stored pages are not what was written.
    #[error("the pages at {offset:#x} of the image")]
    Damaged {
        /// Where they are.
        offset: u64,
        /// What is wrong.
        #[source]
        error: FormatError,
    },
    /// A context does not work.
    #[error("handling page faults")]
    Context(#[source] io::Error),
    /// The ledger cannot be written.
    #[error("writing the ledger of missing pages")]
    Ledger(#[source] io::Error),
    /// It forks faster than its memory comes.
    #[error("{MOST_SPACES} processes were forked while memory was missing")]
    TooManyForks,
    /// It has split missing memory, and forked, so often that keeping account of it takes too much memory.
    #[error("its missing memory and that of its children is in more than {0} pieces")]
    TooManyPieces(usize),
}
