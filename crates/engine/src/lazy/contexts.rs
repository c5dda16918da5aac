//! Userfaultfd contexts, and what of them is parked.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use serde::{Deserialize, Serialize};
use torpor_image::{Region, State, lazy_size};
use torpor_linux::userfault::Userfault;
use torpor_pager::Ledger;
use torpor_pages::context::{Context, PlacedArea};
use torpor_pages::source::Stored;
use torpor_restore::lazy::Late;

/// The userfaultfd contexts of an app that dozes, or that was built again with pages missing. Whoever parks them parks all of them.
#[derive(Debug)]
pub struct Contexts {
    pub(crate) contexts: Vec<Context>,
    /// None where the app has too little memory to wake lazily.
    pub(crate) ledger: Option<Ledger>,
    /// By context, what it misses; empty for a dozing app, whose image says it.
    pub(crate) missing: Vec<Vec<Region>>,
}

/// What is known of a context, beside its descriptor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContextRecord {
    /// Its process.
    pub pid: i32,
    /// Its areas: start, end (exclusive), and whether their pages may come when they are touched.
    pub areas: Vec<(u64, u64, bool)>,
    /// What it misses, where its image does not say so: its processes were built again.
    pub missing: Option<Vec<Region>>,
}

impl ContextRecord {
    /// Those that were encoded.
    ///
    /// # Errors
    /// Where the bytes are none.
    pub fn decode_all(bytes: &[u8]) -> io::Result<Vec<Self>> {
        postcard::from_bytes(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
    }
}

/// [`Contexts`] that were parked.
#[derive(Debug)]
pub struct ParkedContexts {
    /// In the order of the descriptors.
    pub records: Vec<ContextRecord>,
    /// The ledger, then the contexts.
    pub descriptors: Vec<OwnedFd>,
    /// Contexts of children that were forked while the app was lazy, in the order of their forks.
    pub children: Vec<OwnedFd>,
}

impl ParkedContexts {
    /// Whether the app was about to run without all of its memory, or has: its ledger tells what became of missing pages.
    pub fn has_begun(&self) -> bool {
        self.ledger().is_some_and(|ledger| ledger.has_begun())
    }

    /// Whether it has run so: its memory is newer than the image that it misses pages of.
    pub fn has_run(&self) -> bool {
        self.ledger().is_some_and(|ledger| ledger.has_begun() && ledger.has_run())
    }

    fn ledger(&self) -> Option<Ledger> {
        let ledger = self.descriptors.first().and_then(|ledger| ledger.try_clone().ok());
        ledger.and_then(|ledger| Ledger::from_parked(ledger).ok())
    }
}

impl Contexts {
    /// None where no process has one.
    pub(crate) fn new(contexts: Vec<Context>, state: &State) -> io::Result<Option<Self>> {
        if contexts.is_empty() {
            return Ok(None);
        }
        let bytes_of = |context: &Context| {
            let process = state.processes.iter().find(|process| process.pid == context.pid);
            let regions = process.map_or(&[][..], |process| &process.regions);
            regions.iter().filter(|region| may_come_later(context, region)).map(Region::bytes).sum::<u64>()
        };
        let bytes: u64 = contexts.iter().map(bytes_of).sum();
        let ledger = if bytes >= lazy_size::least_bytes() { Some(Ledger::create()?) } else { None };
        Ok(Some(Self { contexts, ledger, missing: Vec::new() }))
    }

    /// Whether the app may wake before all of its memory is back: if they are parked before that.
    pub const fn may_be_lazy(&self) -> bool {
        self.ledger.is_some()
    }

    /// Nothing is registered with them any more; the processes are frozen.
    pub(crate) fn unregister(&self) {
        for context in &self.contexts {
            for area in &context.areas {
                if let Err(error) = context.userfault.unregister(&area.range) {
                    tracing::debug!(pid = context.pid, %error, "unregistering memory from a userfaultfd");
                }
            }
        }
    }

    /// The programs are about to run: from here on it is told what they do to missing pages.
    ///
    /// # Errors
    /// Of write(2).
    pub fn begin(&self) -> io::Result<()> {
        self.ledger.as_ref().map_or(Ok(()), Ledger::begin)
    }

    /// [`Contexts::records`] as bytes, for [`ContextRecord::decode_all`].
    pub fn encode_records(&self) -> Vec<u8> {
        postcard::to_stdvec(&self.records()).expect("records in memory can be written to memory")
    }

    /// What is to be parked with [`Contexts::descriptors`].
    pub fn records(&self) -> Vec<ContextRecord> {
        let area = |area: &PlacedArea| (area.range.start, area.range.end, area.may_be_lazy);
        let record = |(n, one): (usize, &Context)| ContextRecord {
            pid: one.pid,
            areas: one.areas.iter().map(area).collect(),
            missing: self.missing.get(n).cloned(),
        };
        self.contexts.iter().enumerate().map(record).collect()
    }

    /// What is to be parked.
    pub fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let contexts = self.contexts.iter().map(|context| context.userfault.as_fd());
        self.ledger.iter().map(|ledger| ledger.as_fd()).chain(contexts).collect()
    }

    /// Of processes that were built again and miss these regions.
    ///
    /// # Errors
    /// Why there is no ledger.
    pub fn of_built(late: Vec<Late>) -> io::Result<Self> {
        let (contexts, missing) = late.into_iter().map(|Late { context, regions }| (context, regions)).unzip();
        Ok(Self { contexts, ledger: Some(Ledger::create()?), missing })
    }

    /// `None` where descriptors are missing.
    pub(crate) fn from_parked(records: Vec<ContextRecord>, descriptors: Vec<OwnedFd>) -> Option<Self> {
        if descriptors.len() != records.len() + 1 {
            return None;
        }
        let mut descriptors = descriptors.into_iter();
        let ledger = Ledger::from_parked(descriptors.next()?).ok()?;
        let area = |(start, end, may_be_lazy)| PlacedArea { range: start..end, may_be_lazy };
        let contexts = records.into_iter().zip(descriptors).map(|(record, descriptor)| Context {
            pid: record.pid,
            userfault: Userfault::from_parked(descriptor),
            areas: record.areas.into_iter().map(area).collect(),
        });
        Some(Self { contexts: contexts.collect(), ledger: Some(ledger), missing: Vec::new() })
    }
}

/// Whether a region may come later as far as its area goes. Areas hold whole regions.
pub(super) fn may_come_later(context: &Context, region: &Region) -> bool {
    Stored::of(region).is_some()
        && context.areas.iter().any(|area| area.may_be_lazy && area.range.contains(&region.start))
}
