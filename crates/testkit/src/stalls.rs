//! How long the machine itself stood still: what a virtual machine's host, or other work, takes from a test that looks at times.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long each nap of the thread that measures is.
const NAP: Duration = Duration::from_millis(2);

/// Adds up, while it lives, by how much a thread that only naps wakes late.
#[derive(Debug)]
pub struct Stalls {
    ends: Arc<AtomicBool>,
    napper: JoinHandle<Duration>,
}

impl Stalls {
    /// Begins to measure.
    #[must_use]
    pub fn measure() -> Self {
        let ends = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&ends);
        let napper = std::thread::spawn(move || {
            let mut late = Duration::ZERO;
            while !told.load(Ordering::Relaxed) {
                let begun = Instant::now();
                std::thread::sleep(NAP);
                // A late nap of less than another is the scheduler's usual work.
                late += begun.elapsed().checked_sub(NAP * 2).unwrap_or_default();
            }
            late
        });
        Self { ends, napper }
    }

    /// Ends; gives how long the machine stood still in all.
    ///
    /// # Panics
    /// Where the thread that measures has panicked.
    #[must_use]
    pub fn total(self) -> Duration {
        self.ends.store(true, Ordering::Relaxed);
        self.napper.join().expect("the thread that measures only sleeps and adds up")
    }
}
