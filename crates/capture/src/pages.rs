//! Private pages of the areas of a tree: first those that a wake needs first, then the others.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use torpor_image::tree::{Area, Backing, End, Process};
use torpor_image::{Content, LoadingPart, PAGE, Region, checksum};

use super::guards;
use torpor_pages::copy::{Copier, CopyError, Span, Zeros};
use torpor_pages::parts::{Expected, PartialCopy, copy_ranges};

/// `PROT_READ`, `PROT_WRITE`.
const READ: u32 = 1;
const WRITE: u32 = 2;

/// Copies the private pages of the living `processes`, names them in their areas, and says where those lie that are `expected` to be needed first.
pub(super) fn copy(
    copier: &mut Copier<'_>,
    processes: &mut [Process],
    expected: &[Expected],
    missing: Missing<'_>,
) -> Result<Vec<LoadingPart>, CopyError> {
    let mut copies: HashMap<i32, Vec<Option<PartialCopy>>> = HashMap::new();
    for process in &*processes {
        if let Some(life) = process.alive() {
            copies.insert(process.pid, life.space.areas.iter().map(begin).collect());
        }
    }
    let mut loading = Vec::with_capacity(expected.len());
    for Expected { cause, ranges } in expected {
        let start = copier.sink().offset;
        for of_process in ranges.chunk_by(|(a, _), (b, _)| a == b) {
            let pid = of_process[0].0;
            let Some(areas) = copies.get_mut(&pid) else { continue };
            let mut areas: Vec<&mut PartialCopy> = areas.iter_mut().flatten().collect();
            copy_ranges(&mut areas, of_process.iter().map(|(_, range)| range), &mut copier.process(pid)?)?;
        }
        loading.push(LoadingPart { cause: cause.clone(), start, end: copier.sink().offset });
    }
    for process in processes {
        let End::Alive(life) = &mut process.end else { continue };
        let mut copier = copier.process(process.pid)?;
        let copies = copies.remove(&process.pid).unwrap_or_default();
        for (mut area, copy) in std::mem::take(&mut life.space.areas).into_iter().zip(copies) {
            let mut guards = Vec::new();
            if let Some(mut copy) = copy {
                copy.copy_rest(&mut copier)?;
                let (_, copied) = copy.finish();
                let missing = missing.of(process.pid, &area, &copied.regions)?;
                area.pages.extend(copied.regions.into_iter().chain(missing));
                area.pages.sort_unstable_by_key(|region| region.start);
                // Not before: a page of zeros is not missing.
                if area.backing.is_zeros() {
                    area.pages.retain(|region| region.content != Content::Zero);
                }
                guards = copied.guards;
            }
            life.space.areas.extend(guards::split(area, &guards));
        }
    }
    Ok(loading)
}

/// What processes miss.
#[derive(Clone, Copy)]
pub(super) struct Missing<'a> {
    /// The image's file, which has it already.
    pub(super) image: &'a File,
    /// By process id; regions by ascending address.
    pub(super) regions: &'a [(i32, Vec<Region>)],
}

impl Missing<'_> {
    /// What a process misses of an area. Of what has come back meanwhile, `copied` is true.
    fn of(&self, pid: i32, area: &Area, copied: &[Region]) -> Result<Vec<Region>, CopyError> {
        let Some((_, missing)) = self.regions.iter().find(|(of, _)| *of == pid) else { return Ok(Vec::new()) };
        let first = missing.partition_point(|region| region.start < area.start);
        let mut named = Vec::new();
        for region in missing[first..].iter().take_while(|region| region.start < area.end) {
            let writable = area.protection & WRITE != 0;
            named.extend(rest(self.image, &Region { writable, ..*region }, copied)?);
        }
        Ok(named)
    }
}

/// What of a stored region is not in `copied`, which is by ascending address. A part of it gets a checksum of its own.
fn rest(image: &File, region: &Region, copied: &[Region]) -> Result<Vec<Region>, CopyError> {
    let Content::Stored { offset, checksum: whole } = region.content else { return Ok(Vec::new()) };
    let (start, end) = (region.start, region.start + region.bytes());
    let first = copied.partition_point(|one| one.start + one.bytes() <= start);
    let within: Vec<&Region> = copied[first..].iter().take_while(|one| one.start < end).collect();
    if within.is_empty() {
        return Ok(vec![*region]);
    }
    let mut bytes = vec![0; region.bytes() as usize];
    image.read_exact_at(&mut bytes, offset).map_err(CopyError::Write)?;
    if checksum(&bytes) != whole {
        return Err(CopyError::Write(io::Error::new(
            io::ErrorKind::InvalidData,
            "the pages that it dozes with are damaged",
        )));
    }
    let mut found = Vec::new();
    let mut at = start;
    let ends = within.iter().map(|one| (one.start, one.start + one.bytes())).chain([(end, end)]);
    for (copied, behind) in ends {
        if at < copied {
            let (from, to) = ((at - start) as usize, (copied - start) as usize);
            let content = Content::Stored { offset: offset + from as u64, checksum: checksum(&bytes[from..to]) };
            found.push(Region { start: at, pages: ((copied - at) / PAGE) as u32, content, ..*region });
        }
        at = at.max(behind);
    }
    Ok(found)
}

/// Nothing of it is copied yet; none where it has no pages of its own.
fn begin(area: &Area) -> Option<PartialCopy> {
    let (readable, writable) = (area.protection & READ != 0, area.protection & WRITE != 0);
    let span = Span { range: area.start..area.end, readable, writable, zeros: Zeros::Named };
    is_private(area).then(|| PartialCopy::new(span))
}

/// Pages of its own may be in it.
const fn is_private(area: &Area) -> bool {
    match area.backing {
        Backing::Anonymous { droppable, .. } => !droppable,
        Backing::Huge { .. } => true,
        Backing::File { shared, .. } | Backing::Shared { shared, .. } => !shared,
        Backing::Kernel { .. } | Backing::Aio { .. } => false,
    }
}
