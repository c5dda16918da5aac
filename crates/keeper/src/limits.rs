//! Every bound of the keeper, with its unit.

use std::time::Duration;

/// Longest key, in bytes (and longest prefix).
pub const KEY_BYTES: usize = 200;

/// Longest blob beside a key, in bytes.
pub const BLOB_BYTES: usize = 64 << 10;

/// All blobs together, in bytes.
pub const ALL_BLOBS_BYTES: usize = 64 << 20;

/// Keys in one keeper.
pub const KEYS: usize = 1 << 16;

/// Descriptors beside one key.
pub const FDS_PER_KEY: usize = 1 << 14;

/// The part of the keeper's open-file limit that the entries of one app may take: one in so many.
pub const APP_SHARE: usize = 8;

/// A put of at most so many descriptors is never refused for the app's share: what wakes an app, and its output.
pub const SMALL_PUT: usize = 4;

/// An app whose entries hold at most so many descriptors altogether is *small*: a part of the limit is kept for such apps.
pub const SMALL_APP: usize = 32;

/// The part of the limit that only [`SMALL_PUT`]s get: one in so many. As much again only these and [`SMALL_APP`]s get. So however
/// many apps park all they can, another one still goes warm, and what wakes apps and their output stay parked.
pub const RESERVE: usize = 16;

/// Descriptors in one packet: the kernel carries at most 253 (`SCM_MAX_FD`, unix(7)).
pub const FDS_PER_PACKET: usize = 253;

/// Clients at once.
pub const CLIENTS: usize = 64;

/// Longest packet, in bytes: a blob, and room for the largest request or reply before it.
pub const PACKET_BYTES: usize = BLOB_BYTES + 2048;

/// Entries in one page of a listing; with the longest keys they still fit a packet.
pub const LISTED_PER_PACKET: usize = 256;

/// How long a client waits for one reply.
pub const REPLY_TIMEOUT: Duration = Duration::from_secs(5);

/// How long somebody who has killed a keeper waits for its end. What still waits in the kernel then runs no code any more.
pub const KILL_TIMEOUT: Duration = Duration::from_secs(5);

/// Pause after a connection could not be accepted for want of descriptors or memory.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How long a starter waits until the new keeper is ready.
pub const START_TIMEOUT: Duration = Duration::from_secs(10);

/// Longest complaint of a keeper that could not start, in bytes.
pub const COMPLAINT_BYTES: u64 = 4096;

/// Open files that the keeper needs for itself: clients, epoll, lock, standard streams, and two packets of descriptors
/// that have been received but not yet accounted for.
pub const OWN_FDS: usize = CLIENTS + 2 * FDS_PER_PACKET + 16;

const _: () = assert!(LISTED_PER_PACKET * (KEY_BYTES + 16) < PACKET_BYTES);
