//! An append-only log of records, in files of some size (*segments*), with one sync for many records.
//!
//! ```text
//! append ─▶ buffer ─▶ commit: one write, one fdatasync ─▶ durable
//! ```
//! The log is used by one thread, which appends what many messages have changed and commits once: that is the group commit. Records are never
//! changed. What is committed together is a *batch*, which lies in one segment, and is there as a whole or not at all: its last record is marked,
//! and a batch without it is cut off. A segment is left only when all of it is durable, so after a crash only the last one can end with a batch
//! that is not whole; that was never committed. Each record says where its batch begins: a whole record of a batch that begins behind a broken
//! record shows that the broken one had been committed, and that is damage.
//!
//! After an error of the disk it is not known what is on it: the log takes nothing more, and is opened anew.

mod ahead;
mod record;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{FallocateFlags, FlockOperation, Mode, OFlags, fallocate, fdatasync, flock, fsync, openat};
use rustix::io::Errno;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use self::ahead::Ahead;
pub(crate) use self::record::Header;
pub use self::record::{Kind, MOST_KEY_BYTES};

/// Bytes of a segment, unless a record is larger.
const SEGMENT_BYTES: u64 = 64 << 20;
/// At the beginning of a segment: what it is, its number, and a random seed.
const MAGIC: &[u8; 16] = b"torpor clef log2";
const FIRST: u64 = 4096;
/// Bytes that are read for a header and its key.
const HEAD: usize = record::HEADER + MOST_KEY_BYTES;
const PAGE: usize = 4096;
/// Bytes that are read of the head of an image.
const IMAGE_HEAD: usize = 64;
/// How much of a segment is read at once.
const STRIDE: usize = 1 << 20;

/// Where a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Location {
    /// The segment, from 1.
    pub segment: u32,
    /// The byte in it, a multiple of 8.
    pub offset: u32,
}

impl Location {
    /// As one number, never 0.
    pub(crate) fn number(self) -> u64 {
        u64::from(self.segment) << 32 | u64::from(self.offset)
    }

    pub(crate) fn of(number: u64) -> Option<Self> {
        let (segment, offset) = ((number >> 32) as u32, number as u32);
        (segment > 0 && offset.is_multiple_of(8)).then_some(Self { segment, offset })
    }
}

/// Why the log cannot do something.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The disk cannot be read or written.
    #[error("{}", .0.display())]
    Disk(PathBuf, #[source] io::Error),
    /// What was written is not what is there.
    #[error("{} is damaged at byte {offset}", path.display())]
    Damaged {
        /// The segment.
        path: PathBuf,
        /// Where in it.
        offset: u64,
    },
    /// An earlier error: see [`Log`].
    #[error("the log has failed before, and must be opened anew")]
    Failed,
    /// Another process has it open.
    #[error("{} is used by another process", .0.display())]
    Used(PathBuf),
    /// A key of more than [`MOST_KEY_BYTES`], or a payload of 4 GiB.
    #[error("a record is too large")]
    TooLarge,
}

#[derive(Debug)]
struct Segment {
    file: Arc<File>,
    seed: u64,
    /// Behind its last record.
    end: u64,
}

/// A log.
#[derive(Debug)]
pub struct Log {
    folder: PathBuf,
    directory: File,
    /// By number; the last one is written.
    segments: BTreeMap<u32, Segment>,
    /// Appended behind the end of the last segment, and not written yet: a batch.
    buffer: Vec<u8>,
    /// Where in the buffer the last record begins.
    newest: usize,
    ahead: Ahead,
    failed: bool,
}

/// What is appended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record<'a> {
    pub(crate) kind: Kind,
    pub(crate) key: &'a [u8],
    /// The record that has what this one's changes are changes of.
    pub(crate) before: Option<Location>,
    /// In ms since 1970; 0: never.
    pub(crate) due: u64,
    pub(crate) note: &'a [u8],
    pub(crate) image: &'a [u8],
    /// This byte of the image is to lie on a page boundary of the file.
    pub(crate) aligned: Option<usize>,
}

