//! The bytes between a client and the keeper: pure, no I/O.
//!
//! One packet is one request or one reply:
//!
//! ```text
//! 0      4         6          8
//! | TORK | version | reserved | message (postcard) | tail: the blob, where the message has one |
//! ```
//!
//! The first eight bytes stay as they are in every version; `version` and `reserved` (zero) are little-endian.
//! Descriptors travel beside a packet (`SCM_RIGHTS`), [`crate::limits::FDS_PER_PACKET`] at most.

use serde::{Deserialize, Serialize};

use crate::limits::{ALL_BLOBS_BYTES, BLOB_BYTES, FDS_PER_KEY, KEY_BYTES, KEYS};

/// The version of the protocol that this crate speaks.
pub const PROTOCOL_VERSION: u16 = 1;

const MAGIC: [u8; 4] = *b"TORK";
const HEADER_BYTES: usize = 8;

/// What a client asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Request<'a> {
    /// Who are you?
    Ping,
    /// Keep the tail and `fds` descriptors under `key`; the first of them come with this packet.
    Put { key: &'a str, fds: u32 },
    /// More descriptors of the put under way.
    PutMore,
    /// The entry of `key`: its blob and its descriptors from number `from` on, as many as fit a packet.
    Get { key: &'a str, from: u32 },
    /// Forget `key`.
    Drop { key: &'a str },
    /// Forget every key that begins with `prefix`.
    DropPrefix { prefix: &'a str },
    /// Keys that begin with `prefix` and come after `after`, in order, as many as fit a packet.
    List { prefix: &'a str, after: Option<&'a str> },
    /// Close everything and end.
    Shutdown,
}

/// What the keeper answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Reply<'a> {
    /// Answer to `Ping`.
    Pong(Info),
    /// Done; `count` entries were stored or dropped.
    Done { count: u64 },
    /// Go on with `PutMore`.
    Continue,
    /// The entry: `fds` descriptors in all, `stamp` its version; the tail is its blob when `from` was 0.
    Found { stamp: u64, fds: u32 },
    /// There is no such key.
    Missing,
    /// A page of a listing; `more` follow after the last.
    Page {
        more: bool,
        #[serde(borrow)]
        entries: Vec<Entry<'a>>,
    },
    /// No, and nothing has changed.
    Refused(Refusal),
}

/// A line of a listing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entry<'a> {
    pub(crate) key: &'a str,
    pub(crate) blob_bytes: u32,
    pub(crate) fds: u32,
}

/// What a keeper says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Info {
    /// Its process.
    pub pid: u32,
    /// Keys it holds.
    pub keys: u64,
    /// Descriptors it holds.
    pub fds: u64,
    /// Descriptors it can hold.
    pub fds_limit: u64,
    /// Bytes of all blobs.
    pub blob_bytes: u64,
}

/// Why the keeper did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Refusal {
    /// Not a packet of this protocol.
    #[error("malformed request")]
    Malformed,
    /// A part of a put without its beginning.
    #[error("more descriptors came without a put under way")]
    NoPut,
    /// The key is empty, too long, or has control characters.
    #[error("key of {bytes} bytes is not allowed: 1 to {KEY_BYTES} bytes without control characters")]
    Key {
        /// Its length.
        bytes: u64,
    },
    /// The blob is too long.
    #[error("blob of {bytes} bytes exceeds {BLOB_BYTES}")]
    Blob {
        /// Its length.
        bytes: u64,
    },
    /// Too many descriptors for one key.
    #[error("{count} descriptors exceed {FDS_PER_KEY} for one key")]
    FdsPerKey {
        /// How many were announced.
        count: u64,
    },
    /// Announced and sent descriptors differ.
    #[error("{announced} descriptors were announced and {received} came")]
    FdCount {
        /// As the request said.
        announced: u64,
        /// As they arrived.
        received: u64,
    },
    /// The keeper's open-file limit is reached.
    #[error("{held} descriptors are held, {asked} more would exceed the keeper's limit of {limit}")]
    Fds {
        /// Held now, by entries and puts under way.
        held: u64,
        /// Asked for.
        asked: u64,
        /// The limit.
        limit: u64,
    },
    /// Too many keys.
    #[error("the keeper already holds {KEYS} keys")]
    Keys,
    /// Too many bytes in all blobs.
    #[error("blobs of {held} bytes are held, {asked} more would exceed {ALL_BLOBS_BYTES}")]
    Blobs {
        /// Held now.
        held: u64,
        /// Asked for.
        asked: u64,
    },
    /// Too many clients.
    #[error("too many clients")]
    Clients,
    /// Neither root nor the keeper's user.
    #[error("user {uid} may not use this keeper")]
    User {
        /// The client's user id.
        uid: u32,
    },
    /// One app would hold more than its share. Last: older clients do not know it.
    #[error(
        "the app would park {asked} descriptors beside {held}; its share is {limit}, so that others find room \
         (raise the hard limit of open files of the daemon)"
    )]
    Share {
        /// Held by the app's other entries.
        held: u64,
        /// Asked for.
        asked: u64,
        /// Its share.
        limit: u64,
    },
}

/// Why bytes are not a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DecodeError {
    /// Too short, wrong magic, wrong message, bytes too many.
    Malformed,
    /// The other side's version.
    Version(u16),
}

