//! Little-endian numbers in and out of byte strings, with every length checked.

/// Why bytes are not an image.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// Not one of our files.
    #[error("not a Torpor image")]
    Magic,
    /// Written by a version that this one does not read.
    #[error("image version {0} is not known here")]
    Version(u32),
    /// Ends too early.
    #[error("image is cut off in {0}")]
    Truncated(&'static str),
    /// Does not match its checksum.
    #[error("image is damaged: {0} does not match its checksum")]
    Checksum(&'static str),
    /// A value out of range.
    #[error("image is invalid: {0}")]
    Invalid(&'static str),
}

pub(crate) struct Writer(pub(crate) Vec<u8>);

impl Writer {
    pub(crate) fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    pub(crate) fn u32(&mut self, value: u32) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn i32(&mut self, value: i32) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn u64(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    /// The number of items that follow.
    pub(crate) fn count(&mut self, items: usize) {
        self.u32(u32::try_from(items).expect("an image has fewer than 2^32 of anything"));
    }
}

pub(crate) struct Reader<'a> {
    rest: &'a [u8],
    what: &'static str,
}

impl<'a> Reader<'a> {
    pub(crate) const fn new(bytes: &'a [u8], what: &'static str) -> Self {
        Self { rest: bytes, what }
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], FormatError> {
        let (head, rest) = self.rest.split_first_chunk::<N>().ok_or(FormatError::Truncated(self.what))?;
        self.rest = rest;
        Ok(*head)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, FormatError> {
        Ok(self.take::<1>()?[0])
    }

    pub(crate) fn u32(&mut self) -> Result<u32, FormatError> {
        self.take().map(u32::from_le_bytes)
    }

    pub(crate) fn i32(&mut self) -> Result<i32, FormatError> {
        self.take().map(i32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, FormatError> {
        self.take().map(u64::from_le_bytes)
    }

    /// Reads a list of items of which each takes at least `item_bytes`: a count beyond what is left is refused before
    /// anything is allocated for it.
    pub(crate) fn list<T>(
        &mut self,
        item_bytes: usize,
        mut item: impl FnMut(&mut Self) -> Result<T, FormatError>,
    ) -> Result<Vec<T>, FormatError> {
        let count = self.u32()? as usize;
        if count.checked_mul(item_bytes).is_none_or(|bytes| bytes > self.rest.len()) {
            return Err(FormatError::Truncated(self.what));
        }
        let mut items = Vec::with_capacity(count);
        for _ in 0..count {
            items.push(item(self)?);
        }
        Ok(items)
    }

    pub(crate) fn end(&self) -> Result<(), FormatError> {
        if self.rest.is_empty() { Ok(()) } else { Err(FormatError::Invalid("bytes after the end of the state")) }
    }
}
