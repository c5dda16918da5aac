//! Where copied pages go: one behind the other into the image, in large writes.
//!
//! Whoever copies asks for room, reads pages into it, and says which of them are kept: they are written from where they
//! were read to. What an image has beyond [`SMALL`] may be written by a thread of its own ([`PageSink::streamed`]), so that
//! the disk works while the next pages are read; [`ImageWriter`] says how.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use torpor_image::{Content, PAGE, REGION_PAGES, checksum};

use super::buffer::{Buffer, POOLED_BYTES};
use super::write_mode::ImageWriter;

/// Bytes copied in one call. What is copied is read once more for its checksum, and again when it is written: it stays in the cache of
/// the processor until then.
pub const BATCH_BYTES: usize = POOLED_BYTES / 4;
/// Bytes written in one call at most, by the thread that copies.
const BUFFER_BYTES: usize = POOLED_BYTES;
/// Bytes that a thread writes in one call at most: large writes past the page cache keep a disk busy.
const STREAMED_BYTES: usize = 2 << 20;
/// Buffers in turn where a thread writes.
const BUFFERS: usize = 3;
/// So much of an image is written without a thread: there is less to gain than that costs.
const SMALL: u64 = 8 << 20;
const PAGE_BYTES: usize = PAGE as usize;

/// A thread that writes.
struct Writer {
    full: Sender<(Buffer, usize, u64)>,
    empty: Receiver<io::Result<Buffer>>,
    /// Buffers that it has.
    out: usize,
    thread: JoinHandle<()>,
}

impl Writer {
    fn start(mut ways: ImageWriter) -> Self {
        let (full, work) = channel::<(Buffer, usize, u64)>();
        let (done, empty) = channel();
        let thread = std::thread::spawn(move || {
            for (buffer, used, offset) in work {
                let written = ways.write(buffer.part(0..used), offset);
                if done.send(written.map(|()| buffer)).is_err() {
                    return;
                }
            }
        });
        Self { full, empty, out: 0, thread }
    }

    /// Waits until it has written a buffer.
    fn empty(&mut self) -> io::Result<Buffer> {
        self.out -= 1;
        self.empty.recv().map_err(|_| io::Error::other("the thread that writes has ended"))?
    }

    fn give(&mut self, full: (Buffer, usize, u64)) -> io::Result<Buffer> {
        self.full.send(full).map_err(|_| io::Error::other("the thread that writes has ended"))?;
        self.out += 1;
        if self.out < BUFFERS {
            return Ok(Buffer::new(STREAMED_BYTES));
        }
        let mut empty = self.empty()?;
        // The first one was filled before there was a thread.
        empty.reserve(STREAMED_BYTES);
        Ok(empty)
    }
}

/// Writes pages one behind the other, many at a time.
pub struct PageSink<'a> {
    file: &'a File,
    /// Where the next page goes.
    pub offset: u64,
    /// The first `used` bytes of it end at `offset` and have not been written yet.
    buffer: Option<Buffer>,
    used: usize,
    /// Where the room begins that was given last.
    room: usize,
    /// Bytes that are expected in all, if a thread may write them.
    expected: Option<u64>,
    written: u64,
    writer: Option<Writer>,
}

impl<'a> PageSink<'a> {
    /// Pages go to `file` from `offset` on.
    pub const fn new(file: &'a File, offset: u64) -> Self {
        Self { file, offset, buffer: None, used: 0, room: 0, expected: None, written: 0, writer: None }
    }

    /// As [`PageSink::new`], by a thread of its own if it is much; about `expected` bytes are to come. The file may be longer
    /// afterwards than what was written.
    pub fn streamed(file: &'a File, offset: u64, expected: u64) -> Self {
        let mut sink = Self::new(file, offset);
        sink.expected = Some(expected);
        sink
    }

    /// Bytes of the buffer that is filled now.
    const fn buffer_bytes(&self) -> usize {
        if self.writer.is_some() { STREAMED_BYTES } else { BUFFER_BYTES }
    }

    /// Room for pages, [`BATCH_BYTES`] at most, with whatever bytes in it.
    pub fn room(&mut self, len: usize) -> io::Result<&mut [u8]> {
        if self.used + len > self.buffer_bytes() {
            self.hand_over()?;
        }
        self.room = self.used;
        let bytes = self.buffer_bytes();
        let buffer = self.buffer.get_or_insert_with(|| Buffer::new(bytes));
        Ok(buffer.part_mut(self.room..self.room + len))
    }

    /// Pages of the room, by their numbers.
    pub fn pages(&self, pages: Range<usize>) -> &[u8] {
        let range = self.room + pages.start * PAGE_BYTES..self.room + pages.end * PAGE_BYTES;
        self.buffer.as_ref().map_or(&[], |buffer| buffer.part(range))
    }

    /// Keeps these pages of the room, which are behind those kept before.
    pub fn keep(&mut self, pages: Range<usize>) -> Content {
        let (offset, checksum) = (self.offset, checksum(self.pages(pages.clone())));
        let len = pages.len() * PAGE_BYTES;
        if let Some(buffer) = &mut self.buffer {
            let (from, to) = (self.room + pages.start * PAGE_BYTES, self.used);
            if from != to {
                buffer.part_mut(0..from + len).copy_within(from.., to);
            }
        }
        self.used += len;
        self.offset += len as u64;
        Content::Stored { offset, checksum }
    }

