//! Processes and threads: limits, priorities, and who they are.

use torpor_image::tree::{
    Credentials, Limit, LiveProcess, PosixTimer, Scheduling, SeccompFilter, Shares, Switches, Thread, Wait, WaitPlace,
};
use torpor_linux::uapi::process::{SCHED_BATCH, SCHED_FIFO, SCHED_IDLE, SCHED_OTHER, SCHED_RR};

use super::{HIGHEST_PID, Vetting, capability};

/// Names of resources in messages, by number.
const RESOURCES: [&str; 16] = [
    "cpu",
    "fsize",
    "data",
    "stack",
    "core",
    "rss",
    "nproc",
    "nofile",
    "memlock",
    "as",
    "locks",
    "sigpending",
    "msgqueue",
    "nice",
    "rtprio",
    "rttime",
];
const NICE: usize = 13;
const REAL_TIME_PRIORITY: usize = 14;
const HIGHEST_SIGNAL: i32 = 64;
/// `SIGSTOP`, `SIGTSTP`, `SIGTTIN`, `SIGTTOU`.
const STOPS: [i32; 4] = [19, 20, 21, 22];
/// `/proc/PID/oom_score_adj` of a fresh app; it may raise that, and lower it to there again.
const FRESH_SCORE: i32 = 0;
const HIGHEST_SCORE: i32 = 1000;

/// `SCHED_FLAG_RESET_ON_FORK`.
const RESET_ON_FORK: u64 = 1;
const IO_CLASS_SHIFT: u32 = 13;
const IO_CLASS_REAL_TIME: u32 = 1;
/// `SECCOMP_FILTER_FLAG_LOG`, `SECCOMP_FILTER_FLAG_SPEC_ALLOW`.
const FILTER_FLAGS: u32 = 2 | 4;
/// Clocks of timers: real, monotonic, of the process and the thread, boot, TAI; negative ones count processor time.
const CLOCKS: [i32; 6] = [0, 1, 2, 3, 7, 11];
/// Clocks that wake the machine from suspension.
pub(super) const ALARM_CLOCKS: [i32; 2] = [8, 9];

