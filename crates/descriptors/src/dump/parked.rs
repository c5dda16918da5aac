//! Open files of an app that are parked, by their descriptors, while it has no processes.
//!
//! Which ones: see [`Parking`]. A deleted file is parked only if nobody maps it; otherwise what is mapped and what is open would
//! not be the same file any more.

use std::collections::HashSet;

use torpor_image::tree::{FileId, FileKind, MemoryId, OpenFile, SharedMemory, SharedMemoryKind};
use torpor_linux::closer::AppFile;

use crate::list::List;
use crate::registry::{Parking, needs};
use torpor_process::blocker::Blocker;

/// Files that are not parked.
pub(crate) fn lost(files: &[OpenFile], memories: &[SharedMemory], areas: &[MemoryId]) -> HashSet<FileId> {
    let mapped: HashSet<MemoryId> = areas.iter().copied().collect();
    let lost = |file: &OpenFile| match needs(&file.kind).parking {
        Parking::Parked => false,
        Parking::UnlessMemory => is_memory(&file.kind, memories, &mapped),
        Parking::Reopened => true,
    };
    files.iter().enumerate().filter(|(_, file)| lost(file)).map(|(id, _)| id as FileId).collect()
}

/// It is memory that comes back from the image.
fn is_memory(kind: &FileKind, memories: &[SharedMemory], mapped: &HashSet<MemoryId>) -> bool {
    let FileKind::Memory { memory } = kind else { return false };
    let on_disk = memories.get(*memory as usize).is_some_and(|m| matches!(m.kind, SharedMemoryKind::Deleted { .. }));
    !on_disk || mapped.contains(memory)
}

/// Files in flight stay in their socket, which is kept: those that are not kept themselves would be there twice.
pub(crate) fn flying(list: &List, flying: &HashSet<FileId>, lost: &HashSet<FileId>) -> Vec<Blocker> {
    let wrong = flying.intersection(lost).map(|file| list.item(*file));
    wrong
        .map(|item| {
            let what = format!("{} waits in a socket, and would be another one there", item.name());
            item.obstacle(&what, "try again when the program has taken it")
        })
        .collect()
}

/// The descriptors of those that are kept.
pub(crate) fn duplicates(list: List, lost: &HashSet<FileId>) -> Vec<(FileId, AppFile)> {
    let all = list.items.into_iter().enumerate().map(|(id, item)| (id as FileId, item.fd));
    all.filter(|(id, _)| !lost.contains(id)).collect()
}
