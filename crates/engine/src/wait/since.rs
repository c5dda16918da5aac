//! When a thread began to wait.
//!
//! `/proc/PID/task/TID/sched` shows `se.exec_start`: the scheduler's clock, in milliseconds, when the thread last ran. It is
//! read before the app is frozen, because freezing runs every thread for a moment. The scheduler's clock is related to
//! `CLOCK_MONOTONIC` by reading our own entry, which is of this very moment.

use std::io;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::proc;

/// Now, by `CLOCK_MONOTONIC`.
pub(crate) fn now() -> Duration {
    let time = clock_gettime(ClockId::Monotonic);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

/// Relates the scheduler's clock to `CLOCK_MONOTONIC`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SchedulerClock {
    monotonic: Duration,
    scheduler: Duration,
}

impl SchedulerClock {
    /// Reads both clocks now; an error where the kernel does not show the scheduler's.
    pub(crate) fn read() -> io::Result<Self> {
        let scheduler = last_ran("/proc/thread-self/sched")?;
        Ok(Self { monotonic: now(), scheduler })
    }

    /// When `tid` last ran, by `CLOCK_MONOTONIC`.
    pub(crate) fn last_ran(&self, pid: i32, tid: i32) -> io::Result<Duration> {
        let ran = last_ran(&format!("/proc/{pid}/task/{tid}/sched"))?;
        Ok((self.monotonic + ran).saturating_sub(self.scheduler).min(self.monotonic))
    }
}

fn last_ran(path: &str) -> io::Result<Duration> {
    let text = proc::read(path)?;
    let line = text.lines().find(|line| line.starts_with("se.exec_start"));
    let millis = line.and_then(|line| line.rsplit(':').next()?.trim().parse::<f64>().ok());
    millis
        .filter(|millis| millis.is_finite() && *millis >= 0.0)
        .map(|millis| Duration::from_secs_f64(millis / 1e3))
        .ok_or_else(|| proc::unexpected(path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn a_thread_that_waits_is_dated_to_when_it_began() {
        let (send, receive) = mpsc::channel::<()>();
        let (tell, told) = mpsc::channel();
        let waiting = std::thread::spawn(move || {
            tell.send(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
            let _ = receive.recv();
        });
        let tid = told.recv().unwrap();
        let before = now();
        // Waits until the thread is seen blocked, then a known while longer.
        let pid = std::process::id() as i32;
        while proc::stat(&format!("/proc/{pid}/task/{tid}/stat")).unwrap().state != 'S' {
            std::thread::yield_now();
        }
        let blocked = now();
        std::thread::sleep(Duration::from_millis(200));
        let since = SchedulerClock::read().unwrap().last_ran(pid, tid).unwrap();
        drop(send);
        waiting.join().unwrap();
        let slack = Duration::from_millis(20);
        assert!(since + slack > before.saturating_sub(slack) && since < blocked + slack, "{before:?} {since:?} {blocked:?}");
    }
}
