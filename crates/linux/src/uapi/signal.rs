//! Signals and what goes with them: `signal(7)`, `sigaltstack(2)`, `timer_create(2)`, as registers and states of images have them.
#![allow(missing_docs, reason = "the kernel's names")]

pub const SIGCHLD: i32 = libc::SIGCHLD;
pub const SIGCONT: i32 = libc::SIGCONT;
pub const SIGEV_THREAD_ID: i32 = libc::SIGEV_THREAD_ID;
pub const SIGHUP: i32 = libc::SIGHUP;
pub const SIGKILL: i32 = libc::SIGKILL;
pub const SIGSTOP: i32 = libc::SIGSTOP;
pub const SIGTERM: i32 = libc::SIGTERM;
pub const SIGTRAP: i32 = libc::SIGTRAP;
pub const SI_TIMER: i32 = libc::SI_TIMER;
pub const SS_DISABLE: i32 = libc::SS_DISABLE;
pub const SS_ONSTACK: i32 = libc::SS_ONSTACK;
