//! Steps for what threads of a process have in common: descriptors, directories, limits, signals, timers.

use std::collections::{HashMap, HashSet};

use torpor_image::tree::{FileKind, FileLock, LiveProcess, LockKind, OpenFile, Process, Tree};
use torpor_linux::limits::hard_limits;
use torpor_linux::uapi::file::{
    AT_FDCWD, EPOLL_CTL_ADD, EPOLL_CTL_DEL, F_SETFL, F_SETLEASE, F_SETLK, F_UNLCK, LOCK_EX, LOCK_NB, LOCK_SH, O_ASYNC,
    O_CLOEXEC,
};
use torpor_linux::uapi::memory::MCL_FUTURE;
use torpor_linux::uapi::prctl::{
    PR_SET_CHILD_SUBREAPER, PR_SET_MDWE, PR_SET_MEMORY_MERGE, PR_SET_THP_DISABLE, PR_TIMER_CREATE_RESTORE_IDS,
};

use super::build::{Argument, Builder, Steps};
use crate::calls;
use crate::staged::{Access, Staged};

/// `F_WRLCK`.
const WRITE: i32 = 1;

/// Descriptors that one process sets up for all that have them.
#[derive(Debug, Default)]
pub(super) struct Claimed {
    epolls: Vec<bool>,
    notified: Vec<bool>,
    /// By process: the one that puts its table of descriptors together.
    tables: HashMap<i32, i32>,
}

impl Claimed {
    pub(super) fn new(tree: &Tree) -> Self {
        let mut tables = HashMap::new();
        for process in &tree.processes {
            let Some(life) = process.alive() else { continue };
            // Parents come before their children.
            let owner = if life.shares.descriptors { tables.get(&process.parent).copied() } else { Some(process.pid) };
            tables.extend(owner.map(|owner| (process.pid, owner)));
        }
        Self { epolls: vec![false; tree.files.len()], notified: vec![false; tree.files.len()], tables }
    }
}

/// Puts the table of descriptors together and closes what was inherited.
pub(super) fn descriptors(
    tree: &Tree,
    life: &LiveProcess,
    staged: &Staged<'_>,
    claimed: &mut Claimed,
    builder: &mut Builder,
    steps: &mut Steps,
) {
    let places: HashMap<i32, u32> = life.descriptors.iter().map(|found| (found.fd, found.file)).collect();
    let mut epolls = Vec::new();
    for found in &life.descriptors {
        if let FileKind::Epoll { members } = &tree.files[found.file as usize].kind
            && !std::mem::replace(&mut claimed.epolls[found.file as usize], true)
        {
            epolls.push((found.file, members));
        }
    }
    let add = |file: u32, member: &torpor_image::tree::EpollMember, builder: &mut Builder, steps: &mut Steps| {
        let mut event = [0; 12];
        event[..4].copy_from_slice(&member.events.to_ne_bytes());
        event[4..].copy_from_slice(&member.data.to_ne_bytes());
        let event = builder.bytes(&event);
        if matches!(tree.files[member.file as usize].kind, FileKind::Signal { .. }) {
            // A descriptor that was kept tells the process that has ended.
            let arguments = [staged.file(file).into(), EPOLL_CTL_DEL.into(), member.fd.into(), 0_u64.into()];
            steps.any(calls::EPOLL_CTL, &arguments);
        }
        steps.call(calls::EPOLL_CTL, &[staged.file(file).into(), EPOLL_CTL_ADD.into(), member.fd.into(), event]);
    };
    // Registered under a number that now is another file's, or nobody's: there for a moment.
    let strange = |member: &torpor_image::tree::EpollMember| places.get(&member.fd) != Some(&member.file);
    for (file, members) in &epolls {
        for member in members.iter().filter(|member| strange(member)) {
            steps.able(calls::DUP3, &[staged.file(member.file).into(), member.fd.into(), 0_u64.into()]);
            add(*file, member, builder, steps);
            let number = Argument::from(member.fd);
            steps.call(calls::CLOSE_RANGE, &[number, number, 0_u64.into()]);
        }
    }
    let mut processes: HashMap<u32, i32> = HashMap::new();
    let first_free = first_free(life);
    for found in &life.descriptors {
        let flags = Argument::Value(if found.close_on_exec { O_CLOEXEC } else { 0 });
        let file = &tree.files[found.file as usize];
        let from = match &file.kind {
            kind @ (FileKind::Process { .. } | FileKind::OfProcess { .. }) => match processes.get(&found.file) {
                Some(first) => *first,
                None => {
                    // A new number: ours is put there by dup3 afterwards.
                    let place = staged.file(found.file);
                    let lowest = first_free.min(found.fd);
                    open(kind, file, lowest, builder, steps);
                    steps.exact(calls::DUP3, place as u64, &[lowest.into(), place.into(), 0_u64.into()]);
                    steps.call(calls::CLOSE_RANGE, &[lowest.into(), lowest.into(), 0_u64.into()]);
                    processes.insert(found.file, place);
                    place
                }
            },
            _ => staged.file(found.file),
        };
        steps.exact(calls::DUP3, found.fd as u64, &[from.into(), found.fd.into(), flags]);
    }
    for (file, members) in &epolls {
        for member in members.iter().filter(|member| !strange(member)) {
            add(*file, member, builder, steps);
        }
    }
    notified(tree, life, claimed, steps);
}

