//! Bringing stored pages into processes that do not run: read, verify, place.
//!
//! ```text
//! PageSource ──fetch──▶ Buffer ──▶ UFFDIO_COPY, process_vm_writev, /proc/PID/mem
//! ```
//! Each stored page is read and compared once, however many processes have it, and placed only after that. Idempotent: nothing of the
//! processes runs, so what was cut off is simply done again.

use std::fs::{File, OpenOptions};
use std::io;
use std::num::NonZero;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

use torpor_image::PAGE;
use torpor_linux::userfault::{NotPlaced, Userfault};
use torpor_linux::vm;

use super::buffer::{Buffer, POOLED_BYTES};
use super::helpers::{HELPERS, Work};
use super::source::{FetchError, PageSource, Stored, fetch};

/// Bytes that are read in one go where it is much, unless regions overlap: disks like large reads.
const LARGE_BATCH: u64 = POOLED_BYTES as u64;
/// The same where it is little, and the threads are to end at the same time.
const SMALL_BATCH: u64 = LARGE_BATCH / 4;
/// From here on it is much.
const MUCH: u64 = 8 << 20;
/// Bytes for which a second thread pays.
const PAYS: u64 = 256 << 10;
/// Threads at most where it is much; more than processors, because the disk has something to do while others copy.
const MOST_THREADS: usize = HELPERS + 1;

/// How many threads place pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threads {
    /// The calling one.
    One,
    /// More where it is much.
    Several,
}

impl Threads {
    /// For so many bytes.
    fn count(self, bytes: u64) -> usize {
        match self {
            Self::One => 1,
            Self::Several if bytes >= MUCH => MOST_THREADS,
            Self::Several if bytes >= PAYS => processors().min(2),
            Self::Several => 1,
        }
    }
}

/// Why pages are not in place.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    /// They could not be had.
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// A process could not be written to.
    #[error("writing the memory of process {0}")]
    Write(i32, #[source] io::Error),
}

/// Where stored pages go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Process.
    pub pid: i32,
    /// First byte there.
    pub address: u64,
    /// Bytes.
    pub bytes: u64,
    /// Where they are in the image.
    pub offset: u64,
    /// How they get there.
    pub way: Way,
}

/// How pages get into a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// By a userfaultfd context that has been given to the placer: the quickest, for anonymous memory.
    Placed(usize),
    /// By `process_vm_writev(2)`: the process itself may write there.
    Written,
    /// By `/proc/PID/mem`, as a debugger does: what is dirty but read-only (RELRO, a heap under a guard).
    Forced,
}

impl Way {
    /// Without a context.
    pub const fn of(writable: bool) -> Self {
        if writable { Self::Written } else { Self::Forced }
    }
}

/// Reads pages from a source, verifies and places them.
pub struct Placer<'a> {
    source: &'a dyn PageSource,
    batches: Batches,
    contexts: &'a [&'a Userfault],
}

/// What a thread keeps from batch to batch.
#[derive(Default)]
struct Scratch {
    buffer: Buffer,
    /// A process's `/proc/PID/mem`.
    forced: Option<(i32, File)>,
}

impl<'a> Placer<'a> {
    /// For all of `stored`: what no placement names is only verified.
    pub fn new(source: &'a dyn PageSource, stored: Vec<Stored>, placements: Vec<Placement>) -> Self {
        Self { source, batches: Batches::of(stored, placements), contexts: &[] }
    }

    /// With what [`Way::Placed`] names: contexts that the ranges of those placements are registered with.
    pub fn with_contexts(self, contexts: &'a [&'a Userfault]) -> Self {
        Self { contexts, ..self }
    }

    /// Does it by the calling thread, and by [helpers](super::helpers) if `threads` allows it. `each` is called after each batch of the
    /// calling thread; an error ends it. `wrong` makes the caller's error of ours. Gives the bytes of all regions.
    ///
    /// # Errors
    /// The first that occurs. Pages are missing then.
    pub fn run<E>(
        self,
        threads: Threads,
        wrong: &dyn Fn(PlaceError) -> E,
        each: &dyn Fn() -> Result<(), E>,
    ) -> Result<u64, E> {
        let Self { source, batches, contexts } = self;
        let bytes = batches.bytes;
        let batches = Arc::new(batches);
        let closing = Closing(&batches);
        // The first batch is ours, so that `each` is called at least once.
        let mut batch = batches.next();
        let wanted = threads.count(bytes).min(batches.ranges.len()).saturating_sub(1);
        if wanted > 0 {
            match HelperPart::new(&batches, source, contexts) {
                Ok(help) => super::helpers::ask(&(Arc::new(help) as Arc<dyn Work>), wanted),
                Err(error) => tracing::debug!(%error, "pages are placed by one thread"),
            }
        }
        let mut scratch = Scratch::default();
        let mut done = Ok(());
        while let (Some(found), Ok(())) = (batch, &done) {
            done = batches.batch(found, source, contexts, &mut scratch).map_err(wrong).and_then(|()| each());
            batch = batches.next();
        }
        drop(closing);
        let helped = batches.helpers().failed.take();
        done.and_then(|()| helped.map_or(Ok(bytes), |error| Err(wrong(error))))
    }
}

