//! `timerfd_create(2)`: a clock, what is left, and expirations that have not been read.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime, timerfd_create,
    timerfd_gettime, timerfd_settime,
};
use torpor_image::tree::{FileKind, Machine, OpenFile};
use torpor_linux::notify;

use crate::context::RestoreContext;
use crate::contract::error::RestoreFileError;
use crate::contract::reason::{Described, Reason};
use crate::list::{Info, Item};
use crate::locks;
use torpor_proc as proc;

const NANOSECONDS: i64 = 1_000_000_000;
const REALTIME: i32 = 0;
const REALTIME_ALARM: i32 = 8;
/// `TFD_TIMER_ABSTIME`.
const ABSOLUTE: i32 = 1;

/// `(1, 500000000)`: seconds and nanoseconds.
fn span(info: &Info, key: &str) -> io::Result<u64> {
    let text = info.field(key)?;
    let parts = text.trim_start_matches('(').trim_end_matches(')').split_once(',');
    let nanoseconds = parts.and_then(|(seconds, rest)| {
        let seconds: u64 = seconds.trim().parse().ok()?;
        seconds.checked_mul(NANOSECONDS as u64)?.checked_add(rest.trim().parse().ok()?)
    });
    nanoseconds.ok_or_else(|| proc::unexpected(&format!("fdinfo ({key})")))
}

/// What is left is as of `since`.
pub(crate) fn describe(item: &Item, since: Duration) -> Described<FileKind> {
    // A periodic timer that has expired stands still until somebody looks at it; only then are the expirations since
    // counted, and is it known when the next one is. Looking takes none of them away.
    timerfd_gettime(&item.fd).map_err(io::Error::from)?;
    let info = Info::read(std::process::id() as i32, item.fd.as_raw_fd())?;
    timer_of(&info, torpor_process::wait::since::now().saturating_sub(since)).map_err(Reason::from)
}

/// The timer that fdinfo shows, as it was when `ran` had not passed yet.
pub(crate) fn timer_of(info: &Info, ran: Duration) -> io::Result<FileKind> {
    let ran = ran.as_nanos() as u64;
    let left_ns = span(info, "it_value")?;
    let field = |key: &str| info.field(key);
    let wrong = |key: &str| proc::unexpected(&format!("fdinfo ({key})"));
    Ok(FileKind::Timer {
        clock: field("clockid")?.parse().map_err(|_| wrong("clockid"))?,
        settime_flags: i32::from_str_radix(field("settime flags")?, 8).map_err(|_| wrong("settime flags"))?,
        ticks: field("ticks")?.parse().map_err(|_| wrong("ticks"))?,
        left_ns: if left_ns == 0 { 0 } else { left_ns.saturating_add(ran) },
        interval_ns: span(info, "it_interval")?,
    })
}

fn timespec(nanoseconds: i64) -> Timespec {
    Timespec { tv_sec: nanoseconds / NANOSECONDS, tv_nsec: nanoseconds % NANOSECONDS }
}

fn now(clock: ClockId) -> i64 {
    let now = clock_gettime(clock);
    now.tv_sec.saturating_mul(NANOSECONDS).saturating_add(now.tv_nsec)
}

/// What a clock showed at the capture, in the terms of this boot.
///
/// On the same boot time has passed and timers that were due are; after another boot the clocks that count from it go on
/// from where they are. So they do where it is known what has passed: that is no more left then.
fn clock_then(clock: i32, machine: &Machine, around: RestoreContext<'_>) -> i64 {
    const MONOTONIC: i32 = 1;
    match (clock, around.same_boot && around.passed.is_none()) {
        (REALTIME | REALTIME_ALARM, _) => machine.realtime_ns as i64,
        (MONOTONIC, true) => machine.monotonic_ns as i64,
        (_, true) => machine.boottime_ns as i64,
        (MONOTONIC, false) => now(ClockId::Monotonic),
        (_, false) => now(ClockId::Boottime),
    }
}

/// What is left of a timer when so much time has passed, and how often it has expired meanwhile.
fn after(left: i64, interval: i64, passed: i64) -> (i64, u64) {
    match (passed.saturating_sub(left), interval) {
        (late, _) if left == 0 || late < 0 => (-late.min(0), 0),
        // It expires at once.
        (_, 0) => (1, 0),
        (late, interval) => (interval - late % interval, 1 + (late / interval).unsigned_abs()),
    }
}

pub(crate) fn restore(
    file: &OpenFile,
    machine: &Machine,
    around: RestoreContext<'_>,
) -> Result<OwnedFd, RestoreFileError> {
    const NAME: &str = "a timerfd";
    let FileKind::Timer { clock, settime_flags, ticks, left_ns, interval_ns } = file.kind else {
        return Err(RestoreFileError::Missing(NAME.to_owned()));
    };
    let (left, interval) = (left_ns.min(i64::MAX as u64) as i64, interval_ns.min(i64::MAX as u64) as i64);
    // A clock of the wall's tells by itself how much has passed.
    let by_itself = matches!(clock, REALTIME | REALTIME_ALARM) && settime_flags & ABSOLUTE != 0;
    let passed =
        around.passed.filter(|_| !by_itself).map_or(0, |passed| passed.as_nanos().min(i64::MAX as u128) as i64);
    let (left, missed) = after(left, interval, passed);
    let ticks = ticks.saturating_add(missed);
    let kind = match clock {
        0 => TimerfdClockId::Realtime,
        1 => TimerfdClockId::Monotonic,
        7 => TimerfdClockId::Boottime,
        8 => TimerfdClockId::RealtimeAlarm,
        9 => TimerfdClockId::BoottimeAlarm,
        _ => return Err(RestoreFileError::at("making", NAME)(rustix::io::Errno::INVAL)),
    };
    let fd = timerfd_create(kind, TimerfdFlags::CLOEXEC).map_err(RestoreFileError::at("making", NAME))?;
    if left != 0 || settime_flags != 0 {
        let flags = TimerfdTimerFlags::from_bits_retain(settime_flags as u32);
        let absolute = flags.contains(TimerfdTimerFlags::ABSTIME);
        let begin = if absolute && left != 0 { clock_then(clock, machine, around) } else { 0 };
        let value = Itimerspec { it_interval: timespec(interval), it_value: timespec(begin.saturating_add(left)) };
        timerfd_settime(&fd, flags, &value).map_err(RestoreFileError::at("setting", NAME))?;
    }
    if ticks != 0 {
        notify::set_timer_ticks(&fd, ticks).map_err(RestoreFileError::at("setting the ticks of", NAME))?;
    }
    locks::set_flags(&fd, file, NAME)?;
    Ok(fd)
}

#[cfg(test)]
mod tests {
    use super::after;

    #[test]
    fn time_that_has_passed_counts() {
        assert_eq!(after(0, 7, 100), (0, 0));
        assert_eq!(after(10, 0, 4), (6, 0));
        assert_eq!(after(10, 0, 10), (1, 0));
        assert_eq!(after(10, 0, 500), (1, 0));
        assert_eq!(after(10, 7, 9), (1, 0));
        assert_eq!(after(10, 7, 10), (7, 1));
        assert_eq!(after(10, 7, 16), (1, 1));
        assert_eq!(after(10, 7, 17), (7, 2));
        assert_eq!(after(i64::MAX, i64::MAX, i64::MAX), (i64::MAX, 1));
    }
}
