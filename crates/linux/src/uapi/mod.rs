//! Numbers of the kernel's interface, by the kernel's names: what is put into registers, stands in states of images, or is read from
//! them. Values are those of `libc` where it has them.

pub mod file;
pub mod futex;
pub mod memory;
pub mod prctl;
pub mod process;
pub mod signal;
pub mod socket;
pub mod syscall;
pub mod tcp;
pub mod time;
