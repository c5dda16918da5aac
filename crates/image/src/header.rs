//! The first block of an image: what it is, readable without the rest.

use crate::codec::{FormatError, Reader, Writer};
use crate::epoch::Epoch;
use crate::{PAGE, checksum};

/// Bytes before the pages: the header, filled with zeros.
pub const HEADER_BYTES: u64 = PAGE;

/// The version that this code writes.
pub const VERSION: u32 = 3;

const MAGIC: u64 = u64::from_le_bytes(*b"TORPOR\r\n");
/// The first version that knew complete images; version 3 differs from it in their state only.
const FIRST_COMPLETE: u32 = 2;
/// The first version that may have an epoch behind the encoded header.
const FIRST_WITH_EPOCH: u32 = 3;
/// Bytes of the header of version 1, which knew dozing images only, and of later ones.
const ENCODED_1: usize = 80;
const ENCODED: usize = 144;
/// Where the epoch and its checksum follow; both are 0 in the first epoch, so that these images are as they were before.
const EPOCH: usize = ENCODED;
const EPOCH_END: usize = EPOCH + 16;

/// What an image is and how large.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Version of the format: what is written anew has [`VERSION`].
    pub version: u32,
    /// What it can be used for.
    pub kind: Kind,
    /// App it belongs to; 0 for a tree that belongs to none.
    pub app: u64,
    /// Whose capture it is: that of the app's present owner, or of a former one.
    pub epoch: Epoch,
    /// Count of captures of this app; the highest is current.
    pub generation: u64,
    /// Boot of the machine (`/proc/sys/kernel/random/boot_id`): a dozing app's image fits only processes of this boot.
    /// Zeros: it came from another machine.
    pub boot: [u64; 2],
    /// Bytes of pages, a multiple of [`PAGE`].
    pub pages_bytes: u64,
    /// Bytes of state behind them.
    pub state_bytes: u64,
    /// Checksum of the state.
    pub state_checksum: u64,
    /// Bytes of the plan behind the state; 0 for a dozing image.
    pub plan_bytes: u64,
    /// Checksum of the plan.
    pub plan_checksum: u64,
    /// What a machine must have.
    pub needs: Needs,
}

impl Default for Header {
    fn default() -> Self {
        Self {
            version: VERSION,
            kind: Kind::default(),
            app: 0,
            epoch: Epoch::FIRST,
            generation: 0,
            boot: [0; 2],
            pages_bytes: 0,
            state_bytes: 0,
            state_checksum: 0,
            plan_bytes: 0,
            plan_checksum: 0,
            needs: Needs::default(),
        }
    }
}

/// Kinds of images.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// Memory of processes that are still there, frozen.
    #[default]
    Dozing,
    /// Everything a process tree is made of.
    Complete,
}

/// What a machine must have for a complete image; nothing for a dozing one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// Oldest kernel that will do: major and minor version.
    pub kernel: (u16, u16),
    /// Processor's features that the programs may have seen: bits of `CPUID`, in words (1.ecx, 1.edx), (7.ebx, 7.ecx),
    /// (7.edx, 7.1.eax), (0x80000001.ecx, .edx), the first in the low half.
    pub cpu: [u64; 4],
    /// State components that the kernel saved (`XCR0`).
    pub xstate_mask: u64,
}

