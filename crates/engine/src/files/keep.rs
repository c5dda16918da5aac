//! Open files of an app that are kept by their descriptors while it has no processes.
//!
//! All but those that are memory, which is in the image, and those that name processes, which are opened anew. A file
//! without a name is kept where nobody maps it; otherwise what is mapped and what is open would not be the same any more.

use std::collections::HashSet;

use torpor_image::tree::{FileId, FileKind, MemoryId, OpenFile, SharedMemory, SharedMemoryKind};
use torpor_linux::closer::AppFile;

use super::collect::obstacle;
use super::list::List;
use crate::Obstacle;

/// A file of the tree is memory that comes back from the image.
pub(super) fn is_memory(file: &OpenFile, memories: &[SharedMemory], mapped: &HashSet<MemoryId>) -> bool {
    let FileKind::Memory { memory } = file.kind else { return false };
    let on_disk = memories.get(memory as usize).is_some_and(|m| matches!(m.kind, SharedMemoryKind::Deleted { .. }));
    !on_disk || mapped.contains(&memory)
}

/// Files that are not kept.
pub(super) fn lost(files: &[OpenFile], memories: &[SharedMemory], areas: &[MemoryId]) -> HashSet<FileId> {
    let mapped: HashSet<MemoryId> = areas.iter().copied().collect();
    let anew = |file: &OpenFile| matches!(file.kind, FileKind::Process { .. } | FileKind::OfProcess { .. });
    let lost = |file: &OpenFile| anew(file) || is_memory(file, memories, &mapped);
    files.iter().enumerate().filter(|(_, file)| lost(file)).map(|(id, _)| id as FileId).collect()
}

/// Files in flight stay in their socket, which is kept: those that are not kept themselves would be there twice.
pub(super) fn flying(list: &List, flying: &HashSet<FileId>, lost: &HashSet<FileId>) -> Vec<Obstacle> {
    let wrong = flying.intersection(lost).map(|file| list.item(*file));
    wrong
        .map(|item| {
            let what = format!("{} waits in a socket, and would be another one there", item.name());
            obstacle(item, &what, "try again when the program has taken it")
        })
        .collect()
}

/// The descriptors of those that are kept.
pub(super) fn duplicates(list: List, lost: &HashSet<FileId>) -> Vec<(FileId, AppFile)> {
    let all = list.items.into_iter().enumerate().map(|(id, item)| (id as FileId, item.fd));
    all.filter(|(id, _)| !lost.contains(id)).collect()
}
