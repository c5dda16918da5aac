//! Clocks and flags of `clock_nanosleep(2)` and `setitimer(2)`, as registers and states of images have them.
#![allow(missing_docs, reason = "the kernel's names")]

pub const CLOCK_BOOTTIME: u64 = libc::CLOCK_BOOTTIME as u64;
pub const CLOCK_MONOTONIC: u64 = libc::CLOCK_MONOTONIC as u64;
pub const ITIMER_REAL: u64 = libc::ITIMER_REAL as u64;
pub const TIMER_ABSTIME: u64 = libc::TIMER_ABSTIME as u64;
