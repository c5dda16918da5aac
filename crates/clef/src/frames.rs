//! Messages on a TCP connection: where one ends and the next one begins.
//!
//! ```text
//! line    key\n  message\n  message\n …              a \r before the \n is cut
//! length  N key  N message  N message …              N: 4 bytes, big-endian, of what follows
//! stream  key\n  bytes as they come …
//! ```
//! This is without sockets and clocks: bytes are added, frames are taken.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Bytes of the length before a frame.
const LENGTH_BYTES: usize = 4;
/// A buffer that is larger than this is not kept for later.
const KEPT_BYTES: usize = 4 << 10;

/// How messages are told from one another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Frames {
    /// Each is a line.
    #[default]
    Line,
    /// Each begins with its length, as 4 bytes, big-endian.
    Length,
    /// Not at all, but for the first, which is a line: bytes are passed on as they come.
    Stream,
}

impl fmt::Display for Frames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Line => "line",
            Self::Length => "length",
            Self::Stream => "stream",
        })
    }
}

impl FromStr for Frames {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "line" => Ok(Self::Line),
            "length" => Ok(Self::Length),
            "stream" => Ok(Self::Stream),
            _ => Err("frames are line, length or stream"),
        }
    }
}

impl Frames {
    /// A message as it is sent.
    pub(crate) fn encoded(self, mut message: Vec<u8>) -> Vec<u8> {
        match self {
            Self::Line => message.push(b'\n'),
            // What a step can send is far below 4 GiB.
            Self::Length => drop(message.splice(..0, (message.len() as u32).to_be_bytes())),
            Self::Stream => {}
        }
        message
    }
}

/// A frame has more bytes than it may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a frame has more than {0} bytes")]
pub(crate) struct TooLarge(usize);

/// Takes frames from bytes as they come.
#[derive(Debug)]
pub(crate) struct Decoder {
    frames: Frames,
    bytes: Vec<u8>,
    /// So many of them are taken.
    taken: usize,
    /// In so many that are not taken, there is no end of a line.
    searched: usize,
}

impl Decoder {
    pub(crate) fn new(frames: Frames) -> Self {
        Self { frames, bytes: Vec::new(), taken: 0, searched: 0 }
    }

