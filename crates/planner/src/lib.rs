//! The restore of a process tree, planned: pure functions from an image's state to the system calls of each new process.
//!
//! [`compile`](compile::compile) makes the plan when an app goes warm, so that waking only carries it out. [`allowed`] compares a
//! stored plan with what a plan of this tree may contain; [`bounds`] compares a state from elsewhere with what a capture can
//! produce. No clock, no files, no system calls: everything here runs without privileges, and is fuzzed.
#![forbid(unsafe_code)]

pub mod allowed;
pub mod bounds;
pub mod calls;
pub mod compile;
pub mod plan;
pub mod staged;
#[cfg(test)]
mod tests;
