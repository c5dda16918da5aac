//! Copying the private pages of stopped processes into an image.
//!
//! A page that several processes share copy-on-write is written once: it is known by the number of its frame, and the
//! regions of all of them name the same place in the file.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use torpor_image::tree::{AddressSpace, Area, Backing};
use torpor_image::{Content, PAGE, REGION_PAGES, Region, checksum};
use torpor_linux::pagemap::{self, Filter, PageRegion, category};
use torpor_linux::vm::{self, Remote};

use super::guards;
use torpor_pages::copy::CopyError;
use torpor_pages::sink::{BATCH_BYTES, PageSink, is_zero};

/// Private pages; the zero page and guards are told apart.
const PRIVATE: Filter = Filter {
    all_of: category::FILE,
    any_of: category::PRESENT | category::SWAPPED,
    inverted: category::FILE,
    report: category::PFNZERO | category::GUARD,
};
/// `PROT_READ`, `PROT_WRITE`.
const READ: u32 = 1;
const WRITE: u32 = 2;

/// Copies pages of one process after the other.
pub(super) struct Copier<'a> {
    sink: PageSink<'a>,
    /// Where frames that are shared copy-on-write went, and the checksum of what was in them: the kernel may move pages to
    /// other frames and use the old ones again while we copy.
    frames: HashMap<u64, (u64, u64)>,
    go_on: &'a dyn Fn() -> bool,
    /// It was given up.
    stopped: bool,
}

/// What becomes of a page.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Page {
    Zero,
    /// It is written now; the number of its frame if others may share it.
    Fresh(Option<u64>),
    /// It was written already.
    Known(u64),
}

struct Source {
    pid: i32,
    pagemap: File,
    memory: File,
}

/// Private pages of an area.
fn present(pagemap: &File, area: &Area) -> io::Result<Vec<PageRegion>> {
    let mut found = Vec::new();
    match pagemap::scan(pagemap, area.start, area.end, PRIVATE, &mut found) {
        // A kernel before 6.15 does not know guards.
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::INVAL.raw_os_error()) => {
            let without = Filter { report: category::PFNZERO, ..PRIVATE };
            pagemap::scan(pagemap, area.start, area.end, without, &mut found)?;
        }
        other => other?,
    }
    Ok(found)
}

impl<'a> Copier<'a> {
    pub(super) fn new(sink: PageSink<'a>, go_on: &'a dyn Fn() -> bool) -> Self {
        Self { sink, frames: HashMap::new(), go_on, stopped: false }
    }