/// What is to be placed, in batches, and how far that has come.
struct Batches {
    /// By their offsets.
    stored: Vec<Stored>,
    /// Of these.
    bytes: u64,
    /// By their offsets.
    placements: Vec<Placement>,
    /// Bytes of the longest of these.
    longest: u64,
    /// Of `stored`: each is read in one go.
    ranges: Vec<Range<usize>>,
    /// The batch that nobody has begun.
    next: AtomicUsize,
    helpers: Mutex<HelperState>,
    left: Condvar,
}

/// Who helps.
#[derive(Default)]
struct HelperState {
    /// Nobody may begin any more.
    is_closed: bool,
    /// That have begun and not ended.
    inside: usize,
    failed: Option<PlaceError>,
}

impl Batches {
    fn of(mut stored: Vec<Stored>, mut placements: Vec<Placement>) -> Self {
        stored.sort_unstable_by_key(|region| (region.offset, region.bytes));
        stored.dedup();
        placements.sort_unstable_by_key(|one| (one.offset, one.pid, one.address));
        let longest = placements.iter().map(|one| one.bytes).max().unwrap_or(0);
        let bytes = stored.iter().map(|region| region.bytes).sum();
        let ranges = batches(&stored, if bytes < MUCH { SMALL_BATCH } else { LARGE_BATCH });
        Self {
            stored,
            bytes,
            placements,
            longest,
            ranges,
            next: AtomicUsize::new(0),
            helpers: Mutex::default(),
            left: Condvar::new(),
        }
    }

    fn next(&self) -> Option<&[Stored]> {
        let batch = self.ranges.get(self.next.fetch_add(1, Ordering::Relaxed))?;
        self.stored.get(batch.clone())
    }

    fn helpers(&self) -> MutexGuard<'_, HelperState> {
        self.helpers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn batch(
        &self,
        regions: &[Stored],
        source: &dyn PageSource,
        contexts: &[&Userfault],
        scratch: &mut Scratch,
    ) -> Result<(), PlaceError> {
        let Scratch { buffer, forced } = scratch;
        let held = fetch(source, regions, buffer)?;
        let first = self.placements.partition_point(|one| one.offset.saturating_add(self.longest) <= held.start);
        let some = self.placements[first..].iter().take_while(|one| one.offset < held.end);
        let parts = some.filter_map(|one| {
            let (from, to) = (one.offset.max(held.start), one.offset.saturating_add(one.bytes).min(held.end));
            let address = one.address.wrapping_add(from - one.offset);
            (from < to).then(|| (one, (address, buffer.part((from - held.start) as usize..(to - held.start) as usize))))
        });
        let parts: Vec<(&Placement, (u64, &[u8]))> = parts.collect();
        for of_process in parts.chunk_by(|(a, _), (b, _)| a.pid == b.pid) {
            let pid = of_process[0].0.pid;
            write(pid, of_process, contexts, forced).map_err(|error| PlaceError::Write(pid, error))?;
        }
        Ok(())
    }
}

/// When this is dropped no helper begins any more, and those that have begun have ended: what comes then may count on it.
struct Closing<'a>(&'a Batches);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        let mut state = self.0.helpers();
        state.is_closed = true;
        // Whatever they do not begin is not done: we have come to the end, or failed.
        self.0.next.store(self.0.ranges.len(), Ordering::Relaxed);
        drop(self.0.left.wait_while(state, |state| state.inside > 0));
    }
}

/// What a helper needs, which may outlive the call of [`Placer::run`].
struct HelperPart {
    batches: Arc<Batches>,
    source: Box<dyn PageSource + Send>,
    contexts: Vec<Userfault>,
}

impl HelperPart {
    fn new(batches: &Arc<Batches>, source: &dyn PageSource, contexts: &[&Userfault]) -> io::Result<Self> {
        let contexts = contexts.iter().map(|context| context.duplicate()).collect::<io::Result<_>>()?;
        Ok(Self { batches: batches.clone(), source: source.duplicate()?, contexts })
    }
}

