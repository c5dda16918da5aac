//! Page-aligned memory, which files can be read to and written from past the page cache.

use std::ops::Range;

use torpor_image::PAGE;

/// Page-aligned memory.
#[derive(Debug, Default)]
pub struct Buffer {
    bytes: Vec<u8>,
    start: usize,
}

impl Buffer {
    /// So many bytes, all zero.
    pub fn new(len: usize) -> Self {
        Self::from(vec![0; len + PAGE as usize])
    }

    /// Sees to it that there are so many bytes, with whatever in them.
    pub fn reserve(&mut self, len: usize) {
        if self.bytes.len() < self.start + len {
            *self = Self::new(len);
        }
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

impl From<Vec<u8>> for Buffer {
    /// The aligned part of these bytes.
    fn from(bytes: Vec<u8>) -> Self {
        let start = bytes.as_ptr().align_offset(PAGE as usize).min(PAGE as usize);
        Self { bytes, start }
    }
}

impl From<Buffer> for Vec<u8> {
    fn from(buffer: Buffer) -> Self {
        buffer.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_aligned_and_grows_only_where_it_must() {
        let mut buffer = Buffer::default();
        buffer.reserve(1);
        buffer.part_mut(0..1)[0] = 7;
        assert_eq!(buffer.part(0..1).as_ptr().align_offset(PAGE as usize), 0);
        buffer = Vec::from(buffer).into();
        buffer.reserve(1);
        assert_eq!(buffer.part(0..1), [7]);
        buffer.reserve(5 * PAGE as usize);
        assert_eq!(buffer.part(0..5 * PAGE as usize).as_ptr().align_offset(PAGE as usize), 0);
        // Too short to be aligned at all.
        let mut short = Buffer::from(vec![1, 2]);
        short.reserve(1);
        assert_eq!(short.part(0..1), [0]);
    }
}
