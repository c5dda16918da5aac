//! The tar format: uncompressed bytes to members. Fields are decoded by the `tar` crate; the loop is ours, because the
//! crate reads extension headers of any size into memory and cannot tell a cut-off archive from one that ends.
//!
//! Understood: V7, ustar, GNU (long names, sparse, base-256 numbers), PAX (long names, times, sizes, extended
//! attributes, sparse 0.0, 0.1, 1.0). As in Go's `archive/tar`, which container engines use, links, devices and
//! directories carry no data whatever their size field says.

use tar::{EntryType, Header};

use crate::error::{ArchiveError, shown};
use crate::limits::{Limits, MAX_EXTENSION_BYTES, MAX_EXTENSIONS};
use crate::pax::{Pax, Piece, Xattrs};
use crate::stream::{Stream, Totals};

mod sparse;

const BLOCK_BYTES: u64 = 512;

/// What a member is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    File,
    HardLink,
    Symlink,
    Directory,
    Fifo,
    CharDevice { major: u32, minor: u32 },
    BlockDevice { major: u32, minor: u32 },
}

/// One member, names and numbers unchecked beyond their form.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) path: Vec<u8>,
    pub(crate) kind: Kind,
    pub(crate) link: Vec<u8>,
    /// Permission bits, setuid, setgid and sticky included.
    pub(crate) mode: u32,
    pub(crate) uid: u64,
    pub(crate) gid: u64,
    /// Seconds and nanoseconds.
    pub(crate) mtime: (i64, u32),
    pub(crate) xattrs: Xattrs,
    /// Bytes of the file, holes included.
    pub(crate) size: u64,
    /// The pieces with data of a sparse file; a plain file is one piece.
    pub(crate) pieces: Vec<Piece>,
    /// Where the data begins in the uncompressed archive.
    pub(crate) data_offset: u64,
}

#[derive(Default)]
struct Extensions {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    pax: Option<Pax>,
}

/// An archive being read from front to back.
pub(crate) struct Archive {
    stream: Stream,
    /// Data of the current member not yet read, and the padding after it.
    left: u64,
    padding: u64,
    members: u64,
    max_members: u64,
    /// It ended with its end mark.
    marked_end: bool,
}

impl Archive {
    pub(crate) fn new(stream: Stream, limits: &Limits) -> Self {
        Self { stream, left: 0, padding: 0, members: 0, max_members: limits.max_members, marked_end: false }
    }

    /// Members so far.
    pub(crate) fn members(&self) -> u64 {
        self.members
    }

    /// The next member, after skipping what is unread of the last; `None` at the end.
    pub(crate) fn next(&mut self) -> Result<Option<Member>, ArchiveError> {
        self.skip()?;
        let mut extensions = Extensions::default();
        for count in 0.. {
            let offset = self.stream.position();
            let Some(header) = self.header()? else {
                return if count == 0 { Ok(None) } else { Err(ArchiveError::StrayExtension { offset }) };
            };
            if count == MAX_EXTENSIONS {
                return Err(ArchiveError::StrayExtension { offset });
            }
            if !self.extension(&header, &mut extensions, offset)? {
                return self.member(&header, extensions).map(Some);
            }
        }
        unreachable!("the loop above is endless")
    }

    /// Reads stored data of the current member; 0 is its end.
    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> Result<usize, ArchiveError> {
        let wanted = usize::try_from(self.left).map_or(buffer.len(), |left| left.min(buffer.len()));
        if wanted == 0 {
            return Ok(0);
        }
        let count = self.stream.read(&mut buffer[..wanted])?;
        if count == 0 {
            return Err(self.truncated());
        }
        self.left -= count as u64;
        Ok(count)
    }

    /// Reads to the very end; `needs_mark`: an archive that just stops is cut off.
    pub(crate) fn finish(self, needs_mark: bool) -> Result<Totals, ArchiveError> {
        if needs_mark && !self.marked_end {
            return Err(self.truncated());
        }
        self.stream.finish()
    }

    fn truncated(&self) -> ArchiveError {
        ArchiveError::Truncated { offset: self.stream.position() }
    }

    fn skip(&mut self) -> Result<(), ArchiveError> {
        let mut buffer = [0; 16 << 10];
        while self.read(&mut buffer)? > 0 {}
        let padding = std::mem::take(&mut self.padding) as usize;
        if self.stream.read_full(&mut buffer[..padding])? < padding {
            return Err(self.truncated());
        }
        Ok(())
    }

    fn expect_data(&mut self, size: u64) {
        self.left = size;
        self.padding = size.next_multiple_of(BLOCK_BYTES) - size;
    }

    fn header(&mut self) -> Result<Option<Header>, ArchiveError> {
        let offset = self.stream.position();
        let mut header = Header::new_old();
        match self.stream.read_full(header.as_mut_bytes())? as u64 {
            0 => return Ok(None),
            BLOCK_BYTES => {}
            _ => return Err(self.truncated()),
        }
        let bytes = header.as_bytes();
        if bytes.iter().all(|byte| *byte == 0) {
            self.marked_end = true;
            return Ok(None);
        }
        let outside = || bytes[..148].iter().chain(&bytes[156..]);
        let unsigned = outside().fold(256, |sum, byte| sum + u32::from(*byte));
        // Some old writers summed signed bytes.
        let signed = outside().fold(256, |sum, byte| sum + i32::from(byte.cast_signed())).cast_unsigned();
        match header.cksum() {
            Ok(sum) if sum == unsigned || sum == signed => Ok(Some(header)),
            _ => Err(ArchiveError::BadHeader { offset }),
        }
    }

