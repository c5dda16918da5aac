//! Copying what can be dropped from a frozen process, and the list of ranges to drop afterwards.
//!
//! What a wake needs first comes first, so that it is read in one go: memory that cannot come later, then pages that the program
//! is expected to touch, then the rest. Who copies goes through all processes for each of these.

use std::ops::Range;

use torpor_image::{Content, Region, lazy_size};
use torpor_proc::maps::{Area, Contexts, Flags, Treatment};

use super::absent::Missing;
use super::context::PlacedArea;
use super::copy::{CopiedArea, Copier, CopyError, Span, Zeros};
use super::parts::{PartialCopy, copy_ranges};

/// A process's part of an image, as far as memory goes.
#[derive(Debug, Default)]
pub struct Copied {
    /// What the image holds, by ascending address.
    pub regions: Vec<Region>,
    /// What can be dropped from the process once the image is durable, page-aligned.
    pub drop: Vec<Range<u64>>,
    /// Areas of anonymous memory with many stored pages: what a userfaultfd context is registered with to bring them back.
    pub anonymous: Vec<PlacedArea>,
    /// Private pages that stay: shared copy-on-write with another process, or in swap already.
    pub kept_pages: u64,
}

/// The memory of a process that leaves it.
#[derive(Debug, Default)]
pub struct Droppable {
    pid: i32,
    /// What is dropped without a copy.
    discarded: Vec<Range<u64>>,
    /// By ascending address.
    saved: Vec<Saved>,
}

/// An area that is copied.
#[derive(Debug)]
struct Saved {
    copy: PartialCopy,
    is_anonymous: bool,
    may_be_lazy: bool,
    is_registered: bool,
}

impl Droppable {
    /// Of frozen process `pid`, which has these areas; `flags` may be older than some of them.
    ///
    /// # Errors
    /// If an area must not be dropped, or its flags cannot be read.
    pub fn of(pid: i32, areas: Vec<Area>, flags: &Flags, contexts: Contexts) -> Result<Self, CopyError> {
        let mut droppable = Self { pid, ..Self::default() };
        let mut fresh = None;
        for area in areas {
            let flags = match flags.treatment(&area) {
                Some(_) => flags,
                None => match &fresh {
                    Some(fresh) => fresh,
                    None => fresh.insert(Flags::read(pid, contexts).map_err(|error| CopyError::Read(pid, error))?),
                },
            };
            let range = area.start..area.end;
            match flags.treatment(&area).unwrap_or(Treatment::Leave) {
                Treatment::Leave => {}
                Treatment::Discard => droppable.discarded.push(range),
                Treatment::Save => {
                    // Dropped pages of a file come back with what is in the file.
                    let is_anonymous = is_anonymous(&area);
                    let zeros = if is_anonymous { Zeros::Named } else { Zeros::Stored };
                    let span = Span { range, readable: area.access.read, writable: area.access.write, zeros };
                    let may_be_lazy = is_anonymous && flags.may_be_lazy(&area);
                    let is_registered = flags.is_registered(&area);
                    let copy = PartialCopy::new(span);
                    droppable.saved.push(Saved { copy, is_anonymous, may_be_lazy, is_registered });
                }
                Treatment::Refuse(reason) => {
                    let Area { start, end, name, .. } = area;
                    return Err(CopyError::Refused { pid, start, end, name, reason });
                }
            }
        }
        Ok(droppable)
    }

    /// The process.
    pub const fn pid(&self) -> i32 {
        self.pid
    }

    /// Nothing leaves it.
    pub const fn is_empty(&self) -> bool {
        self.saved.is_empty()
    }

    /// Whether it copies all of a range, in areas whose missing pages a userfaultfd context waits for. A program that was executed since has no such
    /// areas, though its process is the same.
    pub fn misses(&self, range: &Range<u64>) -> bool {
        let first = self.saved.partition_point(|saved| saved.copy.span.range.end <= range.start);
        let mut at = range.start;
        for Saved { copy, is_registered, .. } in &self.saved[first..] {
            if copy.span.range.start > at || at >= range.end || !is_registered {
                break;
            }
            at = copy.span.range.end;
        }
        at >= range.end
    }

    /// Copies what cannot come while the program runs.
    ///
    /// # Errors
    /// As of [`ProcessCopier::area`](super::copy::ProcessCopier::area).
    pub fn copy_eager(&mut self, copier: &mut Copier<'_>) -> Result<(), CopyError> {
        let mut copier = copier.process(self.pid)?;
        let mut eager = self.saved.iter_mut().filter(|saved| !saved.may_be_lazy);
        eager.try_for_each(|saved| saved.copy.copy_rest(&mut copier))
    }

