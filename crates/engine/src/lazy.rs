//! Waking before all memory is back: what must be in place first, and what a pager brings while the program runs.
//!
//! ```text
//! dozing ─▶ areas registered ─▶ first pages in place ─▶ journal: Lazy ─▶ the pager serves ─▶ thawed ─▶ nothing is missing
//! ```
//! First come pages that cannot be registered (private ones of files, stacks, locked memory), pages that the kernel has made meanwhile (it
//! writes a thread's restartable sequence as the thread goes back to sleep, into memory that was dropped), and the ends of stacks and thread
//! control blocks, which the kernel reads as a thread ends, where it cannot wait for a page.
//!
//! From the journal's `Lazy` on the program may run: its image is read only for pages that were never in place since. What the program has
//! done to its missing pages is in the [`Ledger`]. While anybody holds its contexts, the program does not read zeros: it waits.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc;

use torpor_image::{Process, Region, State};
use torpor_linux::registers::Registers;
use torpor_linux::userfault::Userfault;
use torpor_pager::{
    Change, Host, Layout, Ledger, LedgerError, Pager, ServeError, Served, Space, Staged, Touch, replay,
};
use torpor_pages::buffer::Buffer;
use torpor_pages::context::{Context, PlacedArea, Registered};
use torpor_pages::scan::{Kind, ProcessMemory, Selection};
use torpor_pages::source::{FetchError, ImageFile, Stored, fetch};
use torpor_store::Lease;

/// Missing bytes from which on an app wakes lazily. Less is in place before a pager could have begun.
const PAYS: u64 = 1 << 20;
/// Bytes of a thread control block behind the thread pointer that the kernel and the C library read as a thread ends.
const CONTROL_BLOCK: u64 = 0xa00;
/// Bytes of a loading set that come before the program runs. The rest comes next, in its order.
const MOST_LOADED: u64 = 16 << 20;
/// Bytes below a stack pointer that belong to the running function (System V ABI).
const RED_ZONE: u64 = 128;

/// The userfaultfd contexts of a dozing app. Whoever parks them parks all of them.
#[derive(Debug)]
pub struct Contexts {
    pub(crate) contexts: Vec<Context>,
    /// None where the app has too little memory to wake lazily.
    ledger: Option<Ledger>,
}

/// What is known of a context, beside its descriptor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContextRecord {
    /// Its process.
    pub pid: i32,
    /// Areas: first byte, behind the last byte, and whether their pages may come when they are touched.
    pub areas: Vec<(u64, u64, bool)>,
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
        let ledger = if bytes >= PAYS { Some(Ledger::create()?) } else { None };
        Ok(Some(Self { contexts, ledger }))
    }

    /// Whether the app may wake before all of its memory is back: if they are parked before that.
    pub const fn may_be_lazy(&self) -> bool {
        self.ledger.is_some()
    }

    /// What is to be parked with [`Contexts::descriptors`].
    pub fn records(&self) -> Vec<ContextRecord> {
        let area = |area: &PlacedArea| (area.range.start, area.range.end, area.may_be_lazy);
        let record = |one: &Context| ContextRecord { pid: one.pid, areas: one.areas.iter().map(area).collect() };
        self.contexts.iter().map(record).collect()
    }

    /// What is to be parked.
    pub fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let contexts = self.contexts.iter().map(|context| context.userfault.as_fd());
        self.ledger.iter().map(|ledger| ledger.as_fd()).chain(contexts).collect()
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
        Some(Self { contexts: contexts.collect(), ledger: Some(ledger) })
    }
}

/// How an app wakes before all of its memory is back.
#[derive(Clone, Copy)]
pub struct LazyWay<'a> {
    /// Runs the pager.
    pub pagers: &'a dyn Pagers,
    /// Why it wakes, in words: which parts of its loading set come first.
    pub cause: &'a str,
    /// Its loading set is staged, to see which of it is needed.
    pub is_sampled: bool,
}

/// Pages that came because the program touched one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Touched {
    /// Process.
    pub pid: i32,
    /// The address of the first.
    pub start: u64,
    /// How many.
    pub pages: u32,
    /// They were staged.
    pub staged: bool,
}

/// What serving an app took.
#[derive(Clone, Debug)]
pub struct LazyServed {
    /// Counts.
    pub counts: Served,
    /// What was touched, in order; not by children that were forked meanwhile.
    pub touched: Vec<Touched>,
    /// Its loading set was staged.
    pub is_sampled: bool,
}

/// Runs a pager for each app that wakes lazily.
pub trait Pagers: Send + Sync {
    /// Makes a thread that serves the app that it is sent, and ends where it is sent none.
    ///
    /// # Errors
    /// Why there is no thread: the app wakes with all its memory then.
    fn thread(&self) -> io::Result<mpsc::Sender<LazyApp>>;
}

