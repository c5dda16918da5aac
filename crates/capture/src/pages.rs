//! Private pages of the areas of a tree: first those that a wake needs first, then the others.

use std::collections::HashMap;

use torpor_image::tree::{Area, Backing, End, Process};
use torpor_image::{Content, LoadingPart};

use super::guards;
use torpor_pages::absent::Missing;
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
                let (span, copied) = copy.finish();
                let missing = missing.of(process.pid, &span.range, span.writable, &copied.regions)?;
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
