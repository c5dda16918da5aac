//! A lazy app that falls asleep again. Its missing pages stay where they are: the new image is written behind the one that has them, in the same file,
//! and refers to them.
//!
//! ```text
//! journal: Lazy ─▶ held: only faults are served ─▶ frozen ─▶ missing pages named ─▶ present ones copied ─▶ committed
//!    ▲                                                                                                      │ journal: Dropping
//!    └───────────────────────────── go on: the pager fills again ◀── given up ──────────────────────────────┤
//!                                                              contexts closed ─▶ dropped ─▶ dozing ◀───────┘
//! ```
//! From the freeze on the program changes nothing, so a page that comes back because we touch it is what the image has.
//!
//! Where only a part of a stored region is missing, the part becomes a region with a checksum of its own, for which the stored region is read. Most of
//! this happens before the freeze ([`Names`]).

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::ops::Range;

use torpor_image::{Content, LoadingPart, PAGE, Region};
use torpor_pager::{Owner, Told};
use torpor_pages::absent::checksums;
use torpor_pages::copy::CopyError;
use torpor_pages::parts::Expected;
use torpor_pages::source::Stored;
use torpor_store::Image;

/// Most parts of a loading set that consist of missing pages. A wake searches all parts once per region.
const MOST_PARTS: usize = 256;
/// Parts for the same cause with less between them are one.
const GAP_BYTES: u64 = 64 << 10;

/// A lazy app that is about to sleep, with its pager.
pub trait LazyProgram: Sync {
    /// The image that has what it misses.
    fn image(&self) -> &Image;

    /// The pages that it misses now. From the first call on, its pager only serves faults.
    ///
    /// # Errors
    /// Where the pager does not answer, has ended, or cannot tell: a child that was forked meanwhile misses pages.
    fn missing(&self) -> io::Result<Vec<MissingPart>>;

    /// It does not sleep: its pager goes on.
    fn go_on(&self);

    /// It cannot sleep before all of its memory is back: once it goes on, its pager fills.
    fn bring_back(&self);

    /// It is asleep, and frozen: ends its pager, and closes every descriptor of its contexts. What is missing reads as zeros from here on.
    ///
    /// # Errors
    /// Where some may still be open.
    fn close(&self) -> io::Result<()>;
}

/// Pages of a stored region that a process misses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MissingPart {
    /// The process.
    pub owner: Owner,
    /// Address of the first page.
    pub start: u64,
    /// The region.
    pub stored: Stored,
    /// Number of the first page in it.
    pub first: u32,
    /// How many pages.
    pub pages: u32,
}

/// The missing pages that a pager reports, by process and address. None if a child that was forked meanwhile misses pages: its context does not name it.
pub fn missing_parts(told: &Told<'_>) -> Option<Vec<MissingPart>> {
    let mut parts = Vec::new();
    for space in told.spaces.iter().filter(|space| !space.layout.is_complete()) {
        let owner = space.owner?;
        for (start, piece) in space.layout.pieces() {
            let stored = *told.regions.get(piece.region as usize)?;
            parts.extend(piece.runs().map(|(first, pages)| MissingPart {
                owner,
                start: start + u64::from(first) * PAGE,
                stored,
                first: piece.first + first,
                pages,
            }));
        }
    }
    Some(parts)
}

/// Missing pages as regions of an image, whose checksums are computed once.
#[derive(Debug, Default)]
pub(crate) struct Names {
    /// By place in the file and pages.
    sums: HashMap<(u64, u32), u64>,
}

impl Names {
    /// Regions by process, by ascending address.
    pub(crate) fn regions(
        &mut self,
        file: &File,
        parts: &[MissingPart],
    ) -> Result<Vec<(Owner, Vec<Region>)>, CopyError> {
        let mut named = Vec::new();
        for of_process in parts.chunk_by(|a, b| a.owner == b.owner) {
            let mut regions = Vec::with_capacity(of_process.len());
            for of_region in of_process.chunk_by(|a, b| a.stored == b.stored) {
                self.add_sums(file, of_region)?;
                regions.extend(of_region.iter().map(|part| {
                    let content = Content::Stored { offset: part.offset(), checksum: self.sums[&part.key()] };
                    Region { start: part.start, pages: part.pages, writable: true, content }
                }));
            }
            named.push((of_process[0].owner, regions));
        }
        Ok(named)
    }

    /// Computes what is not known yet of parts of one region.
    fn add_sums(&mut self, file: &File, parts: &[MissingPart]) -> Result<(), CopyError> {
        let whole = |part: &&MissingPart| part.bytes() == part.stored.bytes;
        self.sums.extend(parts.iter().filter(whole).map(|part| (part.key(), part.stored.checksum)));
        let unknown: Vec<&MissingPart> = parts.iter().filter(|part| !self.sums.contains_key(&part.key())).collect();
        let Some(first) = unknown.first() else { return Ok(()) };
        let within = |part: &&MissingPart| {
            let from = u64::from(part.first) * PAGE;
            from..from + part.bytes()
        };
        let bytes: Vec<Range<u64>> = unknown.iter().map(within).collect();
        let sums = checksums(file, first.stored, &bytes)?;
        self.sums.extend(unknown.iter().map(|part| part.key()).zip(sums));
        Ok(())
    }
}

