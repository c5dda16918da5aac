//! Bringing pages that nobody waits for.

use std::time::Duration;

use torpor_image::PAGE;

use super::{HELD, LOOK, MOST_TOUCHES, Pager, Placed};
use crate::host::ServeError;
use crate::layout::Piece;
use crate::space::Space;

/// Pages that are filled between two looks at messages, while the program faults.
const STEP_PAGES: u32 = 16;
/// It faults if it has done so in the last of such a time.
const FAULTING: Duration = Duration::from_millis(2);
/// Regions that are filled between two looks at messages then.
const CROWD_FILLS: usize = 64;
/// The recording of a wake is complete when the program has not faulted for so long.
const SETTLED: Duration = Duration::from_millis(100);
/// It is cut short when the program has run for so long.
const MOST_RECORDED: Duration = Duration::from_secs(1);

/// What filling has come to.
pub(super) enum Filled {
    Some,
    /// Nothing may be filled for this long.
    Not(Duration),
}

/// What is filled next: space, address, piece; or how long nothing may be.
type Next = Result<(usize, (u64, Piece)), Duration>;

impl Pager<'_> {
    /// Brings some of what is missing.
    pub(super) fn fill_some(&mut self) -> Result<Filled, ServeError> {
        for n in 0..if self.is_crowded() { CROWD_FILLS } else { 1 } {
            if let Filled::Not(time) = self.fill()? {
                return Ok(if n > 0 { Filled::Some } else { Filled::Not(time) });
            }
        }
        Ok(Filled::Some)
    }

    /// How long nothing is to be filled, because it is recorded what the program touches.
    pub(super) fn records_for(&mut self) -> Option<Duration> {
        if !self.is_recording {
            return None;
        }
        let is_full = self.served.touches.len() >= MOST_TOUCHES;
        let is_cut = is_full
            || self.host.is_awaited()
            || self.host.is_held()
            || self.begun.is_some_and(|begun| begun.elapsed() > MOST_RECORDED);
        let left = SETTLED.checked_sub(self.faulted.elapsed());
        if left.is_some() && !is_cut {
            return left;
        }
        (self.is_recording, self.beside, self.served.settled) = (false, None, left.is_none() && !is_full);
        None
    }

    /// Brings what is next of what is missing.
    fn fill(&mut self) -> Result<Filled, ServeError> {
        if let Some(left) = self.records_for() {
            return Ok(Filled::Not(left));
        }
        let beside = self.beside.clone().and_then(|(n, range)| Some((n, self.spaces[n].layout.first_in(range)?)));
        let next = match beside {
            Some(found) => Ok(found),
            None => {
                self.beside = None;
                self.next_in_order().map_or_else(|| self.next_of_all(), Ok)
            }
        };
        let (n, (start, piece)) = match next {
            Ok(found) => found,
            Err(time) => return Ok(Filled::Not(time)),
        };
        let most = if self.faulted.elapsed() < FAULTING { STEP_PAGES } else { piece.pages };
        let first = piece.missing.trailing_zeros();
        let (placed, pages) = self.bring(n, start, piece, &(first..piece.pages.min(first + most)))?;
        self.served.filled_pages += pages;
        Ok(match placed {
            Placed::Done => Filled::Some,
            // The next message says how the address space is changed.
            Placed::Postponed => Filled::Not(HELD),
        })
    }

    /// What is next in the order of the image; none if all of it is there.
    fn next_in_order(&mut self) -> Option<(usize, (u64, Piece))> {
        loop {
            let (n, range) = self.order.get(self.next)?;
            if let Some(found) = self.spaces[*n].layout.first_in(range.clone()) {
                return Some((*n, found));
            }
            self.next += 1;
        }
    }

    /// What is next of moved memory, and then of children where there is room; an error where that must wait.
    fn next_of_all(&mut self) -> Next {
        let (at, address) = self.cursor;
        let own = |space: &Space| !space.layout.is_complete() && space.owner.is_some();
        let n = match self.spaces.get(at).filter(|space| own(space)) {
            Some(_) => at,
            None => match self.spaces.iter().position(own) {
                Some(n) => n,
                None => self.child_with_room().ok_or(LOOK)?,
            },
        };
        let found = self.spaces[n].layout.next_from(if n == at { address } else { 0 }).ok_or(LOOK)?;
        self.cursor = (n, found.0 + PAGE);
        Ok((n, found))
    }

    /// The first child that misses pages and has room for them. Children that have ended are dropped.
    fn child_with_room(&mut self) -> Option<usize> {
        for n in 0..self.spaces.len() {
            let space = &self.spaces[n];
            if space.layout.is_complete() {
                continue;
            }
            if self.host.has_room(space.layout.missing_pages() * PAGE) {
                return Some(n);
            }
            if space.has_ended() {
                self.ended(n);
            }
        }
        None
    }
}
