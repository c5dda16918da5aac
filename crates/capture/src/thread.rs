//! One thread's record.

use std::fs;
use std::io;
use std::time::Duration;

use rustix::thread::{Pid, sched_getaffinity};
use torpor_image::tree::{Scheduling, SeccompFilter, Thread, Wait, WaitPlace};
use torpor_linux::registers::{Registers, restart};
use torpor_linux::scheduling;
use torpor_linux::uapi::syscall;
use torpor_linux::vm;

use super::credentials::Status;
use super::signals::{self, OfThread};
use torpor_proc as proc;
use torpor_process::threads::{Began, ThreadPlan};
use torpor_process::trace;
use torpor_process::wait::restart::{Interrupted, Place};

/// `SECCOMP_MODE_STRICT`.
const STRICT: u32 = 1;
/// Filters of one thread at most.
const FILTERS: usize = 64;

/// The plan that a thread's record is made from. In a call that the kernel was restarting already (it was stopped before, by
/// us or by `SIGSTOP`) the registers no longer say which one it is, but the code before it does.
pub fn for_record(plan: ThreadPlan, began: &Began) -> ThreadPlan {
    if !is_unknown(&plan) {
        return plan;
    }
    let mut code = [0; 16];
    let place = plan.registers.instruction().wrapping_sub(code.len() as u64);
    let range = vm::Remote { address: place, len: code.len() };
    let number = vm::read(plan.pid, &[range], &mut code).ok().and_then(|()| number_in(&code));
    number.map_or(plan, |number| {
        let mut registers = plan.registers;
        registers.set_call(Some(number));
        ThreadPlan::of_registers(plan.pid, plan.tid, registers, began)
    })
}

fn is_unknown(plan: &ThreadPlan) -> bool {
    plan.interrupted.is_none()
        && plan.registers.call() == Some(syscall::RESTART_SYSCALL)
        && plan.registers.result() == -restart::ERESTART_RESTARTBLOCK
}

/// The number of the call at the end of `code`, if it is one that can be restarted: `mov eax, number`, not far before
/// `syscall`.
fn number_in(code: &[u8; 16]) -> Option<u64> {
    const SYSCALL: [u8; 2] = [0x0f, 0x05];
    const MOVE: u8 = 0xb8;
    let before = code.strip_suffix(&SYSCALL)?;
    let found = before.windows(5).rev().find_map(|window| match window {
        [MOVE, number @ ..] => number.try_into().ok().map(u32::from_le_bytes),
        _ => None,
    })?;
    [syscall::POLL, syscall::NANOSLEEP, syscall::FUTEX, syscall::CLOCK_NANOSLEEP]
        .into_iter()
        .find(|known| *known == u64::from(found))
}

/// Registers as the record has them, and the time-out that goes with them.
///
/// `plan` says what the thread was stopped in; the program itself goes on by other means. `None`: it is in a call that the
/// kernel was restarting already, and which one it is cannot be told.
pub(super) fn registers(plan: &ThreadPlan, now: Duration) -> Option<(Registers, Option<Wait>)> {
    let mut registers = plan.registers;
    let Some(interrupted) = &plan.interrupted else {
        return (!is_unknown(plan)).then_some((registers, None));
    };
    if registers.call() == Some(syscall::RESTART_SYSCALL) {
        registers.set_call(Some(interrupted.number));
    }
    if interrupted.hide_eintr || registers.result() == -restart::ERESTART_RESTARTBLOCK {
        // The kernel would answer EINTR to both if a handler ran, and restarts them if none does.
        registers.set_result(-restart::ERESTARTNOHAND);
    }
    let wait = wait(&mut registers, interrupted, now);
    Some((registers, wait))
}

fn wait(registers: &mut Registers, interrupted: &Interrupted, now: Duration) -> Option<Wait> {
    let timeout = interrupted.timeout.as_ref()?;
    let left_ns = timeout.deadline.saturating_sub(now).as_nanos() as u64;
    let place = match timeout.place {
        // The kernel has put what is left there itself.
        Place::Timespec(n) => WaitPlace::Timespec(registers.argument(n)),
        Place::Timeval(n) => WaitPlace::Timeval(registers.argument(n)),
        Place::Millis(n) => WaitPlace::Milliseconds(Registers::argument_word(n) as u8),
        Place::Constant(n) => below_the_stack(registers, n),
        Place::Kernel => match interrupted.number {
            syscall::POLL => WaitPlace::Milliseconds(Registers::argument_word(2) as u8),
            syscall::NANOSLEEP => below_the_stack(registers, 0),
            syscall::CLOCK_NANOSLEEP if registers.argument(1) & 1 == 0 => below_the_stack(registers, 2),
            syscall::FUTEX if registers.argument(1) & 127 == 0 => below_the_stack(registers, 3),
            // Absolute times stay what they are.
            _ => return None,
        },
        Place::Socket { send } => WaitPlace::Socket { fd: registers.argument(0) as i32, send },
    };
    Some(Wait { left_ns, place })
}

/// The program's own `timespec` must not change: argument `n` gets one below the red zone, where a signal frame could go too.
fn below_the_stack(registers: &mut Registers, n: usize) -> WaitPlace {
    const RED_ZONE: u64 = 128;
    let place = (registers.stack() - RED_ZONE - 32) & !15;
    registers.set_argument(n, place);
    WaitPlace::Timespec(place)
}

