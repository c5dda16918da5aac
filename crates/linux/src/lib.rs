//! System calls that rustix and friends lack, with safe signatures.
//!
//! This crate and `lua` are the only ones with unsafe code. Each module covers one kernel facility, names the man page it follows, and
//! says for every unsafe block which invariant makes it sound and who upholds it.
#![allow(unsafe_code, reason = "this crate exists to hold the workspace's unsafe code")]

pub mod allocator;
pub mod bpf;
pub mod cache;
mod clone;
pub mod closer;
pub mod cpu;
pub mod descriptor;
pub mod exited;
pub mod fanotify;
pub mod fcntl;
pub mod guard;
pub mod handle;
pub mod hugepages;
pub mod ipc;
pub mod kcmp;
pub mod keyring;
pub mod limits;
pub mod meminfo;
pub mod mount;
pub mod notify;
pub mod pagemap;
pub mod probe;
pub mod ptrace;
pub mod ptrace_probe;
pub mod quota;
#[cfg(feature = "tokio")]
pub mod readable;
pub mod registers;
pub mod regular;
pub mod restorer;
pub mod scheduling;
pub mod seccomp;
pub mod shared_words;
pub mod shm;
pub mod socket;
pub mod spawn;
pub mod sync;
pub mod tcp;
pub mod thread;
pub mod tty;
pub mod uapi;
pub mod userfault;
pub mod vm;
pub mod written;
