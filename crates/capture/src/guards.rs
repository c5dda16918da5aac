//! Guard pages within areas (`MADV_GUARD_INSTALL as i32`): parts of an area that may not be touched, without being areas of their
//! own for the kernel. In an image they are: with that advice, and without pages.

use std::ops::Range;

use torpor_image::tree::{Area, Backing};
use torpor_linux::uapi::memory::MADV_GUARD_INSTALL;

/// The area in parts: those in `guards`, which ascend, and those between them.
pub(super) fn split(area: Area, guards: &[Range<u64>]) -> Vec<Area> {
    if guards.is_empty() {
        return vec![area];
    }
    let mut parts = Vec::with_capacity(guards.len() * 2 + 1);
    let mut start = area.start;
    for guard in guards {
        if start < guard.start {
            parts.push(part(&area, start..guard.start));
        }
        let mut guarded = part(&area, guard.clone());
        guarded.pages.clear();
        guarded.advice.madvise.push(MADV_GUARD_INSTALL as i32);
        parts.push(guarded);
        start = guard.end;
    }
    if start < area.end {
        parts.push(part(&area, start..area.end));
    }
    parts
}

fn part(area: &Area, range: Range<u64>) -> Area {
    let mut part = area.clone();
    part.pages.retain(|region| range.contains(&region.start));
    match &mut part.backing {
        Backing::File { offset, .. } | Backing::Shared { offset, .. } => *offset += range.start - area.start,
        Backing::Anonymous { .. } | Backing::Kernel { .. } | Backing::Aio { .. } | Backing::Huge { .. } => {}
    }
    part.start = range.start;
    part.end = range.end;
    part
}

#[cfg(test)]
mod tests {
    use super::*;
    use torpor_image::tree::Advice;
    use torpor_image::{Content, Region};

    #[test]
    fn an_area_is_parted_at_its_guards() {
        let page = |start| Region { start, pages: 1, writable: true, content: Content::Zero };
        let area = Area {
            start: 0x1000,
            end: 0x9000,
            protection: 3,
            backing: Backing::File { file: 0, offset: 0x2000, shared: false, may_write: false },
            advice: Advice { madvise: vec![16], ..Advice::default() },
            key: 0,
            pages: vec![page(0x1000), page(0x6000)],
        };
        assert_eq!(split(area.clone(), &[]), std::slice::from_ref(&area));
        let parts = split(area, &[0x1000..0x2000, 0x4000..0x5000]);
        let shape: Vec<_> = parts.iter().map(|part| (part.start, part.end, part.pages.len())).collect();
        assert_eq!(shape, [(0x1000, 0x2000, 0), (0x2000, 0x4000, 0), (0x4000, 0x5000, 0), (0x5000, 0x9000, 1)]);
        assert_eq!(parts[0].advice.madvise, [16, 102]);
        assert_eq!(parts[3].advice.madvise, [16]);
        assert!(matches!(parts[3].backing, Backing::File { offset: 0x6000, .. }));
    }
}