    /// Adds what has come.
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        self.bytes.drain(..std::mem::take(&mut self.taken));
        if self.bytes.is_empty() {
            self.bytes.shrink_to(KEPT_BYTES);
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// The first frame, which is a line in a stream; none where more must come.
    pub(crate) fn first(&mut self, most_bytes: usize) -> Result<Option<Vec<u8>>, TooLarge> {
        match self.frames {
            Frames::Line | Frames::Stream => self.line(most_bytes),
            Frames::Length => self.counted(most_bytes),
        }
    }

    /// The next frame; none where more must come.
    pub(crate) fn next(&mut self, most_bytes: usize) -> Result<Option<Vec<u8>>, TooLarge> {
        match self.frames {
            Frames::Line => self.line(most_bytes),
            Frames::Length => self.counted(most_bytes),
            Frames::Stream => Ok(self.all()),
        }
    }

    /// Nothing more comes: a last line without its end. A frame without all of its bytes is none.
    pub(crate) fn last(&mut self) -> Option<Vec<u8>> {
        if self.frames == Frames::Line { self.all() } else { None }
    }

    fn rest(&self) -> &[u8] {
        &self.bytes[self.taken..]
    }

    fn all(&mut self) -> Option<Vec<u8>> {
        let all = self.rest().to_vec();
        (self.taken, self.searched) = (self.bytes.len(), 0);
        (!all.is_empty()).then_some(all)
    }

    fn line(&mut self, most_bytes: usize) -> Result<Option<Vec<u8>>, TooLarge> {
        let rest = self.rest();
        let Some(end) = rest[self.searched..].iter().position(|byte| *byte == b'\n') else {
            // One more: it may be a \r.
            if rest.len() > most_bytes + 1 {
                return Err(TooLarge(most_bytes));
            }
            self.searched = rest.len();
            return Ok(None);
        };
        let end = self.searched + end;
        let line = &rest[..end];
        let line = line.strip_suffix(b"\r").unwrap_or(line).to_vec();
        (self.taken, self.searched) = (self.taken + end + 1, 0);
        if line.len() > most_bytes { Err(TooLarge(most_bytes)) } else { Ok(Some(line)) }
    }

    fn counted(&mut self, most_bytes: usize) -> Result<Option<Vec<u8>>, TooLarge> {
        let Some((length, rest)) = self.rest().split_first_chunk::<LENGTH_BYTES>() else { return Ok(None) };
        let length = u32::from_be_bytes(*length) as usize;
        if length > most_bytes {
            return Err(TooLarge(most_bytes));
        }
        let Some(frame) = rest.get(..length).map(<[u8]>::to_vec) else { return Ok(None) };
        self.taken += LENGTH_BYTES + length;
        Ok(Some(frame))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MOST: usize = 64;

    /// What is found when bytes come in pieces of some size: the first frame, and the others.
    fn found(frames: Frames, bytes: &[u8], piece: usize) -> Result<Vec<Vec<u8>>, TooLarge> {
        let mut decoder = Decoder::new(frames);
        let mut all = Vec::new();
        for piece in bytes.chunks(piece) {
            decoder.add(piece);
            if all.is_empty() {
                all.extend(decoder.first(MOST)?);
            }
            while !all.is_empty() {
                let Some(frame) = decoder.next(MOST)? else { break };
                all.push(frame);
            }
        }
        all.extend(decoder.last());
        Ok(all)
    }

    #[test]
    fn lines_end_with_or_without_a_carriage_return() {
        let expected: Vec<&[u8]> = vec![b"key", b"a", b"", b"b\r", b"last"];
        for piece in 1..20 {
            assert_eq!(found(Frames::Line, b"key\r\na\n\r\nb\r\r\nlast", piece).unwrap(), expected);
        }
        let long = [&[b'x'; MOST][..], b"\r\n"].concat();
        assert_eq!(found(Frames::Line, &long, 7).unwrap(), [vec![b'x'; MOST]]);
        for piece in [1, 100] {
            assert_eq!(found(Frames::Line, &[b'x'; MOST + 2], piece), Err(TooLarge(MOST)));
            assert_eq!(found(Frames::Line, &[&[b'x'; MOST + 1][..], b"\n"].concat(), piece), Err(TooLarge(MOST)));
        }
    }

    #[test]
    fn lengths_are_limited_before_anything_is_kept() {
        assert_eq!(found(Frames::Length, &[0, 0, 0, MOST as u8 + 1], 4), Err(TooLarge(MOST)));
        assert_eq!(found(Frames::Length, &[0xff; 4], 1), Err(TooLarge(MOST)));
        assert_eq!(found(Frames::Length, b"\0\0\0\x02ab\0\0\0\0\0\0\0\x05abc", 3).unwrap(), [&b"ab"[..], b""]);
    }

    #[test]
    fn a_stream_is_passed_on_behind_its_first_line() {
        assert_eq!(found(Frames::Stream, b"key\r\n\0a\nb", 100).unwrap(), [&b"key"[..], b"\0a\nb"]);
        for piece in 1..10 {
            assert_eq!(found(Frames::Stream, b"key\nabc\n\n", piece).unwrap()[1..].concat(), b"abc\n\n");
        }
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_found(
            messages in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..MOST), 1..20),
            piece in 1_usize..200,
        ) {
            let encoded: Vec<u8> = messages.iter().cloned().flat_map(|message| Frames::Length.encoded(message)).collect();
            prop_assert_eq!(found(Frames::Length, &encoded, piece).unwrap(), messages);
        }
    }
}