    /// Keeps of the first `count` pages of the room those that are not zero. Tells `found` of each run of either kind.
    pub fn keep_all(&mut self, count: usize, mut found: impl FnMut(Range<usize>, Content)) {
        let mut first = 0;
        while first < count {
            let zero = is_zero(self.pages(first..first + 1));
            let limit = if zero { count } else { count.min(first + REGION_PAGES as usize) };
            let end = (first + 1..limit).find(|n| is_zero(self.pages(*n..n + 1)) != zero).unwrap_or(limit);
            let content = if zero { Content::Zero } else { self.keep(first..end) };
            found(first..end, content);
            first = end;
        }
    }

    /// Keeps the first `count` pages of the room, those of zeros too. Tells `found` of each run.
    pub fn keep_whole(&mut self, count: usize, mut found: impl FnMut(Range<usize>, Content)) {
        for first in (0..count).step_by(REGION_PAGES as usize) {
            let pages = first..count.min(first + REGION_PAGES as usize);
            let content = self.keep(pages.clone());
            found(pages, content);
        }
    }

    /// Sees to it that what is kept so far will be written.
    fn hand_over(&mut self) -> io::Result<()> {
        let Some(buffer) = self.buffer.take() else { return Ok(()) };
        let offset = self.offset - self.used as u64;
        if self.writer.is_none()
            && self.written >= SMALL
            && let Some(expected) = self.expected
        {
            let left = expected.saturating_sub(self.written);
            self.writer = Some(Writer::start(ImageWriter::open(self.file, offset, left)?));
        }
        let empty = match &mut self.writer {
            Some(writer) => writer.give((buffer, self.used, offset))?,
            None => {
                self.file.write_all_at(buffer.part(0..self.used), offset)?;
                buffer
            }
        };
        self.buffer = Some(empty);
        self.written += self.used as u64;
        self.used = 0;
        Ok(())
    }

    /// Writes what has not been written yet, and waits for it.
    pub fn flush(&mut self) -> io::Result<()> {
        self.hand_over()?;
        while let Some(writer) = self.writer.as_mut().filter(|writer| writer.out > 0) {
            writer.empty()?;
        }
        Ok(())
    }
}

impl Drop for PageSink<'_> {
    fn drop(&mut self) {
        if let Some(Writer { full, empty, thread, .. }) = self.writer.take() {
            drop((full, empty));
            // It ends once the write that it is at has ended; what it could say has been asked for by `flush`.
            let _ = thread.join();
        }
    }
}

/// Whether a page holds only zeros.
pub fn is_zero(page: &[u8]) -> bool {
    // Compared in blocks that the compiler turns into vector instructions.
    page.chunks_exact(64).all(|block| block == [0; 64])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pages of which every third is zero, more than the page cache gets.
    fn write(mut sink: PageSink<'_>, batches: u64) -> (u64, Vec<(u64, Content)>) {
        let mut found = Vec::new();
        for batch in 0..batches {
            let room = sink.room(BATCH_BYTES).unwrap();
            let pages = room.chunks_exact_mut(PAGE_BYTES).enumerate();
            pages.for_each(|(n, page)| page.fill(if n % 3 == 0 { 0 } else { (batch + n as u64) as u8 | 1 }));
            sink.keep_all(BATCH_BYTES / PAGE_BYTES, |pages, content| {
                found.push((batch * BATCH_BYTES as u64 + pages.start as u64 * PAGE, content));
            });
        }
        sink.flush().unwrap();
        (sink.offset, found)
    }

    #[test]
    fn pages_are_where_they_are_said_to_be() {
        // Not in memory: there is no way past the page cache there.
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        // Nobody has room for the last one in the page cache.
        for (name, expected) in [("whole", None), ("cached", Some(1)), ("direct", Some(1 << 60))] {
            let file = File::options().read(true).write(true).create_new(true).open(dir.path().join(name));
            let file = file.unwrap();
            let batches = 8 * SMALL / BATCH_BYTES as u64;
            let sink = match expected {
                Some(expected) => PageSink::streamed(&file, PAGE, expected),
                None => PageSink::new(&file, PAGE),
            };
            let (end, found) = write(sink, batches);
            assert_eq!(file.metadata().unwrap().len(), end);
            assert!(end > SMALL + STREAMED_BYTES as u64, "{end}");
            let mut next = PAGE;
            for (start, content) in found {
                let (batch, first) = (start / BATCH_BYTES as u64, start % BATCH_BYTES as u64 / PAGE);
                let Content::Stored { offset, checksum: expected } = content else {
                    assert_eq!(first % 3, 0);
                    continue;
                };
                assert_eq!(offset, next);
                let pages = 2 - (first + 1) / 256;
                let mut bytes = vec![0; (pages * PAGE) as usize];
                file.read_exact_at(&mut bytes, offset).unwrap();
                assert!(bytes[..PAGE_BYTES].iter().all(|byte| *byte == (batch + first) as u8 | 1));
                assert_eq!(checksum(&bytes), expected);
                next += pages * PAGE;
            }
            assert_eq!(next, end);
        }
    }

    #[test]
    fn a_write_that_fails_is_told() {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let path = dir.path().join("a");
        File::create(&path).unwrap();
        let file = File::open(&path).unwrap();
        let mut sink = PageSink::streamed(&file, 0, 0);
        sink.room(BATCH_BYTES).unwrap().fill(1);
        sink.keep_all(BATCH_BYTES / PAGE_BYTES, |_, _| ());
        assert!(sink.flush().is_err());
    }
}
