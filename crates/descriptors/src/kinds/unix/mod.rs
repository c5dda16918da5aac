//! Unix sockets.
//!
//! Who is connected to whom comes from the kernel's list ([`list`]); what waits in a socket is looked at ([`queue`]),
//! descriptors in flight included. A connection that nobody has accepted yet is one of its listener's `waiting`; data that has been
//! sent on it cannot be seen from anywhere, so there must be none.
//!
//! What restoring cannot bring back: the process in `SO_PEERCRED` and in credentials of waiting messages is the restorer's
//! (users and groups are right); the inode of a socket's file is a new one.

mod address;
mod dump;
mod list;
mod restore;

#[cfg(test)]
pub(crate) use self::address::as_user_for_tests;
pub use self::address::left_over;
pub(crate) use self::restore::{fill, restore};

pub(crate) use self::dump::{Sockets, describe, queues};

/// Bytes of the family in front of a name.
const FAMILY_BYTES: usize = 2;
