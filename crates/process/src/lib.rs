//! A process tree as others see it: found and named from outside, stopped with `ptrace(2)`, asked what its threads wait for.
//!
//! Nothing here changes what a program sees. Capture and restore are built on it.
#![forbid(unsafe_code)]

pub mod aio;
pub mod blocker;
pub mod sandbox;
pub mod step;
pub mod threads;
pub mod timers;
pub mod trace;
pub mod userfault;
pub mod view;
pub mod wait;
