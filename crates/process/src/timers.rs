//! The timers of a sleeping app: when the earliest one that matters ends.
//!
//! Timers tick on while an app sleeps. One that runs longer than a threshold wakes the app in time; shorter ones are
//! housekeeping. How long a timer runs in all is its interval, or what was left when it was first seen: a timer with the
//! same end was seen at the last sleep too.

use std::fs;
use std::io;
use std::time::Duration;

use crate::trace::{Process, TraceError};
use torpor_linux::uapi::syscall;
use torpor_linux::uapi::time::ITIMER_REAL;
use torpor_proc as proc;

/// Ends that differ by less belong to the same timer.
const SAME_END: Duration = Duration::from_millis(20);

/// The end of a timer or of a time-out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline {
    /// Process.
    pub pid: i32,
    /// By `CLOCK_MONOTONIC`.
    pub at: Duration,
    /// How long it runs in all.
    pub total: Duration,
}

/// Time left and interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Setting {
    left: Duration,
    interval: Duration,
}

impl Setting {
    fn deadline(self, pid: i32, now: Duration, before: &[Deadline]) -> Option<Deadline> {
        if self.left.is_zero() {
            return None;
        }
        let at = now + self.left;
        let known = before.iter().find(|known| known.pid == pid && known.at.abs_diff(at) < SAME_END);
        let seen = known.map_or(self.left, |known| known.total.max(self.left));
        let total = if self.interval.is_zero() { seen } else { self.interval };
        Some(Deadline { pid, at, total })
    }
}

/// The earliest of `deadlines` that runs longer than `threshold`.
pub fn earliest(deadlines: &[Deadline], threshold: Duration) -> Option<Duration> {
    deadlines.iter().filter(|deadline| deadline.total > threshold).map(|deadline| deadline.at).min()
}

/// The process's timer descriptors.
pub fn timer_descriptors(pid: i32, now: Duration, before: &[Deadline]) -> io::Result<Vec<Deadline>> {
    let mut found = Vec::new();
    for (fd, what) in proc::descriptors(pid)? {
        if what != "anon_inode:[timerfd]" {
            continue;
        }
        let text = match proc::read(&format!("/proc/{pid}/fdinfo/{fd}")) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        let time = |key| proc::field(&text, key).and_then(parenthesised).unwrap_or_default();
        let setting = Setting { left: time("it_value"), interval: time("it_interval") };
        found.extend(setting.deadline(pid, now, before));
    }
    Ok(found)
}

/// `(seconds, nanoseconds)`.
pub fn parenthesised(text: &str) -> Option<Duration> {
    let (seconds, nanos) = text.strip_prefix('(')?.strip_suffix(')')?.split_once(',')?;
    Duration::from_secs(seconds.trim().parse().ok()?).checked_add(Duration::from_nanos(nanos.trim().parse().ok()?))
}

/// The process's interval timer and POSIX timers, asked by remote calls: the process must be parked and not frozen. The
/// answers go below the thread's stack pointer, so this comes before memory is dropped.
pub fn process_timers(
    process: &Process,
    park_address: u64,
    now: Duration,
    before: &[Deadline],
) -> Result<Vec<Deadline>, TraceError> {
    let look = |error| TraceError::Look(process.pid, error);
    let Some(thread) = process.threads.first() else { return Ok(Vec::new()) };
    let place = (thread.registers.stack() - 256) & !15;
    let answer = |unit: u64| -> io::Result<Setting> {
        let mut bytes = [0; 32];
        let range = torpor_linux::vm::Remote { address: place, len: bytes.len() };
        torpor_linux::vm::read(process.pid, &[range], &mut bytes)?;
        let word = |n: usize| u64::from_ne_bytes([0, 1, 2, 3, 4, 5, 6, 7].map(|k| bytes[n * 8 + k]));
        let time = |n: usize| Duration::from_secs(word(n)) + Duration::from_nanos(word(n + 1) * unit);
        Ok(Setting { interval: time(0), left: time(2) })
    };
    process.call(park_address, "getitimer", syscall::GETITIMER, &[ITIMER_REAL, place])?;
    let mut found: Vec<Deadline> = answer(1000).map_err(look)?.deadline(process.pid, now, before).into_iter().collect();
    for timer in posix_timers(process.pid).map_err(look)? {
        process.call(park_address, "timer_gettime", syscall::TIMER_GETTIME, &[timer, place])?;
        found.extend(answer(1).map_err(look)?.deadline(process.pid, now, before));
    }
    Ok(found)
}

/// Ids of the process's POSIX timers that run on a clock of time, not of CPU use.
fn posix_timers(pid: i32) -> io::Result<Vec<u64>> {
    let text = match fs::read_to_string(format!("/proc/{pid}/timers")) {
        Ok(text) => text,
        // A kernel without CONFIG_CHECKPOINT_RESTORE does not list them.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    Ok(parse_posix_timers(&text))
}

/// A clock that goes on while its program sleeps: 2, 3 and negative ones count CPU time.
pub const fn counts_time(clock: i32) -> bool {
    clock >= 0 && clock != 2 && clock != 3
}

/// Ids of the timers in a `/proc/PID/timers` file.
pub fn parse_posix_timers(text: &str) -> Vec<u64> {
    let mut timers = Vec::new();
    let mut id: Option<u64> = None;
    for line in text.lines() {
        if let Some(value) = line.strip_prefix("ID:") {
            id = value.trim().parse().ok();
        } else if let Some(clock) = line.strip_prefix("ClockID:") {
            let counts = clock.trim().parse().is_ok_and(counts_time);
            timers.extend(id.take().filter(|_| counts));
        }
    }
    timers
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: fn(u64) -> Duration = Duration::from_secs;

    #[test]
    fn a_one_shot_timer_keeps_the_length_that_it_was_first_seen_with() {
        let first = Setting { left: S(80), interval: S(0) }.deadline(1, S(100), &[]).unwrap();
        let later = Setting { left: S(10), interval: S(0) }.deadline(1, S(170), &[first]).unwrap();
        assert_eq!(later, Deadline { pid: 1, at: S(180), total: S(80) });
        assert_eq!(earliest(&[later], S(30)), Some(S(180)));
        let other = Setting { left: S(10), interval: S(0) }.deadline(2, S(170), &[first]).unwrap();
        assert_eq!(earliest(&[other], S(30)), None);
    }

    #[test]
    fn an_interval_is_its_own_length_and_a_stopped_timer_has_no_end() {
        let tick = Setting { left: Duration::from_millis(40), interval: S(1) }.deadline(1, S(5), &[]).unwrap();
        assert_eq!(tick.total, S(1));
        assert_eq!(Setting { left: S(0), interval: S(1) }.deadline(1, S(5), &[]), None);
    }

    #[test]
    fn reads_what_proc_shows() {
        assert_eq!(parenthesised("(3, 500000000)"), Some(Duration::from_millis(3500)));
        assert_eq!(parenthesised("3"), None);
        let text = "ID: 0\nsignal: 14/0\nnotify: signal/pid.3\nClockID: 1\nID: 4\nsignal: 0/0\nnotify: none\nClockID: -6\nID: 7\nClockID: 0\n";
        assert_eq!(parse_posix_timers(text), [0, 7]);
    }
}
