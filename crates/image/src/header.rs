//! The first block of an image: what it is, readable without the rest.

use crate::codec::{FormatError, Reader, Writer};
use crate::{PAGE, checksum};

/// Bytes before the pages: the header, filled with zeros.
pub const HEADER_BYTES: u64 = PAGE;

/// The version that this code writes.
pub const VERSION: u32 = 1;

const MAGIC: u64 = u64::from_le_bytes(*b"TORPOR\r\n");
const ENCODED: usize = 80;

/// What an image is and how large.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// App it belongs to.
    pub app: u64,
    /// Count of captures of this app; the highest is current.
    pub generation: u64,
    /// Boot of the machine (`/proc/sys/kernel/random/boot_id`): a dozing app's image fits only processes of this boot.
    pub boot: [u64; 2],
    /// Bytes of pages, a multiple of [`PAGE`].
    pub pages_bytes: u64,
    /// Bytes of state behind them.
    pub state_bytes: u64,
    /// Checksum of the state.
    pub state_checksum: u64,
}

impl Header {
    /// The header as [`HEADER_BYTES`] bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer(Vec::with_capacity(HEADER_BYTES as usize));
        out.u64(MAGIC);
        out.u32(VERSION);
        out.u32(0);
        out.u64(self.app);
        out.u64(self.generation);
        out.u64(self.boot[0]);
        out.u64(self.boot[1]);
        out.u64(self.pages_bytes);
        out.u64(self.state_bytes);
        out.u64(self.state_checksum);
        debug_assert_eq!(out.0.len(), ENCODED - 8);
        out.u64(checksum(&out.0));
        out.0.resize(HEADER_BYTES as usize, 0);
        out.0
    }

    /// Reads a header and checks it against the length of the file.
    pub fn decode(bytes: &[u8], file_bytes: u64) -> Result<Self, FormatError> {
        let encoded = bytes.get(..ENCODED).ok_or(FormatError::Truncated("its header"))?;
        let mut reader = Reader::new(encoded, "its header");
        if reader.u64()? != MAGIC {
            return Err(FormatError::Magic);
        }
        let version = reader.u32()?;
        if version != VERSION {
            return Err(FormatError::Version(version));
        }
        if reader.u32()? != 0 {
            return Err(FormatError::Invalid("reserved bits of the header"));
        }
        let header = Self {
            app: reader.u64()?,
            generation: reader.u64()?,
            boot: [reader.u64()?, reader.u64()?],
            pages_bytes: reader.u64()?,
            state_bytes: reader.u64()?,
            state_checksum: reader.u64()?,
        };
        if reader.u64()? != checksum(&encoded[..ENCODED - 8]) {
            return Err(FormatError::Checksum("the header"));
        }
        if !header.pages_bytes.is_multiple_of(PAGE) {
            return Err(FormatError::Invalid("length of the pages"));
        }
        let wanted = HEADER_BYTES
            .checked_add(header.pages_bytes)
            .and_then(|bytes| bytes.checked_add(header.state_bytes))
            .ok_or(FormatError::Invalid("lengths in the header"))?;
        match file_bytes.cmp(&wanted) {
            std::cmp::Ordering::Less => Err(FormatError::Truncated("its body")),
            std::cmp::Ordering::Greater => Err(FormatError::Invalid("bytes after the end")),
            std::cmp::Ordering::Equal => Ok(header),
        }
    }

    /// Where the state begins.
    pub const fn state_offset(&self) -> u64 {
        HEADER_BYTES + self.pages_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Header {
        Header { app: 7, generation: 3, boot: [1, 2], pages_bytes: 8192, state_bytes: 10, state_checksum: 99 }
    }

    #[test]
    fn survives_its_bytes() {
        let header = sample();
        assert_eq!(Header::decode(&header.encode(), 4096 + 8192 + 10).unwrap(), header);
    }

    #[test]
    fn every_flipped_bit_is_found() {
        let good = sample().encode();
        for bit in 0..ENCODED * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(Header::decode(&bad, 4096 + 8192 + 10).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn wrong_lengths_are_refused() {
        let good = sample().encode();
        assert_eq!(Header::decode(&good, 4096 + 8192 + 9), Err(FormatError::Truncated("its body")));
        assert!(Header::decode(&good, 4096 + 8192 + 11).is_err());
        assert_eq!(Header::decode(&good[..40], 40), Err(FormatError::Truncated("its header")));
    }
}
