//! Operations and flags of `futex(2)`, as registers and states of images have them.
#![allow(missing_docs, reason = "the kernel's names")]

pub const FUTEX_CLOCK_REALTIME: u64 = libc::FUTEX_CLOCK_REALTIME as u64;
pub const FUTEX_LOCK_PI: u64 = libc::FUTEX_LOCK_PI as u64;
pub const FUTEX_WAIT: u64 = libc::FUTEX_WAIT as u64;
