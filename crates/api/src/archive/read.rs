//! Reading archives. Everything in them is hostile: one frame at a time is held, and used only once its checksum is right.

use std::io::{self, Read};

use serde::de::DeserializeOwned;
use xxhash_rust::xxh3::Xxh3;

use super::{ArchiveError, Kind, MAGIC, MOST_FRAME_BYTES, Manifest, SUM_BYTES, Section, VERSION};

/// An archive being read: [`Reader::next_section`], then the section's bytes by [`Read`].
pub struct Reader {
    input: Box<dyn Read + Send>,
    sum: Xxh3,
    /// Bytes read so far.
    position: u64,
    state: State,
    /// Bytes of the section that have not been given out: those of `frame` from `given` on.
    frame: Vec<u8>,
    given: usize,
    /// All bytes up to the end of the manifest, until a section is asked for.
    head: Option<Vec<u8>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Between,
    InSection,
    Ended,
}

impl Reader {
    /// Reads the beginning of an archive.
    ///
    /// # Errors
    /// Where it is none.
    pub fn open(input: Box<dyn Read + Send>) -> Result<(Self, Manifest), ArchiveError> {
        let (frame, sum) = (Vec::new(), Xxh3::new());
        let mut reader =
            Self { input, sum, position: 0, state: State::Between, frame, given: 0, head: Some(Vec::new()) };
        let mut start = [0; MAGIC.len() + 4];
        match reader.exactly(&mut start[..MAGIC.len()]) {
            Err(ArchiveError::Truncated) => return Err(ArchiveError::Magic),
            other => other?,
        }
        if start[..MAGIC.len()] != MAGIC {
            return Err(ArchiveError::Magic);
        }
        reader.exactly(&mut start[MAGIC.len()..])?;
        let version = start.last_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
        if version != VERSION {
            return Err(ArchiveError::Version(version));
        }
        match reader.next_frame()? {
            Kind::Manifest => {
                let manifest = reader.json("manifest")?;
                Ok((reader, manifest))
            }
            Kind::Failed => Err(reader.failed()),
            _ => Err(ArchiveError::Invalid("it does not begin with its manifest")),
        }
    }

    /// The bytes of the whole archive, its beginning again, so that they can be read elsewhere. `None` once a section was asked for.
    pub fn rewind(self) -> Option<Box<dyn Read + Send>> {
        Some(Box::new(io::Cursor::new(self.head?).chain(self.input)))
    }

    /// The next section; what was not read of the last one is passed over. `None` at the end of a complete archive.
    ///
    /// # Errors
    /// Where the archive is damaged, cut off, or says that it was given up.
    pub fn next_section(&mut self) -> Result<Option<Section>, ArchiveError> {
        self.head = None;
        while self.state == State::InSection {
            self.next_data()?;
        }
        if self.state == State::Ended {
            return Ok(None);
        }
        match self.next_frame()? {
            Kind::Section => {
                self.state = State::InSection;
                let section = self.json("section")?;
                self.frame.clear();
                self.given = 0;
                Ok(Some(section))
            }
            Kind::End if self.frame.is_empty() => {
                self.state = State::Ended;
                self.nothing_follows()?;
                Ok(None)
            }
            Kind::Failed => Err(self.failed()),
            _ => Err(ArchiveError::Invalid("a frame is out of place")),
        }
    }

    /// Reads frames until there are bytes of the section, or it ends.
    fn next_data(&mut self) -> Result<(), ArchiveError> {
        match self.next_frame()? {
            Kind::Data => self.given = 0,
            Kind::SectionEnd if self.frame.is_empty() => {
                self.given = 0;
                self.state = State::Between;
            }
            Kind::Failed => return Err(self.failed()),
            _ => return Err(ArchiveError::Invalid("a frame is out of place")),
        }
        Ok(())
    }

    /// Reads a frame into `frame`.
    fn next_frame(&mut self) -> Result<Kind, ArchiveError> {
        let mut head = [0; 5];
        self.exactly(&mut head)?;
        let [kind, length @ ..] = head;
        let kind = match kind {
            1 => Kind::Manifest,
            2 => Kind::Section,
            3 => Kind::Data,
            4 => Kind::SectionEnd,
            5 => Kind::End,
            6 => Kind::Failed,
            _ => return Err(ArchiveError::Invalid("a frame of an unknown kind")),
        };
        let length = u32::from_le_bytes(length) as usize;
        if length > MOST_FRAME_BYTES {
            return Err(ArchiveError::Invalid("a frame is too long"));
        }
        let mut frame = std::mem::take(&mut self.frame);
        frame.resize(length, 0);
        let read = self.exactly(&mut frame);
        self.frame = frame;
        read?;
        let expected = self.sum.digest();
        let at = self.position;
        let mut sum = [0; SUM_BYTES];
        self.exactly(&mut sum)?;
        if u64::from_le_bytes(sum) != expected {
            return Err(ArchiveError::Checksum(at));
        }
        Ok(kind)
    }

    fn exactly(&mut self, bytes: &mut [u8]) -> Result<(), ArchiveError> {
        self.input.read_exact(bytes).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => ArchiveError::Truncated,
            _ => ArchiveError::Read(error),
        })?;
        self.sum.update(bytes);
        self.position += bytes.len() as u64;
        if let Some(head) = &mut self.head {
            head.extend_from_slice(bytes);
        }
        Ok(())
    }

    fn nothing_follows(&mut self) -> Result<(), ArchiveError> {
        let mut byte = [0];
        loop {
            match self.input.read(&mut byte) {
                Ok(0) => return Ok(()),
                Ok(_) => return Err(ArchiveError::Invalid("bytes follow its end")),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(ArchiveError::Read(error)),
            }
        }
    }

    fn json<T: DeserializeOwned>(&self, what: &'static str) -> Result<T, ArchiveError> {
        serde_json::from_slice(&self.frame).map_err(|error| ArchiveError::Json(what, error))
    }

    fn failed(&self) -> ArchiveError {
        self.json("error").map_or_else(|error| error, ArchiveError::Failed)
    }
}

impl Read for Reader {
    /// Bytes of the section; 0 at its end.
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        while self.state == State::InSection && self.given == self.frame.len() {
            self.next_data().map_err(io::Error::other)?;
        }
        if self.state != State::InSection {
            return Ok(0);
        }
        let left = &self.frame[self.given..];
        let count = left.len().min(bytes.len());
        bytes[..count].copy_from_slice(&left[..count]);
        self.given += count;
        Ok(count)
    }
}
