//! Copying private pages of stopped processes into an image: scan, read, write.
//!
//! ```text
//! ProcessMemory ──runs──▶ Copier ──room, keep──▶ PageSink ──▶ image
//! ```
//! A page that several processes share copy-on-write is written once: it is known by the number of its frame, and the
//! regions of all of them name the same place in the image.

use std::collections::HashMap;
use std::io;
use std::ops::Range;

use torpor_image::{Content, PAGE, REGION_PAGES, Region, checksum};
use torpor_linux::pagemap::Entry;

use super::scan::{Kind, ProcessMemory, Run, Selection};
use super::sink::{BATCH_BYTES, PageSink, is_zero};

/// Bytes of memory whose entries of the pagemap are read in one call; these take 2 MiB.
const ENTRIES_BYTES: u64 = 1 << 30;

/// Why memory cannot go into an image.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// An area that must not be dropped.
    #[error("memory at {start:#x}-{end:#x} ({name}) of process {pid} cannot leave: {reason}")]
    Refused {
        /// Process.
        pid: i32,
        /// First byte.
        start: u64,
        /// Behind the last byte.
        end: u64,
        /// File or kind of area.
        name: String,
        /// Why.
        reason: &'static str,
    },
    /// The kernel refused to show it.
    #[error("reading the memory of process {0}")]
    Read(i32, #[source] io::Error),
    /// The image could not be written.
    #[error("its image cannot be written")]
    Write(#[source] io::Error),
    /// It was told to stop.
    #[error("given up")]
    Stopped,
}

/// What pages of zeros are in an area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Zeros {
    /// Named, and nothing is stored: whoever brings them back knows what lies under them.
    Named,
    /// Stored as any other page: what lies under them is not zeros, and would come back in their place.
    Stored,
}

/// An area whose private pages are to be copied.
#[derive(Clone, Debug)]
pub struct Span {
    /// Its addresses, page-aligned.
    pub range: Range<u64>,
    /// The process itself may read it.
    pub readable: bool,
    /// The process itself may write it.
    pub writable: bool,
    /// What becomes of pages of zeros with memory of their own.
    pub zeros: Zeros,
}

/// What was found in an area, each by ascending address where it was looked at once.
#[derive(Debug, Default)]
pub struct CopiedArea {
    /// What the image holds. Of the zero page only with [`Selection::All`].
    pub regions: Vec<Region>,
    /// What of it is in the image now, or comes back as zeros.
    pub taken: Vec<Range<u64>>,
    /// Guards.
    pub guards: Vec<Range<u64>>,
    /// Pages that are not taken.
    pub kept_pages: u64,
}

/// Copies pages of one process after the other.
pub struct Copier<'a> {
    sink: PageSink<'a>,
    selection: Selection,
    go_on: &'a dyn Fn() -> bool,
    /// Where frames that are shared copy-on-write went, and the checksum of what was in them: the kernel may move pages to
    /// other frames and use the old ones again while we copy.
    frames: HashMap<u64, (u64, u64)>,
}

/// A process whose pages are being copied.
pub struct ProcessCopier<'c, 'a> {
    copier: &'c mut Copier<'a>,
    memory: ProcessMemory,
    /// Copied since it was asked whether to go on.
    unasked_bytes: usize,
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

impl<'a> Copier<'a> {
    /// Pages go to `sink`. `go_on` is asked at the beginning of each process and then at most every two [`BATCH_BYTES`]; `false` ends
    /// the copy with [`CopyError::Stopped`].
    pub fn new(sink: PageSink<'a>, selection: Selection, go_on: &'a dyn Fn() -> bool) -> Self {
        Self { sink, selection, go_on, frames: HashMap::new() }
    }

    /// Where pages of other kinds go too.
    pub const fn sink(&mut self) -> &mut PageSink<'a> {
        &mut self.sink
    }

    /// Goes on with process `pid`, which is stopped.
    ///
    /// # Errors
    /// [`CopyError::Read`]
    pub fn process(&mut self, pid: i32) -> Result<ProcessCopier<'_, 'a>, CopyError> {
        let memory = ProcessMemory::open(pid).map_err(|error| CopyError::Read(pid, error))?;
        Ok(ProcessCopier { copier: self, memory, unasked_bytes: BATCH_BYTES })
    }

    /// Writes what is left; gives where the pages end.
    ///
    /// # Errors
    /// [`CopyError::Write`]
    pub fn finish(mut self) -> Result<u64, CopyError> {
        self.sink.flush().map_err(CopyError::Write)?;
        Ok(self.sink.offset)
    }

