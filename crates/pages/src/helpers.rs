//! Threads that help to place pages.
//!
//! They live as long as the process. To start one takes as long as to place thirty pages; a thread that makes children in another pid
//! namespace can start none; and the scheduler may put a new thread on the processor of the one that needs its help. So helpers wait for
//! work, and one begins on a processor on which its caller does not run.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};

use rustix::thread::{CpuSet, Pid, gettid, sched_getaffinity, sched_getcpu, sched_setaffinity};

/// Something that several threads do together.
pub(super) trait Work: Send + Sync {
    /// Does a part of it; comes back when nothing is left.
    fn help(&self);
}

/// Helpers of this process.
pub(super) const HELPERS: usize = 3;

/// A thread.
struct Helper {
    tid: Pid,
    is_busy: Arc<AtomicBool>,
    work: mpsc::Sender<(Arc<dyn Work>, Option<CpuSet>)>,
}

/// None until they are started.
static ALL: Mutex<Vec<Helper>> = Mutex::new(Vec::new());

/// Starts the helpers; without them each thread places its pages alone. They are in the namespaces of the calling thread.
///
/// # Errors
/// Of pthread_create(3).
pub fn start() -> io::Result<()> {
    let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
    while all.len() < HELPERS {
        let helper = Helper::start(all.len())?;
        all.push(helper);
    }
    Ok(())
}

impl Helper {
    fn start(n: usize) -> io::Result<Self> {
        let (work, works) = mpsc::channel::<(Arc<dyn Work>, Option<CpuSet>)>();
        let (tell, told) = mpsc::channel();
        let is_busy = Arc::new(AtomicBool::new(false));
        let busy = is_busy.clone();
        std::thread::Builder::new().name(format!("pages-{n}")).spawn(move || {
            // Nobody waits for it if the one who starts us is gone.
            let _ = tell.send(gettid());
            let _abort = AbortOnPanic;
            for (work, all) in works {
                // Bound only until it runs.
                let _ = all.map(|all| sched_setaffinity(None, &all));
                work.help();
                // Before anybody may ask again.
                drop(work);
                busy.store(false, Ordering::Release);
            }
        })?;
        let tid = told.recv().map_err(io::Error::other)?;
        Ok(Self { tid, is_busy, work })
    }
}

/// Whoever waits for a helper that has panicked would wait for ever.
struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}

/// Has `count` helpers at most that have nothing to do begin with `work`.
pub(super) fn ask(work: &Arc<dyn Work>, count: usize) {
    let (processors, others) = processors().unzip();
    let all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
    for helper in all.iter().filter(|helper| !helper.is_busy.swap(true, Ordering::Acquire)).take(count) {
        // Where it runs then is up to the scheduler.
        let _ = others.as_ref().map(|others| sched_setaffinity(Some(helper.tid), others));
        // It ends with the process.
        let _ = helper.work.send((work.clone(), processors));
    }
}

/// The processors of this process, and those that we do not run on; none where there is no other, or that is not known.
fn processors() -> Option<(CpuSet, CpuSet)> {
    let all = sched_getaffinity(None).ok()?;
    let mut others = all;
    others.unset(sched_getcpu());
    (others.count() > 0).then_some((all, others))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    struct Meeting(Barrier);

    impl Work for Meeting {
        fn help(&self) {
            self.0.wait();
        }
    }

    #[test]
    fn helpers_work_beside_their_caller_and_can_be_asked_again() {
        start().unwrap();
        for _ in 0..3 {
            let meeting = Arc::new(Meeting(Barrier::new(2)));
            let work: Arc<dyn Work> = meeting.clone();
            ask(&work, 1);
            meeting.0.wait();
        }
    }
}
