//! Copying what can be dropped from a frozen process, and the list of ranges to drop afterwards.

use std::ops::Range;

use torpor_image::{Content, Region};
use torpor_proc::maps::{Area, Flags, Treatment};

use super::context::PlacedArea;
use super::copy::{CopiedArea, Copier, CopyError, Span, Zeros};

/// A process's part of an image, as far as memory goes.
#[derive(Debug, Default)]
pub struct Copied {
    /// What the image holds, by ascending address.
    pub regions: Vec<Region>,
    /// What can be dropped from the process once the image is durable, page-aligned.
    pub drop: Vec<Range<u64>>,
    /// Areas of anonymous memory with many stored pages: what a userfaultfd context is registered with to bring them back.
    pub anonymous: Vec<PlacedArea>,
    /// Private pages that stay: shared copy-on-write with another process, or in swap already.
    pub kept_pages: u64,
}

/// Stored pages of an area from which on registering it pays; that costs as much as placing two to five pages.
const MANY_PAGES: u64 = 16;

/// Copies the memory of frozen process `pid`, which has these areas, by `copier`, whose selection is
/// [`Exclusive`](super::scan::Selection::Exclusive).
///
/// # Errors
/// If an area must not be dropped, or it cannot be copied.
pub fn copy(pid: i32, areas: Vec<Area>, flags: &Flags, copier: &mut Copier<'_>) -> Result<Copied, CopyError> {
    let mut copier = copier.process(pid)?;
    let mut copied = Copied::default();
    let mut fresh = None;
    for area in areas {
        let flags = match flags.treatment(&area) {
            Some(_) => flags,
            None => match &fresh {
                Some(fresh) => fresh,
                None => fresh.insert(Flags::read(pid).map_err(|error| CopyError::Read(pid, error))?),
            },
        };
        let treatment = flags.treatment(&area).unwrap_or(Treatment::Leave);
        let range = area.start..area.end;
        match treatment {
            Treatment::Leave => {}
            Treatment::Discard => copied.drop.push(range),
            Treatment::Save => {
                // Dropped pages of a file come back with what is in the file.
                let anonymous = is_anonymous(&area);
                let zeros = if anonymous { Zeros::Named } else { Zeros::Stored };
                let span = Span { range, readable: area.access.read, writable: area.access.write, zeros };
                let may_be_lazy = flags.may_be_lazy(&area);
                let placed = anonymous.then(|| PlacedArea { range: span.range.clone(), may_be_lazy });
                copied.add(&span.range, placed, copier.area(&span)?);
            }
            Treatment::Refuse(reason) => {
                let Area { start, end, name, .. } = area;
                return Err(CopyError::Refused { pid, start, end, name, reason });
            }
        }
    }
    Ok(copied)
}

/// Its memory comes back as zeros when it is dropped.
fn is_anonymous(area: &Area) -> bool {
    area.name.is_empty() || area.name.starts_with('[')
}

impl Copied {
    fn add(&mut self, area: &Range<u64>, placed: Option<PlacedArea>, found: CopiedArea) {
        let CopiedArea { regions, taken, kept_pages, .. } = found;
        let stored = regions.iter().filter(|region| region.content != Content::Zero);
        if stored.map(|region| u64::from(region.pages)).sum::<u64>() >= MANY_PAGES {
            self.anonymous.extend(placed);
        }
        self.regions.extend(regions);
        self.kept_pages += kept_pages;
        if kept_pages > 0 {
            self.drop.extend(taken);
        } else if !taken.is_empty() {
            // Everything private in it is saved: one call drops the whole area, and clean file pages with it.
            self.drop.push(area.clone());
        }
    }
}
