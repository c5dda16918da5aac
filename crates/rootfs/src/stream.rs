//! The bytes of an archive: decompressed, counted, bounded and hashed on the way, both as stored and as unpacked.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Take};

use flate2::bufread::MultiGzDecoder;
use sha2::{Digest as _, Sha256};

use crate::digest::Digest;
use crate::error::ArchiveError;
use crate::limits::{Limits, MAX_ZSTD_WINDOW_LOG};
use crate::progress::Reporter;

const BUFFER_BYTES: usize = 128 << 10;

/// What went by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Totals {
    /// Digest of the bytes as stored.
    pub(crate) stored: Digest,
    pub(crate) stored_bytes: u64,
    /// Digest of the bytes when uncompressed.
    pub(crate) unpacked: Digest,
    pub(crate) unpacked_bytes: u64,
}

/// Reads, counts and hashes the bytes as stored.
struct Raw {
    file: Take<File>,
    hasher: Sha256,
    bytes: u64,
    reporter: Reporter,
}

impl Read for Raw {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = self.file.read(buffer)?;
        self.hasher.update(&buffer[..count]);
        self.bytes += count as u64;
        self.reporter.advance(count as u64);
        Ok(count)
    }
}

enum Decoder {
    Plain(Box<BufReader<Raw>>),
    Gzip(Box<MultiGzDecoder<BufReader<Raw>>>),
    Zstd(Box<zstd::Decoder<'static, BufReader<Raw>>>),
}

/// An archive's uncompressed bytes.
pub(crate) struct Stream {
    decoder: Decoder,
    hasher: Sha256,
    bytes: u64,
    limits: Limits,
}

impl Stream {
    /// The next `length_bytes` of `file`; finds out by their first bytes how they are compressed.
    pub(crate) fn new(
        file: File,
        length_bytes: u64,
        limits: &Limits,
        reporter: Reporter,
    ) -> Result<Self, ArchiveError> {
        let raw = Raw { file: file.take(length_bytes), hasher: Sha256::new(), bytes: 0, reporter };
        let mut reader = BufReader::with_capacity(BUFFER_BYTES, raw);
        let magic = reader.fill_buf().map_err(ArchiveError::Read)?;
        let decoder = if magic.starts_with(&[0x1f, 0x8b]) {
            Decoder::Gzip(Box::new(MultiGzDecoder::new(reader)))
        } else if is_zstd(magic) {
            let mut decoder = zstd::Decoder::with_buffer(reader).map_err(ArchiveError::Read)?;
            decoder.window_log_max(MAX_ZSTD_WINDOW_LOG).map_err(ArchiveError::Read)?;
            Decoder::Zstd(Box::new(decoder))
        } else if let Some(format) = unknown_compression(magic) {
            return Err(ArchiveError::UnknownCompression { format });
        } else {
            Decoder::Plain(Box::new(reader))
        };
        Ok(Self { decoder, hasher: Sha256::new(), bytes: 0, limits: limits.clone() })
    }

    /// Whether the bytes are compressed.
    pub(crate) fn is_compressed(&self) -> bool {
        !matches!(self.decoder, Decoder::Plain(_))
    }

    /// Uncompressed bytes read so far.
    pub(crate) fn position(&self) -> u64 {
        self.bytes
    }

    /// Reads at most `buffer.len()` bytes; 0 is the end.
    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> Result<usize, ArchiveError> {
        let damaged = |format| move |source| ArchiveError::Compression { format, source };
        let count = match &mut self.decoder {
            Decoder::Plain(reader) => reader.read(buffer).map_err(ArchiveError::Read),
            Decoder::Gzip(reader) => reader.read(buffer).map_err(damaged("gzip")),
            Decoder::Zstd(reader) => reader.read(buffer).map_err(damaged("zstd")),
        }?;
        self.hasher.update(&buffer[..count]);
        self.bytes += count as u64;
        self.check_limits()?;
        Ok(count)
    }

    /// Reads until `buffer` is full or the archive ends; returns how much.
    pub(crate) fn read_full(&mut self, buffer: &mut [u8]) -> Result<usize, ArchiveError> {
        let mut done = 0;
        while done < buffer.len() {
            match self.read(&mut buffer[done..])? {
                0 => break,
                count => done += count,
            }
        }
        Ok(done)
    }

    /// Reads what is left, and says what went by.
    pub(crate) fn finish(mut self) -> Result<Totals, ArchiveError> {
        let mut buffer = vec![0; BUFFER_BYTES];
        while self.read(&mut buffer)? > 0 {}
        let mut reader = match self.decoder {
            Decoder::Plain(reader) => *reader,
            Decoder::Gzip(reader) => reader.into_inner(),
            Decoder::Zstd(reader) => reader.finish(),
        };
        while reader.read(&mut buffer).map_err(ArchiveError::Read)? > 0 {}
        let mut raw = reader.into_inner();
        raw.reporter.finish();
        Ok(Totals {
            stored: Digest::finish(raw.hasher),
            stored_bytes: raw.bytes,
            unpacked: Digest::finish(self.hasher),
            unpacked_bytes: self.bytes,
        })
    }

    fn check_limits(&self) -> Result<(), ArchiveError> {
        let limit = self.limits.max_unpacked_bytes;
        if self.bytes > limit {
            return Err(ArchiveError::Limit { limit, what: "bytes when uncompressed" });
        }
        let stored = match &self.decoder {
            Decoder::Plain(_) => return Ok(()),
            Decoder::Gzip(reader) => reader.get_ref().get_ref().bytes,
            Decoder::Zstd(reader) => reader.get_ref().get_ref().bytes,
        };
        let limit = self.limits.max_ratio;
        if self.bytes > self.limits.ratio_floor_bytes && self.bytes / stored.max(1) > limit {
            return Err(ArchiveError::Limit { limit, what: "uncompressed bytes for each compressed one" });
        }
        Ok(())
    }
}

fn is_zstd(magic: &[u8]) -> bool {
    let skippable = magic.len() >= 4 && magic[0] & 0xf0 == 0x50 && magic[1..4] == [0x2a, 0x4d, 0x18];
    magic.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) || skippable
}

fn unknown_compression(magic: &[u8]) -> Option<&'static str> {
    let known: [(&[u8], &str); 4] =
        [(b"\xfd7zXZ\0", "xz"), (b"BZh", "bzip2"), (b"\x04\x22\x4d\x18", "lz4"), (b"PK\x03\x04", "zip")];
    // A tar archive may begin with a file called "BZh": the mark at byte 257 decides.
    let is_tar = magic.get(257..262) == Some(b"ustar");
    known.iter().find(|(start, _)| !is_tar && magic.starts_with(start)).map(|(_, format)| *format)
}
