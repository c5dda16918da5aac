//! Lines of a stream of bytes: pure.

use std::borrow::Cow;

/// A longer line is cut into pieces of at most this many bytes.
pub(super) const LINE_BYTES: usize = 16 << 10;

/// What is not kept of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Dropped {
    pub(super) lines: u64,
    pub(super) bytes: u64,
}

impl std::ops::AddAssign for Dropped {
    fn add_assign(&mut self, other: Self) {
        self.lines += other.lines;
        self.bytes += other.bytes;
    }
}

/// The place in a stream: the line that has begun and not ended.
#[derive(Debug, Default)]
pub(super) struct Lines {
    begun: Vec<u8>,
    /// The beginning of the line was dropped, and counted: its rest is dropped, too.
    skipping: bool,
}

impl Lines {
    /// The next line or piece of a line, without its end; none when `input` is used up.
    pub(super) fn next<'a>(&mut self, input: &mut &'a [u8]) -> Option<Cow<'a, [u8]>> {
        if self.skipping {
            let end = position(input).map(|end| end + 1);
            self.skipping = end.is_none();
            *input = &input[end.unwrap_or(input.len())..];
        }
        // An idle stream keeps no buffer.
        let begun = std::mem::take(&mut self.begun);
        match position(input) {
            Some(end) if begun.len() + end <= LINE_BYTES => {
                let line = &input[..end];
                *input = &input[end + 1..];
                Some(joined(begun, line))
            }
            // One that is just so long may end with the next byte.
            None if begun.len() + input.len() <= LINE_BYTES => {
                self.begun = joined(begun, input).into_owned();
                *input = &[];
                None
            }
            _ => {
                let (piece, rest) = input.split_at(LINE_BYTES - begun.len());
                *input = rest;
                let mut piece = joined(begun, piece).into_owned();
                self.begun = piece.split_off(whole_characters(&piece));
                Some(Cow::Owned(piece))
            }
        }
    }

    /// What has begun, as if it ended here.
    pub(super) fn end(&mut self) -> Option<Vec<u8>> {
        self.skipping = false;
        let begun = std::mem::take(&mut self.begun);
        if begun.is_empty() { None } else { Some(begun) }
    }

    /// Drops `input`, and the line that has begun.
    pub(super) fn discard(&mut self, input: &[u8]) -> Dropped {
        let begun = std::mem::take(&mut self.begun);
        let bytes = (begun.len() + input.len()) as u64;
        let ends = input.iter().filter(|byte| **byte == b'\n').count() as u64;
        let unfinished = match input.last() {
            Some(last) => *last != b'\n',
            None => self.skipping || !begun.is_empty(),
        };
        let lines = (ends + u64::from(unfinished)).saturating_sub(u64::from(self.skipping));
        self.skipping = unfinished;
        Dropped { lines, bytes }
    }
}

fn position(bytes: &[u8]) -> Option<usize> {
    bytes.iter().position(|byte| *byte == b'\n')
}

fn joined(begun: Vec<u8>, rest: &[u8]) -> Cow<'_, [u8]> {
    if begun.is_empty() {
        return Cow::Borrowed(rest);
    }
    let mut line = begun;
    line.extend_from_slice(rest);
    Cow::Owned(line)
}

/// How many of the bytes come before a character of UTF-8 that has only begun.
fn whole_characters(bytes: &[u8]) -> usize {
    for (back, byte) in (1..).zip(bytes.iter().rev().take(3)) {
        let length = match byte {
            0x80..0xc0 => continue,
            0xc0..0xe0 => 2,
            0xe0..0xf0 => 3,
            0xf0.. => 4,
            _ => 1,
        };
        return if length > back { bytes.len() - back } else { bytes.len() };
    }
    bytes.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(lines: &mut Lines, mut input: &[u8]) -> Vec<String> {
        let mut found = Vec::new();
        while let Some(line) = lines.next(&mut input) {
            found.push(String::from_utf8(line.into_owned()).unwrap());
        }
        assert!(input.is_empty());
        found
    }

    #[test]
    fn lines_are_the_same_however_they_arrive() {
        let long = "x".repeat(3 * LINE_BYTES) + "\n" + &"aé€𝄞".repeat(LINE_BYTES);
        let text = format!("first\n\nthird {}\n{long}\nlast", "é".repeat(20));
        let mut whole = Lines::default();
        let mut expected = all(&mut whole, text.as_bytes());
        expected.push(String::from_utf8(whole.end().unwrap()).unwrap());
        assert_eq!(
            (expected[0].as_str(), expected[1].as_str(), expected.last().unwrap().as_str()),
            ("first", "", "last")
        );
        assert!(expected.iter().all(|line| line.len() <= LINE_BYTES));
        assert_eq!(expected.iter().map(String::len).sum::<usize>(), text.len() - 5);
        for step in [1, 2, 7, 4096, LINE_BYTES, LINE_BYTES + 1] {
            let mut lines = Lines::default();
            let mut found: Vec<String> = text.as_bytes().chunks(step).flat_map(|part| all(&mut lines, part)).collect();
            found.push(String::from_utf8(lines.end().unwrap()).unwrap());
            assert_eq!(found, expected, "in steps of {step}");
        }
        assert_eq!(whole.end(), None);
    }

    #[test]
    fn a_long_line_is_not_cut_within_a_character() {
        let text = "é".repeat(LINE_BYTES);
        let mut lines = Lines::default();
        // An odd number of bytes first, so that the cut would fall into one.
        let pieces = [all(&mut lines, b"x"), all(&mut lines, text.as_bytes()), all(&mut lines, b"\n")].concat();
        assert_eq!(pieces.concat(), format!("x{text}"));
    }

    #[test]
    fn what_is_dropped_is_counted_once() {
        for step in 1..20 {
            let mut lines = Lines::default();
            assert_eq!(all(&mut lines, b"kept\nbeg"), ["kept"]);
            let mut dropped = Dropped::default();
            for part in b"un\ntwo\n\nfour".chunks(step) {
                dropped += lines.discard(part);
            }
            dropped += lines.discard(b"");
            assert_eq!(dropped, Dropped { lines: 4, bytes: 15 }, "in steps of {step}");
            // The rest of the fourth line has no beginning any more.
            assert_eq!(all(&mut lines, b" and more"), [""; 0]);
            assert_eq!(all(&mut lines, b" of it\nfive\n"), ["five"]);
        }
        assert_eq!(Lines::default().discard(b""), Dropped::default());
    }
}
