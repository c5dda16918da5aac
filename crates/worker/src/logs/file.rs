//! The files of one log: appended to by whole lines, rotated.
//!
//! `log`, `log.1`, … from newest to oldest, mode 0600. Each file has a sequence number that grows by one with every rotation
//! and never changes: the current file's is [`Files::sequence`]. A write that fails leaves whole lines only.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::lines::Dropped;
use crate::config::LogConfig;

/// Where a log is, and its current file.
#[derive(Debug)]
pub(super) struct Files {
    path: PathBuf,
    config: LogConfig,
    sequence: i64,
    writer: Option<Writer>,
}

#[derive(Debug)]
struct Writer {
    file: File,
    bytes: u64,
}

/// Lines that could not be written.
#[derive(Debug)]
pub(super) struct Unwritten {
    pub(super) dropped: Dropped,
    pub(super) error: io::Error,
}

impl Files {
    pub(super) fn new(folder: &Path, config: LogConfig) -> Self {
        Self { path: folder.join("log"), config, sequence: 0, writer: None }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The current file's sequence number.
    pub(super) const fn sequence(&self) -> i64 {
        self.sequence
    }

    fn numbered(&self, n: u32) -> PathBuf {
        if n == 0 { self.path.clone() } else { self.path.with_extension(n.to_string()) }
    }

    fn count(&self) -> u32 {
        self.config.files.max(1)
    }

    /// Appends whole lines, each with its end: one write for each file that they go to.
    pub(super) fn append(&mut self, mut text: &[u8]) -> Result<(), Unwritten> {
        while !text.is_empty() {
            match self.append_some(text) {
                Ok(written) => text = &text[written..],
                Err((written, error)) => {
                    // What this file's length is must be looked at again.
                    self.writer = None;
                    let rest = &text[written..];
                    let lines = rest.iter().filter(|byte| **byte == b'\n').count() as u64;
                    return Err(Unwritten { dropped: Dropped { lines, bytes: rest.len() as u64 }, error });
                }
            }
        }
        Ok(())
    }

    /// Appends as many lines as the current file has room for, and at least one to an empty file. Gives their bytes.
    fn append_some(&mut self, text: &[u8]) -> Result<usize, (usize, io::Error)> {
        let most = self.config.file_bytes;
        let writer = self.writer().map_err(|error| (0, error))?;
        let room = usize::try_from(most.saturating_sub(writer.bytes)).unwrap_or(usize::MAX);
        let fits = if text.len() <= room { text.len() } else { whole_lines(&text[..room]) };
        let part = match fits {
            0 if writer.bytes == 0 => first_line(text),
            0 => return self.rotate().map(|()| 0).map_err(|error| (0, error)),
            fits => &text[..fits],
        };
        match writer.file.write_all(part) {
            Ok(()) => {
                writer.bytes += part.len() as u64;
                Ok(part.len())
            }
            Err(error) => Err((writer.keep_whole_lines(part), error)),
        }
    }

    fn writer(&mut self) -> io::Result<&mut Writer> {
        match self.writer {
            Some(ref mut writer) => Ok(writer),
            None => {
                let file = OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(&self.path)?;
                let mut writer = Writer { bytes: file.metadata()?.len(), file };
                writer.end_line()?;
                Ok(self.writer.insert(writer))
            }
        }
    }

    fn rotate(&mut self) -> io::Result<()> {
        self.writer = None;
        for n in (0..self.count()).rev() {
            let from = self.numbered(n);
            let result =
                if n + 1 >= self.count() { fs::remove_file(&from) } else { fs::rename(&from, self.numbered(n + 1)) };
            absent_is_fine(result)?;
        }
        self.sequence += 1;
        Ok(())
    }

    /// The files that are there, oldest first, from sequence number `from` on.
    pub(super) fn open_from(&self, from: i64) -> io::Result<Vec<(i64, File)>> {
        let mut files = Vec::new();
        for n in (0..self.count()).rev() {
            let sequence = self.sequence - i64::from(n);
            if sequence < from {
                continue;
            }
            match File::open(self.numbered(n)) {
                Ok(file) => files.push((sequence, file)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(files)
    }

    pub(super) fn remove(&mut self) -> io::Result<()> {
        self.writer = None;
        (0..self.count()).try_for_each(|n| absent_is_fine(fs::remove_file(self.numbered(n))))
    }
}

impl Writer {
    /// Ends a line that a power cut or a full disk has left unfinished.
    fn end_line(&mut self) -> io::Result<()> {
        let Some(last) = self.bytes.checked_sub(1) else { return Ok(()) };
        let mut byte = [0];
        self.file.read_exact_at(&mut byte, last)?;
        if byte != *b"\n" {
            self.file.write_all(b"\n")?;
            self.bytes += 1;
        }
        Ok(())
    }

    /// After a write of `part` failed: takes back the piece of a line that it left. Gives the bytes of `part` that stay.
    fn keep_whole_lines(&self, part: &[u8]) -> usize {
        let length = self.file.metadata().map_or(self.bytes, |metadata| metadata.len());
        let written = usize::try_from(length.saturating_sub(self.bytes)).unwrap_or(0).min(part.len());
        let whole = whole_lines(&part[..written]);
        // Where even this fails, the next writer ends the line.
        let _ = self.file.set_len(self.bytes + whole as u64);
        whole
    }
}

/// Bytes of the whole lines at the beginning.
pub(super) fn whole_lines(text: &[u8]) -> usize {
    text.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1)
}

fn first_line(text: &[u8]) -> &[u8] {
    let end = text.iter().position(|byte| *byte == b'\n').map_or(text.len(), |end| end + 1);
    &text[..end]
}

fn absent_is_fine(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
