//! The last touches from outside, when every thread stands at the end of its steps.
//!
//! What a thread is given here it has when it runs its first own instruction: registers, vector registers, its mask of
//! signals. Its stop is one for a signal, so that the kernel itself restarts an interrupted call when it is let go, or runs
//! a handler first if a signal waits. The blob goes by a call of the last thread that stands in it.

use std::fs;
use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use torpor_image::tree::{LiveProcess, Process, Thread, Wait, WaitPlace};
use torpor_image::{Content, PAGE};
use torpor_linux::registers::{Registers, WORDS};
use torpor_linux::restorer::{BuildingTask, Halt};
use torpor_linux::uapi::prctl::PR_SET_DUMPABLE;
use torpor_linux::vm;

use super::error::RestoreError;
use super::logins::Logins;
use super::run::{Building, name};
use torpor_descriptors::RestoredFiles;
use torpor_pages::source::PageSource;
use torpor_planner::calls;
use torpor_planner::plan::{Kind, Plan};
use torpor_process::wait::socket::{SocketWait, Waiter};

/// `SIG_IGN`, and `SIGTRAP`'s place in the table of actions.
const IGNORE: u64 = 1;
const TRAP: usize = 4;
/// `rseq_cs` in `struct rseq`.
const RSEQ_CS: u64 = 8;

fn set(pid: i32, what: &'static str) -> impl FnOnce(io::Error) -> RestoreError {
    move |error| RestoreError::Set { pid, what, error }
}

/// What a process that is being built has from us.
pub(crate) struct Inherited {
    oom_score_adjustment: i32,
    coredump_filter: u32,
}

impl Inherited {
    /// Looks at ours. To be called where there is time: processes are being built meanwhile.
    pub(crate) fn look() -> Result<Self, RestoreError> {
        let own = |what| move |error| RestoreError::Own(what, error);
        let read = |name| torpor_proc::read(&format!("/proc/self/{name}"));
        let invalid = |_| io::ErrorKind::InvalidData.into();
        let score = read("oom_score_adj").and_then(|text| text.trim().parse().map_err(invalid));
        let filter = read("coredump_filter").and_then(|text| u32::from_str_radix(text.trim(), 16).map_err(invalid));
        Ok(Self {
            oom_score_adjustment: score.map_err(own("reading oom_score_adj"))?,
            coredump_filter: filter.map_err(own("reading coredump_filter"))?,
        })
    }
}

/// What of every living process is set from outside while it is still being built, where it is not as ours.
pub(crate) fn attributes(
    building: &Building<'_>,
    inherited: &Inherited,
    warnings: &mut Vec<String>,
) -> Result<(), RestoreError> {
    for (n, process, life) in leaders(building) {
        score(building.id(n), process.pid, life, inherited, warnings)?;
        coredump_filter(building.id(n), life, inherited)?;
    }
    Ok(())
}

