//! Signals, timers and what else only the process itself can ask the kernel for.

use std::fs;
use std::io;

use torpor_image::tree::{Action, IntervalTimer, PendingSignal, PosixTimer, SignalStack, Switches};

use super::remote::{Remote, SCRATCH};
use crate::proc;
use crate::trace::TraceError;
use crate::wait::restart::number as nr;

const RT_SIGACTION: u64 = 13;
const BRK: u64 = 12;
const SIGALTSTACK: u64 = 131;
const MODIFY_LDT: u64 = 154;
const PRCTL: u64 = 157;
const GET_MEMPOLICY: u64 = 239;
const MEMBARRIER: u64 = 324;
/// `MEMBARRIER_CMD_GET_REGISTRATIONS`.
const GET_REGISTRATIONS: u64 = 1 << 9;
const MCE_KILL_DEFAULT: u64 = 2;
const TIMER_GETOVERRUN: u64 = 225;
const SIGNALS: usize = 64;
const SIGKILL: usize = 9;
const SIGSTOP: usize = 19;
/// Bytes of the kernel's `struct sigaction`.
const ACTION_BYTES: usize = 32;

mod option {
    pub(super) const GET_PDEATHSIG: u64 = 2;
    pub(super) const GET_DUMPABLE: u64 = 3;
    pub(super) const GET_SECUREBITS: u64 = 27;
    pub(super) const GET_TIMERSLACK: u64 = 30;
    pub(super) const GET_CHILD_SUBREAPER: u64 = 37;
    pub(super) const GET_TID_ADDRESS: u64 = 40;
    pub(super) const GET_TSC: u64 = 25;
    pub(super) const MCE_KILL_GET: u64 = 34;
    pub(super) const GET_THP_DISABLE: u64 = 42;
    pub(super) const GET_MDWE: u64 = 66;
    pub(super) const GET_MEMORY_MERGE: u64 = 68;
}

/// What a process has, by its own answers.
#[derive(Debug, Default)]
pub(super) struct OfProcess {
    pub(super) actions: Vec<Action>,
    pub(super) interval_timers: [IntervalTimer; 3],
    pub(super) posix_timers: Vec<PosixTimer>,
    pub(super) dumpable: u8,
    pub(super) subreaper: bool,
    pub(super) no_huge_pages: bool,
    pub(super) heap_end: u64,
    pub(super) switches: Switches,
    /// It has a local descriptor table (`modify_ldt(2)`).
    pub(super) descriptor_table: bool,
}

/// What a thread has, by its own answers.
#[derive(Debug, Default)]
pub(super) struct OfThread {
    pub(super) signal_stack: SignalStack,
    pub(super) securebits: u32,
    pub(super) timer_slack_ns: u64,
    pub(super) clear_tid_address: u64,
    pub(super) parent_death_signal: i32,
    pub(super) time_stamp_counter: u8,
    pub(super) memory_error_policy: u8,
    /// It prefers some of the machine's memory (`set_mempolicy(2)`).
    pub(super) memory_policy: bool,
}

fn word(bytes: &[u8], n: usize) -> u64 {
    bytes.get(n * 8..n * 8 + 8).and_then(|word| word.try_into().ok()).map_or(0, u64::from_ne_bytes)
}

/// Asks the process.
pub(super) fn of_process(remote: &Remote<'_>) -> Result<OfProcess, TraceError> {
    let prctl = |option, argument| remote.call(0, "prctl", PRCTL, &[option, argument, 0, 0, 0]);
    let scratch = remote.scratch();
    let subreaper = {
        prctl(option::GET_CHILD_SUBREAPER, scratch)?;
        i32::from_ne_bytes(remote.answer(0)?) != 0
    };
    Ok(OfProcess {
        actions: actions(remote)?,
        interval_timers: [interval_timer(remote, 0)?, interval_timer(remote, 1)?, interval_timer(remote, 2)?],
        posix_timers: posix_timers(remote)?,
        dumpable: prctl(option::GET_DUMPABLE, 0)? as u8,
        subreaper,
        no_huge_pages: prctl(option::GET_THP_DISABLE, 0)? != 0,
        heap_end: remote.call(0, "brk", BRK, &[0])?,
        switches: Switches {
            // Read from outside.
            coredump_filter: 0,
            // Kernels that lack one of these cannot have it switched on.
            deny_write_execute: prctl(option::GET_MDWE, 0).unwrap_or(0) as u32,
            merge_memory: prctl(option::GET_MEMORY_MERGE, 0).unwrap_or(0) != 0,
            lock_future: remote.locks_mappings(),
            barriers: remote.call(0, "membarrier", MEMBARRIER, &[GET_REGISTRATIONS, 0, 0]).unwrap_or(0) as u32,
        },
        descriptor_table: remote.call(0, "modify_ldt", MODIFY_LDT, &[0, scratch, 8]).unwrap_or(0) != 0,
    })
}

