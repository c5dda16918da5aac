//! Which pages of an image an address space still misses, and where it misses them.
//!
//! Pure. The program may unmap, move and give up memory while its pages come back; each change is applied here before any page that
//! it concerns is placed ([`crate::serve`]).
//!
//! Invariant: a page that the program has given up or unmapped is never missing again, wherever that memory is moved.

use std::collections::BTreeMap;
use std::ops::Range;

use torpor_image::PAGE;

/// Pages of one region at most: a bit each.
const MOST_PAGES: u64 = u64::BITS as u64;

/// The part of a region of the image that lies at one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The region, by its place in the image's list.
    pub region: u32,
    /// Its first page that lies here.
    pub first: u32,
    /// How many of its pages lie here.
    pub pages: u32,
    /// Which of those are missing: the lowest bit is the first page.
    pub missing: u64,
}

impl Piece {
    /// Bytes in memory.
    pub const fn bytes(&self) -> u64 {
        self.pages as u64 * PAGE
    }

    /// The pages from `n` on.
    const fn behind(&self, n: u32) -> Self {
        Self { region: self.region, first: self.first + n, pages: self.pages - n, missing: self.missing >> n }
    }

    /// The pages before `n`, which is more than none.
    const fn before(&self, n: u32) -> Self {
        Self { pages: n, missing: self.missing & bits(n), ..*self }
    }

    /// Runs of missing pages: the first one's number, and how many.
    pub fn runs(&self) -> impl Iterator<Item = (u32, u32)> + use<> {
        let mut left = self.missing;
        let mut at = 0;
        std::iter::from_fn(move || {
            if left == 0 {
                return None;
            }
            let skipped = left.trailing_zeros();
            let count = (left >> skipped).trailing_ones();
            let found = (at + skipped, count);
            left = left.checked_shr(skipped + count).unwrap_or(0);
            at += skipped + count;
            Some(found)
        })
    }
}

/// The lowest `n` bits, at most 64.
const fn bits(n: u32) -> u64 {
    match n {
        0 => 0,
        _ => u64::MAX >> (u64::BITS - n),
    }
}

/// The missing pages of one address space.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// By the address of its first page. They do not overlap, and each misses a page.
    pieces: BTreeMap<u64, Piece>,
    /// How many pages they miss.
    missing: u64,
}

impl Layout {
    /// Adds a region of the image that lies at `address`, page-aligned, where nothing of it lies yet. All its pages are missing.
    ///
    /// # Panics
    /// If it has no page or more than 64.
    pub fn add(&mut self, address: u64, region: u32, pages: u32) {
        assert!((1..=MOST_PAGES).contains(&u64::from(pages)), "a region has 1 to 64 pages");
        self.keep(address, Piece { region, first: 0, pages, missing: bits(pages) });
    }

    /// How many pieces it has, each of which takes memory.
    pub fn piece_count(&self) -> usize {
        self.pieces.len()
    }

    /// Nothing is missing.
    pub fn is_complete(&self) -> bool {
        self.pieces.is_empty()
    }

    /// How many pages are missing.
    pub const fn missing_pages(&self) -> u64 {
        self.missing
    }

    /// The piece that misses the page at `address`, and where it lies.
    pub fn at(&self, address: u64) -> Option<(u64, Piece)> {
        let (start, piece) = self.pieces.range(..=address).next_back()?;
        let n = (address - start) / PAGE;
        (n < u64::from(piece.pages) && piece.missing >> n & 1 == 1).then_some((*start, *piece))
    }

    /// The first piece that begins in a range.
    pub fn first_in(&self, range: Range<u64>) -> Option<(u64, Piece)> {
        self.pieces.range(range).next().map(|(start, piece)| (*start, *piece))
    }

    /// All pieces, by ascending address.
    pub fn pieces(&self) -> impl Iterator<Item = (u64, Piece)> {
        self.pieces.iter().map(|(start, piece)| (*start, *piece))
    }

    /// The first piece at `address` or behind it; from the beginning again where there is none.
    pub fn next_from(&self, address: u64) -> Option<(u64, Piece)> {
        let found = self.pieces.range(address..).next().or_else(|| self.pieces.first_key_value());
        found.map(|(start, piece)| (*start, *piece))
    }

    /// How many of the pages from `address` on, at most `most`, are before the next missing page: nothing of the image belongs there.
    pub fn free_from(&self, address: u64, most: u64) -> u64 {
        let around = self.pieces.range(..address).next_back().and_then(|(start, piece)| {
            let n = (address - start) / PAGE;
            let missing = if n < u64::from(piece.pages) { piece.missing >> n } else { 0 };
            (missing != 0).then(|| u64::from(missing.trailing_zeros()))
        });
        // A piece misses its first page or a later one.
        let behind = self.pieces.range(address..).next();
        let behind = behind.map(|(start, piece)| (start - address) / PAGE + u64::from(piece.missing.trailing_zeros()));
        most.min(around.or(behind).unwrap_or(u64::MAX))
    }

    /// The pages of `range`, page-aligned, are not missing any more: they are in place, given up, or unmapped.
    pub fn remove(&mut self, range: &Range<u64>) {
        drop(self.take(range));
    }

    /// Memory was moved: what is missing of `len` bytes at `from` is missing at `to`, and of what lay there nothing.
    pub fn move_to(&mut self, from: u64, to: u64, len: u64) {
        let moved = self.take(&(from..from.saturating_add(len)));
        self.remove(&(to..to.saturating_add(len)));
        for (start, piece) in moved {
            self.keep(start - from + to, piece);
        }
    }

