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

mod again;
mod contexts;
mod sample;
mod split;
mod taken_over;

use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};

use torpor_image::{Content, Region};
use torpor_pager::{Host, Layout, Ledger, Owner, Pager, ServeError, Served, Space, Staged, Told, Touch};
use torpor_pages::buffer::Buffer;
use torpor_pages::source::{FetchError, ImageFile, Stored, fetch};

pub use self::again::{LazyProgram, MissingPart, missing_parts};
pub(crate) use self::again::{Names, loading_of_missing};
pub use self::contexts::{ContextRecord, Contexts, ParkedContexts};
pub(crate) use self::sample::Loading;
pub use self::sample::Sample;
pub(crate) use self::split::Split;
pub use self::taken_over::LazyLost;
pub(crate) use self::taken_over::taken_over;

/// How an app wakes before all of its memory is back.
#[derive(Clone, Copy)]
pub struct LazyWay<'a> {
    /// Runs the pager.
    pub pagers: &'a dyn Pagers,
    /// Why it wakes, in words: which parts of its loading set come first.
    pub cause: &'a str,
    /// It is recorded which pages are touched, and this part of the loading set is staged.
    pub sample: Option<Sample>,
}

/// A missing page that the program touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Touched {
    /// Process.
    pub pid: i32,
    /// The address of the page.
    pub page: u64,
    /// It was staged.
    pub staged: bool,
}

/// What a pager did for an app.
#[derive(Clone, Debug)]
pub struct LazyServed {
    /// Counts.
    pub counts: Served,
    /// What was touched, in order; not by children that were forked meanwhile.
    pub touched: Vec<Touched>,
    /// What was staged: processes and addresses.
    pub staged: Vec<(i32, Range<u64>)>,
    /// It was recorded which pages were touched.
    pub is_sampled: bool,
}

impl LazyServed {
    /// What it did so far.
    pub fn so_far(told: &Told<'_>) -> Self {
        Self::of(told.served.clone(), &pids_of(told.spaces))
    }

    fn of(mut counts: Served, pids: &[Option<i32>]) -> Self {
        let pid = |space: usize| pids.get(space).copied().flatten();
        let touches = std::mem::take(&mut counts.touches).into_iter();
        let touched =
            touches.filter_map(|Touch { space, page, staged }| Some(Touched { pid: pid(space)?, page, staged }));
        let staged = std::mem::take(&mut counts.staged).into_iter();
        let staged = staged.filter_map(|(space, range)| Some((pid(space)?, range)));
        Self { touched: touched.collect(), staged: staged.collect(), is_sampled: counts.recorded, counts }
    }
}

fn pids_of(spaces: &[Space]) -> Vec<Option<i32>> {
    spaces.iter().map(|space| Some(space.owner?.pid)).collect()
}

/// A thread that serves the app that it is sent, and ends where it is sent none.
#[derive(Debug)]
pub struct PagerThread {
    apps: mpsc::Sender<LazyApp>,
    has_app: Arc<AtomicBool>,
}

impl PagerThread {
    /// And where the thread receives its app.
    pub fn new() -> (Self, mpsc::Receiver<LazyApp>) {
        let (apps, received) = mpsc::channel();
        (Self { apps, has_app: Arc::default() }, received)
    }

    /// Set when it is sent an app.
    pub fn has_app(&self) -> Arc<AtomicBool> {
        self.has_app.clone()
    }

