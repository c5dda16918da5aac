//! Names of apps inside named networks: a small name server in the way of the apps' queries.
//!
//! ```text
//! app ── query to the name server of its resolv.conf (or 169.254.1.1), port 53
//!          │ our table, while this process lives: to 127.0.0.1, a port for each such name server
//!          ▼
//!        server ── a name of a network of the asker? ──▶ its addresses
//!               └─ anything else ──▶ that name server, and its answer back, byte for byte
//! ```
//! Nothing of an app changes for it, whatever resolver it has. Which app asks is known by its source address, which the
//! table has checked. An app is found by its name as long as it exists, asleep or stopped.
//!
//! The way to the server leads through a mark that a table of [`crate::owned`] sets, whose owner is this process alone. When
//! it ends, however it does, queries go to the real name server again: names outside are found while no worker lives, those of
//! apps are not.
//!
//! # Bounds
//! Forwarded queries and TCP connections are bounded for each app and for all together, and shared out evenly where
//! they run short ([`shares`]). Replies of our own to UDP queries are not bounded: each is sent at once and leaves nothing in memory, and
//! one task makes them, so they take at most one processor for each real name server. One thread of an app that does nothing but send
//! queries does not disturb other apps. Several on several processors outrun the task: the kernel then drops queries of all apps to that
//! name server, and resolvers ask again.
//!
//! Not for: names between apps that share no network, caching, DNSSEC of our own names.

mod answer;
mod directory;
mod resolv;
mod server;
mod shares;

pub use directory::{Directory, Member};
pub use resolv::ResolvConf;
pub use server::NameServer;
