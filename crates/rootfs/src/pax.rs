//! PAX extended headers (POSIX.1-2001) and the sparse maps that GNU tar keeps in them.
//!
//! Read here rather than with the `tar` crate: its parser splits at newlines, which file names and binary extended
//! attributes may hold, and it skips what it cannot read.

use std::collections::BTreeMap;

use crate::limits::MAX_SPARSE_PIECES;

/// A piece of a sparse file that holds data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) offset: u64,
    pub(crate) length: u64,
}

/// Extended attributes by name. A map: an archive may repeat names, and hold tens of thousands of them in one header.
pub(crate) type Xattrs = BTreeMap<Vec<u8>, Vec<u8>>;

/// Whether an extended attribute of an archive is kept. The others are dropped as soon as they are read.
pub(crate) fn is_kept(name: &[u8]) -> bool {
    name == b"security.capability" || (name.starts_with(b"user.") && !name.starts_with(b"user.overlay."))
}

/// What a PAX header says of the member that follows.
#[derive(Debug, Default)]
pub(crate) struct Pax {
    pub(crate) path: Option<Vec<u8>>,
    pub(crate) link: Option<Vec<u8>>,
    pub(crate) size: Option<u64>,
    pub(crate) uid: Option<u64>,
    pub(crate) gid: Option<u64>,
    /// Seconds and nanoseconds.
    pub(crate) mtime: Option<(i64, u32)>,
    pub(crate) xattrs: Xattrs,
    pub(crate) sparse: Sparse,
}

/// The GNU.sparse records.
#[derive(Debug, Default)]
pub(crate) struct Sparse {
    pub(crate) major: Option<u64>,
    pub(crate) minor: Option<u64>,
    pub(crate) name: Option<Vec<u8>>,
    pub(crate) real_size: Option<u64>,
    /// Formats 0.0 and 0.1; format 1.0 has its map in the data.
    pub(crate) pieces: Option<Vec<Piece>>,
    pending_offset: Option<u64>,
}

impl Pax {
    /// Reads all records; `None` if one is damaged.
    pub(crate) fn parse(mut data: &[u8]) -> Option<Self> {
        let mut pax = Self::default();
        while !data.is_empty() && !data.iter().all(|byte| *byte == 0) {
            let space = data.iter().take(12).position(|byte| *byte == b' ')?;
            let length = usize::try_from(number(&data[..space])?).ok()?;
            let record = data.get(space + 1..length)?.strip_suffix(b"\n")?;
            let equals = record.iter().position(|byte| *byte == b'=')?;
            pax.take(&record[..equals], &record[equals + 1..])?;
            data = &data[length..];
        }
        Some(pax)
    }

    fn take(&mut self, key: &[u8], value: &[u8]) -> Option<()> {
        if let Some(name) = key.strip_prefix(b"SCHILY.xattr.") {
            if is_kept(name) {
                self.xattrs.insert(name.to_vec(), value.to_vec());
            }
            return Some(());
        }
        if value.is_empty() {
            return Some(());
        }
        match key {
            b"path" => self.path = Some(value.to_vec()),
            b"linkpath" => self.link = Some(value.to_vec()),
            b"size" => self.size = Some(number(value)?),
            b"uid" => self.uid = Some(number(value)?),
            b"gid" => self.gid = Some(number(value)?),
            b"mtime" => self.mtime = Some(time(value)?),
            b"GNU.sparse.major" => self.sparse.major = Some(number(value)?),
            b"GNU.sparse.minor" => self.sparse.minor = Some(number(value)?),
            b"GNU.sparse.name" => self.sparse.name = Some(value.to_vec()),
            b"GNU.sparse.size" | b"GNU.sparse.realsize" => self.sparse.real_size = Some(number(value)?),
            b"GNU.sparse.map" => self.sparse.pieces = Some(map(value)?),
            b"GNU.sparse.offset" => self.sparse.pending_offset = Some(number(value)?),
            b"GNU.sparse.numbytes" => {
                let piece = Piece { offset: self.sparse.pending_offset.take()?, length: number(value)? };
                let pieces = self.sparse.pieces.get_or_insert_default();
                if pieces.len() >= MAX_SPARSE_PIECES {
                    return None;
                }
                pieces.push(piece);
            }
            _ => {}
        }
        Some(())
    }
}

/// A decimal number, digits only.
pub(crate) fn number(text: &[u8]) -> Option<u64> {
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    str::from_utf8(text).ok()?.parse().ok()
}

/// Format 0.1: `offset,length,offset,length…`.
fn map(text: &[u8]) -> Option<Vec<Piece>> {
    let numbers = text.split(|byte| *byte == b',').map(number).collect::<Option<Vec<_>>>()?;
    if numbers.len() % 2 != 0 || numbers.len() / 2 > MAX_SPARSE_PIECES {
        return None;
    }
    Some(numbers.chunks(2).map(|pair| Piece { offset: pair[0], length: pair[1] }).collect())
}

/// `-12.345`: seconds since the epoch with a fraction.
fn time(text: &[u8]) -> Option<(i64, u32)> {
    let (negative, text) = text.strip_prefix(b"-").map_or((false, text), |rest| (true, rest));
    let mut parts = text.splitn(2, |byte| *byte == b'.');
    let seconds = i64::try_from(number(parts.next()?)?).ok()?;
    let fraction = parts.next().unwrap_or_default();
    if !fraction.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let digit = |index| fraction.get(index).map_or(0, |byte| u32::from(byte - b'0'));
    let nanoseconds = (0..9).fold(0, |sum, index| sum * 10 + digit(index));
    Some(match (negative, nanoseconds) {
        (false, _) => (seconds, nanoseconds),
        (true, 0) => (-seconds, 0),
        (true, _) => (-seconds - 1, 1_000_000_000 - nanoseconds),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_may_hold_newlines_and_binary_data() {
        let pax = Pax::parse(b"14 path=a\nb\nc\n27 SCHILY.xattr.user.x=\n\0\xff\n15 mtime=-1.25\n").unwrap();
        assert_eq!(pax.path.unwrap(), b"a\nb\nc");
        assert_eq!(pax.xattrs, Xattrs::from([(b"user.x".to_vec(), b"\n\0\xff".to_vec())]));
        assert_eq!(pax.mtime, Some((-2, 750_000_000)));
    }

    #[test]
    fn attributes_are_kept_once_and_only_those_that_a_file_gets() {
        let record = |key: &str, value: &str| {
            let rest = format!(" SCHILY.xattr.{key}={value}\n");
            format!("{}{rest}", rest.len() + 2)
        };
        let data = [record("user.a", "first"), record("trusted.b", "x"), record("user.overlay.c", "x")].concat();
        let pax = Pax::parse((data + &record("user.a", "last")).as_bytes()).unwrap();
        assert_eq!(pax.xattrs, Xattrs::from([(b"user.a".to_vec(), b"last".to_vec())]));
    }

    #[test]
    fn damaged_records_are_refused() {
        let bad: [&[u8]; 9] = [
            b"x",
            b"5 a=b",
            b"7 a=b\n",
            b"99 a=b\n",
            b"0 a=b\n",
            b"18446744073709551615 a=b\n",
            b"4 ab\n",
            b"12 size=-1\n\n",
            b"22 GNU.sparse.map=1,2,3\n",
        ];
        for data in bad {
            assert!(Pax::parse(data).is_none(), "{}", data.escape_ascii());
        }
    }
}