/// An app that runs, or is about to, with pages missing.
#[derive(Debug)]
pub struct LazyApp {
    image: Lease,
    regions: Vec<Stored>,
    spaces: Vec<Space>,
    /// Their processes, as far as they were there at the beginning.
    pids: Vec<i32>,
    staged: Vec<Staged>,
    is_sampled: bool,
    ledger: Ledger,
}

impl LazyApp {
    /// Bytes that are missing.
    pub fn missing_bytes(&self) -> u64 {
        self.spaces.iter().map(|space| space.layout.missing_pages() * torpor_image::PAGE).sum()
    }

    /// Serves it until nothing is missing, or it is over, and closes its contexts. The app runs without a pager once those that are parked
    /// are closed as well: [`Host::complete`] must do so.
    ///
    /// # Errors
    /// See [`ServeError`]: the app must be ended before its parked contexts are closed.
    pub fn serve(self, host: &dyn Host) -> Result<LazyServed, ServeError> {
        let Self { image, regions, spaces, pids, staged, is_sampled, ledger } = self;
        let source = ImageFile::through_cache(image.file());
        let pager = Pager::new(&source, &regions, spaces, &ledger, host).with_staged(staged);
        let mut counts = pager.serve()?;
        let touched = std::mem::take(&mut counts.touches).into_iter().filter_map(|touch| {
            let Touch { space, start, pages, staged } = touch;
            Some(Touched { pid: *pids.get(space)?, start, pages, staged })
        });
        Ok(LazyServed { touched: touched.collect(), counts, is_sampled })
    }

    /// Reads what is staged.
    pub(crate) fn stage(&mut self, ranges: &[Range<u64>]) -> Result<(), FetchError> {
        let source = ImageFile::through_cache(self.image.file());
        for range in ranges {
            let holds = |stored: &&Stored| range.start <= stored.offset && stored.offset + stored.bytes <= range.end;
            let mut regions: Vec<Stored> = self.regions.iter().filter(holds).copied().collect();
            regions.sort_unstable_by_key(|stored| (stored.offset, stored.bytes));
            // Between them may be pages that came first: those are read with them.
            let (Some(first), Some(last)) = (regions.first(), regions.last()) else { continue };
            let range = first.offset..last.offset + last.bytes;
            let mut bytes = Buffer::default();
            fetch(&source, &regions, &mut bytes)?;
            self.staged.push(Staged { range, bytes });
        }
        self.is_sampled = true;
        Ok(())
    }
}

/// How the memory of an app is to be brought back.
pub(crate) struct Split {
    /// What comes first: regions by process, with what else is known of these.
    pub(crate) first: Vec<Process>,
    /// What may come later: for each context, regions by ascending address.
    pub(crate) later: Vec<Vec<Region>>,
}

impl Split {
    /// None where it does not pay. What is stored in the ranges `loading` of the image comes first.
    pub(crate) fn of(state: &State, registered: &[Registered<'_>], loading: &[Range<u64>]) -> io::Result<Option<Self>> {
        let mut later: Vec<Vec<Region>> = vec![Vec::new(); registered.len()];
        let mut first = Vec::with_capacity(state.processes.len());
        let mut bytes = 0;
        for process in &state.processes {
            let Some(n) = registered.iter().position(|one| one.context.pid == process.pid) else {
                first.push(process.clone());
                continue;
            };
            let must = must_be_first(process, &registered[n])?;
            let (lazy, eager): (Vec<Region>, Vec<Region>) = process.regions.iter().partition(|region| {
                let range = region.start..region.start + region.bytes();
                let is_late = |stored: Stored| !loading.iter().any(|one| one.contains(&stored.offset));
                Stored::of(region).is_some_and(is_late)
                    && registered[n].may_be_lazy(range.start)
                    && !must.iter().any(|one| overlap(one, &range))
            });
            bytes += lazy.iter().map(Region::bytes).sum::<u64>();
            later[n] = lazy;
            first.push(Process { regions: eager, ..process.clone() });
        }
        Ok((bytes >= PAYS).then_some(Self { first, later }))
    }

    /// Whether a range has something that comes later.
    pub(crate) fn is_lazy(&self, n: usize, range: &Range<u64>) -> bool {
        let behind = self.later[n].partition_point(|region| region.start < range.start);
        self.later[n].get(behind).is_some_and(|region| region.start < range.end)
    }

    /// What the pager serves, from `image`. The ledger begins with what comes first, of all that [`taken_over`] would take for missing.
    pub(crate) fn lazy(&self, image: Lease, contexts: &Contexts) -> io::Result<LazyApp> {
        let ledger = contexts.ledger.as_ref().ok_or(io::ErrorKind::InvalidInput)?;
        ledger.clear();
        let mut regions = Vec::new();
        let mut spaces = Vec::new();
        for (space, (context, later)) in contexts.contexts.iter().zip(&self.later).enumerate() {
            let process = self.first.iter().find(|process| process.pid == context.pid);
            let first = process.map_or(&[][..], |process| &process.regions);
            for region in first.iter().filter(|region| may_come_later(context, region)) {
                let end = region.start + region.bytes();
                ledger.record(&Change::Gone { space, start: region.start, end })?;
            }
            let userfault = context.userfault.duplicate()?;
            spaces.push(Space { userfault: Some(userfault), layout: layout(later, &mut regions), is_forked: false });
        }
        let pids = contexts.contexts.iter().map(|context| context.pid).collect();
        let (staged, is_sampled) = (Vec::new(), false);
        Ok(LazyApp { image, regions, spaces, pids, staged, is_sampled, ledger: ledger.duplicate()? })
    }
}

/// Regions as a pager knows them, behind those that it knows already.
fn layout<'a>(missing: impl IntoIterator<Item = &'a Region>, regions: &mut Vec<Stored>) -> Layout {
    let mut layout = Layout::default();
    for region in missing {
        if let Some(stored) = Stored::of(region) {
            layout.add(region.start, regions.len() as u32, region.pages);
            regions.push(stored);
        }
    }
    layout
}