impl Header {
    /// The header as [`HEADER_BYTES`] bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer(Vec::with_capacity(HEADER_BYTES as usize));
        out.u64(MAGIC);
        debug_assert!(self.version >= FIRST_COMPLETE);
        out.u32(self.version);
        out.u32(match self.kind {
            Kind::Dozing => 0,
            Kind::Complete => 1,
        });
        out.u64(self.app);
        out.u64(self.generation);
        out.u64(self.boot[0]);
        out.u64(self.boot[1]);
        out.u64(self.pages_bytes);
        out.u64(self.state_bytes);
        out.u64(self.state_checksum);
        out.u64(self.plan_bytes);
        out.u64(self.plan_checksum);
        out.u32(u32::from(self.needs.kernel.0));
        out.u32(u32::from(self.needs.kernel.1));
        for word in self.needs.cpu {
            out.u64(word);
        }
        out.u64(self.needs.xstate_mask);
        debug_assert_eq!(out.0.len(), ENCODED - 8);
        out.u64(checksum(&out.0));
        if self.epoch != Epoch::FIRST {
            out.u64(self.epoch.get());
            out.u64(checksum(&out.0));
        }
        out.0.resize(HEADER_BYTES as usize, 0);
        out.0
    }

    /// Reads a header and checks it against the length of the file.
    pub fn decode(bytes: &[u8], file_bytes: u64) -> Result<Self, FormatError> {
        let header = Self::parse(bytes)?;
        header.check(file_bytes)?;
        Ok(header)
    }

    /// As [`Header::decode`], of an image behind which others may be in the same file, or were begun.
    pub fn decode_first(bytes: &[u8], file_bytes: u64) -> Result<Self, FormatError> {
        let header = Self::parse(bytes)?;
        let end = header.end().ok_or(FormatError::Invalid("lengths in the header"))?;
        header.check(end.min(file_bytes))?;
        Ok(header)
    }

    /// Behind its last byte; none beyond the numbers.
    pub fn end(&self) -> Option<u64> {
        let lengths = [self.pages_bytes, self.state_bytes, self.plan_bytes];
        lengths.into_iter().try_fold(HEADER_BYTES, u64::checked_add)
    }

    fn parse(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut reader = Reader::new(bytes, "its header");
        if reader.u64()? != MAGIC {
            return Err(FormatError::Magic);
        }
        let version = reader.u32()?;
        let encoded = match version {
            1 => ENCODED_1,
            FIRST_COMPLETE..=VERSION => ENCODED,
            _ => return Err(FormatError::Version(version)),
        };
        let encoded = bytes.get(..encoded).ok_or(FormatError::Truncated("its header"))?;
        let (fields, sum) = encoded.split_at(encoded.len() - 8);
        if Reader::new(sum, "its header").u64()? != checksum(fields) {
            return Err(FormatError::Checksum("the header"));
        }
        let kind = match (version, reader.u32()?) {
            (_, 0) => Kind::Dozing,
            (FIRST_COMPLETE..=VERSION, 1) => Kind::Complete,
            _ => return Err(FormatError::Invalid("kind of image")),
        };
        let mut header = Self {
            version,
            kind,
            app: reader.u64()?,
            generation: reader.u64()?,
            boot: [reader.u64()?, reader.u64()?],
            pages_bytes: reader.u64()?,
            state_bytes: reader.u64()?,
            state_checksum: reader.u64()?,
            ..Self::default()
        };
        if version > 1 {
            header.plan_bytes = reader.u64()?;
            header.plan_checksum = reader.u64()?;
            header.needs = Needs::decode(&mut reader)?;
        }
        if version >= FIRST_WITH_EPOCH {
            header.epoch = decode_epoch(bytes)?;
        }
        Ok(header)
    }

    fn check(&self, file_bytes: u64) -> Result<(), FormatError> {
        if !self.pages_bytes.is_multiple_of(PAGE) {
            return Err(FormatError::Invalid("length of the pages"));
        }
        let wanted = self.end().ok_or(FormatError::Invalid("lengths in the header"))?;
        match file_bytes.cmp(&wanted) {
            std::cmp::Ordering::Less => Err(FormatError::Truncated("its body")),
            std::cmp::Ordering::Greater => Err(FormatError::Invalid("bytes after the end")),
            std::cmp::Ordering::Equal => Ok(()),
        }
    }

    /// Where the state begins.
    pub const fn state_offset(&self) -> u64 {
        HEADER_BYTES + self.pages_bytes
    }

    /// Where the plan begins.
    pub const fn plan_offset(&self) -> u64 {
        self.state_offset() + self.state_bytes
    }

    /// Where pages may lie in the file.
    pub const fn pages(&self) -> std::ops::Range<u64> {
        HEADER_BYTES..self.state_offset()
    }
}

fn decode_epoch(bytes: &[u8]) -> Result<Epoch, FormatError> {
    let (encoded, sum) = bytes.get(..EPOCH_END).ok_or(FormatError::Truncated("its header"))?.split_at(EPOCH_END - 8);
    let epoch = Reader::new(&encoded[EPOCH..], "its header").u64()?;
    let sum = Reader::new(sum, "its header").u64()?;
    match Epoch::new(epoch) {
        None if sum == 0 => Ok(Epoch::FIRST),
        Some(_) if sum != checksum(encoded) => Err(FormatError::Checksum("the epoch")),
        Some(epoch) if epoch != Epoch::FIRST => Ok(epoch),
        _ => Err(FormatError::Invalid("epoch")),
    }
}

