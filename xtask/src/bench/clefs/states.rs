//! Snapshots of a state into memory, and restores of it with a first message (Alto, figures 2 and 3).
//!
//! A snapshot takes what the last message has changed (`torpor`), or everything (`torpor-full`), into memory. The time of the message is not in
//! it. A restore is from the store, which is in the page cache, and maps what is large (`torpor`), or copies everything from memory to its place
//! (`torpor-full`).

use std::time::Instant;

use torpor_clef::{Note, Store};
use torpor_lua::State;

use super::options::Options;
use super::programs::{EMPTY, PAPER, Program, TEN_MEGABYTES, message, reserved};
use super::{FULL, IMAGE, TORPOR, us};
use crate::bench::samples::Samples;
use crate::error::Error;

/// Messages before those that are measured.
const WARM_UP: usize = 200;
/// Metrics.
const RESTORE: &str = "restore";
const FIRST_MESSAGE: &str = "restore_first_message";

pub(super) fn run(options: &Options, samples: &mut Samples) -> Result<(), Error> {
    for (program, runs) in [(PAPER, 5000), (EMPTY, 5000), (TEN_MEGABYTES, 500)] {
        measure(&program, options.runs(runs, 50), samples)?;
    }
    Ok(())
}

fn measure(program: &Program, runs: usize, samples: &mut Samples) -> Result<(), Error> {
    let windows = reserved(1)?;
    let mut state = program.started(&windows, 0, &[])?;
    for number in 0..WARM_UP {
        message(&mut state, number)?;
        state.changes();
    }
    let (mut changed, mut full, mut pages) = (Vec::new(), Vec::new(), Vec::new());
    for number in 0..runs {
        message(&mut state, number)?;
        let begun = Instant::now();
        let changes = state.changes();
        changed.push(us(begun));
        pages.push(changes.page_count() as f64);
    }
    for _ in 0..runs {
        let begun = Instant::now();
        let image = state.image();
        full.push(us(begun));
        drop(image);
    }
    let images = [state.whole()];
    drop(state);
    let copied = restores(runs, || Ok(State::restore(&windows, &images)?))?;
    let dir = super::disk_directory()?;
    let mut store = Store::open(dir.path())?;
    let key = program.name.as_bytes();
    store.put(key, &Note::default(), &images[0], None)?;
    store.commit()?;
    let lost = || Error::Missing { what: format!("the state of {}", program.name), hint: "it was stored" };
    let stored = restores(runs, || Ok(store.restore(key, &windows)?.ok_or_else(lost)?.state))?;
    for (subject, times) in [(TORPOR, &stored), (FULL, &copied)] {
        samples.add_all((program.name, subject, IMAGE, FIRST_MESSAGE, "us"), &times.answered);
        samples.add_all((program.name, subject, IMAGE, RESTORE, "us"), &times.restored);
    }
    samples.add_all((program.name, TORPOR, IMAGE, "snapshot", "us"), &changed);
    samples.add_all((program.name, FULL, IMAGE, "snapshot", "us"), &full);
    samples.add_all((program.name, TORPOR, IMAGE, "snapshot_pages", "pages"), &pages);
    samples.add_all((program.name, FULL, IMAGE, "snapshot_pages", "pages"), &[images[0].page_count() as f64]);
    Ok(())
}

/// Times until a state is there, and until it has answered a message.
#[derive(Default)]
struct Restores {
    restored: Vec<f64>,
    answered: Vec<f64>,
}

fn restores(runs: usize, mut restore: impl FnMut() -> Result<State, Error>) -> Result<Restores, Error> {
    let mut times = Restores::default();
    for number in 0..runs {
        let begun = Instant::now();
        let mut state = restore()?;
        times.restored.push(us(begun));
        message(&mut state, number)?;
        times.answered.push(us(begun));
    }
    Ok(times)
}
