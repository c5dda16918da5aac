//! Descriptors that are a number, a mask, a clock or a process: `eventfd(2)`, `signalfd(2)`, `timerfd_create(2)`,
//! `pidfd_open(2)`.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::OFlags;
use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime, timerfd_create,
    timerfd_gettime, timerfd_settime,
};
use torpor_image::tree::{FileKind, Machine, OpenFile};
use torpor_linux::{ended, notify};

use super::collect::{Context, Described, Why};
use super::list::{Info, Item};
use super::path::Around;
use super::{MakeError, locks};
use crate::proc;

const NANOSECONDS: i64 = 1_000_000_000;
const REALTIME: i32 = 0;
const REALTIME_ALARM: i32 = 8;
/// `TFD_TIMER_ABSTIME`.
const ABSOLUTE: i32 = 1;
/// `O_NONBLOCK`.
const NONBLOCK: u32 = 0o4_000;
/// `PIDFD_THREAD`: `O_EXCL`.
const THREAD: u32 = 0o200;

fn number<T: std::str::FromStr>(info: &Info, key: &str) -> io::Result<T> {
    info.field(key)?.parse().map_err(|_| proc::unexpected(&format!("fdinfo ({key})")))
}

fn hexadecimal(info: &Info, key: &str) -> io::Result<u64> {
    u64::from_str_radix(info.field(key)?, 16).map_err(|_| proc::unexpected(&format!("fdinfo ({key})")))
}

pub(super) fn counter(info: &Info) -> Described<FileKind> {
    let semaphore = number::<u8>(info, "eventfd-semaphore")? != 0;
    Ok(FileKind::Event { count: hexadecimal(info, "eventfd-count")?, semaphore })
}

pub(super) fn signals(info: &Info) -> Described<FileKind> {
    Ok(FileKind::Signal { mask: hexadecimal(info, "sigmask")? })
}

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
pub(super) fn timer(item: &Item, since: Duration) -> Described<FileKind> {
    // A periodic timer that has expired stands still until somebody looks at it; only then are the expirations since
    // counted, and is it known when the next one is. Looking takes none of them away.
    timerfd_gettime(&item.fd).map_err(io::Error::from)?;
    let info = Info::read(std::process::id() as i32, item.fd.as_raw_fd())?;
    timer_of(&info, crate::wait::since::now().saturating_sub(since)).map_err(Why::from)
}

/// The timer that fdinfo shows, as it was when `ran` had not passed yet.
pub(super) fn timer_of(info: &Info, ran: Duration) -> io::Result<FileKind> {
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

pub(super) fn process(context: &Context<'_, '_>, item: &Item) -> Described<FileKind> {
    let pid: i32 = number(&item.info, "Pid")?;
    match context.request.ids.get(&pid) {
        // Threads are made when descriptors are in their places; one that is kept is of the thread that has ended.
        Some(_) if item.info.flags & THREAD != 0 && !context.request.processes.contains(&pid) => {
            Err(Why::refused("a descriptor of a thread", "let the program close it"))
        }
        Some(inside) => Ok(FileKind::Process { pid: *inside }),
        None if pid <= 0 && context.request.view.keeps_files() => {
            // One made anew would be of another pid namespace, or take an id there that may be needed.
            let what = "a descriptor of a process that has ended and been waited for";
            Err(Why::kept(what, "let the program close it"))
        }
        None if pid <= 0 => ended_process(item),
        None => {
            let what = format!("a descriptor of process {pid}, outside of the tree");
            Err(Why::kept(what, "checkpoint a tree that contains that process"))
        }
    }
}

fn ended_process(item: &Item) -> Described<FileKind> {
    // Where the kernel does not keep how it ended, nobody can ask.
    let status = ended::status(&item.fd)?.unwrap_or(0);
    if !ended::can_be(status) {
        let what = "a descriptor of a process that has ended with a core file, and been waited for";
        return Err(Why::kept(what, "let the program close it"));
    }
    Ok(FileKind::Ended { process: item.stat.st_ino, status })
}

/// Descriptors of processes that have ended: those of one process are of one again.
pub(super) fn make_ended(files: &[OpenFile], made: &mut [Option<OwnedFd>]) -> Result<(), MakeError> {
    let mut processes: BTreeMap<(u64, i32), Vec<usize>> = BTreeMap::new();
    for (id, file) in files.iter().enumerate().filter(|(id, _)| made[*id].is_none()) {
        if let FileKind::Ended { process, status } = file.kind {
            processes.entry((process, status)).or_default().push(id);
        }
    }
    for ((_, status), ids) in processes {
        const NAME: &str = "a descriptor of a process that has ended";
        let flags: Vec<u32> = ids.iter().map(|id| files[*id].flags & (NONBLOCK | THREAD)).collect();
        let opened = ended::descriptors(status, &flags).map_err(MakeError::at("making", NAME))?;
        for (id, fd) in ids.into_iter().zip(opened) {
            locks::set_flags(&fd, &files[id], NAME)?;
            made[id] = Some(fd);
        }
    }
    Ok(())
}

pub(super) fn make_counter(count: u64, semaphore: bool, file: &OpenFile) -> Result<OwnedFd, MakeError> {
    const NAME: &str = "an eventfd";
    let mut flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
    flags.set(EventfdFlags::SEMAPHORE, semaphore);
    let fd = eventfd(0, flags).map_err(MakeError::at("making", NAME))?;
    if count != 0 {
        rustix::io::write(&fd, &count.to_ne_bytes()).map_err(MakeError::at("filling", NAME))?;
    }
    locks::set_flags(&fd, file, NAME)?;
    Ok(fd)
}

pub(super) fn make_signals(mask: u64, file: &OpenFile) -> Result<OwnedFd, MakeError> {
    const NAME: &str = "a signalfd";
    // The flags are those of the descriptor and of the open file: O_CLOEXEC, O_NONBLOCK.
    let flags = OFlags::CLOEXEC.bits() | file.flags & NONBLOCK;
    let fd = notify::signal_descriptor(mask, flags as i32).map_err(MakeError::at("making", NAME))?;
    locks::set_flags(&fd, file, NAME)?;
    Ok(fd)
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
fn clock_then(clock: i32, machine: &Machine, around: Around<'_>) -> i64 {
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

pub(super) fn make_timer(file: &OpenFile, machine: &Machine, around: Around<'_>) -> Result<OwnedFd, MakeError> {
    const NAME: &str = "a timerfd";
    let FileKind::Timer { clock, settime_flags, ticks, left_ns, interval_ns } = file.kind else {
        return Err(MakeError::Missing(NAME.to_owned()));
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
        _ => return Err(MakeError::at("making", NAME)(rustix::io::Errno::INVAL)),
    };
    let fd = timerfd_create(kind, TimerfdFlags::CLOEXEC).map_err(MakeError::at("making", NAME))?;
    if left != 0 || settime_flags != 0 {
        let flags = TimerfdTimerFlags::from_bits_retain(settime_flags as u32);
        let absolute = flags.contains(TimerfdTimerFlags::ABSTIME);
        let begin = if absolute && left != 0 { clock_then(clock, machine, around) } else { 0 };
        let value = Itimerspec { it_interval: timespec(interval), it_value: timespec(begin.saturating_add(left)) };
        timerfd_settime(&fd, flags, &value).map_err(MakeError::at("setting", NAME))?;
    }
    if ticks != 0 {
        notify::set_timer_ticks(&fd, ticks).map_err(MakeError::at("setting the ticks of", NAME))?;
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
