//! Signals, timers and what else only the process itself can ask the kernel for.

use std::fs;
use std::io;
use std::time::Duration;

use torpor_image::tree::{
    Action, Control, IntervalTimer, MemoryPolicy, PendingSignal, PosixTimer, SignalStack, Switches,
};
use torpor_linux::uapi::prctl::{
    PR_GET_CHILD_SUBREAPER, PR_GET_DUMPABLE, PR_GET_IO_FLUSHER, PR_GET_MDWE, PR_GET_MEMORY_MERGE, PR_GET_NAME,
    PR_GET_PDEATHSIG, PR_GET_SECUREBITS, PR_GET_SPECULATION_CTRL, PR_GET_THP_DISABLE, PR_GET_TID_ADDRESS,
    PR_GET_TIMERSLACK, PR_GET_TSC, PR_MCE_KILL_GET,
};
use torpor_linux::uapi::signal::{SI_TIMER, SIGEV_THREAD_ID, SIGKILL, SIGSTOP, SS_ONSTACK};
use torpor_linux::uapi::syscall;

use super::call_batch::{Answers, Asked, CallBatch, Place};
use super::keyring::AskedKeyring;
use super::landlock::Trial;
use super::policy;
use super::remote::Remote;
use torpor_proc as proc;
use torpor_process::blocker::Blocker;
use torpor_process::timers::counts_time;
use torpor_process::trace::TraceError;
use torpor_process::wait::since::now;

/// `MEMBARRIER_CMD_GET_REGISTRATIONS`.
const GET_REGISTRATIONS: u64 = 1 << 9;
const MCE_KILL_DEFAULT: u64 = 2;
const SIGNALS: u64 = 64;
/// Bytes of the kernel's `struct sigaction`.
const ACTION_BYTES: usize = 32;
/// Bytes of a thread's name, with the zero behind it.
const NAME_BYTES: usize = 16;
/// Bytes of `struct itimerval` and `struct itimerspec`.
const TIMER_BYTES: usize = 32;

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
    /// See [`AskedKeyring::has_keys`].
    pub(super) keys: bool,
}

/// What a thread has, by its own answers.
#[derive(Debug, Default)]
pub(super) struct OfThread {
    /// `comm`, which may hold any bytes.
    pub(super) name: Vec<u8>,
    pub(super) signal_stack: SignalStack,
    pub(super) securebits: u32,
    pub(super) timer_slack_ns: u64,
    pub(super) clear_tid_address: u64,
    pub(super) parent_death_signal: i32,
    pub(super) time_stamp_counter: u8,
    pub(super) memory_error_policy: u8,
    pub(super) memory_policy: MemoryPolicy,
    /// Options and arguments of [`torpor_image::tree::Control`].
    pub(super) controls: Vec<(u32, [u32; 2])>,
    /// It may not look at a process that is like it.
    pub(super) restricted: bool,
}

/// What a process is asked by its first thread, and that itself.
pub(super) struct AskedOfProcess {
    first: AskedOfThread,
    dumpable: Asked,
    no_huge_pages: Asked,
    deny_write_execute: Asked,
    merge_memory: Asked,
    subreaper: (Place, Asked),
    heap_end: Asked,
    barriers: Asked,
    descriptor_table: Asked,
    interval_timers: [(Place, Asked); 3],
    actions: Vec<Option<(Place, Asked)>>,
    keyring: AskedKeyring,
}