/// Opens what only the process itself can, now that all processes are there; the kernel gives it the number `fd`.
fn open(kind: &FileKind, file: &OpenFile, fd: i32, builder: &mut Builder, steps: &mut Steps) {
    /// `PIDFD_NONBLOCK`, `PIDFD_THREAD`.
    const PIDFD_FLAGS: u32 = 0o4000 | 0o200;
    match kind {
        FileKind::Process { pid } => {
            let flags = u64::from(file.flags & PIDFD_FLAGS);
            steps.exact(calls::PIDFD_OPEN, fd as u64, &[(*pid).into(), flags.into()]);
        }
        FileKind::OfProcess { path } => {
            let path = builder.bytes(&[path, &b"\0"[..]].concat());
            let flags = u64::from(file.flags & !O_ASYNC);
            steps.exact(calls::OPENAT, fd as u64, &[(AT_FDCWD as i32).into(), path, flags.into(), 0_u64.into()]);
            if file.position != 0 {
                // What it holds is made up anew, and may be shorter by now.
                steps.any(calls::LSEEK, &[fd.into(), file.position.into(), 0_u64.into()]);
            }
        }
        _ => {}
    }
}

/// `O_ASYNC`, by the number that signals are to name. Nobody is told before the owner is set.
fn notified(tree: &Tree, life: &LiveProcess, claimed: &mut Claimed, steps: &mut Steps) {
    for found in &life.descriptors {
        let flags = tree.files[found.file as usize].flags;
        if flags & O_ASYNC != 0 && !std::mem::replace(&mut claimed.notified[found.file as usize], true) {
            steps.call(calls::FCNTL, &[found.fd.into(), F_SETFL.into(), u64::from(flags).into()]);
        }
    }
}

/// The number that the kernel gives when all descriptors are in their places; while only those below a number are, it is not
/// higher than that.
fn first_free(life: &LiveProcess) -> i32 {
    let taken = life.descriptors.iter().zip(0..).take_while(|(found, number)| found.fd == *number);
    taken.count() as i32
}

/// POSIX locks belong to the process: it takes them itself. They go with any descriptor of the file that it closes, so this
/// is done when nothing is closed any more. Of `flock` locks and leases the kernel shows who has taken them.
pub(super) fn locks(
    tree: &Tree,
    pid: i32,
    life: &LiveProcess,
    claimed: &Claimed,
    builder: &mut Builder,
    steps: &mut Steps,
) {
    let owns = |lock: &FileLock| claimed.tables.get(&lock.pid) == Some(&pid);
    let mut done = HashSet::new();
    for found in &life.descriptors {
        let first = done.insert(found.file);
        for lock in &tree.files[found.file as usize].locks {
            match lock.kind {
                LockKind::Posix if lock.pid == pid => {
                    // struct flock: type and whence (2 bytes each), start, length, pid.
                    let place = builder.numbers(&[lock.mode as u16 as u64, lock.start, lock.bytes, 0]);
                    steps.call(calls::FCNTL, &[found.fd.into(), F_SETLK.into(), place]);
                }
                LockKind::Flock if first && owns(lock) => {
                    let [held, other] = if lock.mode == WRITE { [LOCK_EX, LOCK_SH] } else { [LOCK_SH, LOCK_EX] };
                    // One that has been kept shows who took it then, until it is changed.
                    steps.any(calls::FLOCK, &[found.fd.into(), (other | LOCK_NB).into()]);
                    steps.call(calls::FLOCK, &[found.fd.into(), (held | LOCK_NB).into()]);
                }
                LockKind::Lease if first && owns(lock) => {
                    // As above: first it is given up. Where the process may not take one, the restorer does.
                    steps.any(calls::FCNTL, &[found.fd.into(), F_SETLEASE.into(), F_UNLCK.into()]);
                    steps.any(calls::FCNTL, &[found.fd.into(), F_SETLEASE.into(), (lock.mode as u64).into()]);
                }
                _ => {}
            }
        }
    }
}

