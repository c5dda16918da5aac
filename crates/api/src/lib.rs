//! Request and response types of Torpor's HTTP API, shared by the command line, the hub and the worker.
//!
//! This crate holds data, their validation and the clients only. [`spec`] is what a user asks for, [`view`] what Torpor answers,
//! [`error`] how it refuses, [`worker`] what a worker does for a hub, and [`port`] how the two talk.
//! Units are in the names; times on the wire are RFC 3339, durations in specs are written as people write them (`"30s"`, `"64M"`).
#![forbid(unsafe_code)]

pub mod archive;
#[cfg(feature = "client")]
pub mod client;
pub mod document;
pub mod error;
pub mod events;
pub mod frame;
pub mod parse;
pub mod port;
mod record;
pub mod regular;
pub mod spec;
pub mod token;
pub mod units;
pub mod validate;
pub mod view;
pub mod wire;
pub mod worker;
pub mod working_set;

pub use error::{ApiError, ErrorKind};
