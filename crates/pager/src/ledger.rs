//! What a program has done to its missing pages, for the pager that comes after one that was killed.
//!
//! ```text
//! 0       8         16                24        32                 64    72  4096     4160
//! │ magic │ records │ records before  │ space   │ the last message │ ran │ … │ record │ …
//!                   └────────── the slot ────────────────────────┘
//! ```
//! A memory file, which whoever parks the contexts parks as well. Pages that are in place need no record: to place them again changes
//! nothing. What the program has given up, unmapped or moved does, for the kernel tells it once.
//!
//! The kernel itself writes a message into the slot, as it lets the program go on: there is no moment in which a change is known to nobody.
//! A change in the slot counts as long as there are as many records as before it was received. A child's context is the exception: until
//! it is parked, the pager alone has it, and its app is lost with the pager.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use torpor_linux::shared_words::{BYTES as PAGE_BYTES, SharedWords};
use torpor_linux::userfault::{MESSAGE_WORDS, Message, Received, Userfault};

use crate::layout::Layout;

const MAGIC: u64 = u64::from_le_bytes(*b"TPRLEDG2");
const RECORD_BYTES: usize = 64;
/// Records at most: no program changes its memory so often in so short a time, but to use up ours.
const MOST_RECORDS: u64 = 1 << 20;
/// So many take 4 MiB.
const MANY_RECORDS: u64 = 1 << 16;

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

impl Change {
    /// What a message changes; none for a fault.
    fn received(space: usize, received: Received) -> Option<Self> {
        match received {
            Received::Fault(_) => None,
            Received::Forked => Some(Self::Forked { space }),
            Received::Moved { from, to, len } => Some(Self::Moved { space, from, to, len }),
            Received::Removed(range) | Received::Unmapped(range) => {
                Some(Self::Gone { space, start: range.start, end: range.end })
            }
        }
    }
}

/// Why a ledger says nothing.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// It could not be read.
    #[error("reading the ledger of missing pages")]
    Read(#[source] io::Error),
    /// It is no ledger, or not of these address spaces.
    #[error("the ledger of missing pages is damaged")]
    Damaged,
}

/// The ledger of one app.
#[derive(Debug)]
pub struct Ledger {
    file: File,
    page: SharedWords,
}

/// The words of the first page.
struct Head<'a> {
    magic: &'a AtomicU64,
    records: &'a AtomicU64,
    /// Records before the message in the slot.
    before: &'a AtomicU64,
    /// Whose message it is.
    space: &'a AtomicU64,
    slot: &'a [AtomicU64; MESSAGE_WORDS],
    /// 1: the program has run since it was begun.
    ran: &'a AtomicU64,
}

impl Ledger {
    /// An empty one.
    ///
    /// # Errors
    /// Of memfd_create(2), ftruncate(2) and mmap(2).
    pub fn create() -> io::Result<Self> {
        let file = File::from(memfd_create("torpor-ledger", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?);
        file.set_len(PAGE_BYTES as u64)?;
        fcntl_add_seals(&file, SealFlags::SHRINK)?;
        let ledger = Self::map(file)?;
        ledger.head().magic.store(MAGIC, Ordering::SeqCst);
        Ok(ledger)
    }

    /// One that was parked.
    ///
    /// # Errors
    /// Where it is none.
    pub fn from_parked(file: OwnedFd) -> io::Result<Self> {
        Self::map(File::from(file))
    }

    fn map(file: File) -> io::Result<Self> {
        let page = SharedWords::map(file.as_fd())?;
        Ok(Self { file, page })
    }

    /// Another descriptor of it.
    ///
    /// # Errors
    /// Of dup(2) and mmap(2).
    pub fn duplicate(&self) -> io::Result<Self> {
        Self::map(self.file.try_clone()?)
    }

    fn head(&self) -> Head<'_> {
        let [magic, records, before, space, rest @ ..] = self.page.words();
        let (slots, _) = rest.as_chunks();
        Head { magic, records, before, space, slot: &slots[0], ran: &rest[MESSAGE_WORDS] }
    }

    /// Nothing has changed yet.
    pub fn clear(&self) {
        let Head { records, before, ran, .. } = self.head();
        ran.store(0, Ordering::SeqCst);
        // A message that is still in the slot is older than no record.
        before.store(u64::MAX, Ordering::SeqCst);
        records.store(0, Ordering::SeqCst);
    }

