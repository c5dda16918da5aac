//! What the images of a state lead to, for the pages that it writes to again and again: what has changed of them is told by comparing.

use crate::image::LINE;
use crate::windows::PAGE;

/// Pages of which a copy is kept. A message of a small program writes to five to seven.
const MOST_PAGES: usize = 16;
const LINES: usize = PAGE / LINE;

/// Lines within a window, ascending: first and number of each run.
pub(crate) type Runs = Vec<(usize, usize)>;

/// Copies of pages. Nothing is allocated before the first one.
#[derive(Debug, Default)]
pub(crate) struct Shadows {
    shadows: Vec<Shadow>,
    /// Images of changes until now.
    round: u64,
}

#[derive(Debug)]
struct Shadow {
    page: usize,
    /// The round in which the page was last written to.
    used: u64,
    /// As it is in the images.
    bytes: Box<[u8; PAGE]>,
}

impl Shadows {
    /// Begins the next image of changes. Some of the pages that a state has (`is_taken`) were written to: runs, ascending.
    pub(crate) fn begin(&mut self, is_taken: impl Fn(usize) -> bool, written: &[(usize, usize)]) {
        self.round += 1;
        // What combines images leaves pages out that are not taken: lines alone would not do when such a page is taken again.
        self.shadows.retain(|shadow| is_taken(shadow.page));
        for shadow in &mut self.shadows {
            let next = written.partition_point(|(first, count)| first + count <= shadow.page);
            if written.get(next).is_some_and(|(first, _)| *first <= shadow.page) {
                shadow.used = self.round;
            }
        }
    }

    /// Adds the lines of a page that differ from what is in the images: all of them where that is not known. They are in the next image.
    pub(crate) fn take(&mut self, page: usize, now: &[u8; PAGE], runs: &mut Runs) {
        let Some(shadow) = self.shadows.iter_mut().find(|shadow| shadow.page == page) else {
            self.add(page, now);
            return push(runs, page * LINES, LINES);
        };
        let mut left = differing(&shadow.bytes, now);
        while left != 0 {
            let first = left.trailing_zeros() as usize;
            let count = (left >> first).trailing_ones() as usize;
            let bytes = first * LINE..(first + count) * LINE;
            shadow.bytes[bytes.clone()].copy_from_slice(&now[bytes]);
            push(runs, page * LINES + first, count);
            left &= u64::MAX.checked_shl((first + count) as u32).unwrap_or(0);
        }
    }

    /// Keeps a copy of a page, in the place of the one that was written to longest ago: none in this round.
    pub(crate) fn add(&mut self, page: usize, bytes: &[u8; PAGE]) {
        if !self.is_full() {
            self.shadows.push(Shadow { page, used: self.round, bytes: Box::new(*bytes) });
        } else if let Some(oldest) = self.shadows.iter_mut().min_by_key(|shadow| shadow.used)
            && oldest.used < self.round
        {
            (oldest.page, oldest.used) = (page, self.round);
            oldest.bytes.copy_from_slice(bytes);
        }
    }

    /// There is a copy of a page.
    pub(crate) fn has(&self, page: usize) -> bool {
        self.shadows.iter().any(|shadow| shadow.page == page)
    }

    pub(crate) fn is_full(&self) -> bool {
        self.shadows.len() >= MOST_PAGES
    }

    /// All pages are in the next image, as they are now; none: it is not taken any more.
    pub(crate) fn renew<'a>(&mut self, now: impl Fn(usize) -> Option<&'a [u8; PAGE]>) {
        self.shadows.retain_mut(|shadow| {
            now(shadow.page).is_some_and(|bytes| {
                shadow.bytes.copy_from_slice(bytes);
                true
            })
        });
    }
}

fn push(runs: &mut Runs, first: usize, count: usize) {
    match runs.last_mut() {
        Some((before, some)) if *before + *some == first => *some += count,
        _ => runs.push((first, count)),
    }
}

/// Bit n: line n is another.
fn differing(one: &[u8; PAGE], other: &[u8; PAGE]) -> u64 {
    let lines = one.as_chunks::<LINE>().0.iter().zip(other.as_chunks::<LINE>().0);
    lines.enumerate().fold(0, |bits, (number, (one, other))| bits | u64::from(differs(one, other)) << number)
}

/// Without branches or a call of `memcmp`, which takes 0.1 µs less for a page.
fn differs(one: &[u8; LINE], other: &[u8; LINE]) -> bool {
    let words = one.as_chunks::<8>().0.iter().zip(other.as_chunks::<8>().0);
    words.fold(0, |bits, (one, other)| bits | (u64::from_ne_bytes(*one) ^ u64::from_ne_bytes(*other))) != 0
}

const _: () = assert!(LINES == u64::BITS as usize);

#[cfg(test)]
mod tests {
    use super::*;

    /// The image after a round in which these pages were written to, each at a byte.
    fn round(shadows: &mut Shadows, pages: impl Iterator<Item = usize> + Clone, byte: usize, value: u8) -> Runs {
        let written: Runs = pages.clone().map(|page| (page, 1)).collect();
        shadows.begin(|_| true, &written);
        let mut now = [0; PAGE];
        now[byte] = value;
        let mut runs = Runs::new();
        pages.for_each(|page| shadows.take(page, &now, &mut runs));
        runs
    }

    #[test]
    fn lines_that_differ_are_found() {
        let mut shadows = Shadows::default();
        assert_eq!(round(&mut shadows, 3..5, 0, 0), [(192, 128)], "nothing is known yet");
        assert_eq!(round(&mut shadows, 3..5, 0, 0), [], "nothing differs");
        assert_eq!(round(&mut shadows, 3..5, 4095, 1), [(255, 1), (319, 1)]);
        assert_eq!(round(&mut shadows, 3..5, 64, 1), [(193, 1), (255, 1), (257, 1), (319, 1)], "back to zero, too");
        for byte in 0..PAGE {
            let mut other = [0; PAGE];
            other[byte] = 0x80;
            assert_eq!(differing(&[0; PAGE], &other), 1 << (byte / LINE));
        }
        assert_eq!(differing(&[0; PAGE], &[1; PAGE]), u64::MAX);
        shadows.begin(|_| true, &[(3, 1)]);
        let mut runs = Runs::new();
        shadows.take(3, &[7; PAGE], &mut runs);
        assert_eq!(runs, [(192, 64)]);
    }

    #[test]
    fn pages_that_are_written_to_again_keep_their_copies() {
        let mut shadows = Shadows::default();
        round(&mut shadows, 10..26, 0, 1);
        let lines = |runs: Runs| runs.iter().map(|(_, count)| count).sum::<usize>();
        // More than there are copies of: what has one keeps it.
        for value in 2..5 {
            assert_eq!(lines(round(&mut shadows, 6..26, 0, value)), 4 * LINES + MOST_PAGES);
        }
        // The one that was not written to makes room.
        assert_eq!(lines(round(&mut shadows, 9..25, 0, 5)), LINES + 15);
        assert_eq!(lines(round(&mut shadows, 9..25, 0, 6)), 16);
        // What is not taken is forgotten.
        shadows.begin(|page| page != 9, &[]);
        assert!(!shadows.has(9) && shadows.has(10) && !shadows.is_full());
    }
}
