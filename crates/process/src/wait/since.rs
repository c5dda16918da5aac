//! When a thread began to wait.
//!
//! `/proc/PID/task/TID/sched` shows `se.exec_start`: the scheduler's clock, in milliseconds, when the thread last ran. It is
//! read before the app is frozen, because freezing runs every thread for a moment. Every CPU has a clock of its own (time
//! stolen by a hypervisor or spent in interrupts is left out), so it is related to `CLOCK_MONOTONIC` by going to the CPU
//! that the thread last ran on and reading our own entry there. The scheduler sets the entry to 0 when a thread is woken on
//! another CPU, until it runs there: such a thread waits no longer, and whatever it waits in when it is frozen begins after
//! the look.

use std::collections::HashMap;
use std::io;
use std::time::Duration;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

use torpor_proc as proc;

/// Now, by `CLOCK_MONOTONIC`.
pub fn now() -> Duration {
    let time = clock_gettime(ClockId::Monotonic);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

/// Readings of a CPU's clock at most; on a busy machine some are late, never early.
const SAMPLES: u32 = 16;

/// Readings that differ by less were not held up.
const AGREEMENT: Duration = Duration::from_micros(200);

/// Relates the scheduler's clocks to `CLOCK_MONOTONIC`.
#[derive(Debug)]
pub struct SchedulerClock {
    /// By CPU: what to add to its clock.
    offsets: HashMap<u32, Duration>,
    /// CPUs that this thread may use, to be restored.
    allowed: CpuSet,
}

impl SchedulerClock {
    /// An error where the kernel does not show the scheduler's clock.
    pub fn open() -> io::Result<Self> {
        let mut clock = Self { offsets: HashMap::new(), allowed: sched_getaffinity(None)? };
        let here = rustix::thread::sched_getcpu();
        clock.offset(here as u32)?;
        Ok(clock)
    }

    /// When `tid` last ran, by `CLOCK_MONOTONIC`; now, if it is just about to.
    pub(crate) fn last_ran(&mut self, pid: i32, tid: i32) -> io::Result<Duration> {
        let path = format!("/proc/{pid}/task/{tid}");
        let Some(ran) = last_ran(&proc::read(&format!("{path}/sched"))?)? else { return Ok(now()) };
        let cpu = proc::stat::read(&format!("{path}/stat"))?.cpu;
        Ok((ran + self.offset(cpu)?).min(now()))
    }

    fn offset(&mut self, cpu: u32) -> io::Result<Duration> {
        if let Some(offset) = self.offsets.get(&cpu) {
            return Ok(*offset);
        }
        let mut only = CpuSet::new();
        only.set(cpu as usize);
        sched_setaffinity(None, &only)?;
        let mut best = Self::sample()?;
        for _ in 0..SAMPLES {
            let next = Self::sample()?;
            let agree = best.abs_diff(next) < AGREEMENT;
            best = best.min(next);
            if agree {
                break;
            }
        }
        self.offsets.insert(cpu, best);
        Ok(best)
    }

    /// Our own entry is of the moment at which we were last put on the CPU: now, or too early if we were held up since.
    fn sample() -> io::Result<Duration> {
        rustix::thread::sched_yield();
        let path = "/proc/thread-self/sched";
        let ran = last_ran(&proc::read(path)?)?.ok_or_else(|| proc::unexpected(path))?;
        Ok(now().saturating_sub(ran))
    }
}

impl Drop for SchedulerClock {
    fn drop(&mut self) {
        // What was allowed before is allowed now; a CPU taken away meanwhile is left out by the kernel.
        let _ = sched_setaffinity(None, &self.allowed);
    }
}

/// The time of `se.exec_start` in a `sched` file, by the CPU's clock; `None` for a thread that has not run since it was
/// started on or moved to its CPU.
pub fn last_ran(sched: &str) -> io::Result<Option<Duration>> {
    let line = sched.lines().find(|line| line.starts_with("se.exec_start"));
    let millis = line.and_then(|line| line.rsplit(':').next()?.trim().parse::<f64>().ok());
    let ran = millis.and_then(|millis| Duration::try_from_secs_f64(millis / 1e3).ok());
    ran.map(|ran| (!ran.is_zero()).then_some(ran)).ok_or_else(|| proc::unexpected("sched"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn a_thread_that_was_moved_and_has_not_run_there_has_no_time() {
        let sched = |start: &str| last_ran(&format!("java (12, #threads: 30)\n---\nse.exec_start : {start}\n"));
        assert_eq!(sched("1500.250000").unwrap(), Some(Duration::from_micros(1_500_250)));
        assert_eq!(sched("0.000000").unwrap(), None);
        assert!(sched("-1.0").is_err() && sched("").is_err() && last_ran("").is_err());
    }

    /// Waits of known length, one of which must be dated well. A late date is allowed by the design.
    const WAITS: u32 = 50;
    /// By how much a CPU's clock and `CLOCK_MONOTONIC` may drift apart during a wait: at most 500 ppm while the latter is adjusted.
    const DRIFT: Duration = Duration::from_millis(1);

    /// A reading is never before the thread ran. It is late by the time that the hypervisor has stolen since, and by the time
    /// for which the thread was held up between the last look at it and its wait, so only most readings are before the middle
    /// of the wait.
    #[test]
    fn a_thread_that_waits_is_dated_to_when_it_began() {
        let is_dated_well = |_| {
            let begun = now();
            let (send, receive) = mpsc::channel::<()>();
            let (tell, told) = mpsc::channel();
            let waiting = std::thread::spawn(move || {
                tell.send(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
                let _ = receive.recv();
            });
            let (pid, tid) = (std::process::id() as i32, told.recv().unwrap());
            while proc::stat::read(&format!("/proc/{pid}/task/{tid}/stat")).unwrap().state != 'S' {
                std::thread::yield_now();
            }
            let blocked = now();
            std::thread::sleep(Duration::from_millis(100));
            let middle = blocked + (now() - blocked) / 2;
            let since = SchedulerClock::open().unwrap().last_ran(pid, tid).unwrap();
            drop(send);
            waiting.join().unwrap();
            assert!(since + DRIFT >= begun, "{since:?} is before the thread was started at {begun:?}");
            since < middle
        };
        assert!((0..WAITS).any(is_dated_well), "each of {WAITS} waits was dated to its second half");
    }
}
