//! Pipes and FIFOs.
//!
//! Contents are copied with `tee(2)`, which leaves them where they are, into a pipe with as many places. Packets
//! (`O_DIRECT`) are kept apart: one read gives one packet, whatever the flags are by now.
//!
//! An end that is open nowhere in the tree is open outside, or nowhere any more; polling the other end tells which.

mod dump;
mod restore;

pub(crate) use self::dump::Pipes;
pub(crate) use self::restore::{MadePipe, by_pipe, restore};

const ACCESS: u32 = 3;
const READ_WRITE: u32 = 2;
const LARGE_FILE: u32 = 0o100_000;
/// A write of up to so many bytes is one packet.
const PACKET_BYTES: usize = 4096;