/// Writes the header and `message` to `out` (emptied first). The tail, if any, is sent after it.
pub(crate) fn encode<T: Serialize>(message: &T, out: &mut Vec<u8>) {
    out.clear();
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&PROTOCOL_VERSION.to_le_bytes());
    out.extend_from_slice(&[0, 0]);
    let taken = std::mem::take(out);
    *out = postcard::to_extend(message, taken).expect("a message without maps or custom serialisers always encodes");
}

/// Reads a packet: the message, and the tail behind it.
pub(crate) fn decode<'a, T: Deserialize<'a>>(packet: &'a [u8]) -> Result<(T, &'a [u8]), DecodeError> {
    let (header, body) = packet.split_at_checked(HEADER_BYTES).ok_or(DecodeError::Malformed)?;
    let (magic, numbers) = header.split_at(MAGIC.len());
    if magic != MAGIC {
        return Err(DecodeError::Malformed);
    }
    let version = u16::from_le_bytes([numbers[0], numbers[1]]);
    if version != PROTOCOL_VERSION {
        return Err(DecodeError::Version(version));
    }
    if numbers[2..] != [0, 0] {
        return Err(DecodeError::Malformed);
    }
    postcard::take_from_bytes(body).map_err(|_| DecodeError::Malformed)
}

/// A request, with the rule that only `Put` has a tail.
pub(crate) fn decode_request(packet: &[u8]) -> Result<(Request<'_>, &[u8]), DecodeError> {
    let (request, tail) = decode(packet)?;
    if !tail.is_empty() && !matches!(request, Request::Put { .. }) {
        return Err(DecodeError::Malformed);
    }
    Ok((request, tail))
}

/// A reply, with the rule that only `Found` has a tail.
pub(crate) fn decode_reply(packet: &[u8]) -> Result<(Reply<'_>, &[u8]), DecodeError> {
    let (reply, tail) = decode(packet)?;
    if !tail.is_empty() && !matches!(reply, Reply::Found { .. }) {
        return Err(DecodeError::Malformed);
    }
    Ok((reply, tail))
}

/// Whether `key` may be a key.
pub(crate) fn check_key(key: &str) -> Result<(), Refusal> {
    if key.is_empty() || key.len() > KEY_BYTES || key.chars().any(char::is_control) {
        return Err(Refusal::Key { bytes: key.len() as u64 });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn request_strategy() -> impl Strategy<Value = (u8, String, u32, Option<String>)> {
        (0_u8..8, ".{0,220}", any::<u32>(), proptest::option::of(".{0,220}"))
    }

    fn request_of<'a>((kind, text, number, after): &'a (u8, String, u32, Option<String>)) -> Request<'a> {
        match kind {
            0 => Request::Ping,
            1 => Request::Put { key: text, fds: *number },
            2 => Request::PutMore,
            3 => Request::Get { key: text, from: *number },
            4 => Request::Drop { key: text },
            5 => Request::DropPrefix { prefix: text },
            6 => Request::List { prefix: text, after: after.as_deref() },
            _ => Request::Shutdown,
        }
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(parts in request_strategy(), blob in proptest::collection::vec(any::<u8>(), 0..300)) {
            let request = request_of(&parts);
            let mut packet = Vec::new();
            encode(&request, &mut packet);
            let tail: &[u8] = if matches!(request, Request::Put { .. }) { &blob } else { &[] };
            packet.extend_from_slice(tail);
            prop_assert_eq!(decode_request(&packet), Ok((request, tail)));
        }

        #[test]
        fn any_bytes_are_refused_or_read_but_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = decode_request(&bytes);
            let _ = decode_reply(&bytes);
        }

        #[test]
        fn any_body_behind_a_right_header_never_panics(body in proptest::collection::vec(any::<u8>(), 0..400)) {
            let mut packet = b"TORK\x01\0\0\0".to_vec();
            packet.extend_from_slice(&body);
            if let Ok((Request::Put { key, .. } | Request::Get { key, .. }, tail)) = decode_request(&packet) {
                prop_assert!(key.len() + tail.len() <= body.len());
            }
            let _ = decode_reply(&packet);
        }

        #[test]
        fn every_truncation_and_flip_is_handled(parts in request_strategy(), at in any::<prop::sample::Index>(), bit in 0_u8..8) {
            let mut packet = Vec::new();
            encode(&request_of(&parts), &mut packet);
            let at = at.index(packet.len());
            let _ = decode_request(&packet[..at]);
            packet[at] ^= 1 << bit;
            let decoded = decode_request(&packet);
            if at < 4 {
                prop_assert_eq!(decoded, Err(DecodeError::Malformed));
            } else if at < 6 {
                prop_assert!(matches!(decoded, Err(DecodeError::Version(_))));
            }
        }
    }

    #[test]
    fn a_tail_belongs_only_to_a_blob() {
        let mut packet = Vec::new();
        encode(&Request::Ping, &mut packet);
        packet.push(0);
        assert_eq!(decode_request(&packet), Err(DecodeError::Malformed));
    }

    #[test]
    fn keys_are_bounded() {
        assert!(check_key("a/b:1").is_ok());
        assert!(check_key(&"k".repeat(KEY_BYTES)).is_ok());
        for bad in [String::new(), "k".repeat(KEY_BYTES + 1), "a\nb".into(), "a\0".into()] {
            assert_eq!(check_key(&bad), Err(Refusal::Key { bytes: bad.len() as u64 }));
        }
    }
}
