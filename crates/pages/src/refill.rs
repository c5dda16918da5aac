//! Bringing the pages of a dozing app back into its frozen processes.

use std::io;

use torpor_image::{FormatError, Process};
use torpor_linux::userfault::Userfault;

use super::context::{Context, Registered};
use super::place::{PlaceError, Placement, Placer, Threads, Way};
use super::source::{FetchError, PageSource, Stored};

/// Why memory could not be brought back.
#[derive(Debug, thiserror::Error)]
pub enum RefillError {
    /// The image could not be read.
    #[error("reading the image")]
    Read(#[source] io::Error),
    /// The image is damaged.
    #[error("the pages of process {pid} at {start:#x}")]
    Damaged {
        /// Process.
        pid: i32,
        /// First byte in memory.
        start: u64,
        /// What is wrong.
        #[source]
        error: FormatError,
    },
    /// The process could not be written to.
    #[error("writing the memory of process {0}")]
    Write(i32, #[source] io::Error),
}

/// Brings all stored pages of `processes` back from `source`, by `contexts` where they have one.
///
/// # Errors
/// See [`RefillError`]: it can be done again.
pub fn refill(source: &dyn PageSource, processes: &[Process], contexts: &[Context]) -> Result<(), RefillError> {
    let registered: Vec<Registered<'_>> = contexts.iter().map(Registered::with).collect();
    refill_registered(source, processes, &registered)?;
    registered.into_iter().try_for_each(|one| {
        let pid = one.context.pid;
        one.end().map_err(|error| RefillError::Write(pid, error))
    })
}

/// As [`refill`], by contexts that are registered already and stay so.
///
/// # Errors
/// As there.
pub fn refill_registered(
    source: &dyn PageSource,
    processes: &[Process],
    registered: &[Registered<'_>],
) -> Result<(), RefillError> {
    let regions = || processes.iter().flat_map(|process| process.regions.iter().map(|region| (process.pid, region)));
    let stored = regions().filter_map(|(_, region)| Stored::of(region)).collect();
    let placed = |(pid, region): (i32, &torpor_image::Region)| {
        let Stored { offset, bytes, .. } = Stored::of(region)?;
        let by_context = registered.iter().position(|one| one.context.pid == pid && one.covers(region.start));
        let way = by_context.map_or_else(|| Way::of(region.writable), Way::Placed);
        Some(Placement { pid, address: region.start, bytes, offset, way })
    };
    let contexts: Vec<&Userfault> = registered.iter().map(|one| &one.context.userfault).collect();
    let placer = Placer::new(source, stored, regions().filter_map(placed).collect()).with_contexts(&contexts);
    let wrong = |error| match error {
        PlaceError::Fetch(FetchError::Read(error)) => RefillError::Read(error),
        PlaceError::Fetch(FetchError::Damaged { offset, error }) => {
            let is_it = |region| Stored::of(region).is_some_and(|stored| stored.offset == offset);
            let (pid, start) = regions().find(|(_, region)| is_it(region)).map_or((0, 0), |(pid, at)| (pid, at.start));
            RefillError::Damaged { pid, start, error }
        }
        PlaceError::Write(pid, error) => RefillError::Write(pid, error),
    };
    placer.run(Threads::Several, &wrong, &|| Ok(())).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::Buffer;
    use crate::context::PlacedArea;
    use crate::source::ImageFile;
    use std::os::unix::fs::FileExt;
    use torpor_image::{Content, PAGE, Region, checksum};

    #[test]
    fn pages_are_placed_wherever_the_process_may_write_and_zeros_are_left() {
        // Our own memory: two pages in the image, in another order, and one of zeros that is not touched.
        let mut memory = Buffer::new(3 * PAGE as usize);
        memory.part_mut(0..3 * PAGE as usize).fill(7);
        let address = memory.part(0..1).as_ptr().addr() as u64;
        let image = tempfile::tempfile().unwrap();
        let pages: Vec<u8> = [[1; PAGE as usize], [2; PAGE as usize]].concat();
        image.write_all_at(&pages, PAGE).unwrap();
        let region =
            |page: u64, writable, content| Region { start: address + page * PAGE, pages: 1, writable, content };
        let stored = |n: u64| Content::Stored {
            offset: (1 + n) * PAGE,
            checksum: checksum(&pages[(n * PAGE) as usize..((n + 1) * PAGE) as usize]),
        };
        let regions = vec![region(0, false, stored(1)), region(1, true, Content::Zero), region(2, true, stored(0))];
        let pid = std::process::id() as i32;
        let process = Process { pid, start_ticks: 0, park_address: 0, regions, threads: Vec::new() };
        let source = ImageFile::through_cache(&image);
        refill(&source, std::slice::from_ref(&process), &[]).unwrap();
        let found: Vec<u8> = (0..3).map(|n| memory.part(0..3 * PAGE as usize)[n * PAGE as usize]).collect();
        assert_eq!(found, [2, 7, 1]);

        // The same by a context. What is there already is replaced.
        let mut memory = Buffer::new(3 * PAGE as usize);
        let moved = memory.part(0..1).as_ptr().addr() as u64;
        memory.part_mut(PAGE as usize..3 * PAGE as usize).fill(5);
        let regions = process.regions.iter().map(|one| Region { start: one.start - address + moved, ..*one }).collect();
        let other = Process { regions, ..process.clone() };
        let range = moved..moved + 3 * PAGE;
        let context = Context {
            pid,
            userfault: Userfault::of_this_process().unwrap(),
            areas: vec![PlacedArea { range, may_be_lazy: true }],
        };
        refill(&source, &[other], &[context]).unwrap();
        let found: Vec<u8> = (0..3).map(|n| memory.part(0..3 * PAGE as usize)[n * PAGE as usize]).collect();
        assert_eq!(found, [2, 5, 1]);

        image.write_all_at(b"x", 2 * PAGE).unwrap();
        let error = refill(&source, &[process], &[]).unwrap_err();
        assert!(matches!(error, RefillError::Damaged { start, .. } if start == address), "{error:?}");
    }
}
