//! Pages that a process misses while it is captured: they are in an image already, and the new image, in the same file, refers to them.

use std::fs::File;
use std::io;
use std::ops::Range;

use torpor_image::{Content, PAGE, Region, checksum};

use super::buffer::Buffer;
use super::copy::CopyError;
use super::parts::without;
use super::source::{FetchError, ImageFile, Stored, fetch};

/// What processes miss.
#[derive(Clone, Copy, Debug)]
pub struct Missing<'a> {
    /// The file that has it.
    pub file: &'a File,
    /// By process id; regions by ascending address, without overlap.
    pub regions: &'a [(i32, Vec<Region>)],
}

impl Missing<'_> {
    /// What a process misses of an area. Where pages have come back meanwhile, `copied` has them, which is by ascending address.
    ///
    /// # Errors
    /// If a region of which only a part is missing cannot be read, or is damaged.
    pub fn of(&self, pid: i32, area: &Range<u64>, writable: bool, copied: &[Region]) -> Result<Vec<Region>, CopyError> {
        let Some((_, missing)) = self.regions.iter().find(|(of, _)| *of == pid) else { return Ok(Vec::new()) };
        let copied: Vec<Range<u64>> = copied.iter().map(|one| one.start..one.start + one.bytes()).collect();
        let first = missing.partition_point(|region| region.start + region.bytes() <= area.start);
        let mut named = Vec::new();
        for region in missing[first..].iter().take_while(|region| region.start < area.end) {
            let range = region.start.max(area.start)..(region.start + region.bytes()).min(area.end);
            let left = without(range, &copied);
            parts_of(self.file, &Region { writable, ..*region }, &left, &mut named)?;
        }
        Ok(named)
    }
}

/// Names parts of a region, each with a checksum of its own.
fn parts_of(file: &File, region: &Region, parts: &[Range<u64>], found: &mut Vec<Region>) -> Result<(), CopyError> {
    let Some(stored) = Stored::of(region) else { return Ok(()) };
    if let [part] = parts
        && *part == (region.start..region.start + region.bytes())
    {
        found.push(*region);
        return Ok(());
    }
    let bytes: Vec<Range<u64>> = parts.iter().map(|part| part.start - region.start..part.end - region.start).collect();
    let sums = checksums(file, stored, &bytes)?;
    found.extend(bytes.iter().zip(sums).map(|(part, checksum)| {
        let content = Content::Stored { offset: stored.offset + part.start, checksum };
        Region { start: region.start + part.start, pages: ((part.end - part.start) / PAGE) as u32, content, ..*region }
    }));
    Ok(())
}

/// Checksums of parts of what is stored, given as bytes within it. The whole is compared with its own checksum before.
///
/// # Errors
/// If it cannot be read, or is damaged.
pub fn checksums(file: &File, stored: Stored, parts: &[Range<u64>]) -> Result<Vec<u64>, CopyError> {
    if parts.is_empty() {
        return Ok(Vec::new());
    }
    let mut buffer = Buffer::default();
    fetch(&ImageFile::through_cache(file), &[stored], &mut buffer).map_err(|error| match error {
        FetchError::Read(error) => CopyError::Write(error),
        FetchError::Damaged { error, .. } => CopyError::Write(io::Error::new(io::ErrorKind::InvalidData, error)),
    })?;
    Ok(parts.iter().map(|part| checksum(buffer.part(part.start as usize..part.end as usize))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn what_is_not_copied_is_named_where_it_is() {
        let file = tempfile::tempfile().unwrap();
        let pages: Vec<u8> = (0..8).flat_map(|n| [n; PAGE as usize]).collect();
        file.write_all_at(&pages, 9 * PAGE).unwrap();
        let of = |pages: &[u8], n: u64| Content::Stored { offset: (9 + n) * PAGE, checksum: checksum(pages) };
        let part = |n: usize, m: usize| &pages[n * PAGE as usize..m * PAGE as usize];
        let region = |start: u64, pages, content| Region { start: start * PAGE, pages, writable: true, content };
        let regions = vec![(7, vec![region(16, 4, of(part(0, 4), 0)), region(20, 4, of(part(4, 8), 4))])];
        let missing = Missing { file: &file, regions: &regions };
        let area = |range: Range<u64>| range.start * PAGE..range.end * PAGE;
        assert_eq!(missing.of(7, &area(0..99), true, &[]).unwrap(), regions[0].1);
        assert_eq!(missing.of(8, &area(0..99), true, &[]).unwrap(), []);
        // Its areas have been split, and two of the pages have come back.
        let copied = [region(18, 1, Content::Zero), region(23, 3, Content::Zero)];
        let found = missing.of(7, &area(17..21), false, &copied).unwrap();
        let expected =
            [region(17, 1, of(part(1, 2), 1)), region(19, 1, of(part(3, 4), 3)), region(20, 1, of(part(4, 5), 4))];
        assert_eq!(found, expected.map(|region| Region { writable: false, ..region }));
        assert_eq!(missing.of(7, &area(21..99), true, &copied).unwrap(), [region(21, 2, of(part(5, 7), 5))]);
        file.write_all_at(b"x", 10 * PAGE).unwrap();
        assert!(missing.of(7, &area(17..99), true, &[]).is_err());
        // Of a region that is missing as a whole nothing is read.
        assert_eq!(missing.of(7, &area(0..20), true, &[]).unwrap(), regions[0].1[..1]);
    }
}
