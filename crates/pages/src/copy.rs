//! Copying a frozen process's private pages into an image, and the list of ranges to drop afterwards.
//!
//! Only pages that this process alone maps are taken (bit 56 of the pagemap). Pages that forked processes share
//! copy-on-write stay where they are: dropped and refilled one by one they would come back as separate copies, and
//! waking would need more memory than the app had.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use torpor_image::{PAGE, Region};
use torpor_linux::pagemap::{self, Filter, PageRegion, category};
use torpor_linux::vm::{self, Remote};

use super::sink::{BATCH_BYTES, PageSink};
use torpor_proc::maps::{Area, Flags, Treatment};

/// Private pages, the zero page and swapped ones told apart (a page that is being migrated counts as swapped).
const PRIVATE: Filter = Filter {
    all_of: category::FILE,
    any_of: category::PRESENT | category::SWAPPED,
    inverted: category::FILE,
    report: category::PFNZERO | category::SWAPPED,
};

/// Why a process's memory cannot go into an image.
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
}

/// A range to drop, page-aligned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// First byte.
    pub start: u64,
    /// The byte after the last one.
    pub end: u64,
}

/// A process's part of an image, as far as memory goes.
#[derive(Debug, Default)]
pub struct Copied {
    /// What the image holds, by ascending address.
    pub regions: Vec<Region>,
    /// What can be dropped from the process now.
    pub drop: Vec<Range>,
    /// Private pages that stay: shared copy-on-write with another process, or in swap already.
    pub kept_pages: u64,
}

/// Copies the memory of frozen process `pid`, which has these areas, to `sink`. `go_on` is asked at the beginning and then at most every two
/// [`BATCH_BYTES`]; `false` ends the copy with `Ok(None)`.
pub fn copy(
    pid: i32,
    areas: Vec<Area>,
    flags: &Flags,
    sink: &mut PageSink<'_>,
    go_on: &mut dyn FnMut() -> bool,
) -> Result<Option<Copied>, CopyError> {
    let read = |error| CopyError::Read(pid, error);
    let mut copier = Copier {
        pid,
        pagemap: File::open(format!("/proc/{pid}/pagemap")).map_err(read)?,
        memory: None,
        copied: Copied::default(),
        unasked_bytes: BATCH_BYTES,
    };
    let mut fresh = None;
    for area in areas {
        let treatment = match flags.treatment(&area) {
            Some(treatment) => treatment,
            None => {
                if fresh.is_none() {
                    fresh = Some(Flags::read(pid).map_err(read)?);
                }
                fresh.as_ref().and_then(|flags| flags.treatment(&area)).unwrap_or(Treatment::Leave)
            }
        };
        match treatment {
            Treatment::Leave => {}
            Treatment::Discard => copier.copied.drop.push(Range { start: area.start, end: area.end }),
            Treatment::Save => {
                if !copier.area(&area, sink, go_on)? {
                    return Ok(None);
                }
            }
            Treatment::Refuse(reason) => {
                let Area { start, end, name, .. } = area;
                return Err(CopyError::Refused { pid, start, end, name, reason });
            }
        }
    }
    sink.flush().map_err(CopyError::Write)?;
    Ok(Some(copier.copied))
}

struct Copier {
    pid: i32,
    pagemap: File,
    /// `/proc/PID/mem`, for areas that the process itself may not read.
    memory: Option<File>,
    copied: Copied,
    /// Copied since it was asked whether to go on.
    unasked_bytes: usize,
}

impl Copier {
    /// Copies one area; `false` if told to stop.
    fn area(
        &mut self,
        area: &Area,
        sink: &mut PageSink<'_>,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<bool, CopyError> {
        let read = |error| CopyError::Read(self.pid, error);
        let mut present = Vec::new();
        pagemap::scan(&self.pagemap, area.start, area.end, PRIVATE, &mut present).map_err(read)?;
        if present.is_empty() {
            return Ok(true);
        }
        let kept_before = self.copied.kept_pages;
        let dropped_before = self.copied.drop.len();
        for run in present {
            if run.categories & category::SWAPPED != 0 {
                self.copied.kept_pages += (run.end - run.start) / PAGE;
                continue;
            }
            let zero = run.categories & category::PFNZERO != 0;
            for own in self.exclusive(run, zero)? {
                self.copied.drop.push(own);
                let mut start = own.start;
                while !zero && start < own.end {
                    if self.unasked_bytes >= BATCH_BYTES {
                        if !go_on() {
                            return Ok(false);
                        }
                        self.unasked_bytes = 0;
                    }
                    let end = own.end.min(start + BATCH_BYTES as u64);
                    self.unasked_bytes += (end - start) as usize;
                    self.batch(area, Range { start, end }, sink)?;
                    start = end;
                }
            }
        }
        if self.copied.kept_pages == kept_before {
            // Everything private in it is saved: one call drops the whole area, and clean file pages with it.
            self.copied.drop.truncate(dropped_before);
            self.copied.drop.push(Range { start: area.start, end: area.end });
        }
        Ok(true)
    }

    /// The parts of `run` that no other process maps.
    fn exclusive(&mut self, run: PageRegion, zero: bool) -> Result<Vec<Range>, CopyError> {
        if zero {
            return Ok(vec![Range { start: run.start, end: run.end }]);
        }
        let count = ((run.end - run.start) / PAGE) as usize;
        let mut entries = Vec::with_capacity(count);
        pagemap::entries(&self.pagemap, run.start, count, &mut entries)
            .map_err(|error| CopyError::Read(self.pid, error))?;
        let mut own: Vec<Range> = Vec::new();
        for (n, entry) in entries.iter().enumerate() {
            let start = run.start + n as u64 * PAGE;
            if !entry.exclusive() {
                self.copied.kept_pages += 1;
            } else if let Some(last) = own.last_mut().filter(|last| last.end == start) {
                last.end += PAGE;
            } else {
                own.push(Range { start, end: start + PAGE });
            }
        }
        Ok(own)
    }

    /// Copies at most [`BATCH_BYTES`], leaving out pages of zeros.
    fn batch(&mut self, area: &Area, range: Range, sink: &mut PageSink<'_>) -> Result<(), CopyError> {
        let len = (range.end - range.start) as usize;
        let room = sink.room(len).map_err(CopyError::Write)?;
        self.read(area, range.start, room).map_err(|error| CopyError::Read(self.pid, error))?;
        sink.keep_all(len / PAGE as usize, |pages, content| {
            let start = range.start + pages.start as u64 * PAGE;
            let region = Region { start, pages: pages.len() as u32, writable: area.access.write, content };
            self.copied.regions.push(region);
        });
        Ok(())
    }

    fn read(&mut self, area: &Area, address: u64, buffer: &mut [u8]) -> io::Result<()> {
        if area.access.read {
            return vm::read(self.pid, &[Remote { address, len: buffer.len() }], buffer);
        }
        if self.memory.is_none() {
            self.memory = Some(File::open(format!("/proc/{}/mem", self.pid))?);
        }
        self.memory.as_ref().map_or(Ok(()), |memory| memory.read_exact_at(buffer, address))
    }
}
