//! The process that holds parked descriptors while the worker restarts.
//!
//! A worker keeps descriptors that must outlive it: the epoll descriptor of each sleeping app, the open files of each warm app,
//! the reading ends of every app's output, and the netlink socket that owns the guard table. It hands a duplicate of each to the *keeper*, a process of a few
//! hundred kB that does nothing else and so has no reason to end. A worker that was killed starts again, asks the
//! keeper for what it had parked, and goes on.
//!
//! It is **not** a database (nothing is on disk: a keeper that dies has lost its descriptors, and the kernel has closed
//! those objects that nobody else holds), and it never reads, writes, polls or closes early what it holds.
//!
//! ```text
//! worker ── SEQPACKET socket, 0600 ──▶ server (epoll, one thread) ──▶ store: key → blob + descriptors
//!   Client                              protocol: one request, one reply
//! ```
//!
//! # Invariants
//! - A request is carried out whole or not at all. A `put` of more descriptors than one packet carries is gathered
//!   aside and changes the store only with its last part; a client that dies before that changes nothing.
//! - `put` replaces: the new entry is in place before the old one's descriptors are closed.
//! - Everything a client can send is bounded ([`limits`]); the keeper refuses, it does not grow or panic. A client that
//!   does not read its replies is disconnected; nobody else waits for it.
//! - One keeper for each socket: it holds an exclusive `flock(2)` on `SOCKET.lock` as long as it lives.
//! - No app can hold up the keeper by what it has put into its files: the loop closes none of them ([`torpor_linux::closer`]).
//! - Only root and the keeper's own user may talk to it (`SO_PEERCRED`, beside the socket's mode 0600).
//!
//! # After a crash
//! Of a client: its connection is closed, everything parked stays. Of the keeper: the socket file stays and answers
//! `ECONNREFUSED`, the lock is free; the next [`Client::connect_or_spawn`] starts an empty keeper in its place.
//!
//! One that does not answer is no better than one that has died: who finds that nothing comes within [`limits::REPLY_TIMEOUT`],
//! twice, kills it ([`Client::connect_or_spawn`], [`Client::end`], [`Client::end_silent`]).
//!
//! A keeper whose socket was removed makes it again (`place.rs`); who finds that one does not, although it holds the lock, kills it, too.
//!
//! # Versions
//! A packet begins with eight bytes that never change their meaning, the protocol's version among them
//! ([`PROTOCOL_VERSION`]). A keeper and a worker of different versions refuse each other with [`Error::Version`]: the
//! descriptors of the old keeper have to be used up (or given up) by the worker that fits it.
#![forbid(unsafe_code)]

mod client;
mod error;
mod hidden;
pub mod limits;
mod packet;
mod place;
mod process;
mod protocol;
mod server;
mod silent;
mod start;
mod store;

pub use client::{Client, Listed, Parked};
pub use error::{Error, UsageError};
pub use process::run;
pub use protocol::{Info, PROTOCOL_VERSION, Refusal};
pub use start::StartOptions;

/// Reads a packet as keeper and client do: for fuzzing.
#[doc(hidden)]
pub fn read_packet(packet: &[u8]) {
    let _ = (protocol::decode_request(packet), protocol::decode_reply(packet));
}