/// Asks the process's `n`-th thread.
pub(super) fn of_thread(remote: &Remote<'_>, n: usize) -> Result<OfThread, TraceError> {
    const SS_ONSTACK: i32 = 1;
    let scratch = remote.scratch();
    let prctl = |option, argument| remote.call(n, "prctl", PRCTL, &[option, argument, 0, 0, 0]);
    remote.call(n, "sigaltstack", SIGALTSTACK, &[0, scratch])?;
    prctl(option::GET_PDEATHSIG, scratch + 24)?;
    // Kernels without CONFIG_CHECKPOINT_RESTORE do not tell it.
    let tells_address = prctl(option::GET_TID_ADDRESS, scratch + 32).is_ok();
    prctl(option::GET_TSC, scratch + 40)?;
    // Kernels without CONFIG_NUMA have none.
    let tells_policy = remote.call(n, "get_mempolicy", GET_MEMPOLICY, &[scratch + 48, 0, 0, 0, 0]).is_ok();
    let answer: [u8; 56] = remote.answer(0)?;
    Ok(OfThread {
        signal_stack: SignalStack {
            address: word(&answer, 0),
            // Whether the thread is on it just now follows from its stack pointer.
            flags: word(&answer, 1) as i32 & !SS_ONSTACK,
            bytes: word(&answer, 2),
        },
        parent_death_signal: word(&answer, 3) as i32,
        clear_tid_address: if tells_address { word(&answer, 4) } else { 0 },
        securebits: prctl(option::GET_SECUREBITS, 0)? as u32,
        timer_slack_ns: prctl(option::GET_TIMERSLACK, 0)?,
        time_stamp_counter: word(&answer, 5) as u8,
        memory_error_policy: prctl(option::MCE_KILL_GET, 0).unwrap_or(MCE_KILL_DEFAULT) as u8,
        memory_policy: tells_policy && word(&answer, 6) as u32 != 0,
    })
}

fn actions(remote: &Remote<'_>) -> Result<Vec<Action>, TraceError> {
    const MASK_BYTES: u64 = 8;
    const _: () = assert!(SIGNALS * ACTION_BYTES <= SCRATCH);
    let asked = |signal: usize| signal != SIGKILL && signal != SIGSTOP;
    for signal in (1..=SIGNALS).filter(|signal| asked(*signal)) {
        let place = remote.scratch() + ((signal - 1) * ACTION_BYTES) as u64;
        remote.call(0, "rt_sigaction", RT_SIGACTION, &[signal as u64, 0, place, MASK_BYTES])?;
    }
    let answers: [u8; SIGNALS * ACTION_BYTES] = remote.answer(0)?;
    Ok((1..=SIGNALS)
        .map(|signal| {
            if !asked(signal) {
                return Action::default();
            }
            let action = &answers[(signal - 1) * ACTION_BYTES..signal * ACTION_BYTES];
            Action {
                handler: word(action, 0),
                flags: word(action, 1),
                restorer: word(action, 2),
                mask: word(action, 3),
            }
        })
        .collect())
}