    /// Where pages of other kinds go too.
    pub(super) const fn sink(&mut self) -> &mut PageSink<'a> {
        &mut self.sink
    }

    /// Copies the private pages of `space`, which is process `pid`'s, and names them in its areas.
    pub(super) fn copy(&mut self, pid: i32, space: &mut AddressSpace) -> Result<(), CopyError> {
        let read = |error| CopyError::Read(pid, error);
        let source = Source {
            pid,
            pagemap: File::open(format!("/proc/{pid}/pagemap")).map_err(read)?,
            memory: File::open(format!("/proc/{pid}/mem")).map_err(read)?,
        };
        for mut area in std::mem::take(&mut space.areas) {
            let private = match area.backing {
                Backing::Anonymous { droppable, .. } => !droppable,
                Backing::Huge { .. } => true,
                Backing::File { shared, .. } | Backing::Shared { shared, .. } => !shared,
                Backing::Kernel { .. } | Backing::Aio { .. } => false,
            };
            let mut guards = Vec::new();
            if private {
                for run in present(&source.pagemap, &area).map_err(read)? {
                    if run.categories & category::GUARD != 0 {
                        guards.push(run.start..run.end);
                    } else {
                        self.run(&source, &mut area, run)?;
                    }
                }
            }
            space.areas.extend(guards::split(area, &guards));
        }
        Ok(())
    }

    /// Copies a run of pages of the same kind.
    fn run(&mut self, source: &Source, area: &mut Area, run: PageRegion) -> Result<(), CopyError> {
        if run.categories & category::PFNZERO != 0 {
            push(area, run.start, 0..((run.end - run.start) / PAGE) as usize, Content::Zero);
            return Ok(());
        }
        let mut start = run.start;
        while start < run.end && !self.stopped {
            self.stopped = !(self.go_on)();
            let end = run.end.min(start + BATCH_BYTES as u64);
            self.batch(source, area, start, end)?;
            start = end;
        }
        Ok(())
    }

    /// Copies at most [`BATCH_BYTES`].
    fn batch(&mut self, source: &Source, area: &mut Area, start: u64, end: u64) -> Result<(), CopyError> {
        let len = (end - start) as usize;
        let read = |error| CopyError::Read(source.pid, error);
        let mut entries = Vec::with_capacity(len / PAGE as usize);
        pagemap::entries(&source.pagemap, start, len / PAGE as usize, &mut entries).map_err(read)?;
        let readable = area.protection & READ != 0;
        let room = self.sink.room(len).map_err(CopyError::Write)?;
        let mut from = 0;
        for run in entries.chunk_by(|a, b| a.exclusive() == b.exclusive()) {
            let to = from + run.len() * PAGE as usize;
            let quick = readable && run.first().is_some_and(|entry| entry.exclusive());
            source.read(quick, start + from as u64, &mut room[from..to]).map_err(read)?;
            from = to;
        }
        if entries.iter().all(|entry| entry.exclusive()) {
            self.sink.keep_all(entries.len(), |pages, content| push(area, start, pages, content));
            return Ok(());
        }
        let pages: Vec<Page> = entries.iter().enumerate().map(|(n, entry)| self.page(n, *entry)).collect();
        let mut first = 0;
        while first < pages.len() {
            let last = run_end(&pages, first);
            let content = match pages[first] {
                Page::Zero => Content::Zero,
                Page::Known(offset) => Content::Stored { offset, checksum: checksum(self.sink.pages(first..last)) },
                Page::Fresh(_) => {
                    for (n, page) in (first..).zip(&pages[first..last]) {
                        if let Page::Fresh(Some(frame)) = page {
                            let offset = self.sink.offset + (n - first) as u64 * PAGE;
                            self.frames.insert(*frame, (offset, checksum(self.sink.pages(n..n + 1))));
                        }
                    }
                    self.sink.keep(first..last)
                }
            };
            push(area, start, first..last, content);
            first = last;
        }
        Ok(())
    }

    fn page(&self, n: usize, entry: pagemap::Entry) -> Page {
        let bytes = self.sink.pages(n..n + 1);
        if is_zero(bytes) {
            return Page::Zero;
        }
        let frame = entry.frame().filter(|_| !entry.exclusive());
        match frame.and_then(|frame| self.frames.get(&frame)) {
            Some((offset, sum)) if *sum == checksum(bytes) => Page::Known(*offset),
            _ => Page::Fresh(frame),
        }
    }

    /// Writes what is left; gives where the pages end, unless it was given up.
    pub(super) fn finish(mut self) -> Result<Option<u64>, CopyError> {
        self.sink.flush().map_err(CopyError::Write)?;
        Ok((!self.stopped).then_some(self.sink.offset))
    }
}

/// Behind the last page that goes with page `first`.
fn run_end(pages: &[Page], first: usize) -> usize {
    let limit = match pages[first] {
        Page::Zero => pages.len(),
        _ => pages.len().min(first + REGION_PAGES as usize),
    };
    let goes_with = |n: usize| match (pages[first], pages[n]) {
        (Page::Zero, Page::Zero) | (Page::Fresh(_), Page::Fresh(_)) => true,
        (Page::Known(begin), Page::Known(offset)) => offset == begin + (n - first) as u64 * PAGE,
        _ => false,
    };
    (first + 1..limit).find(|n| !goes_with(*n)).unwrap_or(limit)
}

/// Names pages of a part of the area that begins at `start`.
fn push(area: &mut Area, start: u64, pages: Range<usize>, content: Content) {
    if content == Content::Zero && area.backing.is_zeros() {
        return;
    }
    let (start, pages) = (start + pages.start as u64 * PAGE, pages.len() as u32);
    area.pages.push(Region { start, pages, writable: area.protection & WRITE != 0, content });
}

impl Source {
    /// `quick`: by `process_vm_readv`, which pins pages. What is shared copy-on-write would be copied apart by that, and
    /// what the process itself may not read is not given; `/proc/PID/mem` does both.
    fn read(&self, quick: bool, start: u64, buffer: &mut [u8]) -> io::Result<()> {
        if quick {
            return vm::read(self.pid, &[Remote { address: start, len: buffer.len() }], buffer);
        }
        self.memory.read_exact_at(buffer, start)
    }
}