/// Closes everything that was inherited.
pub(super) fn close_inherited(staged: &Staged<'_>, steps: &mut Steps) {
    steps.call(calls::CLOSE_RANGE, &[staged.first.into(), staged.blob().into(), 0_u64.into()]);
}

/// Directories, mask, personality, memory attributes.
pub(super) fn surroundings(life: &LiveProcess, staged: &Staged<'_>, builder: &mut Builder, steps: &mut Steps) {
    if life.shares.directories {
        // They are its parent's to set.
        attributes(life, steps);
        return;
    }
    if let Some(root) = &life.root {
        let here = builder.bytes(b".\0");
        steps.call(calls::FCHDIR, &[staged.path(root, Access::Place).into()]);
        steps.call(calls::CHROOT, &[here]);
    }
    steps.call(calls::FCHDIR, &[staged.path(&life.cwd, Access::Place).into()]);
    steps.any(calls::UMASK, &[u64::from(life.umask).into()]);
    attributes(life, steps);
}

/// Personality, memory attributes.
fn attributes(life: &LiveProcess, steps: &mut Steps) {
    steps.able(calls::PERSONALITY, &[u64::from(life.personality).into()]);
    if life.subreaper {
        steps.call(calls::PRCTL, &[PR_SET_CHILD_SUBREAPER.into(), 1_u64.into()]);
    }
    if life.no_huge_pages {
        steps.call(calls::PRCTL, &[PR_SET_THP_DISABLE.into(), 1_u64.into(), 0_u64.into(), 0_u64.into(), 0_u64.into()]);
    }
    switches(life, steps);
}

/// What else it has switched on for its memory, which is mapped by now.
fn switches(life: &LiveProcess, steps: &mut Steps) {
    let found = &life.switches;
    let mut set = |option: u64, value: u64| {
        steps.call(calls::PRCTL, &[option.into(), value.into(), 0_u64.into(), 0_u64.into(), 0_u64.into()]);
    };
    if found.merge_memory {
        set(PR_SET_MEMORY_MERGE, 1);
    }
    if found.deny_write_execute != 0 {
        set(PR_SET_MDWE, found.deny_write_execute.into());
    }
    if found.lock_future {
        steps.call(calls::MLOCKALL, &[MCL_FUTURE.into()]);
    }
    for command in (0..u32::BITS).map(|bit| 1 << bit).filter(|command| found.barriers & command != 0) {
        steps.call(calls::MEMBARRIER, &[u64::from(command).into(), 0_u64.into(), 0_u64.into()]);
    }
}

/// Limits; gives the place of their table, which the restorer may lower to what it may set.
pub(super) fn limits(life: &LiveProcess, builder: &mut Builder, steps: &mut Steps) -> Argument {
    let mut numbers = vec![u64::MAX; crate::plan::LIMITS_BYTES / 8];
    for (n, limit) in life.limits.iter().enumerate() {
        (numbers[2 * n], numbers[2 * n + 1]) = (limit.soft, limit.hard);
    }
    let table = builder.numbers(&numbers);
    let Argument::Data(place) = table else { return table };
    for n in 0..life.limits.len() as u64 {
        steps.call(calls::PRLIMIT64, &[0_u64.into(), n.into(), Argument::Data(place + 16 * n), 0_u64.into()]);
    }
    table
}

