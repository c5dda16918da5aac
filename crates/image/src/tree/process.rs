//! Processes and threads.

use serde::{Deserialize, Serialize};

use super::frugal;
use super::{
    Action, AddressSpace, Bytes, Credentials, Descriptor, IntervalTimer, PathState, PendingSignal, PosixTimer,
    SeccompFilter, SignalStack,
};

/// One process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Process id, in the pid namespace that the tree is restored in.
    pub pid: i32,
    /// Its parent: a process of the tree, or 0 for those whose parent is outside (the root, and orphans).
    pub parent: i32,
    /// Process group.
    pub group: i32,
    /// Session; 0 if it was made outside of the pid namespace.
    pub session: i32,
    /// It has an end, or lives.
    pub end: End,
}

/// What became of a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum End {
    /// It has ended, and its parent has not asked for it yet.
    Zombie {
        /// What `waitpid` will give.
        status: i32,
        /// Name (`comm`).
        #[serde(deserialize_with = "frugal::list")]
        name: Bytes,
    },
    /// It lives.
    #[serde(deserialize_with = "frugal::boxed")]
    Alive(Box<LiveProcess>),
}

/// A living process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiveProcess {
    /// Its threads; the first is the leader, whose id is the process's.
    #[serde(deserialize_with = "frugal::list")]
    pub threads: Vec<Thread>,
    /// Its memory.
    pub space: AddressSpace,
    /// Its descriptors, by ascending number.
    #[serde(deserialize_with = "frugal::list")]
    pub descriptors: Vec<Descriptor>,
    /// Working directory.
    pub cwd: PathState,
    /// Root directory, if it is not the namespace's.
    pub root: Option<PathState>,
    /// `umask(2)`.
    pub umask: u32,
    /// `getrlimit(2)`, by resource number.
    #[serde(deserialize_with = "frugal::list")]
    pub limits: Vec<Limit>,
    /// `/proc/PID/oom_score_adj`.
    pub oom_score_adjustment: i32,
    /// What is done on each signal, by number, 1 to 64.
    #[serde(deserialize_with = "frugal::list")]
    pub actions: Vec<Action>,
    /// Signals that wait for any thread.
    #[serde(deserialize_with = "frugal::list")]
    pub pending: Vec<PendingSignal>,
    /// `setitimer(2)`: real, virtual, profiling.
    pub interval_timers: [IntervalTimer; 3],
    /// `timer_create(2)`, by ascending id.
    #[serde(deserialize_with = "frugal::list")]
    pub posix_timers: Vec<PosixTimer>,
    /// `PR_SET_DUMPABLE`.
    pub dumpable: u8,
    /// `PR_SET_CHILD_SUBREAPER`.
    pub subreaper: bool,
    /// `PR_SET_THP_DISABLE`.
    pub no_huge_pages: bool,
    /// `personality(2)`.
    pub personality: u32,
    /// It is job-control stopped (`T`), by this signal.
    pub stopped_by: Option<i32>,
    /// What else it has switched on.
    pub switches: Switches,
    /// It leads a session with this controlling terminal: a slave, and the process group in the foreground.
    pub terminal: Option<(super::FileId, i32)>,
    /// What it shares with its parent, as a thread would.
    pub shares: Shares,
}

/// What processes can share without being threads of one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shares {
    /// The table of descriptors (`CLONE_FILES`).
    pub descriptors: bool,
    /// Working directory, root directory and mask (`CLONE_FS`).
    pub directories: bool,
}

/// What a process switches on for its memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Switches {
    /// `/proc/PID/coredump_filter`.
    pub coredump_filter: u32,
    /// `PR_SET_MDWE`: its flags.
    pub deny_write_execute: u32,
    /// `PR_SET_MEMORY_MERGE`.
    pub merge_memory: bool,
    /// `mlockall(MCL_FUTURE)`.
    pub lock_future: bool,
    /// `membarrier(2)`: the commands that it has registered with.
    pub barriers: u32,
}

/// A soft and a hard limit; `u64::MAX` is infinity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limit {
    /// Soft.
    pub soft: u64,
    /// Hard.
    pub hard: u64,
}

/// One thread.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Thread {
    /// Thread id, in the pid namespace that the tree is restored in.
    pub tid: i32,
    /// General registers, in the order of the kernel's `user_regs_struct`; an interrupted call is put right in them
    /// already (it runs again, or gives what it had).
    #[serde(deserialize_with = "frugal::list")]
    pub registers: Vec<u64>,
    /// Floating-point and vector registers: the XSAVE area in standard format, as `NT_X86_XSTATE` has it.
    #[serde(deserialize_with = "frugal::list")]
    pub xstate: Vec<u8>,
    /// A time-out that the thread waits with: where the kernel reads it, and what is left of it at the capture.
    pub wait: Option<super::Wait>,
    /// Blocked signals.
    pub signal_mask: u64,
    /// Alternate stack.
    pub signal_stack: SignalStack,
    /// Signals that wait for this thread.
    #[serde(deserialize_with = "frugal::list")]
    pub pending: Vec<PendingSignal>,
    /// Its name (`comm`).
    #[serde(deserialize_with = "frugal::list")]
    pub name: Bytes,
    /// `set_robust_list(2)`: address and length.
    pub robust_list: (u64, u64),
    /// `set_tid_address(2)`.
    pub clear_tid_address: u64,
    /// `rseq(2)`: address, length, signature, flags.
    pub rseq: Option<(u64, u32, u32, u32)>,
    /// Ids and capabilities.
    pub credentials: Credentials,
    /// `PR_SET_NO_NEW_PRIVS`.
    pub no_new_privileges: bool,
    /// Filters of its own, oldest first.
    #[serde(deserialize_with = "frugal::list")]
    pub seccomp: Vec<SeccompFilter>,
    /// `PR_SET_PDEATHSIG`.
    pub parent_death_signal: i32,
    /// Policy, priority, nice value, processors.
    pub scheduling: Scheduling,
    /// `PR_SET_TIMERSLACK`, nanoseconds.
    pub timer_slack_ns: u64,
    /// `PR_SET_TSC`: 1 where it may read the time-stamp counter, as all may.
    pub time_stamp_counter: u8,
    /// Strict seccomp: nothing but `read`, `write`, `exit` and `sigreturn`.
    pub strict: bool,
    /// `PR_MCE_KILL`: late 0, early 1, default 2.
    pub memory_error_policy: u8,
    /// `set_mempolicy(2)`.
    pub memory_policy: super::MemoryPolicy,
}

/// How a thread is scheduled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scheduling {
    /// `SCHED_*`.
    pub policy: u32,
    /// Real-time priority; 0 for the others.
    pub priority: u32,
    /// `SCHED_FLAG_RESET_ON_FORK` and others.
    pub flags: u64,
    /// Nice value.
    pub nice: i32,
    /// Processors that it may run on, as a bit set; empty: all of the machine's.
    #[serde(deserialize_with = "frugal::list")]
    pub processors: Vec<u64>,
    /// `ioprio_get(2)`.
    pub io_priority: u32,
}

impl Process {
    /// What it is made of, if it lives.
    pub fn alive(&self) -> Option<&LiveProcess> {
        match &self.end {
            End::Alive(life) => Some(life),
            End::Zombie { .. } => None,
        }
    }
}
