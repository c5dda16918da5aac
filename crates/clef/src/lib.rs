//! Clefs: stateful objects, thousands to a process, asleep until they are called (Alto).
//!
//! ```text
//! store   states of sleeping Clefs, by key      index: where the newest record of a key is
//!   │
//!  log    records in segments, one sync for many
//! ```
#![forbid(unsafe_code)]

mod index;
mod log;
mod store;

pub use log::{Kind, Location, Log, LogError, MOST_KEY_BYTES};
pub use store::{Store, StoreError};