impl Work for HelperPart {
    fn help(&self) {
        let batches = &self.batches;
        {
            let mut state = batches.helpers();
            if state.is_closed {
                return;
            }
            state.inside += 1;
        }
        let contexts: Vec<&Userfault> = self.contexts.iter().collect();
        let mut scratch = Scratch::default();
        let mut failed = None;
        while let (Some(batch), None) = (batches.next(), &failed) {
            failed = batches.batch(batch, &*self.source, &contexts, &mut scratch).err();
        }
        let mut state = batches.helpers();
        if failed.is_some() {
            batches.next.store(batches.ranges.len(), Ordering::Relaxed);
            state.failed = state.failed.take().or(failed);
        }
        state.inside -= 1;
        batches.left.notify_all();
    }
}

/// Places what a context is there for, writes what the process may write itself in as few calls as possible, and forces the rest.
fn write(
    pid: i32,
    parts: &[(&Placement, (u64, &[u8]))],
    contexts: &[&Userfault],
    forced: &mut Option<(i32, File)>,
) -> io::Result<()> {
    let mut written: Vec<(u64, &[u8])> = Vec::new();
    for (one, (address, bytes)) in parts {
        match one.way {
            Way::Placed(n) => match contexts.get(n) {
                Some(context) => place(pid, context, *address, bytes)?,
                None => return Err(io::ErrorKind::InvalidInput.into()),
            },
            Way::Written => written.push((*address, bytes)),
            Way::Forced => {
                let memory = match forced.take() {
                    Some((of, memory)) if of == pid => memory,
                    _ => memory(pid)?,
                };
                memory.write_all_at(bytes, *address)?;
                *forced = Some((pid, memory));
            }
        }
    }
    written.chunks(vm::MAX_RANGES).try_for_each(|parts| vm::write(pid, parts))
}

/// Places `bytes` by a context. What the kernel has made there meanwhile (a thread's TLS as it returned from a call) is written over.
fn place(pid: i32, context: &Userfault, mut address: u64, mut bytes: &[u8]) -> io::Result<()> {
    loop {
        let Err((placed, reason)) = context.copy(address, bytes) else { return Ok(()) };
        address += placed;
        bytes = &bytes[placed as usize..];
        if placed == 0 {
            if reason == NotPlaced::NoMemory {
                // Written in another way it would wait for a fault that nobody serves.
                return Err(io::ErrorKind::OutOfMemory.into());
            }
            // Only a page that can be had by no context is worth the other way; its own answer counts then.
            let page = bytes.len().min(PAGE as usize);
            tracing::trace!(pid, address, ?reason, "a page is written");
            vm::write(pid, &[(address, &bytes[..page])]).or_else(|_| force(pid, address, &bytes[..page]))?;
            address += page as u64;
            bytes = &bytes[page..];
        }
        if bytes.is_empty() {
            return Ok(());
        }
    }
}

fn force(pid: i32, address: u64, bytes: &[u8]) -> io::Result<()> {
    memory(pid)?.write_all_at(bytes, address)
}

fn memory(pid: i32) -> io::Result<File> {
    OpenOptions::new().write(true).open(format!("/proc/{pid}/mem"))
}

/// Of the machine. The library reads several files for it.
fn processors() -> usize {
    static COUNT: OnceLock<usize> = OnceLock::new();
    *COUNT.get_or_init(|| std::thread::available_parallelism().map_or(1, NonZero::get))
}

/// Runs of regions that lie together in the image, of `most` bytes.
fn batches(stored: &[Stored], most: u64) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let mut first = 0;
    while let Some(begin) = stored.get(first) {
        let (mut end, mut next) = (begin.end(), first + 1);
        while let Some(region) = stored.get(next).filter(|region| region.offset <= end) {
            if region.end().max(end) - begin.offset > most {
                break;
            }
            end = end.max(region.end());
            next += 1;
        }
        found.push(first..next);
        first = next;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(offset: u64, pages: u64) -> Stored {
        Stored { offset: offset * PAGE, bytes: pages * PAGE, checksum: 0 }
    }

    #[test]
    fn batches_are_whole_and_not_too_long() {
        // The same pages twice, a part of them, what follows, a gap, and more than one batch in a row.
        let mut stored = vec![region(1, 64), region(1, 64), region(2, 3), region(65, 1), region(100, 1)];
        stored.extend((0..8).map(|n| region(200 + 64 * n, 64)));
        assert_eq!(batches(&stored, LARGE_BATCH), [0..4, 4..5, 5..9, 9..13]);
        assert_eq!(batches(&[], LARGE_BATCH), []);
        // One that is longer than a batch is one of its own.
        assert_eq!(batches(&[region(1, 256), region(257, 1)], LARGE_BATCH), [0..1, 1..2]);
    }
}
