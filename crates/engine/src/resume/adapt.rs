//! What a plan cannot know when it is made: which files are kept, and how much time has passed.
//!
//! A kept epoll descriptor has its registrations still: adding one again may find it there. Timers of an app go on while it
//! sleeps: those of the clocks that time passes on are set to the moment at which they would have expired, so that the kernel
//! itself counts what was missed and keeps the rhythm.

use std::collections::HashMap;
use std::io;
use std::time::Duration;

use rustix::fs::Stat;
use rustix::time::{ClockId, clock_gettime};
use torpor_image::tree::{FileId, FileKind, Machine, Tree};
use torpor_linux::restorer::{ANY, Step};
use torpor_linux::uapi::file::{EPOLL_CTL_ADD, F_SETLEASE};
use torpor_linux::uapi::time::TIMER_ABSTIME;

use super::lock_waiters::LockWaiters;
use torpor_descriptors::{Given, Volumes};
use torpor_planner::calls;
use torpor_planner::plan::{Kind, Plan, Task};
use torpor_planner::staged::Staged;
use torpor_process::sandbox::{SandboxHandle, clock_offsets};

const SECOND_NS: u64 = 1_000_000_000;

/// What the clocks of the programs showed at the capture, and what they show now.
///
/// After a reboot a home's clocks have been set so that the time in between, as the wall's clock tells it, counts: to the
/// programs it is as if they had slept on one machine. So their own clocks say how much has passed, and timers keep to them.
pub(super) struct Times {
    /// `CLOCK_REALTIME`, `CLOCK_MONOTONIC` and `CLOCK_BOOTTIME`, then; nanoseconds.
    then_ns: [i64; 3],
    now_ns: [i64; 3],
    /// The home cannot set clocks, and they tell of this boot only.
    other_clocks: bool,
}

impl Times {
    pub(super) fn of(machine: &Machine, home: &SandboxHandle, boot: [u64; 2]) -> io::Result<Self> {
        let clock = |id| {
            let now = clock_gettime(id);
            now.tv_sec.saturating_mul(SECOND_NS.cast_signed()).saturating_add(now.tv_nsec)
        };
        let [monotonic, boottime] = if home.time_namespace { clock_offsets(home.init_pid)? } else { [0; 2] };
        let then = |ns: u64, offset: i64| ns.cast_signed().saturating_add(offset);
        let offsets = machine.clock_offsets_ns;
        Ok(Self {
            then_ns: [
                then(machine.realtime_ns, 0),
                then(machine.monotonic_ns, offsets[0]),
                then(machine.boottime_ns, offsets[1]),
            ],
            now_ns: [
                clock(ClockId::Realtime),
                clock(ClockId::Monotonic).saturating_add(monotonic),
                clock(ClockId::Boottime).saturating_add(boottime),
            ],
            other_clocks: !home.time_namespace && boot != machine.boot,
        })
    }

    /// How much time has passed since the capture.
    pub(super) fn passed(&self) -> Duration {
        let clock = if self.other_clocks { 0 } else { 1 };
        let passed = self.now_ns[clock].saturating_sub(self.then_ns[clock]);
        Duration::from_nanos(u64::try_from(passed).unwrap_or(0))
    }

    /// When a timer of this clock ends of which so much was left; `None` for clocks that stand still meanwhile.
    fn end_ns(&self, clock: i32, left_ns: u64) -> Option<u64> {
        let clock = match clock {
            // Realtime and its alarm; monotonic; boot time and its alarm.
            0 | 8 => 0,
            1 => 1,
            7 | 9 => 2,
            _ => return None,
        };
        let begin = match (clock, self.other_clocks) {
            (0, _) | (_, false) => self.then_ns[clock],
            (_, true) => self.now_ns[clock].saturating_sub(self.passed().as_nanos() as i64),
        };
        // 0 would put it off.
        Some(u64::try_from(begin.saturating_add_unsigned(left_ns)).unwrap_or(0).max(1))
    }
}

