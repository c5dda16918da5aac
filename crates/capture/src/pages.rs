//! Private pages of the areas of a tree.

use torpor_image::Content;
use torpor_image::tree::{AddressSpace, Area, Backing};

use super::guards;
use torpor_pages::copy::{Copier, CopyError, Span, Zeros};

/// `PROT_READ`, `PROT_WRITE`.
const READ: u32 = 1;
const WRITE: u32 = 2;

/// Copies the private pages of `space`, which is process `pid`'s, and names them in its areas.
pub(super) fn copy(copier: &mut Copier<'_>, pid: i32, space: &mut AddressSpace) -> Result<(), CopyError> {
    let mut copier = copier.process(pid)?;
    for mut area in std::mem::take(&mut space.areas) {
        let mut guards = Vec::new();
        if is_private(&area) {
            let (readable, writable) = (area.protection & READ != 0, area.protection & WRITE != 0);
            let range = area.start..area.end;
            let copied = copier.area(&Span { range, readable, writable, zeros: Zeros::Named })?;
            area.pages.extend(copied.regions);
            if area.backing.is_zeros() {
                area.pages.retain(|region| region.content != Content::Zero);
            }
            guards = copied.guards;
        }
        space.areas.extend(guards::split(area, &guards));
    }
    Ok(())
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
