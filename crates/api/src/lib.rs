//! Request and response types of Torpor's HTTP API, shared by the command line, the hub and the worker.
//!
//! This crate holds data and validation only. [`spec`] is what a user asks for, [`view`] what Torpor answers,
//! [`error`] how it refuses. Units are in the names; times on the wire are RFC 3339, durations in specs are
//! written as people write them (`"30s"`, `"64M"`).
#![forbid(unsafe_code)]

pub mod error;
pub mod spec;
pub mod units;
pub mod view;
pub mod worker;

pub use error::{ApiError, ErrorKind};
