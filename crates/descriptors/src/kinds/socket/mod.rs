//! What sockets of several families share.

pub(crate) mod diag;
pub(crate) mod multicast;
pub(crate) mod options;
pub(crate) mod queue;

/// Family, type, protocol.
pub(crate) type Kind = (i32, i32, i32);