impl AskedOfProcess {
    pub(super) fn ask(list: &mut CallBatch, trial: Option<Trial>) -> Self {
        let first = AskedOfThread::ask(list, trial);
        let mut prctl = |option, argument| list.ask("prctl", syscall::PRCTL, &[option, argument, 0, 0, 0]);
        let dumpable = prctl(PR_GET_DUMPABLE, 0);
        let no_huge_pages = prctl(PR_GET_THP_DISABLE, 0);
        let deny_write_execute = prctl(PR_GET_MDWE, 0);
        let merge_memory = prctl(PR_GET_MEMORY_MERGE, 0);
        let place = list.place(4);
        let asked = list.ask("prctl", syscall::PRCTL, &[PR_GET_CHILD_SUBREAPER, place.address, 0, 0, 0]);
        let subreaper = (place, asked);
        let heap_end = list.ask("brk", syscall::BRK, &[0]);
        let barriers = list.ask("membarrier", syscall::MEMBARRIER, &[GET_REGISTRATIONS, 0, 0]);
        let place = list.place(8);
        let descriptor_table = list.ask("modify_ldt", syscall::MODIFY_LDT, &[0, place.address, 8]);
        let interval_timers = [0, 1, 2].map(|which| {
            let place = list.place(TIMER_BYTES);
            (place, list.ask("getitimer", syscall::GETITIMER, &[which, place.address]))
        });
        let keyring = AskedKeyring::ask(list);
        let actions = ask_actions(list);
        Self {
            keyring,
            first,
            dumpable,
            no_huge_pages,
            deny_write_execute,
            merge_memory,
            subreaper,
            heap_end,
            barriers,
            descriptor_table,
            interval_timers,
            actions,
        }
    }

    /// What is left of timers is as of `since`, by `CLOCK_MONOTONIC`.
    pub(super) fn answered(
        self,
        remote: &Remote<'_>,
        answers: &Answers,
        since: Duration,
    ) -> Result<(OfProcess, OfThread), TraceError> {
        let ran = now().saturating_sub(since);
        answers.check(self.subreaper.1)?;
        let mut timers = [IntervalTimer::default(); 3];
        for (timer, (place, asked)) in timers.iter_mut().zip(self.interval_timers) {
            answers.check(asked)?;
            *timer = self::timer(answers, place, 1000);
        }
        // The others are of processor time.
        timers[0] = before(timers[0], ran);
        let process = OfProcess {
            actions: self.actions.into_iter().map(|asked| action(answers, asked)).collect::<Result<_, _>>()?,
            interval_timers: timers,
            posix_timers: posix_timers(remote, since)?,
            dumpable: answers.result(self.dumpable)? as u8,
            subreaper: answers.word(self.subreaper.0, 0) as i32 != 0,
            no_huge_pages: answers.result(self.no_huge_pages)? != 0,
            heap_end: answers.result(self.heap_end)?,
            switches: Switches {
                // Read from outside.
                coredump_filter: 0,
                // Kernels that lack one of these cannot have it switched on.
                deny_write_execute: answers.result(self.deny_write_execute).unwrap_or(0) as u32,
                merge_memory: answers.result(self.merge_memory).unwrap_or(0) != 0,
                lock_future: remote.locks_mappings(),
                barriers: answers.result(self.barriers).unwrap_or(0) as u32,
            },
            descriptor_table: answers.result(self.descriptor_table).unwrap_or(0) != 0,
            keys: self.keyring.has_keys(answers),
        };
        Ok((process, self.first.answered(answers)?))
    }
}

/// What a thread is asked.
pub(super) struct AskedOfThread {
    name: (Place, Asked),
    signal_stack: (Place, Asked),
    death_signal: (Place, Asked),
    clear_tid: (Place, Asked),
    time_stamps: (Place, Asked),
    memory_policy: policy::AskedPolicy,
    securebits: Asked,
    timer_slack: Asked,
    memory_errors: Asked,
    io_flusher: Asked,
    speculation: [Asked; 3],
    trial: Option<Asked>,
}

impl AskedOfThread {
    pub(super) fn ask(list: &mut CallBatch, trial: Option<Trial>) -> Self {
        let trial = trial.map(|trial| trial.ask(list));
        let mut written = |bytes, name, number, arguments: &dyn Fn(u64) -> [u64; 5]| {
            let place = list.place(bytes);
            (place, list.ask(name, number, &arguments(place.address)))
        };
        let signal_stack = written(24, "sigaltstack", syscall::SIGALTSTACK, &|place| [0, place, 0, 0, 0]);
        let name = written(NAME_BYTES, "prctl", syscall::PRCTL, &|place| [PR_GET_NAME, place, 0, 0, 0]);
        let mut prctl = |option| written(8, "prctl", syscall::PRCTL, &|place| [option, place, 0, 0, 0]);
        let death_signal = prctl(PR_GET_PDEATHSIG);
        let clear_tid = prctl(PR_GET_TID_ADDRESS);
        let time_stamps = prctl(PR_GET_TSC);
        let memory_policy = policy::AskedPolicy::ask(list, None);
        let speculation =
            SPECULATION.map(|(which, _)| list.ask("prctl", syscall::PRCTL, &[PR_GET_SPECULATION_CTRL, which, 0, 0, 0]));
        let mut prctl = |option| list.ask("prctl", syscall::PRCTL, &[option, 0, 0, 0, 0]);
        Self {
            name,
            signal_stack,
            death_signal,
            clear_tid,
            time_stamps,
            memory_policy,
            securebits: prctl(PR_GET_SECUREBITS),
            timer_slack: prctl(PR_GET_TIMERSLACK),
            memory_errors: prctl(PR_MCE_KILL_GET),
            io_flusher: prctl(PR_GET_IO_FLUSHER),
            speculation,
            trial,
        }
    }

