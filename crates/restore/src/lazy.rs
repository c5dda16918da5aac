//! Pages of a tree that come after its programs run.
//!
//! A process that waits to be filled gets a userfaultfd context. What the context can be registered with is placed by it, the quickest
//! way. What may come later stays missing and registered: the context raises a fault for each touch, which the caller serves from when the
//! programs run. Until then nothing may touch it. What the rest of the restore and the kernel touch comes first: stacks, thread control
//! blocks, and what is written at the end ([`crate::finish`]). So do pages that lie where the process has inherited others.

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;

use torpor_image::tree::{Area, Backing, LiveProcess, WaitPlace};
use torpor_image::{PAGE, Region, lazy_size};
use torpor_linux::registers::Registers;
use torpor_linux::restorer::BuildingTask;
use torpor_linux::uapi::memory::MADV_GUARD_INSTALL;
use torpor_pages::context::{Context, PlacedArea, Registered, first_of_thread};
use torpor_pages::place::{Placement, Way};
use torpor_pages::ranges::{contains, merged, overlaps};
use torpor_pages::scan::{ProcessMemory, Selection};
use torpor_pages::source::Stored;
use torpor_process::trace::TraceError;
use torpor_process::userfault::{RemoteCalls, context_by};

/// `MADV_DONTFORK`, `MADV_WIPEONFORK`: a child does not have these pages.
const NOT_INHERITED: [i32; 2] = [10, 18];

/// Processes of a tree at most that may miss pages: their contexts are parked with one message, which takes 253 descriptors (`unix(7)`).
pub const MOST_CONTEXTS: usize = 250;

/// Who serves the pages of a restored tree that come after its programs run.
pub trait LatePages {
    /// `/dev/userfaultfd`.
    fn device(&self) -> BorrowedFd<'_>;

    /// Takes processes that miss pages of `image`. They run as soon as this has returned: somebody must hold their contexts until nothing is
    /// missing, whoever is killed.
    ///
    /// # Errors
    /// Why nobody serves them: they do not run.
    fn serve(&self, image: &File, late: Vec<Late>) -> io::Result<()>;
}

/// How pages may come later.
pub struct Lazy<'a> {
    /// `/dev/userfaultfd`.
    pub device: BorrowedFd<'a>,
    /// Parts of the image that come first.
    pub loading: &'a [Range<u64>],
}

/// A process that misses pages.
#[derive(Debug)]
pub struct Late {
    /// Registered with all areas that miss a page.
    pub context: Context,
    /// What is missing, by ascending address.
    pub regions: Vec<Region>,
}

/// A process that waits to be filled, and its context.
pub(crate) struct Waiting<'a> {
    pub(crate) life: &'a LiveProcess,
    pub(crate) context: Context,
}

impl<'a> Waiting<'a> {
    /// Of a task that stands in the blob at `blob`; none where it has nothing for a context.
    pub(crate) fn of(
        task: &BuildingTask,
        blob: u64,
        life: &'a LiveProcess,
        device: BorrowedFd<'_>,
    ) -> Result<Option<Self>, TraceError> {
        let areas = placed_areas(life);
        if areas.is_empty() {
            return Ok(None);
        }
        let pid = task.tracee().thread();
        let wrong = |error| TraceError::Registers(pid, error);
        let before = task.tracee().registers().map_err(wrong)?;
        let made = context_by(&Building { task, blob }, device);
        task.tracee().set_registers(&before).map_err(wrong)?;
        Ok(Some(Self { life, context: Context { pid, userfault: made?, areas } }))
    }
}

/// A task that stands in its blob.
struct Building<'a> {
    task: &'a BuildingTask,
    blob: u64,
}

impl RemoteCalls for Building<'_> {
    fn pid(&self) -> i32 {
        self.task.tracee().thread()
    }

    fn call(&self, name: &'static str, number: u64, arguments: &[u64]) -> Result<u64, TraceError> {
        let pid = self.pid();
        let failed = |error| TraceError::Call { pid, call: name, error };
        let answer = self.task.call(self.blob, number as i64, arguments);
        match answer.map_err(|error| failed(io::Error::other(error)))? {
            number @ -4095..0 => Err(failed(io::Error::from_raw_os_error(-number as i32))),
            answer => Ok(answer as u64),
        }
    }
}

/// Areas that it pays to register.
fn placed_areas(life: &LiveProcess) -> Vec<PlacedArea> {
    let areas = &life.space.areas;
    let mut found = Vec::new();
    for (n, area) in areas.iter().enumerate() {
        let Backing::Anonymous { grows_down, droppable: false, .. } = area.backing else { continue };
        let stored = area.pages.iter().filter(|region| Stored::of(region).is_some());
        if stored.map(|region| u64::from(region.pages)).sum::<u64>() < lazy_size::least_pages() {
            continue;
        }
        // A guard is a part of the kernel's area.
        let beside = [n.checked_sub(1), Some(n + 1)].into_iter().flatten().filter_map(|n| areas.get(n));
        let guarded =
            is_guard(area) || beside.filter(|other| other.end == area.start || other.start == area.end).any(is_guard);
        if guarded {
            continue;
        }
        let inherited = !NOT_INHERITED.iter().any(|advice| area.advice.madvise.contains(advice));
        let may_be_lazy = !grows_down && inherited && area.advice.locked.is_none() && !life.switches.lock_future;
        found.push(PlacedArea { range: area.start..area.end, may_be_lazy });
    }
    found
}

fn is_guard(area: &Area) -> bool {
    area.advice.madvise.contains(&(MADV_GUARD_INSTALL as i32))
}

