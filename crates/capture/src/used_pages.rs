//! Which pages of mapped files the processes of a tree have used: a wake reads them ahead ([`UsedPages`]).
//!
//! Whoever builds the processes maps their files and touches nothing, so the pages that are mapped at the next capture are those that the program
//! has used since, and their neighbours.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;

use torpor_image::PAGE;
use torpor_image::tree::{Backing, MOST_USED_PAGES, Process, UsedPages};
use torpor_pages::scan::ProcessMemory;

/// Runs with fewer pages in between are one: these are read sooner than another request is made.
const GAP_PAGES: u64 = 32;

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
        let runs = merged(runs).into_iter().filter_map(|run| {
            let pages = left.min(run.end - run.start);
            left -= pages;
            Some((u32::try_from(run.start).ok()?, u32::try_from(pages).ok().filter(|pages| *pages > 0)?))
        });
        UsedPages { path: path.to_vec(), runs: runs.collect() }
    });
    Ok(used.filter(|file| !file.runs.is_empty()).collect())
}

/// Ascending, with gaps of at least [`GAP_PAGES`].
fn merged(mut runs: Vec<Range<u64>>) -> Vec<Range<u64>> {
    runs.sort_unstable_by_key(|run| run.start);
    let mut merged: Vec<Range<u64>> = Vec::new();
    for run in runs {
        match merged.last_mut() {
            Some(last) if run.start < last.end + GAP_PAGES => last.end = last.end.max(run.end),
            _ => merged.push(run),
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_that_are_close_are_one() {
        assert_eq!(merged(vec![73..74, 0..4, 2..3, 34..40, 100..101]), [0..40, 73..101]);
        let apart = vec![0..1, GAP_PAGES + 1..GAP_PAGES + 2];
        assert_eq!(merged(apart.clone()), apart);
    }
}
