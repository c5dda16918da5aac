//! Where the data of a file goes: old GNU sparse files, and the three PAX formats.

use tar::{EntryType, GnuExtSparseHeader, GnuSparseHeader, Header};

use super::{Archive, BLOCK_BYTES, Member};
use crate::error::{ArchiveError, shown};
use crate::limits::MAX_SPARSE_PIECES;
use crate::pax::{Piece, Sparse, number};

impl Archive {
    /// Finds out where the data of a file goes, and checks it.
    pub(super) fn file_layout(
        &mut self,
        header: &Header,
        stored: u64,
        sparse: &Sparse,
        member: &mut Member,
    ) -> Result<(), ArchiveError> {
        let bad = || ArchiveError::BadSparse { name: shown(&member.path) };
        if header.entry_type() == EntryType::GNUSparse {
            let gnu = header.as_gnu().ok_or_else(bad)?;
            member.size = gnu.real_size().map_err(|_| bad())?;
            member.pieces =
                self.gnu_pieces(gnu.sparse.iter(), gnu.is_extended()).map_err(|error| error.unwrap_or_else(bad))?;
            self.expect_data(stored);
        } else if sparse.major == Some(1) && sparse.minor == Some(0) {
            member.size = sparse.real_size.ok_or_else(bad)?;
            self.expect_data(stored);
            member.pieces = self.inline_pieces()?.ok_or_else(bad)?;
        } else if let Some(pieces) = &sparse.pieces {
            member.size = sparse.real_size.ok_or_else(bad)?;
            member.pieces.clone_from(pieces);
            self.expect_data(stored);
        } else if sparse.major.is_some() {
            return Err(bad());
        } else {
            member.size = stored;
            member.pieces = vec![Piece { offset: 0, length: stored }];
            self.expect_data(stored);
        }
        member.data_offset = self.stream.position();
        let mut end = 0;
        let mut sum = 0;
        for piece in &member.pieces {
            if piece.offset < end {
                return Err(bad());
            }
            end = piece.offset.checked_add(piece.length).ok_or_else(bad)?;
            sum += piece.length;
        }
        if end > member.size || sum != self.left { Err(bad()) } else { Ok(()) }
    }

    /// The map of an old GNU sparse file: in its header, and in blocks that follow.
    fn gnu_pieces<'h>(
        &mut self,
        first: impl Iterator<Item = &'h GnuSparseHeader>,
        mut more: bool,
    ) -> Result<Vec<Piece>, Option<ArchiveError>> {
        let mut pieces = Vec::new();
        let mut add = |header: &GnuSparseHeader| {
            // Unused slots are all zero.
            if header.is_empty() || header.offset[0] == 0 || header.numbytes[0] == 0 {
                return Ok(());
            }
            if pieces.len() >= MAX_SPARSE_PIECES {
                return Err(None);
            }
            let (offset, length) = (header.offset().map_err(|_| None)?, header.length().map_err(|_| None)?);
            pieces.push(Piece { offset, length });
            Ok(())
        };
        first.into_iter().try_for_each(&mut add)?;
        while more {
            let mut block = GnuExtSparseHeader::new();
            if self.stream.read_full(block.as_mut_bytes())? < BLOCK_BYTES as usize {
                return Err(Some(self.truncated()));
            }
            block.sparse().iter().try_for_each(&mut add)?;
            more = block.is_extended();
        }
        Ok(pieces)
    }

    /// The map of a PAX sparse file, format 1.0: decimal lines at the start of the data, padded to a block.
    fn inline_pieces(&mut self) -> Result<Option<Vec<Piece>>, ArchiveError> {
        let mut numbers = Vec::new();
        let mut line = Vec::new();
        let mut wanted = 1;
        while numbers.len() < wanted {
            let mut block = [0; BLOCK_BYTES as usize];
            let mut done = 0;
            while done < block.len() {
                match self.read(&mut block[done..])? {
                    0 => return Ok(None),
                    count => done += count,
                }
            }
            for byte in block {
                if numbers.len() == wanted {
                    break;
                }
                if byte != b'\n' {
                    line.push(byte);
                    if line.len() > 20 {
                        return Ok(None);
                    }
                    continue;
                }
                let Some(value) = number(&line) else { return Ok(None) };
                line.clear();
                if numbers.is_empty() {
                    if value > MAX_SPARSE_PIECES as u64 {
                        return Ok(None);
                    }
                    wanted = 1 + 2 * value as usize;
                }
                numbers.push(value);
            }
        }
        Ok(Some(numbers[1..].chunks(2).map(|pair| Piece { offset: pair[0], length: pair[1] }).collect()))
    }
}
