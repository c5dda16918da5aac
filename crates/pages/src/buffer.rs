//! Page-aligned memory, which files can be read to and written from past the page cache.

use std::ops::Range;

use torpor_image::PAGE;

/// Page-aligned memory.
pub struct Buffer {
    bytes: Vec<u8>,
    start: usize,
}

impl Buffer {
    /// So many bytes, all zero.
    pub fn new(len: usize) -> Self {
        let bytes = vec![0; len + PAGE as usize];
        let start = bytes.as_ptr().align_offset(PAGE as usize).min(PAGE as usize);
        Self { bytes, start }
    }

    /// A part of the bytes.
    pub fn part(&self, range: Range<usize>) -> &[u8] {
        &self.bytes[self.start + range.start..self.start + range.end]
    }

    /// A part of the bytes, to be written.
    pub fn part_mut(&mut self, range: Range<usize>) -> &mut [u8] {
        &mut self.bytes[self.start + range.start..self.start + range.end]
    }
}
