//! Flags and operations of `open(2)`, `fcntl(2)`, `flock(2)`, `epoll_ctl(2)` and `ioctl_tty(2)`, as registers and states of images have them.
#![allow(missing_docs, reason = "the kernel's names")]

pub const AT_FDCWD: u64 = libc::AT_FDCWD as u64;
pub const EPOLL_CTL_ADD: u64 = libc::EPOLL_CTL_ADD as u64;
pub const EPOLL_CTL_DEL: u64 = libc::EPOLL_CTL_DEL as u64;
pub const F_SETFL: u64 = libc::F_SETFL as u64;
pub const F_SETLEASE: u64 = libc::F_SETLEASE as u64;
pub const F_SETLK: u64 = libc::F_SETLK as u64;
pub const F_UNLCK: u64 = libc::F_UNLCK as u64;
pub const LOCK_EX: u64 = libc::LOCK_EX as u64;
pub const LOCK_NB: u64 = libc::LOCK_NB as u64;
pub const LOCK_SH: u64 = libc::LOCK_SH as u64;
pub const O_ASYNC: u32 = libc::O_ASYNC as u32;
pub const O_CLOEXEC: u64 = libc::O_CLOEXEC as u64;
pub const O_WRONLY: u64 = libc::O_WRONLY as u64;
pub const TIOCSCTTY: u64 = libc::TIOCSCTTY;
pub const TIOCSPGRP: u64 = libc::TIOCSPGRP;