/// What was learned of a thread by other means.
pub(super) struct Known<'a> {
    pub(super) registers: Registers,
    pub(super) wait: Option<Wait>,
    pub(super) status: Status,
    pub(super) answers: OfThread,
    /// The machine's processors.
    pub(super) online: &'a [u64],
}

/// Makes the record of a stopped thread of process `pid`.
pub(crate) fn record(thread: &trace::Thread, known: Known<'_>) -> io::Result<Thread> {
    let Known { registers, wait, status, answers, online } = known;
    let tid = thread.tracee.thread();
    let mut credentials = status.credentials;
    credentials.securebits = answers.securebits;
    Ok(Thread {
        tid,
        registers: registers.words().to_vec(),
        xstate: thread.tracee.xstate()?,
        wait,
        signal_mask: thread.signal_mask,
        signal_stack: answers.signal_stack,
        pending: signals::pending(thread, false)?,
        name: answers.name,
        robust_list: scheduling::robust_list(tid)?,
        clear_tid_address: answers.clear_tid_address,
        rseq: rseq(thread)?,
        credentials,
        no_new_privileges: status.no_new_privileges,
        seccomp: filters(thread, status.seccomp)?,
        parent_death_signal: answers.parent_death_signal,
        scheduling: scheduling_of(tid, online)?,
        timer_slack_ns: answers.timer_slack_ns,
        time_stamp_counter: answers.time_stamp_counter,
        strict: status.seccomp == STRICT,
        memory_error_policy: answers.memory_error_policy,
        memory_policy: answers.memory_policy,
    })
}

/// `comm`, which may hold any bytes.
pub(super) fn name(pid: i32, tid: i32) -> io::Result<Vec<u8>> {
    let mut name = fs::read(format!("/proc/{pid}/task/{tid}/comm"))?;
    name.pop_if(|last| *last == b'\n');
    Ok(name)
}

fn rseq(thread: &trace::Thread) -> io::Result<Option<(u64, u32, u32, u32)>> {
    match thread.tracee.rseq() {
        Ok(found) => Ok(found.map(|rseq| (rseq.address, rseq.bytes, rseq.signature, rseq.flags))),
        // A kernel without rseq.
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error()) => Ok(None),
        Err(error) => Err(error),
    }
}

fn filters(thread: &trace::Thread, mode: u32) -> io::Result<Vec<SeccompFilter>> {
    let mut found = Vec::new();
    if mode == 0 || mode == STRICT {
        return Ok(found);
    }
    for n in 0..FILTERS {
        let Some((flags, instructions)) = thread.tracee.seccomp_filter(n)? else { break };
        let packed = |i: &torpor_linux::seccomp::Instruction| {
            u64::from(i.code)
                | u64::from(i.jump_true) << 16
                | u64::from(i.jump_false) << 24
                | u64::from(i.operand) << 32
        };
        found.push(SeccompFilter { flags: flags as u32, instructions: instructions.iter().map(packed).collect() });
    }
    Ok(found)
}

fn scheduling_of(tid: i32, online: &[u64]) -> io::Result<Scheduling> {
    let found = scheduling::attributes(tid)?;
    let allowed = sched_getaffinity(Pid::from_raw(tid))?;
    let mut processors = vec![0_u64; rustix::thread::CpuSet::MAX_CPU / 64];
    for cpu in (0..rustix::thread::CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)) {
        processors[cpu / 64] |= 1 << (cpu % 64);
    }
    while processors.last() == Some(&0) {
        processors.pop();
    }
    if processors == online {
        processors.clear();
    }
    Ok(Scheduling {
        policy: found.policy,
        priority: found.priority,
        flags: found.flags,
        nice: found.nice,
        processors,
        io_priority: scheduling::io_priority(tid)?,
    })
}

/// The machine's processors, as a bit set.
pub(super) fn online() -> io::Result<Vec<u64>> {
    const PATH: &str = "/sys/devices/system/cpu/online";
    parse_cpus(proc::read(PATH)?.trim()).ok_or_else(|| proc::unexpected(PATH))
}

/// `0-3,5`.
pub(super) fn parse_cpus(text: &str) -> Option<Vec<u64>> {
    let mut words = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if last >= rustix::thread::CpuSet::MAX_CPU {
            return None;
        }
        words.resize(words.len().max(last / 64 + 1), 0_u64);
        (first..=last).for_each(|cpu| words[cpu / 64] |= 1 << (cpu % 64));
    }
    Some(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_restarted_call_is_known_by_the_code_before_it() {
        let code = |number: u8, gap: usize| {
            let mut code = [0x90; 16];
            code[14..].copy_from_slice(&[0x0f, 0x05]);
            code[14 - gap - 5..14 - gap].copy_from_slice(&[0xb8, number, 0, 0, 0]);
            code
        };
        assert_eq!(number_in(&code(230, 0)), Some(syscall::CLOCK_NANOSLEEP));
        assert_eq!(number_in(&code(7, 3)), Some(syscall::POLL));
        assert_eq!(number_in(&code(1, 0)), None);
        assert_eq!(number_in(&[0x90; 16]), None);
    }

    #[test]
    fn processors_are_read_as_a_bit_set() {
        assert_eq!(parse_cpus("0-3,65"), Some(vec![0b1111, 0b10]));
        assert_eq!(parse_cpus("0"), Some(vec![1]));
        assert_eq!(parse_cpus("0-99999"), None);
    }
}