/// A record, and its payload if that was read.
type Read<'a> = (Found<'a>, Option<&'a [u8]>);

/// A record that was found: where, what, and its key.
pub(crate) struct Found<'a> {
    pub(crate) location: Location,
    pub(crate) header: Header,
    pub(crate) key: &'a [u8],
}

impl Log {
    /// Opens the log in a directory that nobody else changes, and tells of all its records, in order.
    ///
    /// # Errors
    /// [`LogError::Disk`], [`LogError::Damaged`], [`LogError::Used`].
    pub(crate) fn open(folder: &Path, mut found: impl FnMut(Found<'_>)) -> Result<Self, LogError> {
        let disk = |error| LogError::Disk(folder.to_owned(), error);
        let directory = File::open(folder).map_err(disk)?;
        match flock(&directory, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => return Err(LogError::Used(folder.to_owned())),
            locked => locked.map_err(|error| disk(error.into()))?,
        }
        let mut numbers = Vec::new();
        for entry in fs::read_dir(folder).map_err(disk)? {
            let name = entry.map_err(disk)?.file_name();
            numbers.extend(name.to_str().and_then(|name| name.strip_suffix(".clefs")?.parse::<u32>().ok()));
        }
        numbers.sort_unstable();
        let mut log = Self {
            folder: folder.to_owned(),
            directory,
            segments: BTreeMap::new(),
            buffer: Vec::new(),
            newest: 0,
            ahead: Ahead::start(),
            failed: false,
        };
        let last = numbers.last().copied();
        for number in numbers {
            log.open_segment(number, Some(number) == last, &mut found)?;
        }
        match log.segments.last_key_value() {
            Some((number, last)) => log.write_ahead(*number, last.end),
            None => log.begin_segment(0)?,
        }
        Ok(log)
    }

    fn path(&self, number: u32) -> PathBuf {
        self.folder.join(format!("{number:010}.clefs"))
    }

    fn open_segment(&mut self, number: u32, is_last: bool, found: &mut impl FnMut(Found<'_>)) -> Result<(), LogError> {
        let path = self.path(number);
        let disk = |error| LogError::Disk(path.clone(), error);
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(&self.directory, path.file_name().unwrap_or_default(), flags, Mode::empty());
        let file = File::from(file.map_err(|error| disk(error.into()))?);
        let len = file.metadata().map_err(disk)?.len();
        let mut first = [0; 28];
        let begun = len >= FIRST && file.read_exact_at(&mut first, 0).is_ok();
        let begun = begun && first[..16] == *MAGIC && first[16..20] == number.to_le_bytes();
        if !begun {
            if is_last && is_zero(&file, FIRST.min(len), len).map_err(disk)? {
                // It was being made: nothing is in it.
                fs::remove_file(&path).map_err(disk)?;
                return fsync(&self.directory).map_err(|error| disk(error.into()));
            }
            return Err(LogError::Damaged { path, offset: 0 });
        }
        let seed = u64::from_le_bytes(*first.last_chunk().unwrap_or(&[0; 8]));
        let mut reader = Reader::new(&file, number, seed, len);
        let (mut at, mut end, mut last_batch) = (FIRST, FIRST, FIRST);
        // Of a batch whose last record has not been seen.
        let mut batch = Vec::new();
        while let Some((Found { location, header, key }, payload)) = reader.next(is_last).map_err(disk)? {
            if is_last && payload.is_none_or(|payload| xxh3_64(payload) != header.payload_checksum) {
                break;
            }
            at += header.record_bytes() as u64;
            batch.push((location, header, key.to_vec()));
            if header.is_last {
                last_batch = std::mem::replace(&mut end, at);
                batch.drain(..).for_each(|(location, header, key)| found(Found { location, header, key: &key }));
            }
        }
        // Behind the records is what was allocated, which is zero. In the last segment, what was not committed may be there.
        if !is_zero(&file, end, len).map_err(disk)? {
            if !is_last || is_committed_behind(&file, seed, end..len).map_err(disk)? {
                return Err(LogError::Damaged { path, offset: end });
            }
            // Were it to stay, it could be taken for the end of a later record.
            file.set_len(end).map_err(disk)?;
            fallocate(&file, FallocateFlags::empty(), 0, SEGMENT_BYTES.max(end)).map_err(|error| disk(error.into()))?;
        }
        if is_last {
            // What was written by somebody who was killed before it was synced, or whose sync has failed, is here, perhaps only in memory, and from now
            // on others rely on it. That can be the last batch only. The kernel writes it to the disk again if it is written again.
            let mut batch = vec![0; (end - last_batch) as usize];
            file.read_exact_at(&mut batch, last_batch)
                .and_then(|()| file.write_all_at(&batch, last_batch))
                .map_err(disk)?;
            fsync(&file).map_err(|error| disk(error.into()))?;
        }
        self.segments.insert(number, Segment { file: file.into(), seed, end });
        Ok(())
    }

    /// Begins a segment with room for a record of so many bytes.
    fn begin_segment(&mut self, bytes: u64) -> Result<(), LogError> {
        let number = self.segments.last_key_value().map_or(1, |(last, _)| last + 1);
        let path = self.path(number);
        let disk = |error: io::Error| LogError::Disk(path.clone(), error);
        let seed = getrandom::u64().map_err(|error| disk(io::Error::other(error)))?;
        let make = || -> io::Result<File> {
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let name = path.file_name().unwrap_or_default();
            let file = File::from(openat(&self.directory, name, flags, Mode::RUSR | Mode::WUSR)?);
            fallocate(&file, FallocateFlags::empty(), 0, SEGMENT_BYTES.max(FIRST + bytes))?;
            let mut first = vec![0; FIRST as usize];
            first[..16].copy_from_slice(MAGIC);
            first[16..20].copy_from_slice(&number.to_le_bytes());
            first[20..28].copy_from_slice(&seed.to_le_bytes());
            file.write_all_at(&first, 0)?;
            fsync(&file)?;
            fsync(&self.directory)?;
            Ok(file)
        };
        match make() {
            Ok(file) => {
                self.segments.insert(number, Segment { file: Arc::new(file), seed, end: FIRST });
                self.write_ahead(number, FIRST);
                Ok(())
            }
            Err(error) => {
                // A disk that is full now need not be later.
                let _ = fs::remove_file(&path);
                Err(disk(error))
            }
        }
    }

    /// Zeros are written ahead of the end of a segment. The thread that does so has a description of the file of its own: the kernel tells an error of
    /// the disk once for each description, and a commit must not miss one.
    fn write_ahead(&self, number: u32, end: u64) {
        let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let path = self.path(number);
        match openat(&self.directory, path.file_name().unwrap_or_default(), flags, Mode::empty()) {
            Ok(file) => self.ahead.begin(File::from(file), end, SEGMENT_BYTES),
            Err(error) => tracing::warn!(%error, "no zeros are written ahead of the log"),
        }
    }

    fn last(&self) -> Result<(u32, &Segment), LogError> {
        self.segments.last_key_value().map(|(number, segment)| (*number, segment)).ok_or(LogError::Failed)
    }

    /// Whether a record with so many bytes of payload is to begin a segment of its own: it does not fit into the last one, and no batch has
    /// been begun there.
    pub(crate) fn is_full(&self, payload_bytes: usize) -> bool {
        let end = self.segments.last_key_value().map_or(0, |(_, last)| last.end);
        self.buffer.is_empty() && end > FIRST && end + most_bytes(payload_bytes) > SEGMENT_BYTES
    }

    /// Bytes that were appended since the last commit.
    pub(crate) fn batch_bytes(&self) -> usize {
        self.buffer.len()
    }

    /// Begins a segment, with room for a record with so many bytes of payload. All is committed.
    ///
    /// # Errors
    /// [`LogError::Disk`]: nothing has changed.
    pub(crate) fn begin_next(&mut self, payload_bytes: usize) -> Result<(), LogError> {
        if !self.buffer.is_empty() || self.failed {
            return Err(LogError::Failed);
        }
        self.begin_segment(most_bytes(payload_bytes))
    }

    /// Adds a record, which is durable from the next [`Log::commit`] on. Gives where it is, and its bytes.
    ///
    /// # Errors
    /// [`LogError::TooLarge`].
    pub(crate) fn append(&mut self, record: &Record<'_>) -> Result<(Location, u32), LogError> {
        let Record { kind, key, before, due, note, image, aligned } = *record;
        let payload_bytes = note.len() + image.len();
        let (number, last) = self.last()?;
        let at = last.end + self.buffer.len() as u64;
        if key.len() > MOST_KEY_BYTES || at + most_bytes(payload_bytes) > u64::from(u32::MAX) {
            return Err(LogError::TooLarge);
        }
        let mut checksum = Xxh3::new();
        [note, image].iter().for_each(|part| checksum.update(part));
        let mut header = Header {
            kind,
            key_bytes: key.len(),
            payload_bytes,
            batch_begin: last.end as u32,
            before,
            due,
            note_bytes: note.len(),
            zeros: 0,
            is_last: false,
            payload_checksum: checksum.digest(),
        };
        if let Some(aligned) = aligned {
            let offset = at as usize + header.payload_offset() + note.len() + aligned;
            header.zeros = offset.next_multiple_of(PAGE) - offset;
        }
        let seed = last.seed;
        self.newest = self.buffer.len();
        header.write(key, [note, image], seed, &mut self.buffer);
        Ok((Location { segment: number, offset: at as u32 }, header.record_bytes() as u32))
    }

    /// Makes all records durable.
    ///
    /// # Errors
    /// [`LogError::Disk`], once; then [`LogError::Failed`].
    pub(crate) fn commit(&mut self) -> Result<(), LogError> {
        if self.failed {
            return Err(LogError::Failed);
        }
        if self.buffer.is_empty() {
            return Ok(());
        }
        let (number, seed) = self.last().map(|(number, last)| (number, last.seed))?;
        Header::mark_last(&mut self.buffer[self.newest..], seed);
        let (_, last) = self.last()?;
        self.ahead.pass(last.end + self.buffer.len() as u64);
        let written = last.file.write_all_at(&self.buffer, last.end).and_then(|()| Ok(fdatasync(&last.file)?));
        if let Err(error) = written {
            self.failed = true;
            return Err(LogError::Disk(self.path(number), error));
        }
        if let Some(last) = self.segments.get_mut(&number) {
            last.end += self.buffer.len() as u64;
        }
        self.buffer.clear();
        Ok(())
    }

    /// Unlocks the directory, and takes nothing more.
    pub(crate) fn close(&mut self) {
        self.failed = true;
        // The lock goes with the descriptor at the latest.
        let _ = flock(&self.directory, FlockOperation::Unlock);
    }

    /// Gives up what was appended since the last commit.
    pub(crate) fn discard(&mut self) {
        self.buffer.clear();
    }

    fn damaged(&self, Location { segment, offset }: Location) -> LogError {
        LogError::Damaged { path: self.path(segment), offset: offset.into() }
    }

    /// The header of a record, and its key.
    pub(crate) fn header(&self, location: Location) -> Result<(Header, Vec<u8>), LogError> {
        let bytes = self.bytes(location, HEAD)?;
        let damaged = || self.damaged(location);
        let seed = self.segments.get(&location.segment).map_or(0, |segment| segment.seed);
        let (header, key) = Header::read(&bytes, seed).ok_or_else(damaged)?;
        Ok((header, key.to_vec()))
    }

    /// A record: its header and payload.
    pub(crate) fn read(&self, location: Location) -> Result<(Header, Vec<u8>), LogError> {
        let (header, _) = self.header(location)?;
        let mut bytes = self.bytes(location, header.record_bytes())?;
        let damaged = || self.damaged(location);
        let begin = header.payload_offset();
        if bytes.len() < begin + header.payload_bytes {
            return Err(damaged());
        }
        bytes.drain(..begin);
        bytes.truncate(header.payload_bytes);
        if xxh3_64(&bytes) != header.payload_checksum {
            return Err(damaged());
        }
        Ok((header, bytes))
    }

    /// Where in its file the image of a record is, and its bytes, if the record is durable.
    pub(crate) fn durable_image(&self, location: Location) -> Result<Option<(&File, u64, u64)>, LogError> {
        let (header, _) = self.header(location)?;
        let Some(segment) = self.segments.get(&location.segment) else { return Ok(None) };
        let end = u64::from(location.offset) + header.record_bytes() as u64;
        let offset = u64::from(location.offset) + (header.payload_offset() + header.note_bytes) as u64;
        Ok((end <= segment.end).then_some((&segment.file, offset, (header.payload_bytes - header.note_bytes) as u64)))
    }

    /// When a record is due, and its note, whose checksum is not compared.
    pub(crate) fn note(&self, location: Location) -> Result<(u64, Vec<u8>), LogError> {
        let (header, _) = self.header(location)?;
        let mut bytes = self.bytes(location, header.payload_offset() + header.note_bytes)?;
        Ok((header.due, bytes.split_off(header.payload_offset().min(bytes.len()))))
    }

    /// The first bytes of the image of a record.
    pub(crate) fn image_head(&self, location: Location) -> Result<Vec<u8>, LogError> {
        let (header, _) = self.header(location)?;
        let begin = header.payload_offset() + header.note_bytes;
        let mut bytes = self.bytes(location, begin + IMAGE_HEAD)?;
        Ok(bytes.split_off(begin.min(bytes.len())))
    }

    /// Up to so many bytes at a location, of the disk or of what is not written yet.
    fn bytes(&self, location: Location, most: usize) -> Result<Vec<u8>, LogError> {
        let damaged = || self.damaged(location);
        let segment = self.segments.get(&location.segment).ok_or_else(damaged)?;
        let offset = u64::from(location.offset);
        if let Some(buffered) = offset.checked_sub(segment.end) {
            let is_last = self.segments.last_key_value().is_some_and(|(number, _)| *number == location.segment);
            let found = self.buffer.get(buffered as usize..).filter(|_| is_last).ok_or_else(damaged)?;
            return Ok(found[..found.len().min(most)].to_vec());
        }
        let mut bytes = vec![0; (most as u64).min(segment.end - offset) as usize];
        let read = segment.file.read_exact_at(&mut bytes, offset);
        read.map_err(|error| LogError::Disk(self.path(location.segment), error))?;
        Ok(bytes)
    }

    /// Numbers of its segments, and bytes in each.
    pub(crate) fn segments(&self) -> impl DoubleEndedIterator<Item = (u32, u64)> {
        self.segments.iter().map(|(number, segment)| (*number, segment.end - FIRST))
    }

    /// Locations and headers of the records of a segment that are durable.
    pub(crate) fn records(&self, number: u32) -> Result<Vec<(Location, Header, Vec<u8>)>, LogError> {
        let disk = |error| LogError::Disk(self.path(number), error);
        let Some(segment) = self.segments.get(&number) else { return Ok(Vec::new()) };
        let mut reader = Reader::new(&segment.file, number, segment.seed, segment.end);
        let mut records = Vec::new();
        while let Some((Found { location, header, key }, _)) = reader.next(false).map_err(disk)? {
            records.push((location, header, key.to_vec()));
        }
        if reader.at < segment.end {
            return Err(LogError::Damaged { path: self.path(number), offset: reader.at });
        }
        Ok(records)
    }

    /// Removes a segment that is not the last one.
    pub(crate) fn remove(&mut self, number: u32) -> Result<(), LogError> {
        let disk = |error: io::Error| LogError::Disk(self.path(number), error);
        fs::remove_file(self.path(number)).map_err(disk)?;
        fsync(&self.directory).map_err(|error| disk(error.into()))?;
        self.segments.remove(&number);
        Ok(())
    }
}

/// Bytes of a record at most.
fn most_bytes(payload_bytes: usize) -> u64 {
    (HEAD + PAGE + 16 + payload_bytes) as u64
}

/// Reads a segment record by record.
struct Reader<'a> {
    file: &'a File,
    number: u32,
    seed: u64,
    len: u64,
    /// Where the next record begins.
    at: u64,
    bytes: Vec<u8>,
    /// Where `bytes` begin.
    begin: u64,
}

impl<'a> Reader<'a> {
    fn new(file: &'a File, number: u32, seed: u64, len: u64) -> Self {
        Self { file, number, seed, len, at: FIRST, bytes: Vec::new(), begin: FIRST }
    }

