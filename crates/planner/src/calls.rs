//! Numbers (x86-64) and names of the system calls in a plan.

use torpor_linux::uapi::prctl::{
    PR_CAP_AMBIENT, PR_CAPBSET_DROP, PR_MCE_KILL, PR_SET_CHILD_SUBREAPER, PR_SET_DUMPABLE, PR_SET_IO_FLUSHER,
    PR_SET_MDWE, PR_SET_MEMORY_MERGE, PR_SET_MM, PR_SET_NAME, PR_SET_NO_NEW_PRIVS, PR_SET_PDEATHSIG, PR_SET_SECUREBITS,
    PR_SET_SPECULATION_CTRL, PR_SET_THP_DISABLE, PR_SET_TIMERSLACK, PR_SET_TSC, PR_SET_VMA,
    PR_TIMER_CREATE_RESTORE_IDS,
};

macro_rules! calls {
    ($($constant:ident = $number:literal, $name:literal;)*) => {
        $(#[doc = concat!("`", $name, "(2)`.")] pub const $constant: i64 = $number;)*

        /// Name of a call, for people.
        pub fn name(number: u32) -> &'static str {
            match i64::from(number) {
                $($number => $name,)*
                _ => "a call",
            }
        }

        /// Whether a plan may make this call.
        pub(crate) fn is_known(number: u32) -> bool {
            matches!(i64::from(number), $($number)|*)
        }
    };
}

calls! {
    LSEEK = 8, "lseek";
    MMAP = 9, "mmap";
    MPROTECT = 10, "mprotect";
    MUNMAP = 11, "munmap";
    RT_SIGACTION = 13, "rt_sigaction";
    IOCTL = 16, "ioctl";
    MREMAP = 25, "mremap";
    MADVISE = 28, "madvise";
    SHMAT = 30, "shmat";
    SETITIMER = 38, "setitimer";
    WAIT4 = 61, "wait4";
    FCNTL = 72, "fcntl";
    FLOCK = 73, "flock";
    FCHDIR = 81, "fchdir";
    UMASK = 95, "umask";
    SETPGID = 109, "setpgid";
    SETSID = 112, "setsid";
    SETGROUPS = 116, "setgroups";
    SETRESUID = 117, "setresuid";
    SETRESGID = 119, "setresgid";
    SETFSUID = 122, "setfsuid";
    SETFSGID = 123, "setfsgid";
    CAPSET = 126, "capset";
    RT_SIGTIMEDWAIT = 128, "rt_sigtimedwait";
    RT_SIGQUEUEINFO = 129, "rt_sigqueueinfo";
    SIGALTSTACK = 131, "sigaltstack";
    PERSONALITY = 135, "personality";
    MLOCKALL = 151, "mlockall";
    PRCTL = 157, "prctl";
    CHROOT = 161, "chroot";
    SCHED_SETAFFINITY = 203, "sched_setaffinity";
    SET_TID_ADDRESS = 218, "set_tid_address";
    IO_SETUP = 206, "io_setup";
    IO_GETEVENTS = 208, "io_getevents";
    IO_SUBMIT = 209, "io_submit";
    TIMER_CREATE = 222, "timer_create";
    TIMER_SETTIME = 223, "timer_settime";
    TIMER_DELETE = 226, "timer_delete";
    EXIT_GROUP = 231, "exit_group";
    EPOLL_CTL = 233, "epoll_ctl";
    MBIND = 237, "mbind";
    SET_MEMPOLICY = 238, "set_mempolicy";
    IOPRIO_SET = 251, "ioprio_set";
    SET_ROBUST_LIST = 273, "set_robust_list";
    OPENAT = 257, "openat";
    DUP3 = 292, "dup3";
    PREADV = 295, "preadv";
    RT_TGSIGQUEUEINFO = 297, "rt_tgsigqueueinfo";
    PRLIMIT64 = 302, "prlimit64";
    SETNS = 308, "setns";
    SCHED_SETATTR = 314, "sched_setattr";
    SECCOMP = 317, "seccomp";
    MEMBARRIER = 324, "membarrier";
    MLOCK2 = 325, "mlock2";
    PKEY_MPROTECT = 329, "pkey_mprotect";
    PKEY_ALLOC = 330, "pkey_alloc";
    PKEY_FREE = 331, "pkey_free";
    RSEQ = 334, "rseq";
    PIDFD_OPEN = 434, "pidfd_open";
    CLONE3 = 435, "clone3";
    CLOSE_RANGE = 436, "close_range";
}

/// Whether a plan may have a `prctl` with this option: those that `compile` makes.
pub(crate) fn is_known_prctl(option: u64) -> bool {
    matches!(
        option,
        PR_SET_PDEATHSIG
            | PR_SET_DUMPABLE
            | PR_SET_NAME
            | PR_CAPBSET_DROP
            | PR_SET_TSC
            | PR_SET_SECUREBITS
            | PR_SET_TIMERSLACK
            | PR_MCE_KILL
            | PR_SET_MM
            | PR_SET_CHILD_SUBREAPER
            | PR_SET_NO_NEW_PRIVS
            | PR_SET_THP_DISABLE
            | PR_CAP_AMBIENT
            | PR_SET_SPECULATION_CTRL
            | PR_SET_IO_FLUSHER
            | PR_SET_MDWE
            | PR_SET_MEMORY_MERGE
            | PR_TIMER_CREATE_RESTORE_IDS
            | PR_SET_VMA
    )
}