/// The limits under which the tree is built: the highest hard limits of all processes, as far as they can be set, and no lower than our
/// own. A program may have more than its own limits allow: descriptors above RLIMIT_NOFILE, timers beyond RLIMIT_SIGPENDING.
pub(super) fn highest_limits(tree: &Tree, builder: &mut Builder, steps: &mut Steps) {
    let lives = || tree.processes.iter().filter_map(Process::alive);
    let count = lives().map(|life| life.limits.len()).max().unwrap_or(0);
    for (n, own) in hard_limits().into_iter().enumerate().take(count) {
        let hard = lives().filter_map(|life| Some(life.limits.get(n)?.hard)).max().unwrap_or(u64::MAX).max(own);
        let place = builder.numbers(&[hard, hard]);
        steps.any(calls::PRLIMIT64, &[0_u64.into(), (n as u64).into(), place, 0_u64.into()]);
    }
}

/// What is done on signals. All are at their default before.
pub(super) fn actions(life: &LiveProcess, builder: &mut Builder, steps: &mut Steps) {
    for (n, action) in life.actions.iter().enumerate() {
        let signal = n as u64 + 1;
        if *action == torpor_image::tree::Action::default() || matches!(signal, 9 | 19) {
            continue;
        }
        let place = builder.numbers(&[action.handler, action.flags, action.restorer, action.mask]);
        steps.call(calls::RT_SIGACTION, &[signal.into(), place, 0_u64.into(), 8_u64.into()]);
    }
}

/// Timers, armed last: what is left of them begins to run.
pub(super) fn timers(life: &LiveProcess, exact_ids: bool, builder: &mut Builder, steps: &mut Steps) {
    let choose = exact_ids && !life.posix_timers.is_empty();
    if choose {
        let on = [PR_TIMER_CREATE_RESTORE_IDS.into(), 1_u64.into(), 0_u64.into(), 0_u64.into(), 0_u64.into()];
        steps.call(calls::PRCTL, &on);
    }
    let mut next = 0;
    for timer in &life.posix_timers {
        // struct sigevent: value, signal and kind (4 bytes each), thread.
        let kind = u64::from(timer.signal as u32) | u64::from(timer.notify as u32) << 32;
        let event = builder.numbers(&[timer.value, kind, u64::from(timer.thread as u32), 0, 0, 0, 0, 0]);
        let id = builder.numbers(&[timer.id as u32 as u64]);
        let create = [timer.clock.into(), event, id];
        if !choose {
            // Ids are counted up: what comes before is made and goes again.
            for gone in next..timer.id {
                steps.call(calls::TIMER_CREATE, &create);
                steps.call(calls::TIMER_DELETE, &[gone.into()]);
            }
            next = timer.id + 1;
        }
        steps.call(calls::TIMER_CREATE, &create);
        let left = timer.timer;
        if left.left_ns != 0 {
            const SECOND: u64 = 1_000_000_000;
            let [interval, value] = [left.interval_ns, left.left_ns].map(|ns| [ns / SECOND, ns % SECOND]);
            let place = builder.numbers(&[interval, value].concat());
            steps.call(calls::TIMER_SETTIME, &[timer.id.into(), 0_u64.into(), place, 0_u64.into()]);
        }
    }
    if choose {
        let off = [PR_TIMER_CREATE_RESTORE_IDS.into(), 0_u64.into(), 0_u64.into(), 0_u64.into(), 0_u64.into()];
        steps.call(calls::PRCTL, &off);
    }
    for (which, timer) in life.interval_timers.iter().enumerate() {
        // A periodic one whose signal still waits stands still, with nothing left, until the signal is taken.
        let left = if timer.left_ns == 0 { timer.interval_ns } else { timer.left_ns };
        if left == 0 {
            continue;
        }
        let [interval, value] =
            [timer.interval_ns, left].map(|ns| ns.div_ceil(1000)).map(|us| [us / 1_000_000, us % 1_000_000]);
        let place = builder.numbers(&[interval, value].concat());
        steps.call(calls::SETITIMER, &[(which as u64).into(), place, 0_u64.into()]);
    }
}

/// Signals that wait for any thread.
pub(super) fn pending(process: &Process, life: &LiveProcess, builder: &mut Builder, steps: &mut Steps) {
    for signal in &life.pending {
        let number = signal_number(&signal.info);
        let info = builder.bytes(&signal.info);
        steps.call(calls::RT_SIGQUEUEINFO, &[process.pid.into(), number.into(), info]);
    }
}

/// The signal of a `siginfo_t`.
pub(super) fn signal_number(info: &[u8]) -> i32 {
    info.first_chunk::<4>().map_or(0, |bytes| i32::from_ne_bytes(*bytes))
}