impl MissingPart {
    const fn offset(&self) -> u64 {
        self.stored.offset + self.first as u64 * PAGE
    }

    /// Its length.
    pub const fn bytes(&self) -> u64 {
        self.pages as u64 * PAGE
    }

    const fn key(&self) -> (u64, u32) {
        (self.offset(), self.pages)
    }
}

/// The part of the loading set that consists of missing pages: where these are in the file, ascending.
pub(crate) fn loading_of_missing(expected: &[Expected], missing: &[(i32, Vec<Region>)]) -> Vec<LoadingPart> {
    let mut parts = Vec::new();
    for Expected { cause, ranges } in expected {
        for (pid, range) in ranges {
            let Some((_, regions)) = missing.iter().find(|(of, _)| of == pid) else { continue };
            let first = regions.partition_point(|region| region.start + region.bytes() <= range.start);
            for region in regions[first..].iter().take_while(|region| region.start < range.end) {
                let Some(Stored { offset, .. }) = Stored::of(region) else { continue };
                let from = range.start.max(region.start) - region.start;
                let to = range.end.min(region.start + region.bytes()) - region.start;
                parts.push(LoadingPart { cause: cause.clone(), start: offset + from, end: offset + to });
            }
        }
    }
    parts.sort_by_key(|part| part.start);
    let mut joined: Vec<LoadingPart> = Vec::new();
    for part in parts {
        match joined.last_mut() {
            Some(last) if last.cause == part.cause && part.start <= last.end + GAP_BYTES => {
                last.end = last.end.max(part.end);
            }
            // Processes that share a page expect it for different causes: once is enough.
            Some(last) if part.start < last.end => {}
            _ => joined.push(part),
        }
    }
    joined.truncate(MOST_PARTS);
    joined
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;
    use torpor_image::checksum;

    const OWNER: Owner = Owner { pid: 7, start_ticks: 1 };

    #[test]
    fn a_region_is_read_once_and_only_where_a_part_of_it_is_there() {
        let file = tempfile::tempfile().unwrap();
        let pages: Vec<u8> = (0..8).flat_map(|n| [n; PAGE as usize]).collect();
        file.write_all_at(&pages, PAGE).unwrap();
        let bytes = |range: Range<u64>| &pages[(range.start * PAGE) as usize..(range.end * PAGE) as usize];
        let stored = |range: Range<u64>| Stored {
            offset: (1 + range.start) * PAGE,
            bytes: (range.end - range.start) * PAGE,
            checksum: checksum(bytes(range)),
        };
        let part = |at: u64, stored, first, pages| MissingPart { owner: OWNER, start: at * PAGE, stored, first, pages };
        let parts = [
            part(50, stored(0..4), 0, 4),
            // Moved, and two pages of it are there.
            part(60, stored(4..8), 0, 1),
            part(63, stored(4..8), 3, 1),
        ];
        let mut names = Names::default();
        let named = names.regions(&file, &parts).unwrap();
        let region = |at: u64, n: Range<u64>| Region {
            start: at * PAGE,
            pages: (n.end - n.start) as u32,
            writable: true,
            content: Content::Stored { offset: (1 + n.start) * PAGE, checksum: checksum(bytes(n)) },
        };
        let expected = vec![region(50, 0..4), region(60, 4..5), region(63, 7..8)];
        assert_eq!(named, [(OWNER, expected.clone())]);
        // What is known is not read again; a part that is not known is, and the damage is seen.
        file.write_all_at(b"x", 6 * PAGE).unwrap();
        assert_eq!(names.regions(&file, &parts).unwrap(), [(OWNER, expected)]);
        assert!(names.regions(&file, &[part(60, stored(4..8), 0, 2)]).is_err());
    }

    #[test]
    fn what_is_expected_stays_where_it_is() {
        let region = |at: u64, pages, place: u64| Region {
            start: at * PAGE,
            pages,
            writable: true,
            content: Content::Stored { offset: place * PAGE, checksum: 0 },
        };
        let missing = vec![(7, vec![region(10, 4, 100), region(14, 4, 500), region(30, 2, 104)])];
        let expect = |cause: &str, ranges: &[(i32, Range<u64>)]| Expected {
            cause: cause.to_owned(),
            ranges: ranges.iter().map(|(pid, range)| (*pid, range.start * PAGE..range.end * PAGE)).collect(),
        };
        let expected =
            [expect("", &[(7, 12..16), (9, 0..99)]), expect("timer", &[(7, 0..10), (7, 30..99), (7, 12..13)])];
        let found = loading_of_missing(&expected, &missing);
        let part = |cause: &str, pages: Range<u64>| LoadingPart {
            cause: cause.to_owned(),
            start: pages.start * PAGE,
            end: pages.end * PAGE,
        };
        assert_eq!(found, [part("", 102..104), part("timer", 104..106), part("", 500..502)]);
    }
}
