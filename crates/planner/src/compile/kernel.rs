//! The kernel's own areas, `[vdso]` and those beside it: from where it has put them in the seed to where programs have them.
//!
//! The first process moves them to the room before the blob and drops everything else that the seed had. Who is forked has
//! them there, and moves them on from there.

use torpor_image::tree::{Area, Backing, LiveProcess, Process, Tree};

use super::CompileError;
use super::addresses::{HIGHEST, LOWEST, MREMAP_MAYMOVE_FIXED, ScratchArea};
use super::build::{Argument, Steps};
use crate::calls;

pub(super) fn is_kernel(area: &Area) -> bool {
    matches!(area.backing, Backing::Kernel { .. })
}

fn areas(life: &LiveProcess) -> impl Iterator<Item = &Area> {
    life.space.areas.iter().filter(|area| is_kernel(area))
}

/// Their bytes in a process.
pub(super) fn bytes(life: &LiveProcess) -> u64 {
    areas(life).map(|area| area.end - area.start).sum()
}

/// Where they are put meanwhile, all that any process has.
pub(super) struct KernelAreas<'t> {
    areas: Vec<(&'t Area, u64)>,
}

impl<'t> KernelAreas<'t> {
    pub(super) fn of(tree: &'t Tree, room: ScratchArea) -> Self {
        let widest = tree.processes.iter().filter_map(Process::alive).max_by_key(|life| bytes(life));
        let mut place = room.start;
        let placed = widest.into_iter().flat_map(areas).map(|area| {
            let here = place;
            place += area.end - area.start;
            (area, here)
        });
        Self { areas: placed.collect() }
    }

    /// The first process: they go to the room, and all else that is there goes.
    pub(super) fn clear_seed(&self, room: ScratchArea, steps: &mut Steps) {
        let vdso =
            self.areas.iter().find(|(area, _)| matches!(&area.backing, Backing::Kernel { name } if name == "[vdso]"));
        // The kernel places its areas with the same distances every time.
        let base = vdso.map_or(0, |(area, _)| area.start);
        for (area, place) in &self.areas {
            let (bytes, place) = (Argument::Value(area.end - area.start), *place);
            let from = area.start.wrapping_sub(base);
            let flags = MREMAP_MAYMOVE_FIXED.into();
            steps.at_vdso(calls::MREMAP, place, &[from.into(), bytes, bytes, flags, place.into()]);
        }
        // The room itself may hold nothing else: the seed is far from it.
        steps.call(calls::MUNMAP, &[LOWEST.into(), (room.start - LOWEST).into()]);
        steps.call(calls::MUNMAP, &[room.end.into(), (HIGHEST - room.end).into()]);
    }

    /// Every process: they go where it has them.
    pub(super) fn settle(&self, pid: i32, life: &LiveProcess, steps: &mut Steps) -> Result<(), CompileError> {
        let len = |area: &Area| area.end - area.start;
        let mut left: Vec<&(&Area, u64)> = self.areas.iter().collect();
        for area in areas(life) {
            let found = left.iter().position(|(other, _)| other.backing == area.backing && len(other) == len(area));
            let found = found.ok_or(CompileError::Kernel { pid, start: area.start })?;
            let (bytes, (_, place)) = (Argument::Value(len(area)), left.remove(found));
            let flags = MREMAP_MAYMOVE_FIXED.into();
            steps.exact(calls::MREMAP, area.start, &[(*place).into(), bytes, bytes, flags, area.start.into()]);
        }
        for (area, place) in left {
            steps.call(calls::MUNMAP, &[(*place).into(), len(area).into()]);
        }
        Ok(())
    }
}