/// Whether a region may come later as far as its area goes. Areas hold whole regions.
fn may_come_later(context: &Context, region: &Region) -> bool {
    Stored::of(region).is_some()
        && context.areas.iter().any(|area| area.may_be_lazy && area.range.contains(&region.start))
}

/// Ranges whose pages must be in place before the process runs.
fn must_be_first(process: &Process, registered: &Registered<'_>) -> io::Result<Vec<Range<u64>>> {
    let mut must = Vec::new();
    for thread in &process.threads {
        let registers = Registers::from_words(thread.registers);
        let (stack, block) = (registers.stack(), registers.thread_pointer());
        must.push(stack.saturating_sub(RED_ZONE)..stack.saturating_add(1));
        must.push(block..block.saturating_add(CONTROL_BLOCK));
    }
    let memory = ProcessMemory::open(process.pid)?;
    for range in registered.lazy_ranges() {
        for run in memory.runs(range.clone(), Selection::All)? {
            match run.kind {
                // A page that is placed over a guard ends it.
                Kind::Guard => must.push(range.clone()),
                Kind::Zero | Kind::Swapped | Kind::Contents => must.push(run.range),
            }
        }
    }
    Ok(must)
}

/// Where in the image that lies which comes first.
pub(crate) fn loading(state: &State, cause: &str) -> Vec<Range<u64>> {
    let mut left = MOST_LOADED;
    let bounded = |range: Range<u64>| {
        let bytes = left.min(range.end - range.start);
        left -= bytes;
        range.start..range.start + bytes
    };
    state.loading_for(cause).map(bounded).collect()
}

const fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

/// Why an app that was lazy when its worker ended cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum LazyLost {
    /// Who held its contexts has ended too, so missing pages have read as zeros.
    #[error("it was waking when the daemon and the keeper ended, and missed a part of its memory")]
    Unparked,
    /// What it did to its missing pages is not known.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}

/// An app whose worker has ended while it was lazy: everything that it may miss.
pub(crate) fn taken_over(state: &State, image: Lease, parked: ParkedContexts) -> Result<LazyApp, LazyLost> {
    let ParkedContexts { records, descriptors, children } = parked;
    let contexts = Contexts::from_parked(records, descriptors).ok_or(LazyLost::Unparked)?;
    let mut regions = Vec::new();
    let mut layouts = Vec::new();
    for context in &contexts.contexts {
        let process = state.processes.iter().find(|process| process.pid == context.pid);
        let found = process.map_or(&[][..], |process| &process.regions);
        layouts.push(layout(found.iter().filter(|region| may_come_later(context, region)), &mut regions));
    }
    let Contexts { contexts, ledger } = contexts;
    let ledger = ledger.ok_or(LazyLost::Unparked)?;
    let layouts = replay(layouts, &ledger.read()?)?;
    let pids = contexts.iter().map(|context| context.pid).collect();
    let of_parents = contexts.into_iter().map(|context| (context.userfault, false));
    let of_children = children.into_iter().map(|descriptor| (Userfault::from_parked(descriptor), true));
    let all: Vec<(Userfault, bool)> = of_parents.chain(of_children).collect();
    if all.len() != layouts.len() {
        return Err(LazyLost::Unparked);
    }
    let spaces = all.into_iter().zip(layouts).map(|((userfault, is_forked), layout)| Space {
        userfault: Some(userfault),
        layout,
        is_forked,
    });
    let (staged, is_sampled) = (Vec::new(), false);
    Ok(LazyApp { image, regions, spaces: spaces.collect(), pids, staged, is_sampled, ledger })
}