    /// The program is about to run without all of its memory: from here on it is told what the program changes.
    ///
    /// # Errors
    /// As of [`Ledger::record`].
    pub fn begin(&self) -> io::Result<()> {
        self.clear();
        // A change of nothing.
        self.record(&Change::Gone { space: 0, start: 0, end: 0 })
    }

    /// Whether it was [begun](Ledger::begin) since it was cleared.
    pub fn has_begun(&self) -> bool {
        self.head().records.load(Ordering::SeqCst) > 0
    }

    /// The program runs: what is in its memory is newer than any image.
    pub fn set_run(&self) {
        self.head().ran.store(1, Ordering::SeqCst);
    }

    /// Whether it [has run](Ledger::set_run) since this was begun.
    pub fn has_run(&self) -> bool {
        self.head().ran.load(Ordering::SeqCst) == 1
    }

    /// It has become so long that memory should come back before much more is recorded.
    pub fn is_long(&self) -> bool {
        self.head().records.load(Ordering::SeqCst) > MANY_RECORDS
    }

    /// Receives the next message of a space; a change must be recorded before the next is received.
    ///
    /// # Errors
    /// Of [`Userfault::receive`].
    pub fn receive(&self, space: usize, userfault: &Userfault) -> io::Result<Option<Message>> {
        let head = self.head();
        // What is in the slot is recorded, or a fault: it says nothing until there is another message.
        head.before.store(u64::MAX, Ordering::SeqCst);
        head.slot[0].store(0, Ordering::SeqCst);
        head.space.store(space as u64, Ordering::SeqCst);
        head.before.store(head.records.load(Ordering::SeqCst), Ordering::SeqCst);
        userfault.receive(head.slot)
    }

    /// Adds a record.
    ///
    /// # Errors
    /// Of write(2); where there are too many.
    pub fn record(&self, change: &Change) -> io::Result<()> {
        self.record_all(std::slice::from_ref(change))
    }

