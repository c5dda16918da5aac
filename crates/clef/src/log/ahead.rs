//! Writes zeros ahead of the end of the log.
//!
//! The sync of a write into space that is only allocated has to change the file's extents, and so to commit the journal of the file system; where
//! something was written before, it only has to write. A thread of its own keeps some MiB of zeros ahead of the log. What is written and where is
//! decided under a lock, so zeros are never written over records.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use rustix::fs::fdatasync;

/// Zeros that are kept ahead, and written again when less than half is left.
const AHEAD: u64 = 4 << 20;
/// Written under the lock at once.
const PIECE: usize = 128 << 10;

#[derive(Debug, Default)]
struct Front {
    file: Option<Arc<File>>,
    /// All before was written, as zeros or records.
    at: u64,
    /// To be written up to here.
    wanted: u64,
    /// Not beyond the end of the segment.
    most: u64,
    has_ended: bool,
}

/// The thread.
#[derive(Debug)]
pub(super) struct Ahead(Arc<(Mutex<Front>, Condvar)>);

fn locked(front: &Mutex<Front>) -> MutexGuard<'_, Front> {
    front.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Ahead {
    /// Starts the thread; without one, writes are as durable, and slower.
    pub(super) fn start() -> Self {
        let shared = Arc::new((Mutex::new(Front::default()), Condvar::new()));
        let of_thread = shared.clone();
        let started = std::thread::Builder::new().name("log ahead".to_owned()).spawn(move || run(&of_thread));
        if let Err(error) = started {
            tracing::warn!(%error, "no zeros are written ahead of the log");
        }
        Self(shared)
    }

    /// Records are written from `at` on to a segment of `most` bytes.
    pub(super) fn begin(&self, file: File, at: u64, most: u64) {
        *locked(&self.0.0) = Front { file: Some(Arc::new(file)), at, wanted: at, most, has_ended: false };
        self.pass(at);
    }

    /// Records are about to be written up to `end`.
    pub(super) fn pass(&self, end: u64) {
        let mut front = locked(&self.0.0);
        front.at = front.at.max(end);
        if front.at - end < AHEAD / 2 && front.wanted < end + AHEAD {
            front.wanted = (end + AHEAD).min(front.most);
            self.0.1.notify_one();
        }
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        locked(&self.0.0).has_ended = true;
        self.0.1.notify_one();
    }
}

fn run(shared: &(Mutex<Front>, Condvar)) {
    let zeros = vec![0; PIECE];
    loop {
        let mut front = locked(&shared.0);
        let file = loop {
            if front.has_ended {
                return;
            }
            match front.file.clone().filter(|_| front.at < front.wanted) {
                Some(file) => break file,
                None => front = shared.1.wait(front).unwrap_or_else(PoisonError::into_inner),
            }
        };
        let bytes = (front.wanted - front.at).min(PIECE as u64) as usize;
        let written = file.write_all_at(&zeros[..bytes], front.at);
        front.at += bytes as u64;
        if written.is_err() {
            // Whoever writes records there finds out.
            front.file = None;
        }
        drop(front);
        // It must not be left to the next commit, which is told of errors as well, by a description of its own.
        let _ = fdatasync(&*file);
    }
}
