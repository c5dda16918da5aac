//! A bound on the memory that reading an archive takes.

use crate::error::ArchiveError;
use crate::limits::ENTRY_BYTES;

/// What is left of a bound on memory ([`crate::Limits::max_kept_bytes`]). What is dropped again is not given back: the bound is
/// on what an archive may ask for in all.
#[derive(Debug)]
pub(crate) struct Budget {
    limit: u64,
    left: u64,
}

impl Budget {
    pub(crate) fn new(limit: u64) -> Self {
        Self { limit, left: limit }
    }

    /// Takes what an entry with paths of so many bytes needs.
    pub(crate) fn take(&mut self, bytes: usize) -> Result<(), ArchiveError> {
        let left = self.left.checked_sub((bytes as u64).saturating_add(ENTRY_BYTES));
        self.left = left.ok_or(ArchiveError::Limit { limit: self.limit, what: "bytes of names to be remembered" })?;
        Ok(())
    }
}