    /// Takes out the pages of a range.
    fn take(&mut self, range: &Range<u64>) -> Vec<(u64, Piece)> {
        let mut taken = Vec::new();
        if range.start >= range.end {
            return taken;
        }
        let before = self.pieces.range(..range.start).next_back();
        let first = before.filter(|(start, piece)| *start + piece.bytes() > range.start);
        let first = first.map_or(range.start, |(start, _)| *start);
        let touched: Vec<(u64, Piece)> =
            self.pieces.range(first..range.end).map(|(start, piece)| (*start, *piece)).collect();
        for (mut start, mut piece) in touched {
            self.pieces.remove(&start);
            self.missing -= u64::from(piece.missing.count_ones());
            if start < range.start {
                let n = ((range.start - start) / PAGE) as u32;
                self.keep(start, piece.before(n));
                (start, piece) = (range.start, piece.behind(n));
            }
            if start + piece.bytes() > range.end {
                let n = ((range.end - start) / PAGE) as u32;
                self.keep(range.end, piece.behind(n));
                piece = piece.before(n);
            }
            if piece.missing != 0 {
                taken.push((start, piece));
            }
        }
        taken
    }

    /// Keeps a piece if it misses a page.
    fn keep(&mut self, start: u64, piece: Piece) {
        if piece.missing != 0 {
            self.missing += u64::from(piece.missing.count_ones());
            self.pieces.insert(start, piece);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The same, page by page: at an address, a page of a region.
    type Model = BTreeMap<u64, (u32, u32)>;

    fn model_of(layout: &Layout) -> Model {
        let of_piece = |(start, piece): (&u64, &Piece)| {
            let (start, piece) = (*start, *piece);
            let pages = piece.runs().flat_map(|(first, count)| first..first + count);
            pages.map(move |n| (start + u64::from(n) * PAGE, (piece.region, piece.first + n))).collect::<Vec<_>>()
        };
        layout.pieces.iter().flat_map(of_piece).collect()
    }

    #[derive(Clone, Debug)]
    enum Change {
        Remove(u64, u64),
        Move(u64, u64, u64),
    }

    fn change() -> impl Strategy<Value = Change> {
        prop_oneof![
            (0..300_u64, 0..90_u64).prop_map(|(start, pages)| Change::Remove(start, pages)),
            (0..300_u64, 0..600_u64, 1..90_u64).prop_map(|(from, to, pages)| Change::Move(from, to, pages)),
        ]
    }

    proptest! {
        #[test]
        fn it_is_as_page_by_page(
            regions in prop::collection::vec((1..=64_u32, 0..20_u64), 1..8),
            changes in prop::collection::vec(change(), 0..40),
        ) {
            let (mut layout, mut model) = (Layout::default(), Model::new());
            let mut at = 0;
            for (n, (pages, gap)) in regions.iter().enumerate() {
                layout.add(at * PAGE, n as u32, *pages);
                model.extend((0..*pages).map(|page| ((at + u64::from(page)) * PAGE, (n as u32, page))));
                at += u64::from(*pages) + gap;
            }
            for change in changes {
                match change {
                    Change::Remove(start, pages) => {
                        let range = start * PAGE..(start + pages) * PAGE;
                        layout.remove(&range);
                        model.retain(|address, _| !range.contains(address));
                    }
                    // The kernel moves to where nothing of the old place is.
                    Change::Move(from, to, pages) if from + pages <= to || to + pages <= from => {
                        let (from, to, len) = (from * PAGE, to * PAGE, pages * PAGE);
                        layout.move_to(from, to, len);
                        let moved: Vec<_> = model.range(from..from + len).map(|(at, page)| (*at, *page)).collect();
                        model.retain(|at, _| !(from..from + len).contains(at) && !(to..to + len).contains(at));
                        model.extend(moved.into_iter().map(|(at, page)| (at - from + to, page)));
                    }
                    Change::Move(..) => {}
                }
                prop_assert_eq!(&model_of(&layout), &model);
                prop_assert_eq!(layout.missing_pages(), model.len() as u64);
                prop_assert!(layout.pieces.values().all(|piece| piece.missing != 0 && piece.missing & !bits(piece.pages) == 0));
                for page in 0..700 {
                    let found = layout.at(page * PAGE).map(|(start, piece)| {
                        (piece.region, piece.first + ((page * PAGE - start) / PAGE) as u32)
                    });
                    prop_assert_eq!(found, model.get(&(page * PAGE)).copied());
                    let next = model.range(page * PAGE..).next().map_or(u64::MAX, |(at, _)| at / PAGE - page);
                    prop_assert_eq!(layout.free_from(page * PAGE, 16), next.min(16));
                }
            }
        }
    }

    #[test]
    fn what_is_next_goes_round() {
        let mut layout = Layout::default();
        layout.add(8 * PAGE, 0, 2);
        layout.add(20 * PAGE, 1, 64);
        assert_eq!(layout.next_from(9 * PAGE).map(|(start, _)| start / PAGE), Some(20));
        assert_eq!(layout.next_from(21 * PAGE).map(|(start, _)| start / PAGE), Some(8));
        assert_eq!([layout.free_from(0, 100), layout.free_from(84 * PAGE, 16)], [8, 16]);
        layout.remove(&(0..200 * PAGE));
        assert!(layout.is_complete() && layout.next_from(0).is_none());
    }
}
