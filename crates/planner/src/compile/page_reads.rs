//! Steps that read pages from a descriptor straight to their places.

use super::build::{Argument, Builder, Steps};
use super::runs::Run;
use crate::calls;

/// `struct iovec`s of one call, and bytes.
const IOV_MAX: usize = 1024;
pub(super) const READ_MAX: u64 = 1 << 30;

/// The bytes of one read, contiguous in the file, and where they go.
#[derive(Debug, Default)]
pub(super) struct Batch {
    offset: u64,
    pub(super) bytes: u64,
    places: Vec<(u64, u64)>,
}

impl Batch {
    /// Takes `bytes` at `offset` of the file for `address`, if they follow what is in this read.
    pub(super) fn take(&mut self, offset: u64, address: u64, bytes: u64) -> bool {
        if self.bytes == 0 {
            *self = Self { offset, bytes, places: vec![(address, bytes)] };
            return true;
        }
        if offset != self.offset + self.bytes || self.bytes + bytes > READ_MAX {
            return false;
        }
        let full = self.places.len() == IOV_MAX;
        match self.places.last_mut() {
            Some((start, len)) if *start + *len == address => *len += bytes,
            _ if full => return false,
            _ => self.places.push((address, bytes)),
        }
        self.bytes += bytes;
        true
    }

    pub(super) fn read(&self, fd: i32, builder: &mut Builder, steps: &mut Steps) {
        if self.bytes == 0 {
            return;
        }
        let words: Vec<u64> = self.places.iter().flat_map(|(address, bytes)| [*address, *bytes]).collect();
        let places = builder.numbers(&words);
        let arguments = [fd.into(), places, (self.places.len() as u64).into(), self.offset.into(), Argument::Value(0)];
        steps.exact(calls::PREADV, self.bytes, &arguments);
    }
}

/// Reads runs of pages from the page source's descriptor to their places.
pub(super) fn read(runs: &[Run], source: i32, builder: &mut Builder, steps: &mut Steps) {
    let mut sorted: Vec<&Run> = runs.iter().collect();
    sorted.sort_unstable_by_key(|run| (run.offset(), run.start));
    let mut batch = Batch::default();
    for next in sorted {
        let mut done = 0;
        while done < next.bytes() {
            let bytes = (next.bytes() - done).min(READ_MAX);
            let (offset, address) = (next.offset() + done, next.start + done);
            if !batch.take(offset, address, bytes) {
                batch.read(source, builder, steps);
                batch = Batch::default();
                batch.take(offset, address, bytes);
            }
            done += bytes;
        }
    }
    batch.read(source, builder, steps);
}
