//! Writing archives.

use std::io::{self, Write};

use serde::Serialize;
use xxhash_rust::xxh3::Xxh3;

use super::{Kind, MAGIC, MOST_FRAME_BYTES, Manifest, Section, VERSION};
use crate::error::ApiError;

/// Bytes of a section that are put into one frame.
const DATA_BYTES: usize = 256 << 10;
const _: () = assert!(DATA_BYTES <= MOST_FRAME_BYTES);

/// An archive being written.
pub struct Writer<W> {
    out: W,
    sum: Xxh3,
}

impl<W: Write> Writer<W> {
    /// Begins an archive.
    ///
    /// # Errors
    /// Where `out` fails, as with everything here.
    pub fn begin(out: W, manifest: &Manifest) -> io::Result<Self> {
        let mut writer = Self { out, sum: Xxh3::new() };
        let start = [&MAGIC[..], &VERSION.to_le_bytes()].concat();
        writer.put(&start)?;
        writer.json(Kind::Manifest, manifest)?;
        Ok(writer)
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.sum.update(bytes);
        self.out.write_all(bytes)
    }

    fn frame(&mut self, kind: Kind, contents: &[u8]) -> io::Result<()> {
        if contents.len() > MOST_FRAME_BYTES {
            return Err(io::Error::other("a description is too long for an archive"));
        }
        self.put(&[kind as u8])?;
        self.put(&(contents.len() as u32).to_le_bytes())?;
        self.put(contents)?;
        let sum = self.sum.digest();
        self.put(&sum.to_le_bytes())
    }

    fn json(&mut self, kind: Kind, value: &impl Serialize) -> io::Result<()> {
        self.frame(kind, &serde_json::to_vec(value)?)
    }

    /// Begins a section; its bytes are written to what this gives.
    ///
    /// # Errors
    /// See [`Writer::begin`].
    pub fn section(&mut self, section: &Section) -> io::Result<SectionWriter<'_, W>> {
        self.json(Kind::Section, section)?;
        Ok(SectionWriter { writer: self, buffer: Vec::with_capacity(DATA_BYTES) })
    }

    /// Completes the archive.
    ///
    /// # Errors
    /// See [`Writer::begin`].
    pub fn end(mut self) -> io::Result<()> {
        self.frame(Kind::End, &[])?;
        self.out.flush()
    }

    /// Tells the reader why the archive will not be completed.
    ///
    /// # Errors
    /// See [`Writer::begin`].
    pub fn fail(mut self, error: &ApiError) -> io::Result<()> {
        self.json(Kind::Failed, error)?;
        self.out.flush()
    }
}

/// A section being written.
pub struct SectionWriter<'w, W> {
    writer: &'w mut Writer<W>,
    buffer: Vec<u8>,
}

impl<W: Write> SectionWriter<'_, W> {
    /// Completes the section.
    ///
    /// # Errors
    /// See [`Writer::begin`].
    pub fn finish(mut self) -> io::Result<()> {
        self.flush()?;
        self.writer.frame(Kind::SectionEnd, &[])
    }
}

impl<W: Write> Write for SectionWriter<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = bytes.len().min(DATA_BYTES - self.buffer.len());
        self.buffer.extend_from_slice(&bytes[..taken]);
        if self.buffer.len() == DATA_BYTES {
            self.flush()?;
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        if !self.buffer.is_empty() {
            self.writer.frame(Kind::Data, &self.buffer)?;
            self.buffer.clear();
        }
        Ok(())
    }
}