    fn page(&self, n: usize, entry: Entry) -> Page {
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

    /// Keeps the pages of the room, some of which others share.
    fn keep_shared(&mut self, entries: &[Entry], mut found: impl FnMut(Range<usize>, Content)) {
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
            found(first..last, content);
            first = last;
        }
    }
}

impl ProcessCopier<'_, '_> {
    /// Copies the private pages of an area.
    ///
    /// # Errors
    /// If it cannot be read, the image cannot be written, or it is told to stop.
    pub fn area(&mut self, span: &Span) -> Result<CopiedArea, CopyError> {
        let selection = self.copier.selection;
        let mut copied = CopiedArea::default();
        for Run { range, kind } in self.memory.runs(span.range.clone(), selection).map_err(|error| self.read(error))? {
            match (kind, selection) {
                (Kind::Guard, _) => copied.guards.push(range),
                (Kind::Swapped, Selection::Exclusive) => copied.kept_pages += pages(&range) as u64,
                (Kind::Zero, Selection::Exclusive) => copied.taken.push(range),
                (Kind::Zero, Selection::All) => {
                    copied.push(span, range.start, 0..pages(&range), Content::Zero);
                    copied.taken.push(range);
                }
                (Kind::Contents | Kind::Swapped, _) => self.run(span, range, &mut copied)?,
            }
        }
        Ok(copied)
    }

    const fn read(&self, error: io::Error) -> CopyError {
        CopyError::Read(self.memory.pid(), error)
    }

    /// Copies a run of pages with contents.
    fn run(&mut self, span: &Span, run: Range<u64>, copied: &mut CopiedArea) -> Result<(), CopyError> {
        let all = self.copier.selection == Selection::All;
        for part in pieces(&run, ENTRIES_BYTES) {
            let entries = self.memory.entries(&part).map_err(|error| self.read(error))?;
            let mut start = part.start;
            for entries in entries.chunk_by(|a, b| all || a.exclusive() == b.exclusive()) {
                let range = start..start + entries.len() as u64 * PAGE;
                start = range.end;
                if !all && !entries[0].exclusive() {
                    copied.kept_pages += entries.len() as u64;
                    continue;
                }
                let batches = pieces(&range, BATCH_BYTES as u64).zip(entries.chunks(BATCH_BYTES / PAGE as usize));
                copied.taken.push(range.clone());
                for (batch, entries) in batches {
                    self.ask(entries.len() * PAGE as usize)?;
                    self.batch(span, batch.start, entries, copied)?;
                }
            }
        }
        Ok(())
    }

    /// Asks whether to go on with so many bytes, from time to time.
    fn ask(&mut self, bytes: usize) -> Result<(), CopyError> {
        if self.unasked_bytes >= BATCH_BYTES {
            if !(self.copier.go_on)() {
                return Err(CopyError::Stopped);
            }
            self.unasked_bytes = 0;
        }
        self.unasked_bytes += bytes;
        Ok(())
    }

    /// Copies at most [`BATCH_BYTES`].
    fn batch(&mut self, span: &Span, start: u64, entries: &[Entry], copied: &mut CopiedArea) -> Result<(), CopyError> {
        let Self { copier, memory, .. } = self;
        let room = copier.sink.room(entries.len() * PAGE as usize).map_err(CopyError::Write)?;
        let mut from = 0;
        for run in entries.chunk_by(|a, b| a.exclusive() == b.exclusive()) {
            let to = from + run.len() * PAGE as usize;
            let quick = span.readable && run[0].exclusive();
            let read = memory.read(quick, start + from as u64, &mut room[from..to]);
            read.map_err(|error| CopyError::Read(memory.pid(), error))?;
            from = to;
        }
        let found = |pages, content| copied.push(span, start, pages, content);
        match span.zeros {
            Zeros::Stored => copier.sink.keep_whole(entries.len(), found),
            Zeros::Named if entries.iter().all(|entry| entry.exclusive()) => copier.sink.keep_all(entries.len(), found),
            Zeros::Named => copier.keep_shared(entries, found),
        }
        Ok(())
    }
}

impl CopiedArea {
    /// Takes in what was found elsewhere in the area.
    pub(super) fn extend(&mut self, other: Self) {
        let Self { regions, taken, guards, kept_pages } = other;
        self.regions.extend(regions);
        self.taken.extend(taken);
        self.guards.extend(guards);
        self.kept_pages += kept_pages;
    }

    /// Names pages of a part of the area that begins at `start`.
    fn push(&mut self, span: &Span, start: u64, pages: Range<usize>, content: Content) {
        let (start, pages) = (start + pages.start as u64 * PAGE, pages.len() as u32);
        self.regions.push(Region { start, pages, writable: span.writable, content });
    }
}

