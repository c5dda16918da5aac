//! Clefs: stateful objects, thousands to a process, asleep until they are called (Alto).
//!
//! ```text
//!  serve   HTTP: which Clef a request is for (route), and its answer
//!    │
//!  host    Clefs of a class: woken, called, stored, put to sleep
//!    │
//!  store   states of sleeping Clefs, by key      index: where the newest record of a key is
//!    │
//!   log    records in segments, one sync for many
//!
//!  control   what commands ask of a host that runs elsewhere          deployment, program: what is deployed
//! ```
#![forbid(unsafe_code)]

mod class;
pub mod control;
mod deployment;
mod frames;
mod host;
mod index;
mod key;
mod log;
mod message;
mod note;
mod program;
mod route;
mod seal;
mod serve;
mod store;

pub use class::{Class, Code, Durability, Limits};
pub use deployment::Deployment;
pub use frames::Frames;
pub use host::{ClefStatus, Exported, Host, HostError, Seen, Stats, Waiting};
pub use key::{Key, KeyError};
pub use log::{Kind, Location, Log, LogError, MOST_KEY_BYTES};
pub use message::{Incoming, Outgoing, Socket};
pub use note::Usage;
pub use program::{MAIN, Program, ProgramError};
pub use route::{KeyPattern, PatternError};
pub use serve::{Allowed, AllowedHost, Clefs, Said, Surroundings, TcpLimits, serve, serve_tcp};
pub use store::{Chain, Note, Restored, Store, StoreError, Stored};