/// Lets what is kept be as it is.
///
/// # Errors
/// When the app's mounts cannot be read.
pub(super) fn to_kept_files(
    plan: &mut Plan,
    tree: &Tree,
    staged: &Staged<'_>,
    given: &Given,
    home: &SandboxHandle,
) -> io::Result<()> {
    let is_epoll =
        |file: &&u32| tree.files.get(**file as usize).is_some_and(|file| matches!(file.kind, FileKind::Epoll { .. }));
    let epolls: Vec<u64> = given.keys().filter(is_epoll).map(|file| staged.file(*file) as u64).collect();
    kept_locks(plan, tree, given, home)?;
    if epolls.is_empty() {
        return Ok(());
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
    Ok(())
}

/// Kept `flock` locks and leases show who had taken them, and are given up for a moment and taken again to show who has them now.
/// Where another could get in between, one is left as it is: in a volume, which others reach, and where somebody waits for it.
fn kept_locks(plan: &mut Plan, tree: &Tree, given: &Given, home: &SandboxHandle) -> io::Result<()> {
    // Read once, and only where a lock is kept.
    let (mut waited, mut volumes) = (None, None);
    for task in leaders(plan) {
        let Some(life) = tree.processes.get(task.process as usize).and_then(|process| process.alive()) else {
            continue;
        };
        let mut steps: Vec<_> = plan.steps(&task).collect();
        // There are two steps for each lock: one that changes it, and one that takes it again.
        steps.retain(|(_, step)| what_is_locked(step).is_some());
        if steps.is_empty() {
            continue;
        }
        let files: HashMap<u64, FileId> = life.descriptors.iter().map(|one| (one.fd as u64, one.file)).collect();
        for two in steps.chunks_exact_mut(2) {
            let [(address, change), (_, back)] = two else { continue };
            let kept = files.get(&change.arguments[0]).and_then(|file| given.get(file));
            let (Some(kept), Some(argument)) = (kept, what_is_locked(change)) else { continue };
            let volumes = match &volumes {
                Some(volumes) => volumes,
                None => volumes.insert(Volumes::of(&format!("/proc/{}", home.init_pid))?),
            };
            let is_waited_for = |stat: Stat| waited.get_or_insert_with(LockWaiters::read).may_have(stat.st_ino);
            if volumes.have(kept)? || rustix::fs::fstat(kept).map_or(true, is_waited_for) {
                change.arguments[argument] = back.arguments[argument];
                plan.set_step(*address, change);
            }
        }
    }
    Ok(())
}

/// Which argument of a step says how a file is locked; none: the step locks none.
fn what_is_locked(step: &Step) -> Option<usize> {
    match i64::from(step.number) {
        calls::FLOCK => Some(1),
        calls::FCNTL if step.arguments[1] == F_SETLEASE => Some(2),
        _ => None,
    }
}

fn leaders(plan: &Plan) -> Vec<Task> {
    plan.tasks.iter().filter(|task| task.kind == Kind::Thread(0)).copied().collect()
}

/// Lets timers be as they would be by now. Processes set them when they are in their time namespace.
pub(super) fn to_the_time(plan: &mut Plan, tree: &Tree, times: &Times) {
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
                    let Some(timer) = life.posix_timers.iter().find(|timer| timer.id as u64 == step.arguments[0])
                    else {
                        continue;
                    };
                    let Some(value) = plan.bytes(step.arguments[2] + 16, 16) else { continue };
                    let left = from_pair(value, 1);
                    let Some(end) = times.end_ns(timer.clock, left).filter(|_| left != 0) else { continue };
                    to_pair(value, end, 1);
                    step.arguments[1] = TIMER_ABSTIME;
                    plan.set_step(address, &step);
                }
                calls::SETITIMER if step.arguments[0] == 0 => {
                    const MICROSECOND: u64 = 1000;
                    let Some(value) = plan.bytes(step.arguments[1] + 16, 16) else { continue };
                    let left = from_pair(value, MICROSECOND).saturating_sub(nanoseconds(times.passed()));
                    to_pair(value, left.max(MICROSECOND), MICROSECOND);
                }
                _ => {}
            }
        }
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
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
    fn timers_keep_to_the_clocks_of_their_programs() {
        let mut times = Times { then_ns: [1_000, 100, 200], now_ns: [1_400, 150, 250], other_clocks: false };
        assert_eq!(times.passed(), Duration::from_nanos(50));
        assert_eq!([0, 1, 7, 2].map(|clock| times.end_ns(clock, 7)), [Some(1_007), Some(107), Some(207), None]);
        times.other_clocks = true;
        assert_eq!(times.passed(), Duration::from_nanos(400));
        assert_eq!([0, 1].map(|clock| times.end_ns(clock, 700)), [Some(1_700), Some(450)]);
        assert_eq!(times.end_ns(1, 7), Some(1));
        times.now_ns[0] = 0;
        assert_eq!(times.passed(), Duration::ZERO);
    }

    #[test]
    fn pairs_are_read_and_written() {
        let mut bytes = [0; 16];
        to_pair(&mut bytes, 3 * SECOND_NS + 5_000, 1000);
        assert_eq!((bytes[0], bytes[8]), (3, 5));
        assert_eq!(from_pair(&bytes, 1000), 3 * SECOND_NS + 5_000);
    }
}