const fn pages(range: &Range<u64>) -> usize {
    ((range.end - range.start) / PAGE) as usize
}

/// `range` in pieces of at most so many bytes.
fn pieces(range: &Range<u64>, bytes: u64) -> impl Iterator<Item = Range<u64>> + use<> {
    let end = range.end;
    (range.start..end).step_by(bytes as usize).map(move |start| start..end.min(start + bytes))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::Buffer;
    use std::cell::Cell;
    use std::os::unix::fs::FileExt;

    const PAGES: usize = 5;

    /// Our own memory: contents, a page of zeros, contents that the process could not write, and what was never touched.
    fn memory() -> (Buffer, Span) {
        let mut memory = Buffer::new(PAGES * PAGE as usize);
        memory.part_mut(0..PAGE as usize).fill(1);
        memory.part_mut(PAGE as usize..2 * PAGE as usize).fill(0);
        memory.part_mut(2 * PAGE as usize..3 * PAGE as usize).fill(3);
        let start = memory.part(0..1).as_ptr().addr() as u64;
        (memory, Span { range: start..start + 3 * PAGE, readable: true, writable: true, zeros: Zeros::Named })
    }

    #[test]
    fn contents_are_stored_one_behind_the_other_and_zeros_are_named() {
        let image = tempfile::tempfile().unwrap();
        let (_memory, span) = memory();
        for (selection, readable) in
            [Selection::Exclusive, Selection::All].map(|one| [(one, true), (one, false)]).concat()
        {
            let span = Span { readable, ..span.clone() };
            let mut copier = Copier::new(PageSink::new(&image, PAGE), selection, &|| true);
            let copied = copier.process(std::process::id() as i32).unwrap().area(&span).unwrap();
            assert_eq!(copier.finish().unwrap(), 3 * PAGE);
            let found: Vec<(u64, u32, bool)> = copied
                .regions
                .iter()
                .map(|one| ((one.start - span.range.start) / PAGE, one.pages, one.content == Content::Zero))
                .collect();
            assert_eq!(found, [(0, 1, false), (1, 1, true), (2, 1, false)], "{selection:?}");
            assert_eq!((copied.kept_pages, copied.guards), (0, vec![]));
            assert_eq!(copied.taken.iter().map(pages).sum::<usize>(), 3);
            let mut bytes = [0; 2 * PAGE as usize];
            image.read_exact_at(&mut bytes, PAGE).unwrap();
            assert_eq!((bytes[0], bytes[PAGE as usize]), (1, 3));
        }
    }

    #[test]
    fn zeros_are_stored_where_they_would_not_come_back() {
        let image = tempfile::tempfile().unwrap();
        let (_memory, span) = memory();
        let mut copier = Copier::new(PageSink::new(&image, PAGE), Selection::Exclusive, &|| true);
        let span = Span { zeros: Zeros::Stored, ..span };
        let copied = copier.process(std::process::id() as i32).unwrap().area(&span).unwrap();
        assert_eq!(copier.finish().unwrap(), 4 * PAGE);
        assert!(copied.regions.iter().all(|region| region.content != Content::Zero), "{:?}", copied.regions);
        assert_eq!(copied.regions.iter().map(|region| region.pages).sum::<u32>(), 3);
    }

    #[test]
    fn it_asks_for_every_process_and_stops_when_told() {
        let image = tempfile::tempfile().unwrap();
        let (_memory, span) = memory();
        let asked = Cell::new(0);
        let go_on = || {
            asked.set(asked.get() + 1);
            asked.get() < 3
        };
        let mut copier = Copier::new(PageSink::new(&image, PAGE), Selection::All, &go_on);
        let pid = std::process::id() as i32;
        for _ in 0..2 {
            let mut process = copier.process(pid).unwrap();
            // It is little: one question is enough.
            process.area(&span).unwrap();
            process.area(&span).unwrap();
        }
        let stopped = copier.process(pid).unwrap().area(&span);
        assert!(matches!(stopped, Err(CopyError::Stopped)));
        assert_eq!(asked.get(), 3);
    }

    #[test]
    fn pages_go_together_as_far_as_they_lie_together_in_the_image() {
        let fresh = Page::Fresh(None);
        let known = |page: u64| Page::Known(page * PAGE);
        let pages = [fresh, Page::Fresh(Some(4)), Page::Zero, Page::Zero, known(3), known(4), known(9)];
        let ends: Vec<usize> = [0, 2, 4, 6].iter().map(|first| run_end(&pages, *first)).collect();
        assert_eq!(ends, [2, 4, 6, 7]);
        let many = [fresh; 2 * REGION_PAGES as usize];
        assert_eq!(run_end(&many, 1), 1 + REGION_PAGES as usize);
    }
}
