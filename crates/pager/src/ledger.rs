//! What a program has done to its missing pages, for the pager that comes after one that was killed.
//!
//! ```text
//! 0                64                      128
//! │ magic │ taking │ kind │ space │ a│b│c │ …
//! ```
//! A memory file, which whoever parks the contexts parks as well. Pages that are in place need no record: to place them again changes
//! nothing. What the program has given up, unmapped or moved does, for the kernel tells it once.
//!
//! Taking a message lets the program go on, so between taking and recording it nobody knows what has happened. [`Ledger::taking`] marks
//! that time, some microseconds; where the mark is found, the program's memory cannot be trusted any more.
//!
//! Records are as long as divide a page, so that each is written whole or not at all.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

use rustix::fs::{MemfdFlags, memfd_create};

use crate::layout::Layout;

const MAGIC: u64 = u64::from_le_bytes(*b"TPRLEDGE");
const RECORD_BYTES: usize = 64;
const WORDS: usize = RECORD_BYTES / 8;
/// Records at most that are read: what is more is no ledger.
const MOST_RECORDS: u64 = 1 << 20;

/// Something that changes which pages are missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Pages were given up or unmapped.
    Gone {
        /// The address space.
        space: usize,
        /// First byte.
        start: u64,
        /// Behind the last byte.
        end: u64,
    },
    /// Memory was moved.
    Moved {
        /// The address space.
        space: usize,
        /// First byte before.
        from: u64,
        /// First byte now.
        to: u64,
        /// Bytes.
        len: u64,
    },
    /// A child was forked: its space is the next one.
    Forked {
        /// The parent's address space.
        space: usize,
    },
}

/// Why a ledger says nothing.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// It could not be read.
    #[error("reading the ledger of missing pages")]
    Read(#[source] io::Error),
    /// The pager was killed between taking a message and recording it.
    #[error("the pager was killed while it took a change of the program's memory")]
    Taking,
    /// It is no ledger, or not of these address spaces.
    #[error("the ledger of missing pages is damaged")]
    Damaged,
}

/// The ledger of one app.
#[derive(Debug)]
pub struct Ledger(File);

impl Ledger {
    /// An empty one.
    ///
    /// # Errors
    /// Of memfd_create(2) and write(2).
    pub fn create() -> io::Result<Self> {
        let ledger = Self(File::from(memfd_create("torpor-ledger", MemfdFlags::CLOEXEC)?));
        ledger.write(0, &[MAGIC])?;
        Ok(ledger)
    }

    /// One that was parked.
    pub fn from_parked(file: OwnedFd) -> Self {
        Self(File::from(file))
    }

    /// A message is about to be taken, or was recorded.
    ///
    /// # Errors
    /// Of write(2).
    pub fn taking(&self, taking: bool) -> io::Result<()> {
        self.0.write_all_at(&u64::from(taking).to_le_bytes(), 8)
    }

    /// Adds a record.
    ///
    /// # Errors
    /// Of write(2).
    pub fn record(&self, change: &Change) -> io::Result<()> {
        let words = match *change {
            Change::Gone { space, start, end } => [1, space as u64, start, end, 0],
            Change::Moved { space, from, to, len } => [2, space as u64, from, to, len],
            Change::Forked { space } => [3, space as u64, 0, 0, 0],
        };
        let at = self.0.metadata()?.len().next_multiple_of(RECORD_BYTES as u64);
        self.write(at, &words)
    }

    fn write(&self, at: u64, words: &[u64]) -> io::Result<()> {
        let mut bytes = [0; RECORD_BYTES];
        for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        self.0.write_all_at(&bytes, at)
    }