    /// Copies of `ranges` what has not been copied yet and may come while the program runs.
    ///
    /// # Errors
    /// As of [`Droppable::copy_eager`].
    pub fn copy_first<'a>(
        &mut self,
        ranges: impl IntoIterator<Item = &'a Range<u64>>,
        copier: &mut Copier<'_>,
    ) -> Result<(), CopyError> {
        let lazy = self.saved.iter_mut().filter(|saved| saved.may_be_lazy);
        let mut lazy: Vec<&mut PartialCopy> = lazy.map(|saved| &mut saved.copy).collect();
        copy_ranges(&mut lazy, ranges, &mut copier.process(self.pid)?)
    }

    /// Copies the rest.
    ///
    /// # Errors
    /// As of [`Droppable::copy_eager`].
    pub fn copy_rest(&mut self, copier: &mut Copier<'_>) -> Result<(), CopyError> {
        let mut copier = copier.process(self.pid)?;
        self.saved.iter_mut().try_for_each(|saved| saved.copy.copy_rest(&mut copier))
    }

    /// What came of it, once the rest is copied; what it misses is in an image already.
    ///
    /// # Errors
    /// As of [`Missing::of`].
    pub fn finish(self, missing: Option<Missing<'_>>) -> Result<Copied, CopyError> {
        let mut copied = Copied { drop: self.discarded, ..Copied::default() };
        for saved in self.saved {
            copied.add(self.pid, saved, missing)?;
        }
        copied.drop.sort_unstable_by_key(|range| range.start);
        Ok(copied)
    }
}

/// Its memory comes back as zeros when it is dropped.
fn is_anonymous(area: &Area) -> bool {
    area.name.is_empty() || area.name.starts_with('[')
}

impl Copied {
    fn add(&mut self, pid: i32, saved: Saved, missing: Option<Missing<'_>>) -> Result<(), CopyError> {
        let Saved { copy, is_anonymous, may_be_lazy, .. } = saved;
        let (span, CopiedArea { mut regions, taken, kept_pages, .. }) = copy.finish();
        if let Some(missing) = missing {
            regions.extend(missing.of(pid, &span.range, span.writable, &regions)?);
            regions.sort_unstable_by_key(|region| region.start);
        }
        let stored = regions.iter().filter(|region| region.content != Content::Zero);
        if is_anonymous && stored.map(|region| u64::from(region.pages)).sum::<u64>() >= lazy_size::least_pages() {
            self.anonymous.push(PlacedArea { range: span.range.clone(), may_be_lazy });
        }
        self.regions.extend(regions);
        self.kept_pages += kept_pages;
        if kept_pages > 0 {
            self.drop.extend(taken);
        } else if !taken.is_empty() {
            // Everything private in it is saved: one call drops the whole area, and clean file pages with it.
            self.drop.push(span.range);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::Buffer;
    use crate::scan::Selection;
    use crate::sink::PageSink;
    use torpor_image::PAGE;

    #[test]
    fn what_comes_first_lies_first_and_everything_is_copied_once() {
        // Our own memory, which is no area of its own: any will do.
        let mut memory = Buffer::new(8 * PAGE as usize);
        (0..8).for_each(|n| memory.part_mut(n * PAGE as usize..(n + 1) * PAGE as usize).fill(n as u8 + 1));
        let start = memory.part(0..1).as_ptr().addr() as u64;
        let pages = |range: Range<u64>| start + range.start * PAGE..start + range.end * PAGE;
        let saved = |range, may_be_lazy| {
            let span = Span { range: pages(range), readable: true, writable: true, zeros: Zeros::Named };
            Saved { copy: PartialCopy::new(span), is_anonymous: true, may_be_lazy, is_registered: true }
        };
        let mut droppable = Droppable { pid: std::process::id() as i32, ..Droppable::default() };
        droppable.saved = vec![saved(0..5, true), saved(5..6, false), saved(6..8, true)];
        let missed = [0..8, 4..7, 7..8].map(|range| droppable.misses(&pages(range)));
        assert_eq!((missed, droppable.misses(&pages(7..9))), ([true; 3], false));
        droppable.saved.remove(1);
        let missed = [0..5, 4..6, 5..6, 6..8].map(|range| droppable.misses(&pages(range)));
        assert_eq!(missed, [true, false, false, true]);
        // The middle is of a program that came later.
        droppable.saved.insert(1, Saved { is_registered: false, ..saved(5..6, false) });
        assert_eq!([0..5, 4..6, 6..8].map(|range| droppable.misses(&pages(range))), [true, false, true]);

        let image = tempfile::tempfile().unwrap();
        let mut copier = Copier::new(PageSink::new(&image, PAGE), Selection::Exclusive, &|| true);
        droppable.copy_eager(&mut copier).unwrap();
        // A range over the end of an area, and one that overlaps it.
        droppable.copy_first(&[pages(4..7), pages(3..5)], &mut copier).unwrap();
        droppable.copy_rest(&mut copier).unwrap();
        assert_eq!(copier.finish().unwrap(), 9 * PAGE);
        let copied = droppable.finish(None).unwrap();
        let places: Vec<(u64, u64, u32)> = copied
            .regions
            .iter()
            .map(|region| match region.content {
                Content::Stored { offset, .. } => ((region.start - start) / PAGE, offset / PAGE - 1, region.pages),
                Content::Zero => panic!("{region:?}"),
            })
            .collect();
        assert_eq!(places, [(0, 4, 3), (3, 3, 1), (4, 1, 1), (5, 0, 1), (6, 2, 1), (7, 7, 1)]);
        assert_eq!(copied.drop, [pages(0..5), pages(5..6), pages(6..8)]);
    }
}