impl Needs {
    fn decode(reader: &mut Reader<'_>) -> Result<Self, FormatError> {
        let mut part = || u16::try_from(reader.u32()?).map_err(|_| FormatError::Invalid("version of the kernel"));
        let kernel = (part()?, part()?);
        Ok(Self {
            kernel,
            cpu: [reader.u64()?, reader.u64()?, reader.u64()?, reader.u64()?],
            xstate_mask: reader.u64()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Header {
        Header {
            version: VERSION,
            kind: Kind::Complete,
            app: 7,
            epoch: Epoch::new(2).unwrap(),
            generation: 3,
            boot: [1, 2],
            pages_bytes: 8192,
            state_bytes: 10,
            state_checksum: 99,
            plan_bytes: 5,
            plan_checksum: 98,
            needs: Needs { kernel: (6, 7), cpu: [1, 2, 3, 4], xstate_mask: 7 },
        }
    }

    #[test]
    fn survives_its_bytes() {
        let header = sample();
        assert_eq!(Header::decode(&header.encode(), 4096 + 8192 + 15).unwrap(), header);
    }

    #[test]
    fn every_flipped_bit_is_found() {
        for epoch in [1, 2, u64::MAX] {
            let good = Header { epoch: Epoch::new(epoch).unwrap(), ..sample() }.encode();
            for bit in 0..EPOCH_END * 8 {
                let mut bad = good.clone();
                bad[bit / 8] ^= 1 << (bit % 8);
                assert!(Header::decode(&bad, 4096 + 8192 + 15).is_err(), "bit {bit}");
            }
        }
    }

    #[test]
    fn the_first_epoch_is_not_written() {
        let good = Header { epoch: Epoch::FIRST, ..sample() }.encode();
        assert!(good[EPOCH..].iter().all(|byte| *byte == 0));
        assert_eq!(Header::decode(&good, 4096 + 8192 + 15).unwrap().epoch, Epoch::FIRST);
        // Nor is it read, whatever the checksum says, and nor is a checksum of none.
        for epoch in [0_u64, 1] {
            let mut bad = good.clone();
            bad[EPOCH..EPOCH + 8].copy_from_slice(&epoch.to_le_bytes());
            let sum = checksum(&bad[..EPOCH + 8]);
            bad[EPOCH + 8..EPOCH_END].copy_from_slice(&sum.to_le_bytes());
            assert_eq!(Header::decode(&bad, 4096 + 8192 + 15), Err(FormatError::Invalid("epoch")));
        }
    }

    #[test]
    fn earlier_versions_have_no_epoch() {
        let mut old = Header { version: 2, ..sample() }.encode();
        assert_eq!(Header::decode(&old, 4096 + 8192 + 15).unwrap().epoch, Epoch::FIRST);
        old[EPOCH..EPOCH_END].fill(7);
        assert_eq!(Header::decode(&old, 4096 + 8192 + 15).unwrap().epoch, Epoch::FIRST);
    }

    #[test]
    fn version_1_is_read() {
        let mut out = Writer(Vec::new());
        out.u64(MAGIC);
        out.u32(1);
        out.u32(0);
        for word in [7, 3, 1, 2, 8192, 10, 99] {
            out.u64(word);
        }
        out.u64(checksum(&out.0));
        out.0.resize(4096, 0);
        let header = Header::decode(&out.0, 4096 + 8192 + 10).unwrap();
        assert_eq!((header.kind, header.app, header.generation, header.state_bytes), (Kind::Dozing, 7, 3, 10));
        assert_eq!(header.epoch, Epoch::FIRST);
    }

    #[test]
    fn wrong_lengths_are_refused() {
        let good = sample().encode();
        assert_eq!(Header::decode(&good, 4096 + 8192 + 14), Err(FormatError::Truncated("its body")));
        assert!(Header::decode(&good, 4096 + 8192 + 16).is_err());
        assert_eq!(Header::decode(&good[..40], 40), Err(FormatError::Truncated("its header")));
    }
}
