//! The image format: one capture of an app's state, as data. Pure: bytes in, values out.
//!
//! ```text
//! 0            4096                    4096 + pages        … + state     … + plan
//! ┌────────────┬───────────────────────┬───────────────────┬─────────────┐
//! │ header     │ pages, in the order   │ state             │ plan of a   │
//! │ zero-filled│ of the regions that   │                   │ complete    │
//! │            │ name them             │                   │ image       │
//! └────────────┴───────────────────────┴───────────────────┴─────────────┘
//! ```
//!
//! Two kinds of images have that shape. A dozing app's holds the memory of processes that are still there ([`State`]); a
//! complete one holds everything a process tree is made of ([`tree::Tree`]), and beside it the prepared plan of its
//! restore, which can be made again from the tree.
//!
//! Pages are written first, as they are copied, and the header last: a file without a header was never finished. All
//! numbers are little-endian. The header carries its own checksum and the state's; each region carries its pages'.
//! A page of zeros is never stored; a region that consists of such pages is stored as [`Content::Zero`].
//!
//! Everything read is hostile: lengths are checked against what is there before anything is allocated, addresses for
//! alignment, order and range, and a wrong byte anywhere gives a [`FormatError`], never a panic. `docs/image-format.md`
//! describes the bytes for other implementations.
#![forbid(unsafe_code)]

mod codec;
mod epoch;
mod header;
pub mod lazy_size;
mod loading_set;
mod state;
pub mod tree;

pub use codec::FormatError;
pub use epoch::Epoch;
pub use header::{HEADER_BYTES, Header, Kind, Needs, VERSION};
pub use loading_set::{LoadingPart, needed};
pub use state::{Content, Process, Region, State, Thread, Wait};

/// Bytes in a page of the image and of memory.
pub const PAGE: u64 = 4096;

/// Pages of one region at most: what is read, checked and written in one go.
pub const REGION_PAGES: u32 = 64;

/// Checksum of the pages of a region, of the state, and of the header (XXH3, 64 bits). It finds damage; it does not
/// authenticate.
pub fn checksum(bytes: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(bytes)
}

/// The checksum of a file that is read in pieces: that of the checksums of its pieces, each of [`Self::PIECE_BYTES`] but the last.
#[derive(Debug, Default)]
pub struct Checksums(Vec<u8>);

impl Checksums {
    /// Bytes of a piece.
    pub const PIECE_BYTES: usize = 1 << 20;

    /// Adds the next piece.
    pub fn add(&mut self, piece: &[u8]) {
        self.0.extend(checksum(piece).to_le_bytes());
    }

    /// Of all pieces.
    pub fn total(&self) -> u64 {
        checksum(&self.0)
    }
}