/// The answer of `getitimer` and `timer_gettime`: interval and what is left, the second number in units of nanoseconds.
fn timer(remote: &Remote<'_>, unit: u64) -> Result<IntervalTimer, TraceError> {
    let answer: [u8; 32] = remote.answer(0)?;
    let time = |n| word(&answer, n).saturating_mul(1_000_000_000).saturating_add(word(&answer, n + 1) * unit);
    Ok(IntervalTimer { interval_ns: time(0), left_ns: time(2) })
}

fn interval_timer(remote: &Remote<'_>, which: u64) -> Result<IntervalTimer, TraceError> {
    remote.call(0, "getitimer", nr::GETITIMER, &[which, remote.scratch()])?;
    timer(remote, 1000)
}

fn posix_timers(remote: &Remote<'_>) -> Result<Vec<PosixTimer>, TraceError> {
    let pid = remote.process.pid;
    let path = format!("/proc/{pid}/timers");
    let look = |error| TraceError::Look(pid, error);
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        // A kernel without CONFIG_CHECKPOINT_RESTORE does not list them.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(look(error)),
    };
    let mut timers = parse_timers(&text).ok_or_else(|| look(proc::unexpected(&path)))?;
    timers.sort_by_key(|timer| timer.id);
    for found in &mut timers {
        let id = found.id as u64;
        remote.call(0, "timer_gettime", nr::TIMER_GETTIME, &[id, remote.scratch()])?;
        found.timer = timer(remote, 1)?;
        found.overrun = remote.call(0, "timer_getoverrun", TIMER_GETOVERRUN, &[id])? as i32;
    }
    Ok(timers)
}

/// `ID: 0`, `signal: 14/00007f…`, `notify: signal/tid.77`, `ClockID: 1` for each.
fn parse_timers(text: &str) -> Option<Vec<PosixTimer>> {
    const SIGEV_THREAD_ID: i32 = 4;
    let mut timers: Vec<PosixTimer> = Vec::new();
    for line in text.lines() {
        let (key, value) = line.split_once(':')?;
        let value = value.trim();
        if key == "ID" {
            let timer = IntervalTimer::default();
            let id = value.parse().ok()?;
            timers.push(PosixTimer { id, clock: 0, signal: 0, notify: 0, thread: 0, value: 0, timer, overrun: 0 });
            continue;
        }
        let timer = timers.last_mut()?;
        match key {
            "signal" => {
                let (signal, sigval) = value.split_once('/')?;
                timer.signal = signal.parse().ok()?;
                timer.value = u64::from_str_radix(sigval.trim_start_matches("0x"), 16).ok()?;
            }
            "notify" => {
                let (how, whom) = value.split_once('/')?;
                timer.notify = match how {
                    "signal" => 0,
                    "none" => 1,
                    "thread" => 2,
                    _ => return None,
                };
                let (kind, id) = whom.split_once('.')?;
                if kind == "tid" {
                    timer.notify |= SIGEV_THREAD_ID;
                    timer.thread = id.parse().ok()?;
                }
            }
            "ClockID" => timer.clock = value.parse().ok()?,
            _ => {}
        }
    }
    Some(timers)
}

/// Signals that wait for a thread, or for any thread of its process.
pub(super) fn pending(thread: &crate::trace::Thread, shared: bool) -> io::Result<Vec<PendingSignal>> {
    let found = thread.tracee.pending_signals(shared)?;
    Ok(found.into_iter().map(|info| PendingSignal { info: info.to_vec() }).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timers_are_read_as_the_kernel_shows_them() {
        let text = "ID: 3\nsignal: 14/00007ffd00000001\nnotify: signal/tid.77\nClockID: 1\n\
                    ID: 1\nsignal: 0/0000000000000000\nnotify: none/pid.5\nClockID: -6\n";
        let timers = parse_timers(text).unwrap();
        assert_eq!((timers[0].id, timers[0].signal, timers[0].value), (3, 14, 0x7ffd_0000_0001));
        assert_eq!((timers[0].notify, timers[0].thread, timers[0].clock), (4, 77, 1));
        assert_eq!((timers[1].notify, timers[1].thread, timers[1].clock), (1, 0, -6));
        assert_eq!(parse_timers("").unwrap(), []);
        assert!(parse_timers("signal: 1/2").is_none());
    }
}
