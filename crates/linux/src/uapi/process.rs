//! Flags and numbers of `clone(2)`, `seccomp(2)`, `sched_setscheduler(2)`, `ioprio_set(2)` and `capabilities(7)`, as registers and states of images have them.
#![allow(missing_docs, reason = "the kernel's names")]

pub const CLONE_FILES: u64 = libc::CLONE_FILES as u64;
pub const CLONE_FS: u64 = libc::CLONE_FS as u64;
pub const CLONE_NEWTIME: u64 = libc::CLONE_NEWTIME as u64;
pub const CLONE_NEWUSER: u64 = libc::CLONE_NEWUSER as u64;
pub const CLONE_PARENT: u64 = libc::CLONE_PARENT as u64;
pub const CLONE_PTRACE: u64 = libc::CLONE_PTRACE as u64;
pub const IOPRIO_WHO_PROCESS: u64 = 1;
pub const RLIMIT_CORE: u64 = libc::RLIMIT_CORE as u64;
pub const SCHED_BATCH: u32 = libc::SCHED_BATCH as u32;
pub const SCHED_FIFO: u32 = libc::SCHED_FIFO as u32;
pub const SCHED_IDLE: u32 = libc::SCHED_IDLE as u32;
pub const SCHED_OTHER: u32 = libc::SCHED_OTHER as u32;
pub const SCHED_RR: u32 = libc::SCHED_RR as u32;
pub const SECBIT_NO_SETUID_FIXUP: u64 = libc::SECBIT_NO_SETUID_FIXUP as u64;
pub const SECCOMP_MODE_STRICT: u64 = libc::SECCOMP_MODE_STRICT as u64;
pub const SECCOMP_SET_MODE_FILTER: u64 = libc::SECCOMP_SET_MODE_FILTER as u64;