/// What must be there before it runs, whatever a wake is expected to need; in order.
fn must_be_first(life: &LiveProcess) -> Vec<Range<u64>> {
    let mut must = Vec::new();
    for thread in &life.threads {
        if let Ok(words) = thread.registers.as_slice().try_into() {
            must.extend(first_of_thread(&Registers::from_words(words)));
        }
        if let Some((address, bytes, ..)) = thread.rseq {
            must.push(address..address.saturating_add(u64::from(bytes).max(1)));
        }
        // The kernel reads and writes these as the thread ends, where it cannot wait for a page.
        must.push(thread.clear_tid_address..thread.clear_tid_address.saturating_add(4));
        must.push(thread.robust_list.0..thread.robust_list.0.saturating_add(thread.robust_list.1.max(1)));
        if let Some(wait) = &thread.wait
            && let WaitPlace::Timespec(address) | WaitPlace::Timeval(address) = wait.place
        {
            must.push(address..address.saturating_add(16));
        }
    }
    merged(must)
}

/// Places zeros where a process that misses pages must not wait for one and nothing is stored.
pub(crate) fn place_zeros(life: &LiveProcess, registered: &Registered<'_>) {
    for range in must_be_first(life) {
        let pages = (range.start / PAGE..range.end.div_ceil(PAGE)).map(|page| page * PAGE..(page + 1) * PAGE);
        for page in pages.filter(|page| registered.covers(page.start)) {
            // What is there already stays.
            if let Err((_, why)) = registered.context.userfault.zero(&page) {
                tracing::trace!(pid = registered.context.pid, address = page.start, ?why, "no zeros are placed");
            }
        }
    }
}

/// What is in memory already of what may be lazy: pages that a process has inherited, over which its own are to be written. By ascending
/// address.
fn present(pid: i32, registered: &Registered<'_>) -> io::Result<Vec<Range<u64>>> {
    let memory = ProcessMemory::open(pid)?;
    let mut present = Vec::new();
    for range in registered.lazy_ranges() {
        present.extend(memory.runs(range.clone(), Selection::All)?.into_iter().map(|run| run.range));
    }
    Ok(present)
}

/// What of a process's pages, of which those in `filled` are to be filled, comes later.
///
/// # Errors
/// If its memory cannot be examined.
pub(crate) fn later(
    waiting: &Waiting<'_>,
    registered: &Registered<'_>,
    filled: &[Placement],
    lazy: &Lazy<'_>,
) -> io::Result<Vec<Region>> {
    let must = must_be_first(waiting.life);
    let present = present(waiting.context.pid, registered)?;
    let pid = waiting.context.pid;
    let mut filled: Vec<Range<u64>> =
        filled.iter().filter(|one| one.pid == pid).map(|one| one.address..one.address + one.bytes).collect();
    filled.sort_unstable_by_key(|range| range.start);
    let is_filled = |range: &Range<u64>| {
        let behind = filled.partition_point(|one| one.start <= range.start);
        behind.checked_sub(1).is_some_and(|n| range.end <= filled[n].end)
    };
    let comes_later = |region: &Region| {
        let range = region.start..region.start + region.bytes();
        Stored::of(region).is_some_and(|stored| !contains(lazy.loading, stored.offset))
            && registered.may_be_lazy(range.start)
            && is_filled(&range)
            && !overlaps(&present, &range)
            && !overlaps(&must, &range)
    };
    let mut later = Vec::new();
    for area in &waiting.life.space.areas {
        let (mut late, first): (Vec<Region>, Vec<Region>) = area.pages.iter().partition(|region| comes_later(region));
        // An area without a page has no `anon_vma`. Were it split then, for example by mprotect(2), its parts could get different ones, and
        // never be one area again: mremap(2) over them would fail.
        let is_empty = !first.iter().any(|region| Stored::of(region).is_some());
        if let Some(smallest) = (0..late.len()).min_by_key(|n| late[*n].pages).filter(|_| is_empty) {
            late.remove(smallest);
        }
        later.extend(late);
    }
    Ok(later)
}

/// The placements of those processes that have contexts, by these where they can be, and without what comes later; `late` has the
/// addresses of regions by process.
pub(crate) fn placements(
    waiting: &[Waiting<'_>],
    registered: &[Registered<'_>],
    filled: Vec<Placement>,
    late: &[HashSet<u64>],
) -> Vec<Placement> {
    let mut placed = Vec::with_capacity(filled.len());
    for one in filled {
        let Some(n) = waiting.iter().position(|waiting| waiting.context.pid == one.pid) else {
            placed.push(one);
            continue;
        };
        let end = one.address + one.bytes;
        let areas = &waiting[n].life.space.areas;
        let first = areas.partition_point(|area| area.end <= one.address);
        for area in areas[first..].iter().take_while(|area| area.start < end) {
            let way = if registered[n].covers(area.start) { Way::Placed(n) } else { one.way };
            let first = area.pages.partition_point(|region| region.start + region.bytes() <= one.address);
            for region in area.pages[first..].iter().take_while(|region| region.start < end) {
                if late[n].contains(&region.start) {
                    continue;
                }
                let from = region.start.max(one.address);
                let bytes = (region.start + region.bytes()).min(end) - from;
                placed.push(Placement { address: from, bytes, offset: one.offset + (from - one.address), way, ..one });
            }
        }
    }
    debug_assert!(placed.iter().all(|one| one.bytes.is_multiple_of(PAGE)), "pages are placed whole");
    placed
}
