//! Folding: the image of a dozing app, whose pages are scattered over a file of several generations, is written to a file of its own.
//!
//! The pages of the loading set come first, those of each cause in one piece; the others follow. Within these, pages are in the order of
//! processes and addresses, so regions that were split are joined again. The contents, the generation and the app are the same, so the app may be woken from either file, and
//! [`Folded::commit`] replaces one by the other with a rename.
//!
//! [`Folded::commit`] must be called only while the app dozes: once it misses pages of the old file, its next generation is written
//! behind that.

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use torpor_image::{
    Content, HEADER_BYTES, Header, Kind, LoadingPart, PAGE, Process, REGION_PAGES, Region, State, checksum,
};

use crate::image::Image;
use crate::partial::{Durability, Partial};

/// Folding pays if it divides the number of regions by more than this.
const LEAST_JOINED: usize = 2;
/// Fewer regions are read quickly wherever they are.
const FEW_REGIONS: usize = 1024;
/// The areas of a process by ascending address: regions are joined within one area only.
pub type Areas = Vec<(i32, Vec<Range<u64>>)>;

/// An image with many regions, which may be worth folding.
#[derive(Debug)]
pub struct Scattered {
    image: Image,
    state: State,
    areas: Areas,
}

/// How an image is folded.
#[derive(Debug)]
pub(crate) struct Fold {
    image: Image,
    state: State,
    places: Places,
    /// What it contains when it is folded; checksums of regions are not known yet.
    folded: State,
}

/// An image that is folded, and not committed yet. It is removed when it is dropped.
#[derive(Debug)]
pub struct Folded {
    partial: Partial,
    state: State,
    bytes: u64,
}

impl Scattered {
    /// The image of a dozing app, which contains `state`. None if it has few regions.
    ///
    /// # Errors
    /// If the areas of its processes cannot be read.
    pub fn of(image: &Image, state: &State, areas: impl FnOnce() -> io::Result<Areas>) -> io::Result<Option<Self>> {
        if stored(state).count() <= FEW_REGIONS {
            return Ok(None);
        }
        Ok(Some(Self { image: image.clone(), state: state.clone(), areas: areas()? }))
    }

    /// Folds it. `go_on` is asked before each region whether that is still wanted. None if it is not, or if few regions would be joined.
    ///
    /// # Errors
    /// If the image is not committed, cannot be read, or is damaged; if the new file cannot be written.
    pub fn fold(self, go_on: impl Fn() -> bool) -> io::Result<Option<Folded>> {
        let before = stored(&self.state).count();
        let fold = Fold::plan(self);
        let after = stored(&fold.folded).count();
        if after * LEAST_JOINED < before { fold.run(go_on) } else { Ok(None) }
    }
}

impl Fold {
    fn plan(scattered: Scattered) -> Self {
        let Scattered { image, state, areas } = scattered;
        let mut places = Places::new();
        let loading = places.add_loading(&state);
        stored(&state).for_each(|(range, _)| places.add(range));
        let fold = |process: &Process| {
            let areas = areas.iter().find(|(pid, _)| *pid == process.pid).map_or(&[][..], |(_, areas)| areas);
            let regions = places.regions(&process.regions, areas);
            Process { regions, threads: process.threads.clone(), ..*process }
        };
        let folded = State { processes: state.processes.iter().map(fold).collect(), loading };
        Self { image, state, places, folded }
    }

    /// Writes the file.
    fn run(self, go_on: impl Fn() -> bool) -> io::Result<Option<Folded>> {
        let Self { image, state, places, mut folded } = self;
        let lease = image.open()?;
        if (lease.header().generation, lease.header().kind) != (image.generation(), Kind::Dozing) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let partial = image.begin()?;
        // A full disk is better known now than when most is written.
        match fallocate(&**partial.file(), FallocateFlags::empty(), 0, places.end) {
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => {}
            Err(error) => return Err(error.into()),
        }
        let mut copied = HashSet::new();
        for (range, sum) in stored(&state) {
            if !go_on() {
                return Ok(None);
            }
            // Forked processes share pages.
            if copied.insert((range.start, range.end)) {
                places.copy(lease.file(), partial.file(), range, sum)?;
            }
        }
        for region in folded.processes.iter_mut().flat_map(|process| &mut process.regions) {
            if !go_on() {
                return Ok(None);
            }
            add_checksum(region, partial.file())?;
        }
        let encoded = folded.encode();
        let header = Header {
            pages_bytes: places.end - HEADER_BYTES,
            state_bytes: encoded.len() as u64,
            state_checksum: checksum(&encoded),
            ..lease.header().clone()
        };
        partial.file().write_all_at(&encoded, header.state_offset())?;
        let bytes = partial.finish(&header)?;
        // Only clean pages can be dropped from the page cache.
        partial.file().sync_data()?;
        Ok(go_on().then_some(Folded { partial, state: folded, bytes }))
    }
}

impl Folded {
    /// The generation of the image.
    pub const fn generation(&self) -> u64 {
        self.partial.generation()
    }

    /// Replaces the image that it was made from. Gives what it contains, and the length of its file.
    ///
    /// # Errors
    /// Of rename(2): the image stays as it is.
    pub fn commit(self) -> io::Result<(State, u64)> {
        self.partial.commit(Durability::Processes).map_err(crate::CommitError::into_error)?;
        Ok((self.state, self.bytes))
    }
}

/// The pages of all regions in their file, with the checksum of each region.
fn stored(state: &State) -> impl Iterator<Item = (Range<u64>, u64)> {
    state.processes.iter().flat_map(|process| &process.regions).filter_map(in_file)
}