    /// Everything that was recorded, in its order.
    ///
    /// # Errors
    /// See [`LedgerError`]: nothing is known of the missing pages then.
    pub fn read(&self) -> Result<Vec<Change>, LedgerError> {
        let length = self.0.metadata().map_err(LedgerError::Read)?.len();
        let records = length / RECORD_BYTES as u64;
        if records == 0 || records > MOST_RECORDS || !length.is_multiple_of(RECORD_BYTES as u64) {
            return Err(LedgerError::Damaged);
        }
        let word = |record: &[u8; RECORD_BYTES], n: usize| -> u64 {
            let (words, _) = record.as_chunks::<8>();
            words.get(n).map_or(0, |word| u64::from_le_bytes(*word))
        };
        let mut changes = Vec::new();
        for n in 0..records {
            let mut record = [0; RECORD_BYTES];
            self.0.read_exact_at(&mut record, n * RECORD_BYTES as u64).map_err(LedgerError::Read)?;
            let words: [u64; WORDS] = std::array::from_fn(|n| word(&record, n));
            let space = words[1] as usize;
            match (n, words[0]) {
                (0, MAGIC) if words[1] == 0 => {}
                (0, MAGIC) => return Err(LedgerError::Taking),
                (1.., 1) => changes.push(Change::Gone { space, start: words[2], end: words[3] }),
                (1.., 2) => changes.push(Change::Moved { space, from: words[2], to: words[3], len: words[4] }),
                (1.., 3) => changes.push(Change::Forked { space }),
                _ => return Err(LedgerError::Damaged),
            }
        }
        Ok(changes)
    }
}

impl AsFd for Ledger {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Applies changes to the layouts that address spaces had at first; gives those that they have now, children included.
///
/// # Errors
/// [`LedgerError::Damaged`] where a change names a space that is not there, or an address that is none.
pub fn replay(mut layouts: Vec<Layout>, changes: &[Change]) -> Result<Vec<Layout>, LedgerError> {
    for change in changes {
        let space = match *change {
            Change::Gone { space, .. } | Change::Moved { space, .. } | Change::Forked { space } => space,
        };
        let layout = layouts.get_mut(space).ok_or(LedgerError::Damaged)?;
        match *change {
            Change::Gone { start, end, .. } => layout.remove(&(start..end)),
            Change::Moved { from, to, len, .. } => layout.move_to(from, to, len),
            Change::Forked { .. } => {
                let child = layout.clone();
                layouts.push(child);
            }
        }
    }
    Ok(layouts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use torpor_image::PAGE;

    #[test]
    fn what_was_recorded_is_read_and_replayed() {
        let ledger = Ledger::create().unwrap();
        assert_eq!(ledger.read().unwrap(), []);
        let changes = [
            Change::Gone { space: 0, start: 0, end: PAGE },
            Change::Forked { space: 0 },
            Change::Moved { space: 1, from: PAGE, to: 9 * PAGE, len: PAGE },
        ];
        changes.iter().for_each(|change| ledger.record(change).unwrap());
        assert_eq!(ledger.read().unwrap(), changes);
        let mut first = Layout::default();
        first.add(0, 0, 3);
        let now = replay(vec![first], &changes).unwrap();
        let missing: Vec<Vec<u64>> =
            now.iter().map(|layout| (0..20).filter(|page| layout.at(page * PAGE).is_some()).collect()).collect();
        assert_eq!(missing, [vec![1, 2], vec![2, 9]]);
        assert!(matches!(replay(Vec::new(), &changes), Err(LedgerError::Damaged)));
    }

    #[test]
    fn one_that_was_taking_or_is_damaged_is_not_believed() {
        let ledger = Ledger::create().unwrap();
        ledger.taking(true).unwrap();
        assert!(matches!(ledger.read(), Err(LedgerError::Taking)));
        ledger.taking(false).unwrap();
        assert_eq!(ledger.read().unwrap(), []);
        ledger.0.write_all_at(&[7], RECORD_BYTES as u64).unwrap();
        assert!(matches!(ledger.read(), Err(LedgerError::Damaged)));
        ledger.0.set_len(2 * RECORD_BYTES as u64).unwrap();
        assert!(matches!(ledger.read(), Err(LedgerError::Damaged)));
        ledger.0.set_len(0).unwrap();
        assert!(matches!(ledger.read(), Err(LedgerError::Damaged)));
    }
}