    /// Has it serve an app; an error where the thread has ended.
    pub(crate) fn serve(self, app: LazyApp) -> io::Result<()> {
        self.has_app.store(true, Ordering::Release);
        self.apps.send(app).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

/// Runs a pager for each app that wakes lazily.
pub trait Pagers: Send + Sync {
    /// Makes a thread.
    ///
    /// # Errors
    /// Why there is none: the app wakes with all its memory then.
    fn thread(&self) -> io::Result<PagerThread>;

    /// Parks contexts of processes that were built again from the image of `generation`, until all of their memory is there. Those of a dozing
    /// app are parked before its wake.
    ///
    /// # Errors
    /// Why not: the processes must not run.
    fn park(&self, generation: u64, contexts: &Contexts) -> io::Result<()>;
}

/// An app that runs, or is about to, with pages missing.
#[derive(Debug)]
pub struct LazyApp {
    image: File,
    regions: Vec<Stored>,
    spaces: Vec<Space>,
    staged: Vec<Staged>,
    sample: Option<Sample>,
    ledger: Ledger,
}

impl LazyApp {
    fn new(image: File, regions: Vec<Stored>, spaces: Vec<Space>, ledger: Ledger) -> Self {
        Self { image, regions, spaces, staged: Vec::new(), sample: None, ledger }
    }

    /// Of processes that were built again: they miss what their contexts say.
    pub(crate) fn of_built(image: &File, contexts: &Contexts) -> io::Result<Self> {
        let ledger = contexts.ledger.as_ref().ok_or(io::ErrorKind::InvalidInput)?;
        ledger.begin()?;
        let (mut regions, mut spaces) = (Vec::new(), Vec::new());
        for (context, missing) in contexts.contexts.iter().zip(&contexts.missing) {
            let userfault = Some(context.userfault.duplicate()?);
            spaces.push(Space { userfault, layout: layout(missing, &mut regions), owner: owner(context.pid) });
        }
        Ok(Self::new(image.try_clone()?, regions, spaces, ledger.duplicate()?))
    }

    /// Of processes that were built again, by what somebody has parked who served them before, or was about to.
    ///
    /// # Errors
    /// See [`LazyLost`]: they must be ended before the last of its descriptors is closed.
    pub fn of_parked(image: File, parked: ParkedContexts) -> Result<Self, LazyLost> {
        taken_over(None, image, parked)
    }

    /// What each process misses, by ascending address.
    pub(crate) fn missing(&self) -> Vec<(i32, Vec<Region>)> {
        let of_space = |space: &Space| {
            let pieces = space.layout.pieces().filter_map(|(start, piece)| {
                let stored = self.regions.get(piece.region as usize)?;
                let content = Content::Stored { offset: stored.offset, checksum: stored.checksum };
                Some(Region { start, pages: piece.pages, writable: true, content })
            });
            Some((space.owner?.pid, pieces.collect()))
        };
        self.spaces.iter().filter_map(of_space).collect()
    }

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
        let Self { image, regions, spaces, staged, sample, ledger } = self;
        let pids = pids_of(&spaces);
        let source = ImageFile::through_cache(&image);
        let pager = Pager::new(&source, &regions, spaces, &ledger, host);
        let pager = match sample {
            Some(sample) => pager.recording(staged, sample.is_whole()),
            None => pager,
        };
        Ok(LazyServed::of(pager.serve()?, &pids))
    }

    /// It is to be recorded which pages the program touches. Reads what is staged: the regions that begin in `ranges` of the image.
    pub(crate) fn stage(&mut self, sample: Sample, ranges: &[Range<u64>]) -> Result<(), FetchError> {
        let source = ImageFile::through_cache(&self.image);
        let mut all = self.regions.clone();
        all.sort_unstable_by_key(|stored| (stored.offset, stored.bytes));
        let before = |offset: u64| all.partition_point(|stored| stored.offset < offset);
        for range in ranges {
            let regions = &all[before(range.start)..before(range.end)];
            if regions.is_empty() {
                continue;
            }
            // Between them may be pages that came first: those are read with them.
            let mut bytes = Buffer::default();
            let range = fetch(&source, regions, &mut bytes)?;
            self.staged.push(Staged { range, bytes });
        }
        self.sample = Some(sample);
        Ok(())
    }
}

/// A process that is there; none where it is not.
fn owner(pid: i32) -> Option<Owner> {
    let stat = torpor_proc::stat::read(&format!("/proc/{pid}/stat")).ok()?;
    Some(Owner { pid, start_ticks: stat.start_ticks })
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