/// Removes what the restorer has in every process; `passed` is by how much less is left of waits.
pub(crate) fn clear(
    building: &Building<'_>,
    plan: &Plan,
    (pages, passed): (&dyn PageSource, Duration),
    (logins, blob): (Logins, BorrowedFd<'_>),
    warnings: &mut Vec<String>,
) -> Result<(), RestoreError> {
    for (n, process, life) in leaders(building) {
        let halt = |error: Halt| RestoreError::Halt { pid: process.pid, name: name(process), error };
        write_memory(building.id(n), life, pages, passed)?;
        let Some(leader) = &building.newborns[n] else { continue };
        make_dumpable(leader, life, plan).map_err(halt)?;
        logins.set(building, (plan, blob), (n, life, ignores_trap(life)), warnings)?;
        remove_blob(leader, n, life, plan).map_err(halt)?;
        if ignores_trap(life) {
            leader.stop_for_signal().map_err(halt)?;
        }
    }
    Ok(())
}

/// Gives every thread its registers and its mask; nothing of the restorer is in the tree after this.
pub(crate) fn give_all(building: &Building<'_>, passed: Duration) -> Result<(), RestoreError> {
    for (n, _, life) in leaders(building) {
        // A process's threads follow its leader.
        let newborns = building.newborns[n..n + life.threads.len()].iter().flatten();
        for (newborn, thread) in newborns.zip(&life.threads) {
            give(newborn, thread, passed)?;
        }
    }
    Ok(())
}

/// Waits of threads on the time-outs of their sockets, which are to be what is left of them when the threads are let go.
pub(crate) fn socket_waits(
    building: &Building<'_>,
    made: &RestoredFiles,
    passed: Duration,
) -> Result<Vec<SocketWait>, RestoreError> {
    let mut waits = Vec::new();
    for (n, process, life) in leaders(building) {
        for (thread, id) in life.threads.iter().zip(n..) {
            let Some(wait @ Wait { place: WaitPlace::Socket { fd, send }, .. }) = thread.wait else { continue };
            let file = life.descriptors.iter().find(|descriptor| descriptor.fd == fd).map(|one| one.file);
            let socket = file.and_then(|file| made.files.get(file as usize)?.as_ref());
            let (Some(socket), Some(number)) = (socket, call(thread)) else { continue };
            let socket = socket.try_clone().map_err(set(process.pid, "duplicating a socket"))?;
            let waiter = Waiter { pid: building.id(n), tid: building.id(id), number, ran_ns: None };
            waits.push(SocketWait {
                socket: socket.into(),
                send,
                left: Duration::from_nanos(left_ns(&wait, passed)),
                waiter,
            });
        }
    }
    Ok(waits)
}

/// The call that a thread is in.
fn call(thread: &Thread) -> Option<u64> {
    Registers::from_words(thread.registers.as_slice().try_into().ok()?).call()
}

/// The tasks of living processes' first threads.
fn leaders<'a>(building: &Building<'a>) -> impl Iterator<Item = (usize, &'a Process, &'a LiveProcess)> {
    let tree = building.tree();
    let first = building.tasks().iter().enumerate().filter(|(_, task)| task.kind == Kind::Thread(0));
    first.filter_map(|(n, task)| {
        let process = tree.processes.get(task.process as usize)?;
        Some((n, process, process.alive()?))
    })
}

/// What is left of a wait when `passed` of it has gone, nanoseconds.
fn left_ns(wait: &Wait, passed: Duration) -> u64 {
    wait.left_ns.saturating_sub(u64::try_from(passed.as_nanos()).unwrap_or(u64::MAX))
}

fn ignores_trap(life: &LiveProcess) -> bool {
    life.actions.get(TRAP).is_some_and(|action| action.handler == IGNORE)
}

/// Time-outs where the kernel reads them, and critical sections that threads were in, which registering has cleared.
fn write_memory(pid: i32, life: &LiveProcess, pages: &dyn PageSource, passed: Duration) -> Result<(), RestoreError> {
    let mut parts: Vec<(u64, [u8; 16], usize)> = Vec::new();
    for thread in &life.threads {
        if let Some(wait) = thread.wait {
            let left = left_ns(&wait, passed);
            let (seconds, rest) = (left / 1_000_000_000, left % 1_000_000_000);
            let pair = |small: u64| {
                let mut bytes = [0; 16];
                bytes[..8].copy_from_slice(&seconds.to_ne_bytes());
                bytes[8..].copy_from_slice(&small.to_ne_bytes());
                bytes
            };
            match wait.place {
                WaitPlace::Timespec(address) => parts.push((address, pair(rest), 16)),
                WaitPlace::Timeval(address) => parts.push((address, pair(rest / 1000), 16)),
                WaitPlace::Milliseconds(_) | WaitPlace::Socket { .. } => {}
            }
        }
        if let Some((address, ..)) = thread.rseq
            && let Some(offset) = stored_at(life, address + RSEQ_CS)
        {
            let mut bytes = [0; 16];
            pages.read(offset, &mut bytes[..8]).map_err(set(pid, "reading the rseq area"))?;
            if bytes != [0; 16] {
                parts.push((address + RSEQ_CS, bytes, 8));
            }
        }
    }
    for chunk in parts.chunks(vm::MAX_RANGES) {
        let slices: Vec<(u64, &[u8])> = chunk.iter().map(|(at, bytes, len)| (*at, &bytes[..*len])).collect();
        vm::write(pid, &slices).map_err(set(pid, "writing the memory"))?;
    }
    Ok(())
}

/// Where in the image the word at `address` is stored.
fn stored_at(life: &LiveProcess, address: u64) -> Option<u64> {
    let after = life.space.areas.partition_point(|area| area.end <= address);
    let area = life.space.areas.get(after).filter(|area| area.start <= address)?;
    let after = area.pages.partition_point(|region| region.start + u64::from(region.pages) * PAGE <= address);
    let region = area.pages.get(after).filter(|region| region.start <= address)?;
    match region.content {
        Content::Stored { offset, .. } => Some(offset + (address - region.start)),
        Content::Zero => None,
    }
}

