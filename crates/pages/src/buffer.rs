//! Page-aligned memory, which files can be read to and written from past the page cache.
//!
//! Memory that is fresh from the kernel costs a fault for each page when it is first written to, about as much as copying the page.
//! So buffers of up to [`POOLED_BYTES`] come from a pool of this process, and go back to it: the one that was given back last, whose
//! pages are most likely still in the processor's cache, is taken first.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use torpor_image::PAGE;

/// Largest buffer that the pool has; smaller ones are of this size too.
pub const POOLED_BYTES: usize = 1 << 20;
/// Buffers that lie in the pool at most. More are in use only while several apps fall asleep or wake.
const POOLED: usize = 6;

static POOL: Mutex<Vec<Vec<u8>>> = Mutex::new(Vec::new());

/// Page-aligned memory.
#[derive(Debug, Default)]
pub struct Buffer {
    bytes: Vec<u8>,
    start: usize,
}

impl Buffer {
    /// So many bytes, with whatever in them.
    pub fn new(len: usize) -> Self {
        let bytes = if len > POOLED_BYTES { None } else { pool().pop() };
        let bytes = bytes.unwrap_or_else(|| vec![0; len.max(POOLED_BYTES) + PAGE as usize]);
        let start = bytes.as_ptr().align_offset(PAGE as usize);
        Self { bytes, start }
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

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.bytes.len() == POOLED_BYTES + PAGE as usize {
            let mut pool = pool();
            if pool.len() < POOLED {
                pool.push(std::mem::take(&mut self.bytes));
            }
        }
    }
}

fn pool() -> std::sync::MutexGuard<'static, Vec<Vec<u8>>> {
    POOL.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_aligned_and_grows_only_where_it_must() {
        let aligned = |buffer: &Buffer| buffer.part(0..1).as_ptr().align_offset(PAGE as usize) == 0;
        let mut buffer = Buffer::default();
        buffer.reserve(1);
        buffer.part_mut(0..1)[0] = 7;
        assert!(aligned(&buffer));
        buffer.reserve(POOLED_BYTES);
        assert_eq!(buffer.part(0..POOLED_BYTES)[0], 7);
        buffer.reserve(POOLED_BYTES + 1);
        assert!(aligned(&buffer));
        assert_eq!(buffer.part(0..POOLED_BYTES + 1).len(), POOLED_BYTES + 1);
    }

    #[test]
    fn no_two_have_the_same_memory() {
        let rounds = || {
            for n in 0..200_u8 {
                let mut some = [Buffer::new(1), Buffer::new(POOLED_BYTES), Buffer::new(POOLED_BYTES + 1)];
                some.iter_mut().zip(n..).for_each(|(buffer, n)| buffer.part_mut(0..1)[0] = n);
                assert!(some.iter().zip(n..).all(|(buffer, n)| buffer.part(0..1) == [n]));
            }
        };
        std::thread::scope(|scope| {
            (0..2 * POOLED).for_each(|_| drop(scope.spawn(rounds)));
        });
        assert!(pool().len() <= POOLED);
    }
}
