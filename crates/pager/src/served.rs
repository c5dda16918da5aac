//! What a pager did for an app.

use std::ops::Range;

/// A missing page that the program touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Touch {
    /// The address space, of those that were there at the beginning.
    pub space: usize,
    /// The address of the page.
    pub page: u64,
    /// It was staged.
    pub staged: bool,
}

/// What serving an app took.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// Faults on stored pages, the staged ones not counted.
    pub faults: u64,
    /// Faults on staged pages.
    pub staged_faults: u64,
    /// Faults where nothing is stored.
    pub zero_faults: u64,
    /// Pages that came by faults, neighbours included.
    pub faulted_pages: u64,
    /// Pages that came without.
    pub filled_pages: u64,
    /// Children that were forked meanwhile.
    pub forks: u64,
    /// It was recorded which pages were touched.
    pub recorded: bool,
    /// The recording is complete: it ended because the program had stopped to fault, and not because it was full or cut short.
    pub settled: bool,
    /// Nothing that was expected was in place at the beginning.
    pub all_staged: bool,
    /// Pages that were missing at the beginning.
    pub missing_pages: u64,
    /// What was staged, where it was recorded: address spaces, and addresses.
    pub staged: Vec<(usize, Range<u64>)>,
    /// What was touched, in order.
    pub touches: Vec<Touch>,
}
