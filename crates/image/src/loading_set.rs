//! The loading set of an image: the pages that a wake needs first, at the front of its pages (FaaSnap).

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::PAGE;
use crate::codec::FormatError;

/// Pages that a wake for some cause needs first. They lie behind those of the part before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadingPart {
    /// What wakes it, in words; empty for what every wake needs.
    pub cause: String,
    /// Its first byte in the file, page-aligned.
    pub start: u64,
    /// Behind its last byte, page-aligned.
    pub end: u64,
}

/// Where in the file the pages are that a wake for `cause` needs first, `most_bytes` at most: those that every wake needs, and its own. Where
/// they are too many, those that were stored last have precedence; they are given in the order of the file.
pub fn needed(parts: &[LoadingPart], cause: &str, most_bytes: u64) -> Vec<Range<u64>> {
    let mut left = most_bytes;
    let needed = parts.iter().rev().filter(|part| part.cause.is_empty() || part.cause == cause);
    let bounded = |part: &LoadingPart| {
        let bytes = left.min(part.end - part.start);
        left -= bytes;
        part.start..part.start + bytes
    };
    let mut needed: Vec<_> = needed.map(bounded).filter(|range| !range.is_empty()).collect();
    needed.reverse();
    needed
}

/// Whether parts lie in order in `pages` of the file.
pub(crate) fn check(parts: &[LoadingPart], pages: &Range<u64>) -> Result<(), FormatError> {
    let mut begin = pages.start;
    for part in parts {
        let aligned = part.start.is_multiple_of(PAGE) && part.end.is_multiple_of(PAGE);
        if !aligned || part.start < begin || part.end < part.start || part.end > pages.end {
            return Err(FormatError::Invalid("a part of the loading set"));
        }
        begin = part.end;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(cause: &str, pages: Range<u64>) -> LoadingPart {
        LoadingPart { cause: cause.into(), start: pages.start * PAGE, end: pages.end * PAGE }
    }

    #[test]
    fn a_wake_needs_what_every_wake_needs_and_its_own() {
        let parts = [part("", 1..3), part("tcp 80", 3..4), part("timer", 6..9)];
        let pages = |cause, most| -> Vec<Range<u64>> {
            needed(&parts, cause, most * PAGE).into_iter().map(|one| one.start / PAGE..one.end / PAGE).collect()
        };
        assert_eq!(pages("timer", 100), [1..3, 6..9]);
        assert_eq!(pages("timer", 4), [1..2, 6..9]);
        assert_eq!(pages("timer", 2), vec![6..8]);
        assert_eq!(pages("udp 53", 1), vec![1..2]);
    }

    #[test]
    fn parts_are_in_order_and_within_the_pages() {
        let pages = PAGE..10 * PAGE;
        assert_eq!(check(&[part("", 1..3), part("a", 3..3), part("b", 5..10)], &pages), Ok(()));
        for wrong in [vec![part("", 0..3)], vec![part("", 9..11)], vec![part("", 2..4), part("a", 3..5)]] {
            assert!(check(&wrong, &pages).is_err(), "{wrong:?}");
        }
        let backwards = LoadingPart { cause: String::new(), start: 4 * PAGE, end: 3 * PAGE };
        let unaligned = LoadingPart { cause: String::new(), start: PAGE, end: PAGE + 1 };
        assert!(check(&[backwards], &pages).is_err() && check(&[unaligned], &pages).is_err());
    }
}
