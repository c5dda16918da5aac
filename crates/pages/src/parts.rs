//! Areas that are copied in parts, so that an image has the pages at its front that a wake needs first.
//!
//! The parts of an area are copied in any order; each page is copied once. In the end the area is described as if it had been copied at once.

use std::ops::Range;

use super::copy::{CopiedArea, CopyError, ProcessCopier, Span};

/// Pages that wakes for some cause are expected to need first, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Expected {
    /// The cause, in words; empty for all.
    pub cause: String,
    /// By process id.
    pub ranges: Vec<(i32, Range<u64>)>,
}

/// An area that is copied in parts.
#[derive(Debug)]
pub struct PartialCopy {
    /// The whole area.
    pub span: Span,
    /// What has been copied, by ascending address.
    done: Vec<Range<u64>>,
    found: CopiedArea,
}

impl PartialCopy {
    /// Nothing of it is copied yet.
    pub fn new(span: Span) -> Self {
        Self { span, done: Vec::new(), found: CopiedArea::default() }
    }

    /// Copies what of `range` lies in it and has not been copied.
    ///
    /// # Errors
    /// As of [`ProcessCopier::area`].
    pub fn copy(&mut self, range: &Range<u64>, copier: &mut ProcessCopier<'_, '_>) -> Result<(), CopyError> {
        let range = range.start.max(self.span.range.start)..range.end.min(self.span.range.end);
        for part in without(range, &self.done) {
            self.found.extend(copier.area(&Span { range: part.clone(), ..self.span.clone() })?);
            let at = self.done.partition_point(|done| done.start < part.start);
            self.done.insert(at, part);
        }
        Ok(())
    }

    /// Copies the rest, and gives all of it.
    ///
    /// # Errors
    /// As of [`ProcessCopier::area`].
    pub fn copy_rest(&mut self, copier: &mut ProcessCopier<'_, '_>) -> Result<(), CopyError> {
        self.copy(&self.span.range.clone(), copier)
    }

    /// What was found, by ascending address.
    pub fn finish(self) -> (Span, CopiedArea) {
        let mut found = self.found;
        found.regions.sort_unstable_by_key(|region| region.start);
        found.taken.sort_unstable_by_key(|range| range.start);
        found.guards.sort_unstable_by_key(|range| range.start);
        // One that two parts have found is one.
        found.guards.dedup_by(|next, guard| {
            let is_next = next.start == guard.end;
            if is_next {
                guard.end = next.end;
            }
            is_next
        });
        (self.span, found)
    }
}

/// Copies of `ranges` what lies in `areas`, which are by ascending address.
///
/// # Errors
/// As of [`ProcessCopier::area`].
pub fn copy_ranges<'a>(
    areas: &mut [&mut PartialCopy],
    ranges: impl IntoIterator<Item = &'a Range<u64>>,
    copier: &mut ProcessCopier<'_, '_>,
) -> Result<(), CopyError> {
    for range in ranges {
        let first = areas.partition_point(|area| area.span.range.end <= range.start);
        for area in areas[first..].iter_mut().take_while(|area| area.span.range.start < range.end) {
            area.copy(range, copier)?;
        }
    }
    Ok(())
}

/// What of `range` is not in `done`, which is in order and without overlap.
pub(crate) fn without(range: Range<u64>, done: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut rest = Vec::new();
    let mut start = range.start;
    let first = done.partition_point(|one| one.end <= range.start);
    for one in done[first..].iter().take_while(|one| one.start < range.end) {
        rest.push(start..one.start);
        start = one.end;
    }
    rest.push(start..range.end);
    rest.retain(|one| one.start < one.end);
    rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_in_order() {
        let done = [2..4, 4..5, 9..12];
        assert_eq!(without(0..20, &done), [0..2, 5..9, 12..20]);
        assert_eq!(without(3..10, &done), vec![5..9]);
        assert_eq!(without(9..12, &done), []);
        assert_eq!(without(6..7, &done), vec![6..7]);
    }
}
