//! A record of the log.
//!
//! | bytes | |
//! |---|---|
//! | 4 | `CLEF` |
//! | 2, 2 | kind; length of the key |
//! | 4, 4 | length of the payload; offset of the first record of the same batch in the segment |
//! | 8 | location of the previous record of the key if this one has changes since that; else 0 |
//! | 8 | when the key is due, in ms since 1970; 0: never |
//! | 4, 2 | length of the note, the first part of the payload; zeros before the payload |
//! | 2 | 1: the last record of its batch |
//! | 8 | checksum of the payload |
//! | 8 | checksum of all that is above, and of the key, with the seed of the segment: nobody who only chooses contents can forge a record |
//! | | key, padded to 8 bytes; zeros; payload, padded to 8 bytes |
//!
//! Numbers are little-endian, checksums XXH3.

use xxhash_rust::xxh3::Xxh3;

use super::Location;

/// Bytes before the key.
pub(super) const HEADER: usize = 56;
const MAGIC: u32 = u32::from_le_bytes(*b"CLEF");
/// Bytes of a key at most.
pub const MOST_KEY_BYTES: usize = 1024;

/// What a record says of its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// All of its state.
    Whole = 1,
    /// What has changed since the record before.
    Changes = 2,
    /// It is no more.
    Removed = 3,
}

/// What a record begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) kind: Kind,
    pub(crate) key_bytes: usize,
    pub(crate) payload_bytes: usize,
    pub(crate) batch_begin: u32,
    pub(crate) before: Option<Location>,
    pub(crate) due: u64,
    pub(crate) note_bytes: usize,
    /// Zeros between key and payload.
    pub(crate) zeros: usize,
    pub(crate) is_last: bool,
    pub(crate) payload_checksum: u64,
}

fn padded(bytes: usize) -> usize {
    bytes.next_multiple_of(8)
}

impl Header {
    /// Bytes of the record.
    pub(crate) fn record_bytes(&self) -> usize {
        padded(self.payload_offset() + self.payload_bytes)
    }

    /// Where in the record the payload is.
    pub(crate) fn payload_offset(&self) -> usize {
        HEADER + padded(self.key_bytes) + self.zeros
    }

    /// Adds a record with this header, whose payload has these parts, to a buffer.
    pub(super) fn write(&self, key: &[u8], payload: [&[u8]; 2], seed: u64, to: &mut Vec<u8>) {
        let begin = to.len();
        self.write_head(key, seed, to);
        to.extend_from_slice(key);
        to.resize(begin + self.payload_offset(), 0);
        payload.iter().for_each(|part| to.extend_from_slice(part));
        to.resize(begin + self.record_bytes(), 0);
    }

    /// Marks the record at the beginning of `bytes` as the last one of its batch.
    pub(super) fn mark_last(bytes: &mut [u8], seed: u64) {
        let Some((header, key)) = Self::read(bytes, seed) else { return };
        let mut head = Vec::with_capacity(HEADER);
        Self { is_last: true, ..header }.write_head(key, seed, &mut head);
        bytes[..HEADER].copy_from_slice(&head);
    }

    fn write_head(&self, key: &[u8], seed: u64, to: &mut Vec<u8>) {
        let begin = to.len();
        to.extend_from_slice(&MAGIC.to_le_bytes());
        to.extend_from_slice(&(self.kind as u16).to_le_bytes());
        to.extend_from_slice(&(key.len() as u16).to_le_bytes());
        to.extend_from_slice(&(self.payload_bytes as u32).to_le_bytes());
        to.extend_from_slice(&self.batch_begin.to_le_bytes());
        to.extend_from_slice(&self.before.map_or(0, Location::number).to_le_bytes());
        to.extend_from_slice(&self.due.to_le_bytes());
        to.extend_from_slice(&(self.note_bytes as u32).to_le_bytes());
        to.extend_from_slice(&(self.zeros as u16).to_le_bytes());
        to.extend_from_slice(&u16::from(self.is_last).to_le_bytes());
        to.extend_from_slice(&self.payload_checksum.to_le_bytes());
        let checksum = checksum(&to[begin..], key, seed);
        to.extend_from_slice(&checksum.to_le_bytes());
    }

    /// The header of the record at the beginning of `bytes`, with its key; none if there is none of this segment.
    pub(crate) fn read(bytes: &[u8], seed: u64) -> Option<(Self, &[u8])> {
        let header = bytes.get(..HEADER)?;
        let short = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
        let word = |at: usize| header[at..].first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
        let long = |at: usize| header[at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        let kind = match short(4) {
            1 => Kind::Whole,
            2 => Kind::Changes,
            3 => Kind::Removed,
            _ => return None,
        };
        let key_bytes = usize::from(short(6));
        if word(0) != MAGIC || key_bytes > MOST_KEY_BYTES {
            return None;
        }
        let key = bytes.get(HEADER..HEADER + key_bytes)?;
        if checksum(&header[..48], key, seed) != long(48) {
            return None;
        }
        let found = Self {
            kind,
            key_bytes,
            payload_bytes: word(8) as usize,
            batch_begin: word(12),
            before: Location::of(long(16)),
            due: long(24),
            note_bytes: word(32) as usize,
            zeros: usize::from(short(36)),
            is_last: short(38) == 1,
            payload_checksum: long(40),
        };
        (found.note_bytes <= found.payload_bytes).then_some((found, key))
    }
}

fn checksum(header: &[u8], key: &[u8], seed: u64) -> u64 {
    let mut hash = Xxh3::with_seed(seed);
    hash.update(header);
    hash.update(key);
    hash.digest()
}
