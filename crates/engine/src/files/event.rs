//! Descriptors that are a number, a mask, a clock or a process: `eventfd(2)`, `signalfd(2)`, `timerfd_create(2)`,
//! `pidfd_open(2)`.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::OFlags;
use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime, timerfd_create,
    timerfd_gettime, timerfd_settime,
};
use torpor_image::tree::{FileKind, Machine, OpenFile};
use torpor_linux::notify;

use super::collect::{Context, Described, Why};
use super::list::{Info, Item};
use super::{MakeError, locks};
use crate::proc;

const NANOSECONDS: i64 = 1_000_000_000;
/// `O_NONBLOCK`.
const NONBLOCK: u32 = 0o4_000;

fn number<T: std::str::FromStr>(item: &Item, key: &str) -> io::Result<T> {
    item.info.field(key)?.parse().map_err(|_| proc::unexpected(&format!("fdinfo ({key})")))
}

fn hexadecimal(item: &Item, key: &str) -> io::Result<u64> {
    u64::from_str_radix(item.info.field(key)?, 16).map_err(|_| proc::unexpected(&format!("fdinfo ({key})")))
}

pub(super) fn counter(item: &Item) -> Described<FileKind> {
    let semaphore = number::<u8>(item, "eventfd-semaphore")? != 0;
    Ok(FileKind::Event { count: hexadecimal(item, "eventfd-count")?, semaphore })
}

pub(super) fn signals(item: &Item) -> Described<FileKind> {
    Ok(FileKind::Signal { mask: hexadecimal(item, "sigmask")? })
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

pub(super) fn timer(item: &Item) -> Described<FileKind> {
    // A periodic timer that has expired stands still until somebody looks at it; only then are the expirations since
    // counted, and is it known when the next one is. Looking takes none of them away.
    timerfd_gettime(&item.fd).map_err(io::Error::from)?;
    let info = Info::read(std::process::id() as i32, item.fd.as_raw_fd())?;
    let field = |key: &str| info.field(key);
    let wrong = |key: &str| proc::unexpected(&format!("fdinfo ({key})"));
    Ok(FileKind::Timer {
        clock: field("clockid")?.parse().map_err(|_| wrong("clockid"))?,
        settime_flags: i32::from_str_radix(field("settime flags")?, 8).map_err(|_| wrong("settime flags"))?,
        ticks: field("ticks")?.parse().map_err(|_| wrong("ticks"))?,
        left_ns: span(&info, "it_value")?,
        interval_ns: span(&info, "it_interval")?,
    })
}

pub(super) fn process(context: &Context<'_, '_>, item: &Item) -> Described<FileKind> {
    let pid: i32 = number(item, "Pid")?;
    match context.request.ids.get(&pid) {
        Some(inside) => Ok(FileKind::Process { pid: *inside }),
        None if pid <= 0 => {
            let what = "a descriptor of a process that has ended and been waited for";
            Err(Why::kept(what, "let the program close it"))
        }
        None => {
            let what = format!("a descriptor of process {pid}, outside of the tree");
            Err(Why::kept(what, "checkpoint a tree that contains that process"))
        }
    }
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
/// from where they are.
fn clock_then(clock: i32, machine: &Machine, same_boot: bool) -> i64 {
    const REALTIME: i32 = 0;
    const REALTIME_ALARM: i32 = 8;
    const MONOTONIC: i32 = 1;
    match (clock, same_boot) {
        (REALTIME | REALTIME_ALARM, _) => machine.realtime_ns as i64,
        (MONOTONIC, true) => machine.monotonic_ns as i64,
        (_, true) => machine.boottime_ns as i64,
        (MONOTONIC, false) => now(ClockId::Monotonic),
        (_, false) => now(ClockId::Boottime),
    }
}

pub(super) fn make_timer(file: &OpenFile, machine: &Machine, same_boot: bool) -> Result<OwnedFd, MakeError> {
    const NAME: &str = "a timerfd";
    let FileKind::Timer { clock, settime_flags, ticks, left_ns, interval_ns } = file.kind else {
        return Err(MakeError::Missing(NAME.to_owned()));
    };
    let (left, interval) = (left_ns.min(i64::MAX as u64) as i64, interval_ns.min(i64::MAX as u64) as i64);
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
        let begin = if absolute && left != 0 { clock_then(clock, machine, same_boot) } else { 0 };
        let value = Itimerspec { it_interval: timespec(interval), it_value: timespec(begin.saturating_add(left)) };
        timerfd_settime(&fd, flags, &value).map_err(MakeError::at("setting", NAME))?;
    }
    if ticks != 0 {
        notify::set_timer_ticks(&fd, ticks).map_err(MakeError::at("setting the ticks of", NAME))?;
    }
    locks::set_flags(&fd, file, NAME)?;
    Ok(fd)
}
