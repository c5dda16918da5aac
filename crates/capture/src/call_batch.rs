//! Calls that a thread makes one after the other, and what they answer.

use std::io;

use torpor_process::trace::TraceError;

/// A call to be made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    pub(super) name: &'static str,
    pub(super) number: u64,
    pub(super) arguments: [u64; 6],
}

/// Calls to be made, and places for what they write.
#[derive(Debug)]
pub(super) struct CallBatch {
    calls: Vec<Call>,
    /// Where the calls go in the process.
    list: u64,
    /// Of the calls at most.
    most: usize,
    /// Where answers go in the process.
    scratch: u64,
    bytes: usize,
    /// Of the answers at most.
    most_bytes: usize,
}

/// A call of a list.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked(usize);

/// Bytes that calls write.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    offset: usize,
    /// In the process.
    pub(super) address: u64,
}

impl CallBatch {
    pub(super) const fn new((scratch, most_bytes): (u64, usize), (list, most): (u64, usize)) -> Self {
        Self { calls: Vec::new(), list, most, scratch, bytes: 0, most_bytes }
    }

    /// So many bytes for answers.
    pub(super) fn place(&mut self, bytes: usize) -> Place {
        let offset = self.bytes;
        self.bytes += bytes.next_multiple_of(8);
        assert!(self.bytes <= self.most_bytes, "answers fit into their page");
        Place { offset, address: self.scratch + offset as u64 }
    }

    /// Adds a call.
    pub(super) fn ask(&mut self, name: &'static str, number: u64, arguments: &[u64]) -> Asked {
        let mut all = [0; 6];
        all[..arguments.len()].copy_from_slice(arguments);
        self.calls.push(Call { name, number, arguments: all });
        assert!(self.calls.len() <= self.most, "calls fit into their pages");
        Asked(self.calls.len() - 1)
    }

    pub(super) const fn list(&self) -> u64 {
        self.list
    }

    pub(super) fn calls(&self) -> &[Call] {
        &self.calls
    }

    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn answered(self, pid: i32, results: Vec<i64>, bytes: Vec<u8>) -> Answers {
        Answers { pid, calls: self.calls, results, bytes }
    }
}

/// What the calls of a list have answered.
#[derive(Debug)]
pub(super) struct Answers {
    pid: i32,
    calls: Vec<Call>,
    results: Vec<i64>,
    bytes: Vec<u8>,
}

impl Answers {
    /// The error that a call's result is.
    pub(super) fn error(result: i64) -> Option<io::Error> {
        (-4095..0).contains(&result).then(|| io::Error::from_raw_os_error(-result as i32))
    }

    /// What a call has returned.
    pub(super) fn result(&self, asked: Asked) -> Result<u64, TraceError> {
        let (call, result) = (&self.calls[asked.0], self.results[asked.0]);
        match Self::error(result) {
            None => Ok(result as u64),
            Some(error) => Err(TraceError::Call { pid: self.pid, call: call.name, error }),
        }
    }

    /// Fails as the call has.
    pub(super) fn check(&self, asked: Asked) -> Result<(), TraceError> {
        self.result(asked).map(drop)
    }

    /// Word `n` of what was written to a place.
    pub(super) fn word(&self, place: Place, n: usize) -> u64 {
        let bytes = self.bytes.get(place.offset + n * 8..).and_then(|rest| rest.first_chunk());
        bytes.map_or(0, |word| u64::from_ne_bytes(*word))
    }
}
