//! An app whose worker has ended while it was lazy.

use std::fs::File;

use torpor_image::{Region, State};
use torpor_linux::userfault::Userfault;
use torpor_pager::{Change, LedgerError, Space, replay};

use super::contexts::{Contexts, ParkedContexts, may_come_later};
use super::{LazyApp, layout, owner};

/// Why an app that was lazy when its worker ended cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum LazyLost {
    /// Who held its contexts has ended too, so missing pages have read as zeros.
    #[error("it was waking when the daemon and the keeper ended, and missed a part of its memory")]
    Unparked,
    /// What it did to its missing pages is not known.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}

/// Everything that it may miss; `state` is that of its image, if it is the image of a dozing app.
pub(crate) fn taken_over(state: Option<&State>, image: File, parked: ParkedContexts) -> Result<LazyApp, LazyLost> {
    let ParkedContexts { mut records, descriptors, children } = parked;
    let missing: Vec<Option<Vec<Region>>> = records.iter_mut().map(|record| record.missing.take()).collect();
    let contexts = Contexts::from_parked(records, descriptors).ok_or(LazyLost::Unparked)?;
    let mut regions = Vec::new();
    let mut layouts = Vec::new();
    for (context, missing) in contexts.contexts.iter().zip(&missing) {
        let process = state.and_then(|state| state.processes.iter().find(|process| process.pid == context.pid));
        let stored = missing.as_ref().or(process.map(|process| &process.regions));
        let late = stored.into_iter().flatten().filter(|region| may_come_later(context, region));
        layouts.push(layout(late, &mut regions));
    }
    let Contexts { contexts, ledger, .. } = contexts;
    let ledger = ledger.ok_or(LazyLost::Unparked)?;
    let changes = ledger.read()?;
    let forks = changes.iter().filter(|change| matches!(change, Change::Forked { .. })).count();
    // Each fork has added a layout, and a context.
    if forks != children.len() {
        return Err(LazyLost::Unparked);
    }
    let layouts = replay(layouts, &changes)?;
    let of_parents = contexts.into_iter().map(|context| (context.userfault, owner(context.pid)));
    let of_children = children.into_iter().map(|descriptor| (Userfault::from_parked(descriptor), None));
    let all: Vec<_> = of_parents.chain(of_children).collect();
    let spaces = all.into_iter().zip(layouts);
    let spaces =
        spaces.map(|((userfault, owner), layout)| Space { userfault: Some(userfault), layout, owner }).collect();
    Ok(LazyApp::new(image, regions, spaces, ledger))
}
