//! What a plan cannot know when it is made: which files are kept, and how much time has passed.
//!
//! A kept epoll descriptor has its registrations still: adding one again may find it there. Timers of an app go on while it
//! sleeps: those of the clocks that time passes on are set to the moment at which they would have expired, so that the kernel
//! itself counts what was missed and keeps the rhythm.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use torpor_image::tree::{FileKind, Machine, Tree};
use torpor_linux::restorer::ANY;

use crate::files::Given;
use crate::restore::calls;
use crate::restore::plan::{Kind, Plan, Task};
use crate::restore::staged::Staged;

const SECOND_NS: u64 = 1_000_000_000;

/// How much time has passed since the capture.
pub(super) fn passed(machine: &Machine, same_boot: bool) -> Duration {
    let (clock, then) = match same_boot {
        true => (ClockId::Monotonic, machine.monotonic_ns),
        false => (ClockId::Realtime, machine.realtime_ns),
    };
    let now = clock_gettime(clock);
    let now = Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs() as u32);
    now.saturating_sub(Duration::from_nanos(then))
}

/// Lets what is kept be as it is.
pub(super) fn to_kept_files(plan: &mut Plan, tree: &Tree, staged: &Staged<'_>, given: &Given) {
    const EPOLL_CTL_ADD: u64 = 1;
    let is_epoll =
        |file: &&u32| tree.files.get(**file as usize).is_some_and(|file| matches!(file.kind, FileKind::Epoll { .. }));
    let epolls: Vec<u64> = given.keys().filter(is_epoll).map(|file| staged.file(*file) as u64).collect();
    if epolls.is_empty() {
        return;
    }
    for task in leaders(plan) {
        let adds = plan.steps(&task).filter(|(_, step)| {
            let [epoll, operation, ..] = step.arguments;
            i64::from(step.number) == calls::EPOLL_CTL && operation == EPOLL_CTL_ADD && epolls.contains(&epoll)
        });
        for (address, mut step) in adds.collect::<Vec<_>>() {
            step.flags = ANY;
            plan.set_step(address, &step);
        }
    }
}

fn leaders(plan: &Plan) -> Vec<Task> {
    plan.tasks.iter().filter(|task| task.kind == Kind::Thread(0)).copied().collect()
}

/// Lets timers be as they would be by now.
pub(super) fn to_the_time(plan: &mut Plan, tree: &Tree, passed: Duration, same_boot: bool) {
    for task in leaders(plan) {
        let Some(life) = tree.processes.get(task.process as usize).and_then(|process| process.alive()) else {
            continue;
        };
        if life.posix_timers.is_empty()
            && life.interval_timers[0].left_ns == 0
            && life.interval_timers[0].interval_ns == 0
        {
            continue;
        }
        for (address, mut step) in plan.steps(&task).collect::<Vec<_>>() {
            match i64::from(step.number) {
                calls::TIMER_SETTIME => {
                    const TIMER_ABSTIME: u64 = 1;
                    let timer = life.posix_timers.iter().find(|timer| timer.id as u64 == step.arguments[0]);
                    let Some(then) = timer.and_then(|timer| clock_then(timer.clock, &tree.machine)) else { continue };
                    let Some(value) = plan.bytes(step.arguments[2] + 16, 16) else { continue };
                    let left = from_pair(value, 1);
                    if same_boot {
                        to_pair(value, left.saturating_add(then), 1);
                        step.arguments[1] = TIMER_ABSTIME;
                        plan.set_step(address, &step);
                    } else {
                        to_pair(value, left.saturating_sub(nanoseconds(passed)).max(1), 1);
                    }
                }
                calls::SETITIMER if step.arguments[0] == 0 => {
                    const MICROSECOND: u64 = 1000;
                    let Some(value) = plan.bytes(step.arguments[1] + 16, 16) else { continue };
                    let left = from_pair(value, MICROSECOND).saturating_sub(nanoseconds(passed)).max(MICROSECOND);
                    to_pair(value, left, MICROSECOND);
                }
                _ => {}
            }
        }
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// What a clock that time passes on said at the capture, nanoseconds.
fn clock_then(clock: i32, machine: &Machine) -> Option<u64> {
    match clock {
        // Realtime and its alarm; monotonic; boot time and its alarm.
        0 | 8 => Some(machine.realtime_ns),
        1 => Some(machine.monotonic_ns),
        7 | 9 => Some(machine.boottime_ns),
        _ => None,
    }
}

/// A `timespec` or `timeval`, nanoseconds.
fn from_pair(bytes: &[u8], unit_ns: u64) -> u64 {
    let word = |at: usize| bytes.get(at..at + 8).and_then(|word| word.try_into().ok()).map_or(0, u64::from_ne_bytes);
    word(0).saturating_mul(SECOND_NS).saturating_add(word(8).saturating_mul(unit_ns))
}

fn to_pair(bytes: &mut [u8], ns: u64, unit_ns: u64) {
    let words = [ns / SECOND_NS, ns % SECOND_NS / unit_ns];
    bytes.copy_from_slice(&words.map(u64::to_ne_bytes).concat());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_read_and_written() {
        let mut bytes = [0; 16];
        to_pair(&mut bytes, 3 * SECOND_NS + 5_000, 1000);
        assert_eq!((bytes[0], bytes[8]), (3, 5));
        assert_eq!(from_pair(&bytes, 1000), 3 * SECOND_NS + 5_000);
    }
}
