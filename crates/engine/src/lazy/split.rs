//! What of a dozing app comes first, and what later.

use std::fs::File;
use std::io;
use std::ops::Range;

use torpor_image::{Process, Region, State, lazy_size};
use torpor_linux::registers::Registers;
use torpor_pager::{Change, Owner, Space};
use torpor_pages::context::{Registered, first_of_thread};
use torpor_pages::ranges::{contains, merged, overlaps};
use torpor_pages::scan::{Kind, ProcessMemory, Selection};
use torpor_pages::source::Stored;

use super::contexts::{Contexts, may_come_later};
use super::{LazyApp, layout};

/// How the memory of an app is to be brought back.
pub(crate) struct Split {
    /// What comes first: regions by process, with what else is known of these.
    pub(crate) first: Vec<Process>,
    /// What may come later: for each context, regions by ascending address.
    pub(crate) later: Vec<Vec<Region>>,
}

impl Split {
    /// None where it does not pay. What is stored in the ranges `loading` of the image comes first.
    pub(crate) fn of(state: &State, registered: &[Registered<'_>], loading: &[Range<u64>]) -> io::Result<Option<Self>> {
        let mut later: Vec<Vec<Region>> = vec![Vec::new(); registered.len()];
        let mut first = Vec::with_capacity(state.processes.len());
        let mut bytes = 0;
        for process in &state.processes {
            let Some(n) = registered.iter().position(|one| one.context.pid == process.pid) else {
                first.push(process.clone());
                continue;
            };
            let must = must_be_first(process, &registered[n])?;
            let (lazy, eager): (Vec<Region>, Vec<Region>) = process.regions.iter().partition(|region| {
                let range = region.start..region.start + region.bytes();
                let is_late = |stored: Stored| !contains(loading, stored.offset);
                Stored::of(region).is_some_and(is_late)
                    && registered[n].may_be_lazy(range.start)
                    && !overlaps(&must, &range)
            });
            bytes += lazy.iter().map(Region::bytes).sum::<u64>();
            later[n] = lazy;
            first.push(Process { regions: eager, ..process.clone() });
        }
        Ok((bytes >= lazy_size::least_bytes()).then_some(Self { first, later }))
    }

    /// Whether a range has something that comes later.
    pub(crate) fn is_lazy(&self, n: usize, range: &Range<u64>) -> bool {
        let behind = self.later[n].partition_point(|region| region.start < range.start);
        self.later[n].get(behind).is_some_and(|region| region.start < range.end)
    }

    /// What the pager serves, from `image`. The ledger begins with what comes first, of all that [`taken_over`] would take for missing.
    pub(crate) fn lazy(&self, image: &File, contexts: &Contexts) -> io::Result<LazyApp> {
        let ledger = contexts.ledger.as_ref().ok_or(io::ErrorKind::InvalidInput)?;
        ledger.begin()?;
        let mut regions = Vec::new();
        let mut spaces = Vec::new();
        for (space, (context, later)) in contexts.contexts.iter().zip(&self.later).enumerate() {
            let process = self.first.iter().find(|process| process.pid == context.pid);
            let first = process.map_or(&[][..], |process| &process.regions);
            let placed = first.iter().filter(|region| may_come_later(context, region));
            let placed = merged(placed.map(|region| region.start..region.start + region.bytes()).collect());
            let gone = placed.into_iter().map(|Range { start, end }| Change::Gone { space, start, end });
            ledger.record_all(&gone.collect::<Vec<_>>())?;
            let userfault = Some(context.userfault.duplicate()?);
            let layout = layout(later, &mut regions);
            let owner = process.map(|process| Owner { pid: process.pid, start_ticks: process.start_ticks });
            spaces.push(Space { userfault, layout, owner });
        }
        Ok(LazyApp::new(image.try_clone()?, regions, spaces, ledger.duplicate()?))
    }
}

/// Ranges whose pages must be in place before the process runs, in order.
fn must_be_first(process: &Process, registered: &Registered<'_>) -> io::Result<Vec<Range<u64>>> {
    let mut must = Vec::new();
    for thread in &process.threads {
        must.extend(first_of_thread(&Registers::from_words(thread.registers)));
    }
    let memory = ProcessMemory::open(process.pid)?;
    for range in registered.lazy_ranges() {
        for run in memory.runs(range.clone(), Selection::All)? {
            match run.kind {
                // A page that is placed over a guard ends it.
                Kind::Guard => must.push(range.clone()),
                Kind::Zero | Kind::Swapped | Kind::Contents => must.push(run.range),
            }
        }
    }
    Ok(merged(must))
}