    pub(super) fn answered(&self, answers: &Answers) -> Result<OfThread, TraceError> {
        for (_, asked) in [self.name, self.signal_stack, self.death_signal, self.time_stamps] {
            answers.check(asked)?;
        }
        let stack = |n| answers.word(self.signal_stack.0, n);
        // Kernels without CONFIG_CHECKPOINT_RESTORE do not tell the address.
        let told = |(place, asked)| answers.result(asked).map_or(0, |_| answers.word(place, 0));
        let name = [0, 1].map(|n| answers.word(self.name.0, n).to_ne_bytes());
        let name = name.as_flattened().split(|byte| *byte == 0).next().unwrap_or_default();
        Ok(OfThread {
            name: name.to_vec(),
            signal_stack: SignalStack {
                address: stack(0),
                // Whether the thread is on it just now follows from its stack pointer.
                flags: stack(1) as i32 & !SS_ONSTACK,
                bytes: stack(2),
            },
            parent_death_signal: answers.word(self.death_signal.0, 0) as i32,
            clear_tid_address: told(self.clear_tid),
            securebits: answers.result(self.securebits)? as u32,
            timer_slack_ns: answers.result(self.timer_slack)?,
            time_stamp_counter: answers.word(self.time_stamps.0, 0) as u8,
            memory_error_policy: answers.result(self.memory_errors).unwrap_or(MCE_KILL_DEFAULT) as u8,
            memory_policy: self.memory_policy.answered(answers),
            controls: self.controls(answers),
            restricted: self.trial.is_some_and(|asked| Trial::is_restricted(answers, asked)),
        })
    }
}

impl AskedOfThread {
    /// What is not as every thread begins. What a kernel does not know nobody has set.
    fn controls(&self, answers: &Answers) -> Vec<(u32, [u32; 2])> {
        /// The thread may choose.
        const CHOSEN: u64 = 1;
        let mut found = Vec::new();
        for ((which, usual), asked) in SPECULATION.iter().zip(self.speculation) {
            match answers.result(asked) {
                Ok(value) if value & CHOSEN != 0 && value != *usual => {
                    found.push((Control::SPECULATION, [*which as u32, (value & !CHOSEN) as u32]));
                }
                _ => {}
            }
        }
        if answers.result(self.io_flusher).is_ok_and(|on| on != 0) {
            found.push((Control::IO_FLUSHER, [1, 0]));
        }
        found
    }
}

/// Kinds of speculation that a thread can allow or forbid, each with what it has from the beginning: store bypass and indirect
/// branches are allowed, flushing the cache is off.
const SPECULATION: [(u64, u64); 3] = [(0, 3), (1, 3), (2, 5)];

/// Asks for the action of every signal that can have one.
fn ask_actions(list: &mut CallBatch) -> Vec<Option<(Place, Asked)>> {
    const MASK_BYTES: u64 = 8;
    let mut ask = |signal| {
        let place = list.place(ACTION_BYTES);
        (place, list.ask("rt_sigaction", syscall::RT_SIGACTION, &[signal, 0, place.address, MASK_BYTES]))
    };
    (1..=SIGNALS).map(|signal| (signal != SIGKILL as u64 && signal != SIGSTOP as u64).then(|| ask(signal))).collect()
}

