//! The control plane: which apps there are, what is wanted of them, and the HTTP API.
//!
//! ```text
//!   client ──HTTP──▶ http (routes, streams, exec) ──▶ Hub ──▶ Store (SQLite: apps, events)
//!                                                      └────▶ Workers ──port──▶ worker (processes, images, network)
//! ```
//!
//! The hub owns names and wishes; the worker owns what is. The hub keeps no copy of its rows in memory, so the database is
//! always the truth. Invariants:
//! - A name, a slot and a published port belong to at most one row; [`reservations`] holds them while a source is fetched.
//! - What is wanted is written before it is done (`start`, `stop`), so a crash in between is finished by the next start.
//! - An app whose making or removal was cut off by a crash is taken away at the next start, never left half-made.
//! - Changes run in tasks of their own: a client that leaves does not stop them halfway.
//!
//! Lock order: an app's lock ([`locks`]), then the database's connection for statements. No lock is held while waiting for a client.
#![forbid(unsafe_code)]

mod adoption;
mod archive;
mod create;
mod directories;
mod error;
mod events;
mod hang_up;
mod http;
mod hub;
mod images;
mod instance;
mod left_alone;
mod locks;
mod operate;
mod orphans;
mod query;
mod reservations;
mod serve;
mod store;
mod tcp_clients;
mod transfers;
mod workers;

pub use error::{HubError, StoreError};
pub use http::exec::{SessionEnd, run_session};
pub use http::openapi;
pub use hub::{Hub, HubOptions};
pub use instance::{Claim, InstanceLock};
pub use serve::{Listen, Server};
pub use transfers::STALLED_AFTER;