fn score(
    id: i32,
    pid: i32,
    life: &LiveProcess,
    inherited: &Inherited,
    warnings: &mut Vec<String>,
) -> Result<(), RestoreError> {
    let (wanted, ours) = (life.oom_score_adjustment, inherited.oom_score_adjustment);
    if wanted == ours {
        return Ok(());
    }
    match fs::write(format!("/proc/{id}/oom_score_adj"), wanted.to_string()) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            warnings.push(format!(
                "process {pid}: oom_score_adj stays {ours} instead of {wanted}: CAP_SYS_RESOURCE is missing"
            ));
            Ok(())
        }
        other => other.map_err(set(pid, "setting oom_score_adj")),
    }
}

/// What core dumps hold.
fn coredump_filter(pid: i32, life: &LiveProcess, inherited: &Inherited) -> Result<(), RestoreError> {
    let wanted = life.switches.coredump_filter;
    if wanted == inherited.coredump_filter {
        return Ok(());
    }
    let path = format!("/proc/{pid}/coredump_filter");
    fs::write(path, format!("{wanted:#x}")).map_err(set(pid, "setting coredump_filter"))
}

/// Threads that changed their ids have reset it.
fn make_dumpable(leader: &BuildingTask, life: &LiveProcess, plan: &Plan) -> Result<(), Halt> {
    /// `SUID_DUMP_USER`.
    const USER: u8 = 1;
    if life.threads.len() == 1 {
        return Ok(());
    }
    let dumpable = u64::from(life.dumpable == USER);
    sure(leader, calls::PRCTL, leader.call(plan.address, calls::PRCTL, &[PR_SET_DUMPABLE, dumpable])?)
}

/// The last calls in a process, of which the very last removes the code that makes them.
fn remove_blob(leader: &BuildingTask, n: usize, life: &LiveProcess, plan: &Plan) -> Result<(), Halt> {
    let blob = [plan.address, plan.blob_bytes()];
    if !ignores_trap(life) {
        return sure(leader, calls::MUNMAP, leader.call(plan.address, calls::MUNMAP, &blob)?);
    }
    // The blob's data still holds what the steps used.
    let action = action_place(plan, n);
    if let Some(action) = action {
        let arguments = [TRAP as u64 + 1, action, 0, 8];
        sure(leader, calls::RT_SIGACTION, leader.quiet_call(plan.address, calls::RT_SIGACTION, &arguments)?)?;
    }
    sure(leader, calls::MUNMAP, leader.quiet_call(plan.address, calls::MUNMAP, &blob)?)
}

/// Where the steps of the leader have the action for `SIGTRAP`.
fn action_place(plan: &Plan, n: usize) -> Option<u64> {
    let mut found = plan
        .steps(&plan.tasks[n])
        .map(|(_, step)| step)
        .filter(|step| i64::from(step.number) == calls::RT_SIGACTION && step.arguments[0] == TRAP as u64 + 1);
    found.next().map(|step| step.arguments[1])
}

fn sure(newborn: &BuildingTask, call: i64, answer: i64) -> Result<(), Halt> {
    if answer == 0 {
        return Ok(());
    }
    let error = io::Error::from_raw_os_error(i32::try_from(-answer).unwrap_or(0));
    Err(Halt::Trace(newborn.tracee().thread(), calls::name(call as u32), error))
}

/// Registers and mask.
fn give(newborn: &BuildingTask, thread: &Thread, passed: Duration) -> Result<(), RestoreError> {
    let tid = thread.tid;
    let mut words = [0; WORDS];
    words.copy_from_slice(&thread.registers);
    if let Some(wait) = thread.wait
        && let WaitPlace::Milliseconds(register) = wait.place
        && let Some(word) = words.get_mut(usize::from(register))
    {
        *word = left_ns(&wait, passed).div_ceil(1_000_000);
    }
    let registers = Registers::from_words(words);
    let tracee = newborn.tracee();
    tracee.set_xstate(&thread.xstate).map_err(set(tid, "setting the vector registers"))?;
    tracee.set_registers(&registers).map_err(set(tid, "setting the registers"))?;
    tracee.set_signal_mask(thread.signal_mask).map_err(set(tid, "setting the signal mask"))
}