fn action(answers: &Answers, asked: Option<(Place, Asked)>) -> Result<Action, TraceError> {
    let Some((place, asked)) = asked else { return Ok(Action::default()) };
    answers.check(asked)?;
    let word = |n| answers.word(place, n);
    Ok(Action { handler: word(0), flags: word(1), restorer: word(2), mask: word(3) })
}

/// The answer of `getitimer` and `timer_gettime`: interval and what is left, the second number in units of nanoseconds.
fn timer(answers: &Answers, place: Place, unit: u64) -> IntervalTimer {
    let word = |n| answers.word(place, n);
    let time = |n| word(n).saturating_mul(1_000_000_000).saturating_add(word(n + 1) * unit);
    IntervalTimer { interval_ns: time(0), left_ns: time(2) }
}

/// A timer as it was so long ago: nothing else of the tree goes on while it is looked at.
const fn before(timer: IntervalTimer, ran: Duration) -> IntervalTimer {
    let left_ns = if timer.left_ns == 0 { 0 } else { timer.left_ns.saturating_add(ran.as_nanos() as u64) };
    IntervalTimer { left_ns, ..timer }
}

fn posix_timers(remote: &Remote<'_>, since: Duration) -> Result<Vec<PosixTimer>, TraceError> {
    const AT_ONCE: usize = 50;
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
    for some in timers.chunks_mut(AT_ONCE) {
        let mut list = remote.questions();
        let mut asked = Vec::with_capacity(some.len());
        for found in some.iter() {
            let (id, place) = (found.id as u64, list.place(TIMER_BYTES));
            let time = list.ask("timer_gettime", syscall::TIMER_GETTIME, &[id, place.address]);
            asked.push((place, time, list.ask("timer_getoverrun", syscall::TIMER_GETOVERRUN, &[id])));
        }
        let answers = remote.ask(0, list)?;
        let ran = now().saturating_sub(since);
        for (found, (place, time, overrun)) in some.iter_mut().zip(asked) {
            answers.check(time)?;
            let timer = timer(&answers, place, 1);
            found.timer = if counts_time(found.clock) { before(timer, ran) } else { timer };
            found.overrun = answers.result(overrun)? as i32;
        }
    }
    Ok(timers)
}

/// `ID: 0`, `signal: 14/00007f…`, `notify: signal/tid.77`, `ClockID: 1` for each.
pub(super) fn parse_timers(text: &str) -> Option<Vec<PosixTimer>> {
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

/// Periodic timers whose signal waits because the program blocks it: how often they have expired since is nowhere told
/// before the program takes it. Where a thread waits for signals just now, it takes it at once.
pub(super) fn unread_overruns(
    process: &torpor_process::trace::Process,
    timers: &[PosixTimer],
    pending: &[PendingSignal],
) -> Vec<Blocker> {
    let number = |info: &[u8], at: usize| {
        info.get(at..at + 4).and_then(|word| word.try_into().ok()).map_or(0, i32::from_ne_bytes)
    };
    let takes = |signal: i32| {
        process.threads.iter().any(|thread| {
            let waits = thread.registers.call() == Some(syscall::RT_SIGTIMEDWAIT);
            waits || thread.signal_mask & 1_u64.wrapping_shl(signal.unsigned_abs().wrapping_sub(1)) == 0
        })
    };
    let of_timers = pending.iter().filter(|signal| number(&signal.info, 8) == SI_TIMER);
    let waits = |timer: &&PosixTimer| {
        // The kernel's number of a timer is where its code, signal and padding end.
        let mut own = of_timers.clone().filter(|signal| number(&signal.info, 16) == timer.id);
        timer.timer.interval_ns != 0 && own.any(|signal| !takes(number(&signal.info, 0)))
    };
    let obstacle = |timer: &PosixTimer| {
        let what = format!("timer {} has expired several times, of which the program has not been told yet", timer.id);
        Blocker::new(process.pid, torpor_process::blocker::Place::Process, what, "let it take the timer's signal")
    };
    timers.iter().filter(waits).map(obstacle).collect()
}

/// Signals that wait for a thread, or for any thread of its process.
pub(crate) fn pending(thread: &torpor_process::trace::Thread, shared: bool) -> io::Result<Vec<PendingSignal>> {
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