/// Computes the checksum of a region whose pages are in the file.
fn add_checksum(region: &mut Region, file: &File) -> io::Result<()> {
    let length = region.bytes() as usize;
    let Content::Stored { offset, checksum: sum } = &mut region.content else { return Ok(()) };
    let mut bytes = vec![0; length];
    file.read_exact_at(&mut bytes, *offset)?;
    *sum = checksum(&bytes);
    Ok(())
}

/// Where the pages of a region are in its file, and their checksum.
fn in_file(region: &Region) -> Option<(Range<u64>, u64)> {
    match region.content {
        Content::Zero => None,
        Content::Stored { offset, checksum } => Some((offset..offset + region.bytes(), checksum)),
    }
}

/// Where pages of the old file are in the new one.
#[derive(Debug)]
struct Places {
    /// Ranges of the old file by their start: the end, and the start in the new file.
    by_start: BTreeMap<u64, (u64, u64)>,
    /// Behind the last page in the new file.
    end: u64,
}

impl Places {
    const fn new() -> Self {
        Self { by_start: BTreeMap::new(), end: HEADER_BYTES }
    }

    /// Appends what of a range has no place yet.
    fn add(&mut self, range: Range<u64>) {
        let mut at = range.start;
        while at < range.end {
            if let Some((_, run)) = self.of(at) {
                at = run.end;
                continue;
            }
            let next = self.by_start.range(at..).next().map_or(range.end, |(start, _)| range.end.min(*start));
            self.by_start.insert(at, (next, self.end));
            self.end += next - at;
            at = next;
        }
    }

    /// Appends the pages of the loading set, those of every wake first, each cause's by process and address. Gives its parts in the
    /// new file.
    fn add_loading(&mut self, state: &State) -> Vec<LoadingPart> {
        let mut causes: Vec<&str> = Vec::new();
        for part in &state.loading {
            if !causes.contains(&part.cause.as_str()) {
                causes.push(&part.cause);
            }
        }
        causes.sort_by_key(|cause| !cause.is_empty());
        let mut loading = Vec::new();
        for cause in causes {
            let start = self.end;
            // They ascend without overlap, and may contain pages that no region refers to any more.
            let parts: Vec<&LoadingPart> = state.loading.iter().filter(|part| part.cause == cause).collect();
            for (range, _) in stored(state) {
                let first = parts.partition_point(|part| part.end <= range.start);
                for part in parts[first..].iter().take_while(|part| part.start < range.end) {
                    self.add(range.start.max(part.start)..range.end.min(part.end));
                }
            }
            loading.push(LoadingPart { cause: cause.to_owned(), start, end: self.end });
        }
        loading.retain(|part| part.start < part.end);
        loading
    }

    /// The place of a page, and the run of pages in the old file that it is in, which stay together.
    fn of(&self, at: u64) -> Option<(u64, Range<u64>)> {
        let (start, (end, to)) = self.by_start.range(..=at).next_back()?;
        (at < *end).then(|| (to + (at - start), *start..*end))
    }

    /// The pieces of a range of the old file, each with its place.
    fn pieces(&self, range: Range<u64>) -> impl Iterator<Item = (Range<u64>, u64)> {
        let mut at = range.start;
        std::iter::from_fn(move || {
            let (to, run) = self.of(at).filter(|_| at < range.end)?;
            let piece = at..run.end.min(range.end);
            at = piece.end;
            Some((piece, to))
        })
    }

    /// Copies a region if it is sound.
    fn copy(&self, from: &File, to: &File, range: Range<u64>, sum: u64) -> io::Result<()> {
        let mut bytes = vec![0; (range.end - range.start) as usize];
        from.read_exact_at(&mut bytes, range.start)?;
        if checksum(&bytes) != sum {
            let what = format!("the pages at byte {} of the file are damaged", range.start);
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        for (piece, place) in self.pieces(range.clone()) {
            let part = (piece.start - range.start) as usize..(piece.end - range.start) as usize;
            to.write_all_at(&bytes[part], place)?;
        }
        Ok(())
    }

    /// The regions of a process in the new file, joined where they can be, without checksums.
    fn regions(&self, regions: &[Region], areas: &[Range<u64>]) -> Vec<Region> {
        let mut joined: Vec<Region> = Vec::with_capacity(regions.len());
        for region in regions {
            let Some((range, _)) = in_file(region) else {
                joined.push(*region);
                continue;
            };
            for (piece, place) in self.pieces(range.clone()) {
                let start = region.start + (piece.start - range.start);
                let pages = ((piece.end - piece.start) / PAGE) as u32;
                let content = Content::Stored { offset: place, checksum: 0 };
                join(&mut joined, Region { start, pages, content, ..*region }, areas);
            }
        }
        joined
    }
}

#[cfg(test)]
impl Fold {
    /// Folds an image with however few regions.
    pub(crate) fn all(image: &Image, state: &State, areas: Areas) -> io::Result<Option<Folded>> {
        Self::plan(Scattered { image: image.clone(), state: state.clone(), areas }).run(|| true)
    }
}

/// Appends a region, or extends the last region by it where the two are adjacent.
fn join(regions: &mut Vec<Region>, region: Region, areas: &[Range<u64>]) {
    if let (Some(last), Some((at, _))) = (regions.last_mut(), in_file(&region))
        && let Some((before, _)) = in_file(last)
        && (before.end, last.start + last.bytes(), last.writable) == (at.start, region.start, region.writable)
        && last.pages + region.pages <= REGION_PAGES
        && areas
            .get(areas.partition_point(|area| area.end <= last.start))
            .is_some_and(|area| area.start <= last.start && region.start + region.bytes() <= area.end)
    {
        last.pages += region.pages;
        return;
    }
    regions.push(region);
}
