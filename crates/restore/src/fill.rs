//! Checking the stored pages, and putting them into those processes that have many.
//!
//! A process with few pages reads them by itself, from the page source's descriptor that it was handed, while they are fetched here to
//! compare their checksums. One with many ([`least_bytes`](torpor_image::lazy_size::least_bytes)) waits when its memory is mapped: what is fetched
//! here is then placed, by several threads. So each page is fetched once, and the work is not that of one processor. What may come
//! after the programs run is left out ([`crate::lazy`]).

use std::collections::HashSet;
use std::path::Path;

use torpor_image::lazy_size;
use torpor_image::tree::Tree;

use super::RestoreError;
use super::lazy::{Late, Lazy, later, place_zeros, placements};
use super::run::Building;
use torpor_descriptors::EachRestored;
use torpor_pages::context::Registered;
use torpor_pages::place::{PlaceError, Placement, Placer, Threads};
use torpor_pages::source::{FetchError, PageSource, Stored};

/// Checks every stored page of the processes of a tree whose processes are all there, and fills those that wait for it, but for what comes
/// later. Pages of shared memory are checked by whoever makes it. `piece` is told of each batch of this thread. Gives the bytes, and who misses pages.
pub(crate) fn pages(
    building: &mut Building<'_>,
    path: &Path,
    source: &dyn PageSource,
    piece: Option<EachRestored<'_>>,
    lazy: Option<&Lazy<'_>>,
) -> Result<(u64, Vec<Late>), RestoreError> {
    let (tasks, missing) = building.mapped()?;
    // Those that read by themselves have the other processors meanwhile.
    let threads = if tasks.is_empty() { Threads::One } else { Threads::Several };
    let failed = |error| match error {
        PlaceError::Fetch(FetchError::Read(error)) => RestoreError::Read(path.to_owned(), error),
        PlaceError::Fetch(FetchError::Damaged { error, .. }) => RestoreError::Format(path.to_owned(), error),
        PlaceError::Write(pid, error) => RestoreError::Set { pid, what: "writing the memory", error },
    };
    let each = || piece.map_or(Ok(()), |piece| Ok(piece()?));
    let waiting = lazy.map_or_else(Vec::new, |lazy| building.contexts(&tasks, lazy.device));
    let registered: Vec<Registered<'_>> = waiting.iter().map(|one| Registered::with(&one.context)).collect();
    let mut late = Vec::with_capacity(waiting.len());
    for (one, registered) in waiting.iter().zip(&registered) {
        let found = lazy.map_or(Ok(Vec::new()), |lazy| later(one, registered, &missing, lazy));
        let pid = registered.context.pid;
        late.push(found.map_err(|error| RestoreError::Set { pid, what: "examining the memory", error })?);
    }
    let late_bytes: u64 = late.iter().flatten().map(torpor_image::Region::bytes).sum();
    if late_bytes < lazy_size::least_bytes() {
        late.iter_mut().for_each(Vec::clear);
    }
    let starts: Vec<HashSet<u64>> =
        late.iter().map(|regions| regions.iter().map(|region| region.start).collect()).collect();
    let is_late = |pid: i32, start: u64| {
        waiting.iter().position(|one| one.context.pid == pid).is_some_and(|n| starts[n].contains(&start))
    };
    let stored = stored(building, &is_late);
    let placed: Vec<Placement> = placements(&waiting, &registered, missing, &starts);
    let contexts: Vec<_> = registered.iter().map(|registered| &registered.context.userfault).collect();
    let bytes = Placer::new(source, stored, placed).with_contexts(&contexts).run(threads, &failed, &each)?;
    for ((one, registered), late) in waiting.iter().zip(registered).zip(&late) {
        if !late.is_empty() {
            place_zeros(one.life, &registered);
        }
        let pid = registered.context.pid;
        let is_missing = |range: &std::ops::Range<u64>| {
            let first = late.partition_point(|region| region.start < range.start);
            late.get(first).is_some_and(|region| region.start < range.end)
        };
        registered.keep(is_missing).map_err(|error| RestoreError::Set { pid, what: "unregistering memory", error })?;
    }
    building.filled(&tasks)?;
    let late = waiting.into_iter().zip(late).map(|(one, regions)| Late { context: one.context, regions });
    Ok((bytes, late.filter(|late| !late.regions.is_empty()).collect()))
}

/// All stored regions but those that come later. What processes share copy-on-write is there several times.
fn stored(building: &Building<'_>, is_late: &dyn Fn(i32, u64) -> bool) -> Vec<Stored> {
    let tree: &Tree = building.tree();
    let mut stored = Vec::new();
    for process in &tree.processes {
        let Some(life) = process.alive() else { continue };
        let pid = building.id_of(process.pid);
        let regions = life.space.areas.iter().flat_map(|area| &area.pages);
        stored.extend(regions.filter(|region| !is_late(pid, region.start)).filter_map(Stored::of));
    }
    stored
}