    /// The next record, with its payload if that is wanted and there.
    fn next(&mut self, with_payload: bool) -> io::Result<Option<Read<'_>>> {
        self.fill(HEAD)?;
        let from = (self.at - self.begin) as usize;
        let Some((header, _)) = Header::read(&self.bytes[from..], self.seed) else { return Ok(None) };
        if self.at + header.record_bytes() as u64 > self.len {
            return Ok(None);
        }
        if with_payload {
            self.fill(header.record_bytes())?;
        }
        let from = (self.at - self.begin) as usize;
        let key = &self.bytes[from + record::HEADER..][..header.key_bytes];
        let payload =
            self.bytes.get(from + header.payload_offset()..).and_then(|bytes| bytes.get(..header.payload_bytes));
        let location = Location { segment: self.number, offset: self.at as u32 };
        self.at += header.record_bytes() as u64;
        Ok(Some((Found { location, header, key }, payload.filter(|_| with_payload))))
    }

    /// Has so many bytes from `at` on, or all that there are.
    fn fill(&mut self, wanted: usize) -> io::Result<()> {
        let wanted = (wanted as u64).min(self.len.saturating_sub(self.at));
        if self.at >= self.begin && self.at + wanted <= self.begin + self.bytes.len() as u64 {
            return Ok(());
        }
        let bytes = wanted.max(STRIDE as u64).min(self.len.saturating_sub(self.at));
        self.bytes.resize(bytes as usize, 0);
        self.begin = self.at;
        self.file.read_exact_at(&mut self.bytes, self.at)
    }
}

/// Whether a record is in a range whose batch begins behind the beginning of that.
fn is_committed_behind(file: &File, seed: u64, range: Range<u64>) -> io::Result<bool> {
    let mut bytes = vec![0; (range.end - range.start) as usize];
    file.read_exact_at(&mut bytes, range.start)?;
    let mut places = (0..bytes.len()).step_by(8);
    let is_behind = |header: Header| u64::from(header.batch_begin) > range.start;
    Ok(places.any(|at| Header::read(&bytes[at..], seed).is_some_and(|(header, _)| is_behind(header))))
}

fn is_zero(file: &File, from: u64, to: u64) -> io::Result<bool> {
    let mut bytes = vec![0; STRIDE];
    let mut at = from;
    while at < to {
        let some = (to - at).min(STRIDE as u64) as usize;
        file.read_exact_at(&mut bytes[..some], at)?;
        if bytes[..some].iter().any(|byte| *byte != 0) {
            return Ok(false);
        }
        at += some as u64;
    }
    Ok(true)
}
