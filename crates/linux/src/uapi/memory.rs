//! Flags of `mmap(2)`, `madvise(2)`, `mlock(2)`, `shmat(2)` and `get_mempolicy(2)`, as registers and states of images have them.
#![allow(missing_docs, reason = "the kernel's names")]

pub const MADV_DONTNEED: u64 = libc::MADV_DONTNEED as u64;
pub const MADV_DONTNEED_LOCKED: u64 = libc::MADV_DONTNEED_LOCKED as u64;
pub const MADV_GUARD_INSTALL: u64 = 102;
pub const MAP_ANONYMOUS: u64 = libc::MAP_ANONYMOUS as u64;
pub const MAP_DROPPABLE: u64 = libc::MAP_DROPPABLE as u64;
pub const MAP_FIXED_NOREPLACE: u64 = libc::MAP_FIXED_NOREPLACE as u64;
pub const MAP_GROWSDOWN: u64 = libc::MAP_GROWSDOWN as u64;
pub const MAP_NORESERVE: u64 = libc::MAP_NORESERVE as u64;
pub const MAP_PRIVATE: u64 = libc::MAP_PRIVATE as u64;
pub const MAP_SHARED: u64 = libc::MAP_SHARED as u64;
pub const MCL_FUTURE: u64 = libc::MCL_FUTURE as u64;
pub const MLOCK_ONFAULT: u64 = libc::MLOCK_ONFAULT as u64;
pub const MPOL_F_ADDR: u64 = 2;
pub const PROT_READ: u64 = libc::PROT_READ as u64;
pub const PROT_WRITE: u64 = libc::PROT_WRITE as u64;
pub const SHM_EXEC: u64 = libc::SHM_EXEC as u64;
pub const SHM_RDONLY: u64 = libc::SHM_RDONLY as u64;