    /// Takes in an extension header; false if `header` is a member's.
    fn extension(&mut self, header: &Header, into: &mut Extensions, offset: u64) -> Result<bool, ArchiveError> {
        let size = || header.entry_size().map_err(|_| bad_field("size", &header.path_bytes()));
        let stray = ArchiveError::StrayExtension { offset };
        match header.entry_type() {
            EntryType::GNULongName if into.path.is_none() => into.path = Some(self.long_name(size()?)?),
            EntryType::GNULongLink if into.link.is_none() => into.link = Some(self.long_name(size()?)?),
            EntryType::XHeader if into.pax.is_none() => {
                let data = self.extension_data(size()?)?;
                into.pax = Some(Pax::parse(&data).ok_or(ArchiveError::BadPax { offset })?);
            }
            EntryType::GNULongName | EntryType::GNULongLink | EntryType::XHeader => return Err(stray),
            // Comments for all members (`git archive`), and volume labels.
            EntryType::XGlobalHeader => drop(self.extension_data(size()?)?),
            kind if kind.as_byte() == b'V' => drop(self.extension_data(size()?)?),
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn extension_data(&mut self, size: u64) -> Result<Vec<u8>, ArchiveError> {
        if size > MAX_EXTENSION_BYTES {
            return Err(ArchiveError::Limit { limit: MAX_EXTENSION_BYTES, what: "bytes in one extension header" });
        }
        self.expect_data(size);
        let mut data = vec![0; size as usize];
        let mut done = 0;
        while done < data.len() {
            done += self.read(&mut data[done..])?;
        }
        self.skip()?;
        Ok(data)
    }

    fn long_name(&mut self, size: u64) -> Result<Vec<u8>, ArchiveError> {
        let mut name = self.extension_data(size)?;
        while name.last() == Some(&0) {
            name.pop();
        }
        Ok(name)
    }

    fn member(&mut self, header: &Header, extensions: Extensions) -> Result<Member, ArchiveError> {
        self.members += 1;
        if self.members > self.max_members {
            return Err(ArchiveError::Limit { limit: self.max_members, what: "members" });
        }
        let pax = extensions.pax.unwrap_or_default();
        let path = pax.sparse.name.clone().or(pax.path).or(extensions.path);
        let path = path.unwrap_or_else(|| header.path_bytes().into_owned());
        let link = pax.link.or(extensions.link);
        let link = link.unwrap_or_else(|| header.link_name_bytes().unwrap_or_default().into_owned());
        let kind = kind(header, &path)?;
        let field = |field| {
            let path = path.clone();
            move |_| bad_field(field, &path)
        };
        let old = header.as_old();
        let mtime = or_blank(header.mtime(), &old.mtime).map_err(field("modification time"))?;
        let mut member = Member {
            kind,
            link,
            mode: or_blank(header.mode(), &old.mode).map_err(field("mode"))? & 0o7777,
            uid: pax.uid.map_or_else(|| or_blank(header.uid(), &old.uid), Ok).map_err(field("owner"))?,
            gid: pax.gid.map_or_else(|| or_blank(header.gid(), &old.gid), Ok).map_err(field("group"))?,
            // A negative time in base 256 comes as a huge number.
            mtime: pax.mtime.unwrap_or((mtime.cast_signed(), 0)),
            xattrs: pax.xattrs,
            size: 0,
            pieces: Vec::new(),
            data_offset: 0,
            path: path.clone(),
        };
        if kind == Kind::File {
            let stored = pax.size.map_or_else(|| header.entry_size(), Ok).map_err(field("size"))?;
            if stored > u64::MAX / 2 {
                return Err(bad_field("size", &path));
            }
            self.file_layout(header, stored, &pax.sparse, &mut member)?;
        }
        Ok(member)
    }
}

/// A number field that a writer left blank is 0.
fn or_blank<T: Default>(value: std::io::Result<T>, raw: &[u8]) -> std::io::Result<T> {
    let blank = raw.iter().all(|byte| matches!(byte, 0 | b' '));
    if blank { Ok(T::default()) } else { value }
}

fn bad_field(field: &'static str, path: &[u8]) -> ArchiveError {
    ArchiveError::BadField { field, name: shown(path) }
}

fn kind(header: &Header, path: &[u8]) -> Result<Kind, ArchiveError> {
    let device = || {
        let number =
            |value: std::io::Result<Option<u32>>| value.ok().flatten().ok_or_else(|| bad_field("device", path));
        Ok((number(header.device_major())?, number(header.device_minor())?))
    };
    Ok(match header.entry_type() {
        // V7 archives mark directories only by the slash.
        EntryType::Regular if header.as_old().linkflag[0] == 0 && path.ends_with(b"/") => Kind::Directory,
        EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => Kind::File,
        EntryType::Link => Kind::HardLink,
        EntryType::Symlink => Kind::Symlink,
        EntryType::Directory => Kind::Directory,
        EntryType::Fifo => Kind::Fifo,
        EntryType::Char => device().map(|(major, minor)| Kind::CharDevice { major, minor })?,
        EntryType::Block => device().map(|(major, minor)| Kind::BlockDevice { major, minor })?,
        other => return Err(ArchiveError::UnknownKind { name: shown(path), kind: other.as_byte().into() }),
    })
}
