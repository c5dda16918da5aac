//! Which pages of mapped files the processes of a tree have used: a wake reads them ahead ([`UsedPages`]).
//!
//! A restore maps the files and touches no page of them. So the pages that are in the page tables at the next capture are those that the program has
//! touched since, and the neighbours that the kernel has mapped with them (fault-around).

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;

use torpor_image::PAGE;
use torpor_image::tree::{Backing, MOST_USED_PAGES, Process, UsedPages};
use torpor_pages::ranges::joined;
use torpor_pages::scan::ProcessMemory;

/// Runs with at most so many pages between them are one: reading these costs less than another request to the disk.
const GAP_PAGES: u64 = 31;

/// Those of the living `processes`, up to [`MOST_USED_PAGES`]. Files without a name are passed over.
pub(super) fn find(processes: &[Process]) -> io::Result<Vec<UsedPages>> {
    let mut files: BTreeMap<&[u8], Vec<Range<u64>>> = BTreeMap::new();
    for process in processes {
        let Some(life) = process.alive() else { continue };
        let memory = ProcessMemory::open(process.pid)?;
        for area in &life.space.areas {
            let Backing::File { file, offset, .. } = area.backing else { continue };
            let path = &life.space.files[file as usize];
            if path.gone.is_some() {
                continue;
            }
            let page = |address: u64| (offset + (address - area.start)) / PAGE;
            let found = memory.file_pages(area.start..area.end)?;
            files.entry(&path.path).or_default().extend(found.iter().map(|run| page(run.start)..page(run.end)));
        }
    }
    let mut left = u64::from(MOST_USED_PAGES);
    let used = files.into_iter().map(|(path, runs)| {
        // Numbers of pages beyond 32 bits, in files of more than 16 TiB, are left out.
        let runs = joined(runs, GAP_PAGES).into_iter().filter(|run| u32::try_from(run.end).is_ok());
        let runs = runs.filter_map(|run| {
            let pages = left.min(run.end - run.start);
            left -= pages;
            (pages > 0).then_some((run.start as u32, pages as u32))
        });
        UsedPages { path: path.to_vec(), runs: runs.collect() }
    });
    Ok(used.filter(|file| !file.runs.is_empty()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_that_are_close_are_one() {
        assert_eq!(joined(vec![73..74, 0..4, 2..3, 34..40, 100..101], GAP_PAGES), [0..40, 73..101]);
        let apart = vec![0..1, GAP_PAGES + 2..GAP_PAGES + 3];
        assert_eq!(joined(apart.clone(), GAP_PAGES), apart);
    }
}
