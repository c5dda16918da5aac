//! The items of streams between hub and worker. Those of progress, output and events are [`Progress`](crate::worker::Progress),
//! [`LogLine`](crate::worker::LogLine) and [`Event`](crate::view::Event); these are the others.

use std::borrow::Cow;
use std::fmt;

use bytes::Bytes;
use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error::ApiError;

/// Most bytes in a [`Piece`] that a transport makes.
pub const PIECE_BYTES: usize = 64 << 10;

/// Bytes on their way.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Piece(pub Bytes);

/// An item of an archive: its next bytes, or why there are no more.
pub type ArchiveItem = Result<Piece, ApiError>;

/// What a hub sends to a command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ExecInput {
    /// Standard input.
    Stdin(Piece),
    /// The end of standard input.
    End,
    /// The new size of the terminal: columns, rows.
    Resize(u16, u16),
}

/// What a command sends back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ExecOutput {
    /// Standard output, or what the terminal shows.
    Stdout(Piece),
    /// Standard error.
    Stderr(Piece),
    /// The command has ended: its status as a shell reports it, or why it was ended. Output may follow.
    Ended(Result<i32, ApiError>),
}

impl Serialize for Piece {
    /// Bytes where the format has them, and hexadecimal digits in a format of text.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            let digit = |value: u8| char::from(DIGITS[usize::from(value)]);
            let text: String = self.0.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect();
            serializer.serialize_str(&text)
        } else {
            serializer.serialize_bytes(&self.0)
        }
    }
}

impl<'de> Deserialize<'de> for Piece {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if deserializer.is_human_readable() {
            let text = Cow::<'de, str>::deserialize(deserializer)?;
            let bytes = from_digits(text.as_bytes());
            bytes.map(Self).ok_or_else(|| D::Error::custom("bytes are pairs of hexadecimal digits"))
        } else {
            deserializer.deserialize_byte_buf(Binary)
        }
    }
}

/// Lower-case hexadecimal digits by value.
const DIGITS: &[u8; 16] = b"0123456789abcdef";

/// `None` for anything but pairs of lower-case hexadecimal digits.
fn from_digits(text: &[u8]) -> Option<Bytes> {
    let value = |digit: u8| match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    };
    let (pairs, rest) = text.as_chunks::<2>();
    rest.is_empty().then(|| pairs.iter().map(|[high, low]| Some(value(*high)? << 4 | value(*low)?)).collect()).flatten()
}

/// Reads what [`Piece`] is in a format that has bytes.
struct Binary;

impl Visitor<'_> for Binary {
    type Value = Piece;

    fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("bytes")
    }

    fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Piece, E> {
        Ok(Piece(Bytes::copy_from_slice(bytes)))
    }

    fn visit_byte_buf<E: Error>(self, bytes: Vec<u8>) -> Result<Piece, E> {
        Ok(Piece(bytes.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_digits_in_text() {
        let all = Piece((0..=255).collect());
        let text = serde_json::to_string(&all).unwrap();
        assert!(text.starts_with("\"000102") && text.ends_with("fdfeff\""), "{text}");
        assert_eq!(serde_json::from_str::<Piece>(&text).unwrap(), all);
        for wrong in ["\"0\"", "\"0g\"", "\"0A\"", "\"é\"", "[1]", "null"] {
            assert!(serde_json::from_str::<Piece>(wrong).is_err(), "{wrong}");
        }
        assert_eq!(serde_json::from_str::<Piece>("\"\"").unwrap(), Piece::default());
    }
}