    /// Adds records, all or none.
    ///
    /// # Errors
    /// As of [`Ledger::record`].
    pub fn record_all(&self, changes: &[Change]) -> io::Result<()> {
        let mut bytes = Vec::with_capacity(changes.len() * RECORD_BYTES);
        for change in changes {
            let words = match *change {
                Change::Gone { space, start, end } => [1, space as u64, start, end, 0],
                Change::Moved { space, from, to, len } => [2, space as u64, from, to, len],
                Change::Forked { space } => [3, space as u64, 0, 0, 0],
            };
            words.iter().for_each(|word| bytes.extend(word.to_le_bytes()));
            bytes.resize(bytes.len().next_multiple_of(RECORD_BYTES), 0);
        }
        let records = self.head().records;
        let n = records.load(Ordering::SeqCst);
        let more = changes.len() as u64;
        if n + more > MOST_RECORDS {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.file.write_all_at(&bytes, place(n))?;
        records.store(n + more, Ordering::SeqCst);
        Ok(())
    }

    /// Everything that was recorded, in its order, and what was received and not recorded.
    ///
    /// # Errors
    /// See [`LedgerError`]: nothing is known of the missing pages then.
    pub fn read(&self) -> Result<Vec<Change>, LedgerError> {
        let head = self.head();
        let records = head.records.load(Ordering::SeqCst);
        if head.magic.load(Ordering::SeqCst) != MAGIC || records > MOST_RECORDS {
            return Err(LedgerError::Damaged);
        }
        let mut changes = Vec::new();
        for n in 0..records {
            let mut record = [0; RECORD_BYTES];
            self.file.read_exact_at(&mut record, place(n)).map_err(LedgerError::Read)?;
            let (words, _) = record.as_chunks::<8>();
            let word = |n: usize| words.get(n).map_or(0, |word| u64::from_le_bytes(*word));
            let space = word(1) as usize;
            changes.push(match word(0) {
                1 => Change::Gone { space, start: word(2), end: word(3) },
                2 => Change::Moved { space, from: word(2), to: word(3), len: word(4) },
                3 => Change::Forked { space },
                _ => return Err(LedgerError::Damaged),
            });
        }
        if head.before.load(Ordering::SeqCst) == records {
            let received = Received::in_slot(head.slot).map_err(|_| LedgerError::Damaged)?;
            let space = head.space.load(Ordering::SeqCst) as usize;
            changes.extend(received.and_then(|received| Change::received(space, received)));
        }
        Ok(changes)
    }
}

/// Where a record is.
const fn place(n: u64) -> u64 {
    PAGE_BYTES as u64 + n * RECORD_BYTES as u64
}

impl AsFd for Ledger {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// How many pieces all layouts of an app may have, children included, if it began with these. A piece takes about 64 bytes.
pub(crate) fn most_pieces<'a>(layouts: impl Iterator<Item = &'a Layout>) -> usize {
    /// Enough for a hundred children of most programs.
    const ALWAYS: usize = 1 << 20;
    const TIMES: usize = 8;
    ALWAYS + TIMES * layouts.map(Layout::piece_count).sum::<usize>()
}

/// Applies changes to the layouts that address spaces had at first; gives those that they have now, children included.
///
/// # Errors
/// [`LedgerError::Damaged`] where a change names a space that is not there, an address that is none, or too many children.
pub fn replay(mut layouts: Vec<Layout>, changes: &[Change]) -> Result<Vec<Layout>, LedgerError> {
    let (most, mut pieces) = (most_pieces(layouts.iter()), layouts.iter().map(Layout::piece_count).sum::<usize>());
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
                pieces += child.piece_count();
                if pieces > most {
                    return Err(LedgerError::Damaged);
                }
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
        ledger.record_all(&changes).unwrap();
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
    fn what_was_received_counts_until_it_is_recorded() {
        /// `UFFD_EVENT_UNMAP`
        const UNMAP: u64 = 0x16;
        let ledger = Ledger::create().unwrap();
        let first = Change::Forked { space: 0 };
        ledger.record(&first).unwrap();
        let userfault = Userfault::of_this_process().unwrap();
        assert!(ledger.receive(1, &userfault).unwrap().is_none());
        assert_eq!(ledger.read().unwrap(), std::slice::from_ref(&first), "nothing was received");
        // As the kernel writes it.
        let slot = ledger.head().slot;
        [(1, PAGE), (2, 3 * PAGE), (0, UNMAP)].into_iter().for_each(|(n, word)| slot[n].store(word, Ordering::SeqCst));
        let last = Change::Gone { space: 1, start: PAGE, end: 3 * PAGE };
        let parked = Ledger::from_parked(ledger.as_fd().try_clone_to_owned().unwrap()).unwrap();
        assert_eq!(parked.read().unwrap(), [first.clone(), last.clone()]);
        ledger.record(&last).unwrap();
        assert_eq!(parked.read().unwrap(), [first, last], "once");
        ledger.clear();
        assert_eq!(parked.read().unwrap(), []);
        slot[0].store(0x12, Ordering::SeqCst);
        ledger.head().before.store(0, Ordering::SeqCst);
        assert_eq!(parked.read().unwrap(), [], "a fault changes nothing");
    }

    #[test]
    fn one_that_is_damaged_is_not_believed() {
        let ledger = Ledger::create().unwrap();
        ledger.record(&Change::Forked { space: 0 }).unwrap();
        ledger.file.write_all_at(&[7], place(0)).unwrap();
        assert!(matches!(ledger.read(), Err(LedgerError::Damaged)));
        ledger.clear();
        assert_eq!(ledger.read().unwrap(), []);
        ledger.head().records.store(MOST_RECORDS + 1, Ordering::SeqCst);
        assert!(matches!(ledger.read(), Err(LedgerError::Damaged)));
        ledger.head().records.store(3, Ordering::SeqCst);
        ledger.file.set_len(PAGE_BYTES as u64 + 2 * RECORD_BYTES as u64).unwrap();
        assert!(matches!(ledger.read(), Err(LedgerError::Read(_) | LedgerError::Damaged)), "they are not in the file");
        ledger.clear();
        ledger.head().magic.store(0, Ordering::SeqCst);
        assert!(matches!(ledger.read(), Err(LedgerError::Damaged)));
        let other = File::from(memfd_create("other", MemfdFlags::CLOEXEC).unwrap());
        assert!(Ledger::from_parked(other.into()).is_err());
    }
}
