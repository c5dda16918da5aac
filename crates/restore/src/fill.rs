//! Checking the stored pages, and putting them into those processes that have many.
//!
//! A process with few pages reads them by itself, from the page source's descriptor that it was handed, while they are fetched here to
//! compare their checksums. One with many ([`MANY`](torpor_planner::plan::MANY)) waits when its memory is mapped: what is fetched
//! here is then placed, by several threads. So each page is fetched once, and the work is not that of one processor.

use std::path::Path;

use torpor_image::tree::Tree;

use super::RestoreError;
use super::run::Building;
use torpor_descriptors::EachRestored;
use torpor_pages::place::{PlaceError, Placer, Threads};
use torpor_pages::source::{FetchError, PageSource, Stored};

/// Checks every stored page of the processes of a tree whose processes are all there, and fills those that wait for it.
/// Pages of shared memory are checked by whoever makes it. `piece` is told of each batch. Gives the bytes.
pub(crate) fn pages(
    building: &mut Building<'_>,
    path: &Path,
    source: &dyn PageSource,
    piece: Option<EachRestored<'_>>,
) -> Result<u64, RestoreError> {
    let (waiting, missing) = building.mapped()?;
    // Those that read by themselves have the other processors meanwhile.
    let threads = if waiting.is_empty() { Threads::One } else { Threads::Several };
    let failed = |error| match error {
        PlaceError::Fetch(FetchError::Read(error)) => RestoreError::Read(path.to_owned(), error),
        PlaceError::Fetch(FetchError::Damaged { error, .. }) => RestoreError::Format(path.to_owned(), error),
        PlaceError::Write(pid, error) => RestoreError::Set { pid, what: "writing the memory", error },
    };
    let each = || piece.map_or(Ok(()), |piece| Ok(piece()?));
    let bytes = Placer::new(source, stored(building.tree()), missing).run(threads, &failed, &each)?;
    building.filled(&waiting)?;
    Ok(bytes)
}

/// All stored regions. What processes share copy-on-write is there several times.
fn stored(tree: &Tree) -> Vec<Stored> {
    let lives = tree.processes.iter().filter_map(|process| process.alive());
    let regions = lives.flat_map(|life| &life.space.areas).flat_map(|area| &area.pages);
    regions.filter_map(Stored::of).collect()
}