impl Vetting<'_> {
    pub(super) fn life(&mut self, pid: i32, life: &mut LiveProcess) {
        let LiveProcess {
            threads,
            space,
            descriptors,
            cwd,
            root,
            umask,
            limits,
            oom_score_adjustment,
            actions,
            pending,
            interval_timers,
            posix_timers,
            dumpable,
            subreaper: _,
            no_huge_pages: _,
            personality: _,
            stopped_by,
            switches,
            terminal,
            shares,
        } = life;
        for thread in threads {
            self.thread(thread);
        }
        self.space(pid, space);
        self.path(cwd);
        if let Some(root) = root {
            self.path(root);
        }
        // Their places were checked when the state was read; what is behind them is vetted by itself.
        let _ = (descriptors, terminal);
        let Shares { descriptors: _, directories: _ } = shares;
        *umask &= 0o777;
        self.limits(limits);
        let score = (*oom_score_adjustment).clamp(FRESH_SCORE, HIGHEST_SCORE);
        if std::mem::replace(oom_score_adjustment, score) != score {
            self.lowered(format!("oom_score_adj is {score}"));
        }
        // Handlers and waiting signals are the program's own; their lengths were checked.
        let _ = (actions, pending, interval_timers);
        for timer in posix_timers {
            self.timer(pid, timer);
        }
        self.sure(*dumpable <= 2, || format!("process {pid} is dumpable {dumpable}"));
        self.sure(stopped_by.is_none_or(|signal| STOPS.contains(&signal)), || {
            format!("process {pid} was stopped by signal {stopped_by:?}")
        });
        let Switches { coredump_filter, deny_write_execute: _, merge_memory, lock_future: _, barriers: _ } = switches;
        *coredump_filter &= 0x1ff;
        if *merge_memory && !self.bounds.has_on_machine(capability::SYS_RESOURCE) {
            *merge_memory = false;
            self.lowered("memory is not merged with others' (PR_SET_MEMORY_MERGE)");
        }
    }

    fn limits(&mut self, limits: &mut [Limit]) {
        let fresh = self.bounds.hard_limits;
        for (n, (limit, most)) in limits.iter_mut().zip(fresh).enumerate() {
            let Limit { soft, hard } = limit;
            if *hard > most || *soft > most {
                (*hard, *soft) = ((*hard).min(most), (*soft).min(most));
                self.lowered(format!("the hard limit {} is {most}", RESOURCES[n]));
            }
        }
    }

    fn timer(&mut self, pid: i32, timer: &PosixTimer) {
        let PosixTimer { id, clock, signal, notify: _, thread: _, value: _, timer: _, overrun: _ } = timer;
        let known = CLOCKS.contains(clock) || *clock < 0;
        let alarm = ALARM_CLOCKS.contains(clock) && self.bounds.has_on_machine(capability::WAKE_ALARM);
        self.sure(known || alarm, || format!("a timer of process {pid} with clock {clock}"));
        let sane = *id >= 0 && (0..=HIGHEST_SIGNAL).contains(signal);
        self.sure(sane, || format!("timer {id} of process {pid}"));
    }

    fn thread(&mut self, thread: &mut Thread) {
        let Thread {
            tid,
            registers: _,
            xstate: _,
            wait,
            signal_mask: _,
            signal_stack: _,
            pending: _,
            name: _,
            robust_list: _,
            clear_tid_address: _,
            rseq: _,
            credentials,
            no_new_privileges: _,
            seccomp,
            parent_death_signal,
            scheduling,
            timer_slack_ns: _,
            time_stamp_counter,
            strict: _,
            memory_error_policy,
            memory_policy: _,
        } = thread;
        let tid = *tid;
        self.sure((2..=HIGHEST_PID).contains(&tid), || format!("a thread {tid}"));
        match wait {
            // Written into the program's own memory or registers.
            Some(Wait { left_ns: _, place: WaitPlace::Timespec(_) | WaitPlace::Timeval(_) }) | None => {}
            Some(Wait { left_ns: _, place: WaitPlace::Milliseconds(_) | WaitPlace::Socket { fd: _, send: _ } }) => {}
        }
        // What they may do is compared with the app's description (`beyond`).
        let Credentials { users, groups, supplementary, capabilities: _, securebits: _ } = credentials;
        self.users(&[&users[..], &groups[..], supplementary].concat(), &format!("thread {tid}"));
        for SeccompFilter { flags, instructions: _ } in seccomp {
            self.sure(*flags & !FILTER_FLAGS == 0, || format!("thread {tid} has a filter with flags {flags:#x}"));
        }
        self.sure((0..=HIGHEST_SIGNAL).contains(parent_death_signal), || {
            format!("thread {tid} wants signal {parent_death_signal} when its parent ends")
        });
        self.sure(matches!(time_stamp_counter, 1 | 2) && *memory_error_policy <= 2, || format!("thread {tid}"));
        self.scheduling(scheduling);
    }

    fn scheduling(&mut self, scheduling: &mut Scheduling) {
        let Scheduling { policy, priority, flags, nice, processors: _, io_priority } = scheduling;
        let may = self.bounds.has_on_machine(capability::SYS_NICE);
        let real_time = matches!(*policy, SCHED_FIFO | SCHED_RR);
        let usual = matches!(*policy, SCHED_OTHER | SCHED_BATCH | SCHED_IDLE);
        let allowed = real_time && (may || u64::from(*priority) <= self.bounds.hard_limits[REAL_TIME_PRIORITY]);
        if !allowed && (!usual || *priority != 0) {
            (*policy, *priority) = (if usual { *policy } else { SCHED_OTHER }, 0);
            self.lowered("there is no real-time priority");
        }
        *flags &= RESET_ON_FORK;
        // What RLIMIT_NICE says is counted from 20 downwards; without it a program can go back to where it began.
        let hard = i32::try_from(self.bounds.hard_limits[NICE].min(40)).unwrap_or(40);
        let lowest = if may { -20 } else { (20 - hard).min(0) };
        let within = (*nice).clamp(lowest, 19);
        if std::mem::replace(nice, within) != within {
            self.lowered(format!("the nice value is {within}"));
        }
        let may_io = may || self.bounds.has_on_machine(capability::SYS_ADMIN);
        if *io_priority >> IO_CLASS_SHIFT == IO_CLASS_REAL_TIME && !may_io {
            *io_priority = 0;
            self.lowered("there is no real-time I/O priority");
        }
    }
}
